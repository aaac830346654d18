"""Runs of all domains in one process or in several that gloo joins: what tests of many processes compare."""

from __future__ import annotations

import json
import os
import sys
import weakref
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from models import text_model

from sepnorm.distributed import part
from sepnorm.domains import open_domain
from sepnorm.errors import OthersDoneError
from sepnorm.training.batching import Steps

STEPS = 20
SMALL = {"max_steps": STEPS, "epochs": 50, "batch_size": 16, "checkpoints": 0, "threads": 1}
TINY = {"width": 16, "depth": 2, "heads": 2, "feed_forward": 16, "attention_dropout": 0, "activation_dropout": 0}
IMAGES = {"width": 16, "depth": 2, "heads": 2, "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
SPREAD = 0.2  # of the weights of texts: with the usual 0.02 all [CLS] are one, and so is any loss
ACCUMULATED = {"sites": "final", "batch_size": 8, "accumulation": 2, "statistics": "step"}


def jobs(folder: Path) -> dict[str, tuple[str, dict]]:
    """Domain and settings by name; data and models are in the folder, and nothing is dropped out."""
    for kind in (torch.float64, torch.float32):
        target = folder / str(kind).removeprefix("torch.")
        text_model(target, initializer_range=SPREAD)
        model = transformers.BertModel.from_pretrained(target)
        model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
        model.to(kind).save_pretrained(target)
    words = ["the cat", "a dog", "number 3", "the mat", "b c d", "cat and dog", "on the mat", "e"]
    lines = [f"{words[i % 8]} sat {'a b ' * (i % 5)}{i % 10} {i // 10}" for i in range(64)]
    (folder / "lines.txt").write_text("\n".join(lines))
    rings = [f"{a}1{'C' * n}{a}1{'O' * k}" for n in range(2, 9) for a in "CN" for k in range(6)]
    rows = [f"{ring},{len(ring)}" if i % 7 else f"{ring}," for i, ring in enumerate(rings)]
    (folder / "rings.csv").write_text("\n".join(["smiles,y", *rows]))
    text = {"data": str(folder / "lines.txt"), "head": "none", "length": 12, "learning_rate": 1e-2}
    molecules = TINY | {"data": str(folder / "rings.csv"), "learning_rate": 2e-4}
    cut = {"smallest_crop": 0.5, "flip": True, "uniformity_weight": 0.1, "uniformity_on": "both"}
    found: dict[str, tuple[str, dict]] = {}
    for norm, kind in product(("bn+ln", "bn+bn"), ("float64", "float32")):
        every = SMALL | {"norm": norm, "sites": "all"}
        found[f"images {norm} {kind}"] = ("images", every | IMAGES | cut)
        found[f"accumulated {norm} {kind}"] = ("images", every | IMAGES | ACCUMULATED)
        found[f"text {norm} {kind}"] = ("text", every | text | {"model": str(folder / kind)})
        found[f"property {norm} {kind}"] = ("molecules", every | molecules)
        found[f"masked {norm} {kind}"] = (
            "molecules",
            every | molecules | {"task": "pretrain", "contrastive_weight": 0.5},
        )
    return found


def train(domain: str, settings: dict, folder: Path) -> dict:
    """Losses and weights; from the last checkpoint in the folder, if there is one."""
    known = open_domain(domain)
    config = known.presets["demo"].changed(settings)
    recipe = known.recipe(config)
    start = recipe.train if domain == "molecules" else recipe.pretrain
    model, trained = start(config, folder)
    return {"weights": model.state_dict(), "losses": trained.losses, "resumed_from": trained.resumed_from}


def worker(rank: int, world: int, work: dict[str, tuple[str, dict]], folder: str) -> None:
    """All runs in one group of processes: gloo now and then hangs where groups are made and left in quick succession.

    torchrun, if it started this, says where they meet; otherwise it is in the folder.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from sepnorm.training import trainer

    torch.set_num_threads(1)
    if world > 1:
        place = "env://" if "MASTER_PORT" in os.environ else f"file://{folder}/meeting"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
        trainer.part = dist.barrier
    make = Steps.__getitem__

    def cast(steps: Steps, number: int) -> dict:
        kind = torch.get_default_dtype()
        batch = make(steps, number).items()
        return {
            key: value.to(kind) if torch.is_tensor(value) and value.is_floating_point() else value
            for key, value in batch
        }

    Steps.__getitem__ = cast  # type: ignore[method-assign]
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    os.environ |= {key: str(value) for key, value in names.items() if world > 1 and key not in os.environ}
    found = {}
    for name, (domain, settings) in work.items():
        torch.set_default_dtype(torch.float64 if "float64" in name else torch.float32)
        try:
            found[name] = train(domain, settings, Path(folder) / f"{world}" / name)
        except OthersDoneError:
            assert rank > 0
        for state in (AcceleratorState, PartialState, GradientState):  # the next run begins anew
            state._reset_state()
        os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by a run that is sharded
    part()  # Python's end aborts a process whose group still has something to do
    torch.save(found, f"{folder}/{world}-{rank}.pt")


def dropping(rank: int, world: int, work: dict[str, tuple[str, dict]], folder: str) -> None:
    """``worker`` on molecules, which also saves the weights at the first step and all masks of dropout, cut to 64 entries."""
    from sepnorm.domains.molecules import attention
    from sepnorm.domains.molecules.model import MoleculeModel

    draw, masks, weights = attention.keep_mask, [], {}

    def keep_mask(like: torch.Tensor, dropout: float) -> torch.Tensor:
        masks.append(draw(like, dropout))
        return masks[-1]

    def begin(module: torch.nn.Module, given: tuple) -> None:
        if isinstance(module, MoleculeModel) and not weights:
            weights.update({name: value.clone() for name, value in module.state_dict().items()})

    attention.keep_mask = keep_mask
    torch.nn.modules.module.register_module_forward_pre_hook(begin)
    worker(rank, world, work, folder)
    torch.save({"weights": weights, "masks": [mask.flatten()[:64] for mask in masks]}, f"{folder}/masks-{rank}.pt")


def streaming(rank: int, world: int, work: dict[str, tuple[str, dict]], folder: str) -> None:
    """``worker`` on streams, which also saves the batches of this process by their numbers."""
    from sepnorm.training.batching import StreamedSteps

    make, batches = StreamedSteps.__getitem__, {}

    def keep(steps: StreamedSteps, number: int) -> dict:
        batches[number] = make(steps, number)
        return batches[number]

    StreamedSteps.__getitem__ = keep  # type: ignore[method-assign]
    worker(rank, world, work, folder)
    torch.save(batches, f"{folder}/batches-{rank}.pt")


def releasing(rank: int, world: int, work: dict[str, tuple[str, dict]], folder: str) -> None:
    """``worker`` on sharded runs, which also saves what is left of a trained copy as the whole model is moved to its device."""
    from sepnorm.training.sharding import Twin

    release = Twin.release

    def watched(twin: Twin, trainer: Any) -> None:
        held = {"model": twin.trained, "optimizer": trainer.optimizer.optimizer}
        held |= {"weight": next(twin.trained.parameters())}
        left = {name: weakref.ref(each) for name, each in held.items()}
        held.clear()
        release(twin, trainer)
        Path(f"{folder}/left-{rank}.json").write_text(json.dumps([name for name in left if left[name]() is not None]))

    Twin.release = watched  # type: ignore[method-assign]
    worker(rank, world, work, folder)


if __name__ == "__main__":  # by torchrun, with a folder that holds what is to be done
    chosen = Path(sys.argv[1])
    worker(
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        json.loads((chosen / "work.json").read_text()),
        str(chosen),
    )
