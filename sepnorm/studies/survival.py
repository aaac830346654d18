"""Scores of a pretrained sentence encoder right after conversion, by the initialisation of its new norms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sepnorm.domains.text.config import PRESETS
from sepnorm.domains.text.model import SimCSE
from sepnorm.domains.text.recipe import TextRecipe
from sepnorm.errors import SepNormWarning
from sepnorm.experiment.intervals import interval
from sepnorm.studies.drawn import Drawn
from sepnorm.surgery.conversion import convert
from sepnorm.training.configs import parse_arm

ARMS = ("bn+ln@final", "bn+ln@all", "bn+bn@final", "bn+bn@all")
COUNTS = (16, 64, 256, 1024)  # sentences for calibration
_DRAWS = 3  # repetitions with other sentences
_BATCH = 64


def survival(given: Mapping[str, Any]) -> Drawn:
    """Spearman's correlation by [CLS] without training: new norms uninitialised, with the old weights, and calibrated.

    ``given`` changes the demo preset of text, such as its model or test sets.
    """
    recipe = TextRecipe(PRESETS["demo"].changed(given))
    head = ["ours, [CLS] STS", "as new", "old weights", *(f"matched, {count} sentences" for count in COUNTS)]
    rows = [["unchanged", *[_score(recipe, "ln", None)] * 2, *[""] * len(COUNTS)]]
    for arm in ARMS:
        cells = [_score(recipe, arm, None, new=True), _score(recipe, arm, None)]
        for count in COUNTS:
            found = interval([float(_score(recipe, arm, _some(recipe, count, draw))) for draw in range(_DRAWS)])
            cells.append(str(found))
        rows.append([arm, *cells])
    note = (
        "No training. As new: weights 1, biases and means 0, variances 1. Old weights: those of the LayerNorm, copied. "
        f"Matched: mean and 95 % interval over {_DRAWS} draws of sentences; statistics and affine are such that the new norm "
        "gives on average what the old one gave."
    )
    return Drawn([(head, rows)], note=note)


def _some(recipe: TextRecipe, count: int, seed: int) -> list[dict[str, Any]]:
    rows = torch.randperm(len(recipe.tokens), generator=torch.Generator().manual_seed(seed))[:count]
    return [batch for _, batch in recipe.tokens.batches(rows, _BATCH)]


def _score(recipe: TextRecipe, arm: str, calibrate: list[dict[str, Any]] | None, new: bool = False) -> str:
    config = PRESETS["demo"].changed({"head": "none"})
    encoder, _ = recipe.start.fresh(config)
    if arm != "ln":
        choice = parse_arm(arm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SepNormWarning)  # that the model breaks is what we measure
            convert(encoder, choice["norm"], sites=choice["sites"], calibrate=calibrate)
        for module in encoder.modules():
            if new and isinstance(module, nn.BatchNorm1d):
                module.reset_parameters()
    rows = recipe.vectors(SimCSE(encoder, config, None), recipe.test_tokens, ["cls"])
    return f"{recipe.scores(rows, 'sts')['cls_sts_average']:.3f}"
