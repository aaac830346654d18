"""``save`` and ``load``: weights as safetensors, the conversion as JSON, the model by its own library.

A folder holds ``sepnorm.json`` (what is where), ``sepnorm.safetensors`` (weights and statistics), and what the library
needs to build the model, such as ``config.json`` and the tokeniser. The weights do not have the library's usual file
name, because its own loader would drop unknown tensors with hardly a message. Loading runs no code from a folder: see
``sepnorm.surgery.opening``.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, SepNormWarning, one_line, printable
from sepnorm.files import write_text, write_whole, writing
from sepnorm.layer import TokenNorm
from sepnorm.surgery.architectures import build_architecture, library_of, write_architecture
from sepnorm.surgery.config_trace import write_trace
from sepnorm.surgery.opening.models import fetched, names_separate_norms, open_model
from sepnorm.surgery.opening.settings import named, read_named, regular
from sepnorm.surgery.replacement import GUARD
from sepnorm.surgery.site_records import ORIGINAL, describe_site, rebuild, vet_sites
from sepnorm.surgery.weights import require_values, require_whole

FORMAT = 1
DESCRIPTION, WEIGHTS = "sepnorm.json", "sepnorm.safetensors"
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def save(model: nn.Module, folder: str | Path) -> Path:
    """Writes a model with its separate norms and their statistics to a folder.

    Args:
        model: a converted model, or any model with ``SepNorm`` layers.
        folder: where to write. Made if it does not exist.

    Returns:
        The folder. Read it with ``load(folder)`` for models of transformers, sentence-transformers and timm, and with
        ``load(folder, model)`` for others.

    Raises:
        SepNormError: if the model has no separate norms, is sharded, has no values yet, or the folder cannot be
            written.
    """
    require_module(model)
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, TokenNorm)}
    if not layers:
        raise SepNormError(
            f"{type(model).__name__} has no separate norms: save it by its own library, or convert it first."
        )
    require_whole(model)
    require_values(model)
    folder = made(path_of(folder))
    st = safetensors()
    if any(getattr(module, "saved_apart", False) for module in model.modules()):
        warnings.warn(
            "the special vectors of this model are not in the folder: sepnorm.tuning.save writes them, and sepnorm.tuning.load "
            "puts them into the model that sepnorm.load gives.",
            SepNormWarning,
            stacklevel=2,
        )
    tensors, aliases = _tensors(model, layers)
    with writing(folder):
        description = {
            "format": FORMAT,
            "library": library_of(model),
            "class": type(model).__name__,
            "build": write_architecture(model, folder),
            "sites": [describe_site(path, layer) for path, layer in layers.items()],
            "aliases": aliases,
        }
        write_whole(folder / WEIGHTS, lambda path: st.save_file(tensors, path, metadata={"format": "pt"}))
    write_text(folder / DESCRIPTION, json.dumps(description, indent=1))
    return folder


def load(folder: str | Path, model: nn.Module | None = None) -> Any:
    """Loads a converted model, in evaluation mode, as an instance of its own library's class.

    Args:
        folder: a folder of ``save``; a folder that transformers or sentence-transformers wrote for a converted model,
            such as a checkpoint of the Trainer; or the name of either on the hub.
        model: an unconverted model of the same architecture. Needed if no library can build it; changed in place. By
            default the library builds the model.

    Returns:
        The model.

    Raises:
        SepNormError: if the folder does not exist, is incomplete or damaged, or does not fit ``model``.

    >>> import tempfile
    >>> from sepnorm import SepNorm
    >>> folder = save(torch.nn.Sequential(SepNorm(8)), tempfile.mkdtemp())
    >>> load(folder, torch.nn.Sequential(SepNorm(8))).training
    False
    """
    folder = _present(path_of(folder))
    if model is not None:
        require_module(model)
        require_values(model)
    if regular(folder / DESCRIPTION) is None and model is None and names_separate_norms(folder):
        return _opened(folder).eval()
    description = _read_description(folder)
    weights = regular(folder / WEIGHTS)
    if weights is None:
        raise SepNormError(f"{folder} has no {WEIGHTS}: it is incomplete, copy or save it again.")
    if model is None:
        model = build_architecture(folder, description, weights)
    tensors = read_tensors(weights)
    try:
        rebuild(model, description["sites"], tensors)
        _fill(model, tensors, description["aliases"])
        write_trace(model)
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise SepNormError(f"{folder / DESCRIPTION} is damaged: {type(error).__name__}: {one_line(error)}.") from error
    return model.eval()


def _opened(folder: Path) -> nn.Module:
    """The model of a folder that its own library wrote."""
    try:
        model: nn.Module = open_model(str(folder), whole=True).model
    except SepNormError:
        raise
    except Exception as error:  # damaged settings can make a library raise anything
        what = f"{type(error).__name__}: {one_line(error)}"
        raise SepNormError(f"the model in {folder} cannot be built ({what}): copy or save it again.") from error
    return model


def _present(folder: Path) -> Path:
    """The folder if it exists, else the downloaded copy of a model on the hub."""
    if folder.is_dir():
        return folder
    if folder.exists():
        raise SepNormError(f"{folder} is a file: give the folder that sepnorm.save wrote.")
    if not _HUB_NAME.fullmatch(folder.as_posix()):
        raise SepNormError(f"{folder} does not exist: give the folder that sepnorm.save wrote.")
    try:
        return fetched(folder.as_posix())
    except Exception as error:  # no network, no such model: the hub client has an error class for each
        raise SepNormError(
            f"{folder} does not exist, and cannot be fetched from the hub ({one_line(error)}): give the folder that sepnorm.save "
            "wrote."
        ) from error


def made(folder: Path) -> Path:
    """Makes the folder if it does not exist, and returns it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SepNormError(
            f"{printable(str(folder))} cannot be made ({one_line(error)}): name another folder."
        ) from error
    return folder


