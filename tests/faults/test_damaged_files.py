"""Every kind of file that is read, cut short or with one byte changed: refused in one sentence, or harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from damaging import cut, flip
from small_runs import outcome
from whole_files import EXAMPLES, RUN_IMAGES, Example, copy
from workshop import Case, run_case

Damage = Callable[[bytes, Random], bytes]
READ = [example for example in EXAMPLES if example.kind != "checkpoints" and example.words[0] != "export"]
DAMAGES = [cut, flip]
CHECKPOINT = "complete model.safetensors optimizer.pt scheduler.pt rng_state.pth trainer_state.json".split()


def said(example) -> str:
    return f"{example.kind}, {example.words[0]}, {example.damaged[0]}"


@pytest.fixture
def damaged(run, monkeypatch, whole, tmp_path):
    """What becomes of the command that reads an example, one of whose files is damaged."""

    def call(words: list[str]) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path / "case")
        code, _, err = run(*words)
        monkeypatch.chdir(tmp_path)
        return code, err

    def try_out(example: Example, how: Damage, seed: int) -> None:
        rng = Random(f"{said(example)} {how.__name__} {seed}")
        files = sorted({path for pattern in example.damaged for path in whole.glob(pattern) if path.is_file()})
        chosen = rng.choice(files)
        contents = {str(chosen.relative_to(whole)): how(chosen.read_bytes(), rng)}
        case = Case(0, example.kind, list(example.words), example.needed, contents, example.out)
        result = run_case(case, whole, tmp_path / "case", call)
        assert result.verdict in ("refused", "accepted"), (list(contents), result)

    return try_out


@pytest.mark.parametrize("example", READ, ids=said)
def test_a_damaged_file_is_refused_or_harmless(damaged, example):
    damaged(example, (cut, flip)[READ.index(example) % 2], 0)


@pytest.mark.faults
@pytest.mark.parametrize("example", READ, ids=said)
def test_a_file_may_be_damaged_anywhere(damaged, example):
    for seed in range(3):
        for how in (cut, flip):
            damaged(example, how, seed + 1)


def damaged_checkpoint(whole: Path, tmp_path: Path, name: str, how, seed: int) -> None:
    copy(whole, ["pictures", "begun"], tmp_path)
    path = tmp_path / "begun" / "checkpoints" / "checkpoint-3" / name
    path.write_bytes(how(path.read_bytes(), Random(f"{name} {seed}")))


def goes_on_as_if_nothing_had_been(run, whole) -> None:
    code, _, err = run(*RUN_IMAGES, "--out", "begun", "--resume")
    assert code == 0, err
    assert outcome(Path("begun")) == outcome(whole / "run")


@pytest.mark.parametrize("how", DAMAGES, ids=["cut short", "one byte changed"])
def test_a_damaged_checkpoint_is_passed_over(run, whole, tmp_path, how):
    damaged_checkpoint(whole, tmp_path, "model.safetensors", how, 1)
    goes_on_as_if_nothing_had_been(run, whole)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", DAMAGES, ids=["cut short", "one byte changed"])
@pytest.mark.parametrize("name", CHECKPOINT)
def test_any_file_of_a_checkpoint_may_be_damaged(run, whole, tmp_path, name, how, seed):
    damaged_checkpoint(whole, tmp_path, name, how, seed)
    goes_on_as_if_nothing_had_been(run, whole)
