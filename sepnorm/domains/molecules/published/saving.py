"""Writes published checkpoints as folders of transformers 4."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.domains.molecules.published.config import PublishedConfig
from sepnorm.domains.molecules.published.files import SETTINGS
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.files import make_folder, write_text, write_whole
from sepnorm.layer import TokenNorm

_CLASSES = {True: "GraphormerForGraphClassification", False: "GraphormerModel"}  # with and without a head


def write_published(model: Any, folder: Path) -> None:
    """See ``Graphormer.save_published``."""
    from safetensors.torch import save_file

    if any(isinstance(module, TokenNorm) for module in model.modules()):
        raise SepNormError(
            "a model with separate norms cannot be saved as published: sepnorm.revert puts the old norms back, and sepnorm.save "
            "keeps the new ones."
        )
    make_folder(folder)
    headed = model.classifier is not None
    state = {name if headed else name.removeprefix("encoder."): value for name, value in model.state_dict().items()}
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    settings = model.config.to_dict()
    if model.config.collator != "transformers":
        _tell_collators()
    if model.config.collator == "microsoft":
        state, settings = _shifted(state, settings)
    kept = {name: settings[name] for name in sorted(SETTINGS) if name in settings}
    kept |= {
        "model_type": PublishedConfig.model_type,
        "architectures": [_CLASSES[headed]],
        "num_classes": model.config.num_classes or 1,
        "torch_dtype": str(model.dtype).removeprefix("torch."),
    }
    write_text(folder / "config.json", json.dumps(kept, indent=2, sort_keys=True))
    write_whole(folder / "model.safetensors", lambda place: save_file(state, place, metadata={"format": "pt"}))


def _shifted(state: dict[str, Tensor], settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and settings with an empty row before the atoms, to which the collator of transformers adds one more."""
    name = next(name for name in state if name.endswith("graph_node_feature.atom_encoder.weight"))
    rows = state[name]
    shifted = torch.cat([rows[:1], torch.zeros_like(rows[:1]), rows[1:]])
    return state | {name: shifted}, dict(settings) | {"collator": "shifted", "num_atoms": len(shifted) - 1}


def _tell_collators() -> None:
    warnings.warn(
        "the collator of transformers hides atoms from each other that are 19 or more bonds apart or not connected, and "
        "Microsoft's, of this model, does not: outputs for molecules with such atoms differ there.",
        SepNormWarning,
        stacklevel=4,
    )