def path_of(folder: Any) -> Path:
    """The user's argument as a path."""
    try:
        return Path(folder)
    except TypeError:
        raise SepNormError(f"folder is a path, found a {type(folder).__name__}.") from None


# ---- writing ------------------------------------------------------------------------------------------------------


def _tensors(model: nn.Module, layers: dict[str, TokenNorm]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, by key; and aliases, further keys of the same tensors."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    left_out = _left_out(model)
    for key, tensor in model.state_dict().items():
        if key in left_out:
            continue
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and identity in seen:
            aliases[key] = seen[identity]
        else:
            seen[identity] = key
            tensors[key] = tensor.detach().contiguous().clone()
    for path, layer in layers.items():
        origin = None if layer.origin is None else layer.origin.module
        if origin is not None and origin is not layer._places()[1]:
            for key, tensor in origin.state_dict().items():
                tensors[f"{ORIGINAL}{path}.{key}"] = tensor.detach().contiguous().clone()
    return tensors, aliases


def _left_out(model: nn.Module) -> set[str]:
    """Names of tensors that are not saved: guards, which hold nothing, and tensors that other functions save."""
    found = {
        f"{path}.{GUARD}" if path else GUARD for path, layer in model.named_modules() if isinstance(layer, TokenNorm)
    }
    for path, module in model.named_modules():
        if getattr(module, "saved_apart", False):
            found |= {f"{path}.{key}" for key in module.state_dict()}
    return found


# ---- reading ------------------------------------------------------------------------------------------------------


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    description = read_named(path)
    if description is None:
        raise SepNormError(
            f"{folder} was not written by sepnorm.save: it has no {DESCRIPTION}, and no config that names separate norms."
        )
    wanted = {"format", "library", "class", "build", "sites", "aliases"}
    if not wanted <= description.keys():
        raise SepNormError(f"{path} is not a description by sepnorm.save: it lacks {', '.join(sorted(wanted))}.")
    if description["format"] != FORMAT:
        raise SepNormError(
            f"{path} has the format {description['format']!r}, and this version reads {FORMAT}: upgrade sepnorm to read it."
        )
    named(description["build"], path)
    description["sites"] = vet_sites(description["sites"], path)
    return description


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises if it is damaged."""
    st = safetensors()
    try:
        tensors: dict[str, Tensor] = st.load_file(path)
    except Exception as error:  # safetensors has an error class for each kind of damage
        raise SepNormError(f"{path} is no complete safetensors file: {error}. Copy or save it again.") from error
    return tensors


def _fill(model: nn.Module, tensors: dict[str, Tensor], aliases: dict[str, str]) -> None:
    """Copies the saved tensors into the model, after checking every key and shape."""
    left_out = _left_out(model)
    target = {key: value for key, value in model.state_dict(keep_vars=True).items() if key not in left_out}
    saved = {key: value for key, value in tensors.items() if not key.startswith(ORIGINAL)}
    saved |= {alias: tensors[key] for alias, key in aliases.items()}
    missing, foreign = sorted(target.keys() - saved.keys()), sorted(saved.keys() - target.keys())
    shapes = [key for key in saved.keys() & target.keys() if _form(saved[key]) != _form(target[key])]
    if missing or foreign or shapes:
        parts = [
            f"{len(keys)} {what} (such as {keys[0]})"
            for keys, what in ((missing, "missing"), (foreign, "unknown"), (shapes, "of another shape or kind"))
            if keys
        ]
        raise SepNormError(
            f"the saved model is of another architecture than this {type(model).__name__}: of its tensors "
            f"{', '.join(parts)}. Pass a model of the architecture that was saved."
        )
    with torch.no_grad():
        for key, tensor in saved.items():
            if target[key].dtype != tensor.dtype:
                target[key].data = target[key].data.to(tensor.dtype)
            target[key].copy_(tensor)
    for layer in model.modules():
        if isinstance(layer, TokenNorm) and layer.origin is not None:
            if (weight := next(layer.parameters(), None)) is not None and hasattr(layer, GUARD):
                setattr(layer, GUARD, getattr(layer, GUARD).to(weight.dtype))
            layer.origin.remember(layer)


def _form(tensor: Tensor) -> tuple[torch.Size, bool]:
    """What must agree for a tensor to be copied into another; precision may differ."""
    return tensor.shape, tensor.is_floating_point()


def safetensors() -> Any:
    """Imports safetensors for torch, or raises with how to install it."""
    try:
        from safetensors import torch as library
    except ImportError as error:
        raise SepNormError("save and load need the package safetensors: pip install safetensors.") from error
    return library
