"""Two gloo processes with a part of the batch each compute what one process with the whole batch does."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parent))
from reference import randomise

from sepnorm import SepNorm, SepNormError
from sepnorm.distributed import check_joined, cores, join
from sepnorm.training.checkpoints import common_checkpoint, complete

CASES = {
    "even": (4, 4),
    "uneven": (5, 2),
    "one each": (1, 1),
    "one rank empty": (4, 0),
    "a single sample in all": (1, 0),
}


def run(layer, x, mask, grad) -> dict[str, torch.Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x, mask)
    grads = torch.autograd.grad(out, [x, *layer.parameters()], grad)
    found = {"out": out.detach(), "x.grad": grads[0]}
    found |= {f"{name}.grad": g for (name, _), g in zip(layer.named_parameters(), grads[1:], strict=True)}
    return found | {name: b.clone() for name, b in layer.named_buffers()}


def worker(rank: int, port: int, jobs: list, results: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = []
    for shared, sizes, x, mask, grad, plain in jobs:
        layer = copy.deepcopy(shared)  # what spawn hands over lies in memory that both processes write to
        start = sum(sizes[:rank])
        part = slice(start, start + sizes[rank])
        if plain:  # a hook on a child sends the layer down the plain path
            next(layer.children()).register_forward_hook(lambda *args: None)
        found.append(run(layer, x[part], None if mask is None else mask[part], grad[part]))
    torch.save(found, f"{results}/{rank}.pt")
    dist.destroy_process_group()


def jobs() -> list:
    made = []
    for spec in ("bn+ln", "bn+bn", "ln+bn", "bn", "bn+mix", "mix"):
        for sizes in CASES.values():
            for plain in (False, True):
                for padded in (False, True):
                    batch = sum(sizes)
                    x, grad = (
                        torch.randn(batch, 6, 8, dtype=torch.float64) + 3,
                        torch.randn(batch, 6, 8, dtype=torch.float64),
                    )
                    mask = torch.rand(batch, 6) < 0.3 if padded else None
                    if mask is not None:
                        mask[:, 0] = False
                    made.append(
                        (randomise(SepNorm.from_spec(spec, 8, dtype=torch.float64)), sizes, x, mask, grad, plain)
                    )
    for sizes in ((4, 4), (5, 2), (4, 0), (0, 4)):  # a mixture that begins, by draws from the rows of all
        x, grad = (torch.randn(sum(sizes), 6, 8, dtype=torch.float64) for _ in range(2))
        made.append((SepNorm.from_spec("ln+mix", 8, dtype=torch.float64), sizes, 3 * x, None, grad, True))
    return made


@pytest.mark.filterwarnings("ignore:a training batch with a single sample")
@pytest.mark.filterwarnings("ignore:a mixture of 3 components is fitted to")
def test_two_processes_equal_one(tmp_path, free_port):
    torch.manual_seed(0)
    todo = jobs()
    mp.spawn(worker, args=(free_port, todo, str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for number, (layer, sizes, x, mask, grad, plain) in enumerate(todo):
        whole = run(layer, x, mask, grad)
        label = f"{layer}, {sizes}, plain={plain}, padded={mask is not None}"
        for key, expected in whole.items():
            first, second = ranks[0][number][key], ranks[1][number][key]
            if key in ("out", "x.grad"):
                found = torch.cat([first, second])
            elif key.endswith(".grad"):
                found = first + second
            elif "num_batches_tracked" in key:
                continue
            else:
                found = first
                torch.testing.assert_close(first, second, msg=f"{label}: {key} differs between ranks")
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=f"{label}: {key}")


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("RANK", "environment variable RANK expected, but not set"),
        ("MASTER_ADDR", "environment variable MASTER_ADDR expected, but not set"),
        (None, "1/2 clients joined"),  # the other never comes
    ],
)
def test_processes_that_do_not_meet_are_told_of_in_a_sentence(monkeypatch, free_port, missing, why):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.delenv(missing)
    with pytest.raises(SepNormError, match=rf"^the 2 processes of WORLD_SIZE did not meet: .*{why}.*torchrun") as said:
        join(1)
    assert "\n" not in str(said.value)
    with pytest.raises(SepNormError, match="WORLD_SIZE=2 in the environment, but the processes are not joined"):
        check_joined()


def resuming(rank: int, port: int, folders: list[Path]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    assert common_checkpoint(folders[0], cpu) == folders[0] / "checkpoint-3"
    with pytest.raises(SepNormError, match=r"different checkpoints in .*: choose an --out folder that all nodes see"):
        common_checkpoint(folders[rank], cpu)
    dist.destroy_process_group()


def test_processes_that_do_not_see_the_same_checkpoint_do_not_resume(tmp_path, free_port):
    folders = [tmp_path / "first", tmp_path / "second"]
    (folders[0] / "checkpoint-3").mkdir(parents=True)
    (folders[0] / "checkpoint-3" / "weights").write_text("")
    complete(folders[0] / "checkpoint-3", {"losses": [], "seconds": 0, "pending": []})
    mp.spawn(resuming, (free_port, folders), nprocs=2)


def test_processes_of_a_node_and_runs_beside_each_other_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))  # of a machine that may have more
    assert cores() == 8
    monkeypatch.setattr("sepnorm.distributed._SHARED_BY", [3])
    assert cores() == 2
    for processes, each in ((4, 2), (16, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert cores() == each
