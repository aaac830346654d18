"""One of two processes that train a converted model in shards; prints what was seen, one JSON object a line.

torchrun --nproc_per_node 2 tests/integrations/fsdp_process.py FOLDER
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import bert, sentences

import sepnorm

# Larger weights than usual, so that [CLS] differ: sums of squares lose digits where their variance is a millionth of their mean.
WITHOUT_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)


def say(**seen: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(seen), flush=True)


def batches() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(5)
    return [sentences(8, padded=False) for _ in range(10)]


def train(model: Any, mine: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()
    for batch in batches():
        part = {key: value[mine] for key, value in batch.items()}
        model(**part).last_hidden_state[:, :3].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**batches()[0]).last_hidden_state


def converted() -> Any:
    torch.manual_seed(0)
    model = bert(**WITHOUT_DROPOUT).double()
    sepnorm.convert(model, "bn+ln", sites="all", calibrate=[sentences(), sentences()])
    return model


def sharded(model: Any, **options: Any) -> Any:
    for layer in model.encoder.layer:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def refusal(act: Any) -> str:
    try:
        act()
    except sepnorm.SepNormError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    mine = slice(4 * rank, 4 * rank + 4)
    alone = converted()
    for layer in alone.modules():
        if isinstance(layer, sepnorm.SepNorm):
            layer.sync = False
    train(alone, slice(None))

    model = sharded(converted())
    train(model, mine)
    say(what="FSDP2", distance=float((outputs(model) - outputs(alone)).abs().max()))
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        whole = converted()
        whole.load_state_dict(state)
        whole.save_pretrained(folder)
        torch.save(outputs(whole), folder / "expected.pt")
        say(what="whole state", distance=float((outputs(whole) - outputs(alone)).abs().max()))
    dist.barrier()
    actions = {
        "convert": lambda: sepnorm.convert(sharded(bert())),
        "freeze": lambda: sepnorm.freeze(model),
        "revert": lambda: sepnorm.revert(model),
        "save": lambda: sepnorm.save(model, folder / "sharded"),
    }
    for name, act in actions.items():
        say(what=name, refusal=refusal(act))
    for one in (model, alone):
        sepnorm.calibrate(one, batches()[:3])
    say(what="calibrate", distance=float((outputs(model) - outputs(alone)).abs().max()))

    one = converted().float()
    low = sharded(copy.deepcopy(one), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    for layer in one.modules():
        if isinstance(layer, sepnorm.SepNorm):
            layer.sync = False
    batch = batches()[0]
    part = {key: value[mine] for key, value in batch.items()}
    seen = low.train()(**part).last_hidden_state - one.train()(**batch).last_hidden_state[mine]
    kinds = {str(value.dtype) for name, value in low.named_buffers() if "running" in name}
    say(what="bfloat16", distance=float(seen.abs().mean()), kinds=sorted(kinds))

    holder = nn.ModuleDict({"text": nn.parallel.DistributedDataParallel(bert())})
    say(what="DDP inside", refusal=refusal(lambda: sepnorm.convert(holder)))
    one = converted()
    older = FullyShardedDataParallel(copy.deepcopy(one), device_id=torch.device("cpu"), use_orig_params=True)
    train(older, mine)
    again = converted()
    for layer in again.modules():
        if isinstance(layer, sepnorm.SepNorm):
            layer.sync = False
    train(again, slice(None))
    say(what="FSDP1", distance=float((outputs(older) - outputs(again)).abs().max()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
