"""timm's ViT, DeiT, EVA and CaiT: which norms are converted, and that training, saving and loading work.

timm comes from a folder of its own, in a process of its own (``timm_folder.py`` says why). The process runs once and
reports everything; the tests below only judge its report.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sepnorm

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("SEPNORM_TIMM") or HERE.parents[2] / ".timm").absolute()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (FOLDER / "timm").is_dir(),
        reason=f"timm is tested from a folder of its own, and {FOLDER.name} has none: see the Makefile, or set SEPNORM_TIMM",
    ),
]

BESIDE = "sees [CLS] beside other tokens"
DEGENERATE = "degenerate: [CLS] is the same for every sample here"
BEFORE = "comes before [CLS] joins the tokens"
CLS_ALONE = "sees [CLS] alone, without other tokens"
POOLED = "after pooling: sees one vector a sample"

BLOCKS = {
    "blocks.0.norm1": DEGENERATE,
    "blocks.0.norm2": BESIDE,
    "blocks.1.norm1": BESIDE,
    "blocks.1.norm2": BESIDE,
}
CAIT = {
    "blocks.0.norm1": BEFORE,
    "blocks.0.norm2": BEFORE,
    "blocks.1.norm1": BEFORE,
    "blocks.1.norm2": BEFORE,
    "blocks_token_only.0.norm1": DEGENERATE,
    "blocks_token_only.0.norm2": CLS_ALONE,
    "blocks_token_only.1.norm1": BESIDE,
    "blocks_token_only.1.norm2": CLS_ALONE,
    "norm": BESIDE,
}
EXPECTED = {
    "vit": ("VisionTransformer", BLOCKS | {"norm": BESIDE}),
    "deit": ("VisionTransformerDistilled", BLOCKS | {"norm": BESIDE}),
    "eva": ("Eva", BLOCKS | {"fc_norm": POOLED}),
    "cait": ("Cait", CAIT),
    "vit class": ("VisionTransformer", BLOCKS | {"norm": BESIDE}),
    "deit class": ("VisionTransformerDistilled", BLOCKS | {"norm": BESIDE}),
    "eva class": ("Eva", BLOCKS | {"norm": BESIDE}),
    "cait class": ("Cait", CAIT),
}

Seen = dict[tuple[str, str], dict[str, Any]]
each = pytest.mark.parametrize("case", list(EXPECTED))


@pytest.fixture(scope="module")
def seen() -> Seen:
    """What the one process observed, by case and by what it looked at."""
    environment = os.environ | {"PYTHONPATH": str(Path(sepnorm.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / "timm_folder.py"), str(FOLDER)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"case"')]
    return {(line.pop("case"), line.pop("look")): line for line in lines}


def of(seen: Seen, case: str, look: str) -> dict[str, Any]:
    found = seen[case, look]
    assert "error" not in found, found["error"]
    return found


@each
def test_sites(seen: Seen, case: str) -> None:
    found = of(seen, case, "sites")
    name, reasons = EXPECTED[case]
    assert found["class"] == name
    assert found["reasons"] == reasons
    expected = sorted(path for path, reason in reasons.items() if reason == BESIDE)
    assert sorted(found["converted"]) == sorted(found["present"]) == expected


@each
def test_training_step(seen: Seen, case: str) -> None:
    found = of(seen, case, "step")
    assert math.isfinite(found["loss"])
    assert not found["without gradient"]
    assert not found["not finite"]
    assert not found["statistics at rest"]
    assert found["weights moved"]


@each
def test_new_norms_are_called_in_eval(seen: Seen, case: str) -> None:
    found = of(seen, case, "calls")
    expected = [path for path, reason in EXPECTED[case][1].items() if reason == BESIDE]
    assert sorted(found["sites"]) == sorted(expected)
    assert found["calls"] == dict.fromkeys(expected, 1)


@each
def test_ln_ln_changes_no_bit_and_neither_does_revert(seen: Seen, case: str) -> None:
    found = of(seen, case, "identity")
    assert found["sites"] == sum(reason == BESIDE for reason in EXPECTED[case][1].values())
    assert found["ln+ln equal"]
    assert found["reverted equal"]
    assert found["keys equal"]


@each
def test_revert_undoes_what_changed_outputs(seen: Seen, case: str) -> None:
    found = of(seen, case, "revert")
    assert found["changed"]
    assert found["reverted equal"]


@each
def test_saved_and_loaded_into_a_fresh_model(seen: Seen, case: str) -> None:
    found = of(seen, case, "saved")
    assert found == {"different before": True, "same object": True, "training": False, "equal": True}


@pytest.mark.parametrize(
    ("name", "kinds", "head"),
    [
        ("ViT", 1, ["head"]),
        ("ViT, registers", 2, ["head"]),
        ("DeiT, distilled", 1, ["head", "head_dist"]),
        ("EVA", 1, ["head"]),
    ],
)
def test_special_vectors(seen: Seen, name: str, kinds: int, head: list[str]) -> None:
    found = of(seen, f"tuned {name}", "tuned")
    wanted = {"equal": True, "moved": True, "removed equal": True}
    assert found == {"parameters": 2 * kinds * 32, "head": head} | wanted


@pytest.mark.parametrize("case", ["vit", "deit", "eva", "cait"])
def test_loaded_by_name_alone(seen: Seen, case: str) -> None:
    assert of(seen, f"whole {case}", "alone") == {"outcome": "equal", "class": EXPECTED[case][0]}


@pytest.mark.parametrize("option", ["depth", "heads", "pool"])
def test_loading_by_name_alone_never_gives_another_model(seen: Seen, option: str) -> None:
    """A name does not tell the options a model was built with: it comes back as it was, or not at all."""
    found = of(seen, f"other {option}", "alone")
    assert found["outcome"] in ("equal", "refused")


def test_a_folder_as_timm_writes_it_is_diagnosed_on_images(seen):
    assert of(seen, "hub vit", "diagnosis") == {
        "count": 12,
        "dim": 32,
        "sites": 5,
        "degenerate": ["blocks.0.norm1"],
        "labels": ["even", "odd"],
    }


def test_padded_patches_stay_out_of_statistics(seen):
    assert of(seen, "naflex", "padding") == {"in one piece": 0.0, "by name": 0.0}
