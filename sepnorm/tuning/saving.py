"""``save`` and ``load`` for what was tuned, without the rest of the model: safetensors and a small JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, printable
from sepnorm.files import write_whole, writing
from sepnorm.layer import SepNorm
from sepnorm.surgery.opening.settings import read_named, regular
from sepnorm.surgery.saving import made, path_of, read_tensors, safetensors
from sepnorm.tuning.layers import find_layers
from sepnorm.tuning.reports import TuningReport
from sepnorm.tuning.special_tokens import require_name
from sepnorm.tuning.tuning import require_special, special_of, tune_special

FORMAT = 1
DESCRIPTION, WEIGHTS = "special.json", "special.safetensors"
_VECTORS = "vectors"


def save(model: nn.Module, folder: str | Path, name: str | None = None) -> Path:
    """Saves one set of vectors, or the [CLS] norms of a converted model if there are no vectors.

    The head and the rest of the model are not saved.

    Args:
        model: a model after ``tune_special``.
        folder: where to write ``special.json`` and ``special.safetensors``. Made if it does not exist.
        name: name of the set. By default the set in use.

    Returns:
        The folder.

    Raises:
        SepNormError: if there is nothing to save, several sets are in use and ``name`` is not given, or the folder
            cannot be written.
    """
    require_module(model)
    folder = path_of(folder)
    special = special_of(model)
    if special is not None:
        name = special.in_use if name is None else name  # type: ignore[assignment]
        if not isinstance(name, str):
            raise SepNormError(f"one set is saved at a time, and in use is {name}: say which by name=.")
        tensors: dict[str, Tensor] = {_VECTORS: special.vectors(name)}
        tokens = {kind.name: kind.token for kind in special.kinds}
        description = {"train": "vectors", "name": name, "tokens": tokens, "dropout": special.dropout}
    else:
        tensors = _cls_norms(model)
        description = {"train": "cls_norm"}
    files = safetensors()
    made(folder)
    kept = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    with writing(folder):
        write_whole(folder / WEIGHTS, lambda path: files.save_file(kept, path, metadata={"format": "pt"}))
        text = json.dumps({"format": FORMAT, "class": type(model).__name__} | description, indent=1)
        write_whole(folder / DESCRIPTION, lambda path: Path(path).write_text(text))
    return folder


def load(model: nn.Module, folder: str | Path, name: str | None = None, *, example: Any = None) -> TuningReport | None:
    """Loads what ``save`` wrote into a model of the same architecture, and uses it.

    Args:
        model: a model with or without vectors. For [CLS] norms, a model converted like the saved one.
        folder: a folder of ``save``.
        name: name of the set in this model. By default the name under which it was saved.
        example: a batch of at least two different samples, for models of unknown families, as for ``tune_special``.

    Returns:
        The report of ``tune_special``; None for [CLS] norms.

    Raises:
        SepNormError: if the folder is incomplete or damaged, or was tuned for another architecture.
    """
    require_module(model)
    folder = path_of(folder)
    description, tensors = _read(folder)
    if description["train"] == "cls_norm":
        target = _cls_norms(model)
        _require_same(target, tensors, folder, model)
        with torch.no_grad():
            for key, tensor in tensors.items():
                target[key].copy_(tensor)
        return None
    name = require_name(description["name"] if name is None else name)
    layers = find_layers(model, example)
    shape = (len(layers.calls), len(description["tokens"]), layers.width)
    _require_same({_VECTORS: torch.empty(shape, device="meta")}, tensors, folder, model)
    report = tune_special(model, description["tokens"], name=name, dropout=description["dropout"], example=example)
    with torch.no_grad():
        require_special(model).vectors(name).copy_(tensors[_VECTORS])
    return report


def _cls_norms(model: nn.Module) -> dict[str, Tensor]:
    found = {
        f"{path}.cls_norm.{key}": tensor
        for path, layer in model.named_modules()
        if isinstance(layer, SepNorm)
        for key, tensor in layer.cls_norm.state_dict(keep_vars=True).items()
    }
    if not found:
        raise SepNormError(
            f"{type(model).__name__} has no special vectors and no [CLS] norms: sepnorm.tune_special, or convert it first."
        )
    return found


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = folder / DESCRIPTION
    found, weights = read_named(path), regular(folder / WEIGHTS)
    if found is None or weights is None:
        raise SepNormError(
            f"{printable(str(folder))} was not written by sepnorm.tuning.save: it lacks {DESCRIPTION} or {WEIGHTS}."
        )
    if found.get("format") != FORMAT:
        raise SepNormError(f"{path} has the format {found.get('format')!r}, and this version reads {FORMAT}.")
    tokens = found.get("tokens")
    whole = found.get("train") == "cls_norm" or (
        found.get("train") == "vectors"
        and isinstance(found.get("name"), str)
        and isinstance(found.get("dropout"), int | float)
        and isinstance(tokens, dict)
        and all(token is None or type(token) is int for token in tokens.values())
    )
    if not whole:
        raise SepNormError(f"{path} is damaged: it does not say what was tuned. Copy or save it again.")
    return found, read_tensors(weights)


def _require_same(target: dict[str, Tensor], saved: dict[str, Tensor], folder: Path, model: nn.Module) -> None:
    wrong = sorted(
        key
        for key in target.keys() | saved.keys()
        if key not in target or key not in saved or target[key].shape != saved[key].shape
    )
    if wrong:
        found = tuple(saved[wrong[0]].shape) if wrong[0] in saved else "nothing"
        wanted = tuple(target[wrong[0]].shape) if wrong[0] in target else "nothing"
        raise SepNormError(
            f"{printable(str(folder))} was tuned for another model than this {type(model).__name__}: {wrong[0]} is {found} there "
            f"and {wanted} here."
        )
