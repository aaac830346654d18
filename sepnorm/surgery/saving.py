"""``save`` and ``load``: weights as safetensors, the surgery as a small JSON, the model by its own library's class.

A folder holds ``sepnorm.json`` (what is where), ``sepnorm.safetensors`` (weights and statistics) and what the library needs
to build the model, such as ``config.json`` and the tokeniser. The weights do not have the library's usual file name: its
own loader would drop what it does not know and say little about it. Nothing in a folder is run: see ``sepnorm.surgery.opening``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, one_line, printable
from sepnorm.files import write_whole, writing
from sepnorm.layer import Origin, ScaleShift, SepNorm, SharedNorm, TokenNorm
from sepnorm.layer.kinds import KINDS, build_norm, kind_of
from sepnorm.surgery.architectures import build_architecture, library_of, write_architecture
from sepnorm.surgery.opening.settings import named, read_named, regular
from sepnorm.surgery.replacement import replace_modules, settle, spec_of
from sepnorm.surgery.sites import norm_kind, norm_width
from sepnorm.surgery.weights import require_values

FORMAT = 1
DESCRIPTION, WEIGHTS = "sepnorm.json", "sepnorm.safetensors"
_ORIGINAL = "sepnorm.original."


def save(model: nn.Module, folder: str | Path) -> Path:
    """Writes a model with its separate norms, their statistics included, to ``folder``.

    Models of transformers, sentence-transformers and timm come back by ``load(folder)``; others by ``load(folder, model)``.
    """
    require_module(model)
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, TokenNorm)}
    if not layers:
        raise SepNormError(
            f"{type(model).__name__} has no separate norms: save it by its own library, or convert it first."
        )
    require_values(model)
    folder = _place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SepNormError(
            f"{printable(str(folder))} cannot be made ({one_line(error)}): name another folder."
        ) from error
    st = _safetensors()
    tensors, aliases = _tensors(model, layers)
    with writing(folder):
        description = {
            "format": FORMAT,
            "library": library_of(model),
            "class": type(model).__name__,
            "build": write_architecture(model, folder),
            "sites": [_describe(path, layer) for path, layer in layers.items()],
            "aliases": aliases,
        }
        write_whole(folder / WEIGHTS, lambda path: st.save_file(tensors, path, metadata={"format": "pt"}))
    write_whole(folder / DESCRIPTION, lambda path: Path(path).write_text(json.dumps(description, indent=1)))
    return folder


def load(folder: str | Path, model: nn.Module | None = None) -> Any:
    """The model that ``save`` wrote, in evaluation mode, as an object of its own library's class.

    Args:
        folder: what was given to ``save``.
        model: an unconverted model of the same architecture, needed where no library can build it. Changed in place.
    """
    folder = _place(folder)
    if model is not None:
        require_module(model)
        require_values(model)
    if not folder.exists():
        raise SepNormError(f"{folder} does not exist: give the folder that sepnorm.save wrote.")
    if not folder.is_dir():
        raise SepNormError(f"{folder} is a file: give the folder that sepnorm.save wrote.")
    description = _read_description(folder)
    weights = regular(folder / WEIGHTS)
    if weights is None:
        raise SepNormError(f"{folder} has no {WEIGHTS}: it is incomplete, copy or save it again.")
    if model is None:
        model = build_architecture(folder, description, weights)
    tensors = _read_tensors(weights)
    try:
        _operate(model, description["sites"], tensors)
        _fill(model, tensors, description["aliases"])
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise SepNormError(f"{folder / DESCRIPTION} is damaged: {type(error).__name__}: {one_line(error)}.") from error
    return model.eval()


def _place(folder: Any) -> Path:
    try:
        return Path(folder)
    except TypeError:
        raise SepNormError(f"folder is a path, found a {type(folder).__name__}.") from None


# ---- writing ------------------------------------------------------------------------------------------------------------


def _tensors(model: nn.Module, layers: dict[str, TokenNorm]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, by key, and which further keys mean the same tensor."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for key, tensor in model.state_dict().items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and identity in seen:
            aliases[key] = seen[identity]
        else:
            seen[identity] = key
            tensors[key] = tensor.detach().contiguous().clone()
    for path, layer in layers.items():
        if layer.origin is not None and layer.origin.module is not layer._places()[1]:
            for key, tensor in layer.origin.module.state_dict().items():
                tensors[f"{_ORIGINAL}{path}.{key}"] = tensor.detach().contiguous().clone()
    return tensors, aliases


def _describe(path: str, layer: TokenNorm) -> dict[str, Any]:
    origin = layer.origin
    return {
        "path": path,
        "norm": spec_of(layer),
        "dim": layer.dim,
        "num_cls": layer.num_cls,
        "token_dim": layer.token_dim,
        "sync": layer.sync,
        "original": None if origin is None else origin.kind,
        "trained": origin is not None and origin.trained(layer),
        "children": {name: _describe_child(child, origin) for name, child in layer.named_children()},
    }


def _describe_child(child: Any, origin: Origin | None) -> dict[str, Any]:
    if isinstance(child, ScaleShift):
        return {"kind": "scale"}
    if origin is not None and norm_kind(child) == origin.kind:
        return {"kind": "original"}
    kind = kind_of(child)
    if kind is None:
        return {"kind": "custom"}
    options = {name: getattr(child, name, None) for name in ("eps", "momentum")}
    return {"kind": kind, **options, "affine": child.weight is not None}


# ---- reading ------------------------------------------------------------------------------------------------------------


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    description = read_named(path)
    if description is None:
        raise SepNormError(f"{folder} was not written by sepnorm.save: it has no {DESCRIPTION}.")
    wanted = {"format", "library", "class", "build", "sites", "aliases"}
    if not wanted <= description.keys():
        raise SepNormError(f"{path} is not a description by sepnorm.save: it lacks {', '.join(sorted(wanted))}.")
    if description["format"] != FORMAT:
        raise SepNormError(
            f"{path} has the format {description['format']!r}, and this version reads {FORMAT}: upgrade sepnorm to read it."
        )
    named(description["build"], path)
    return description


def _read_tensors(path: Path) -> dict[str, Tensor]:
    st = _safetensors()
    try:
        tensors: dict[str, Tensor] = st.load_file(path)
    except Exception as error:  # safetensors has an error type of its own for each kind of damage
        raise SepNormError(f"{path} is no whole safetensors file: {error}. Copy or save it again.") from error
    return tensors


def _operate(model: nn.Module, sites: list[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
    """Repeats the surgery: the recorded layers in the place of the model's own norms."""
    modules = dict(model.named_modules())
    new: dict[int, nn.Module] = {}
    for site in sites:
        path, kind, old = site["path"], site["original"], modules.get(site["path"])
        expected = "a SepNorm layer" if kind is None else f"a {kind} norm"
        right = isinstance(old, TokenNorm) if kind is None else old is not None and norm_kind(old) == kind
        width = old.dim if isinstance(old, TokenNorm) else norm_width(old) if old is not None and right else None
        if not right or width != site["dim"]:
            found = "nothing" if old is None else f"a {type(old).__name__}" + (f" of {width} channels" if width else "")
            raise SepNormError(
                f"the saved model is of another architecture: {path} should be {expected} of {site['dim']} channels, found "
                f"{found} in {type(model).__name__}."
            )
        if kind is not None and old is not None:
            new[id(old)] = _layer(site, old, tensors)
    replace_modules(model, new)
    settle(model)


def _layer(site: dict[str, Any], old: nn.Module, tensors: dict[str, Tensor]) -> TokenNorm:
    children = {name: _child(child, site["dim"], old) for name, child in site["children"].items()}
    options = {"token_dim": site["token_dim"], "sync": site["sync"]}
    layer: TokenNorm
    if "norm" in children:
        layer = SharedNorm(site["dim"], lambda dim: children["norm"], **options)
        tokens = children["norm"]
    else:
        cls, tokens = children["cls_norm"], children["token_norm"]
        layer = SepNorm(site["dim"], lambda dim: cls, lambda dim: tokens, num_cls=site["num_cls"], **options)
    original = tokens
    if site["children"].get("token_norm", site["children"].get("norm", {})).get("kind") != "original":
        original = copy.deepcopy(old)
        prefix = f"{_ORIGINAL}{site['path']}."
        for key, target in original.state_dict().items():
            target.copy_(tensors[prefix + key])
    layer.origin = Origin(original, site["original"], trained_before=bool(site["trained"]))
    return layer


def _child(child: dict[str, Any], dim: int, old: nn.Module) -> nn.Module:
    kind = child["kind"]
    if kind == "original":
        return copy.deepcopy(old)
    if kind == "scale":
        return ScaleShift(torch.ones(dim), torch.zeros(dim))
    if kind not in KINDS:
        raise SepNormError(
            f"a norm of kind {kind!r} cannot be built from a file: build the model with its layers and pass it as "
            "load(folder, model)."
        )
    return build_norm(kind, dim, eps=child["eps"], momentum=child["momentum"], affine=child["affine"])


def _fill(model: nn.Module, tensors: dict[str, Tensor], aliases: dict[str, str]) -> None:
    """Copies the saved tensors into the model, after every key and shape has been checked."""
    target = model.state_dict(keep_vars=True)
    saved = {key: value for key, value in tensors.items() if not key.startswith(_ORIGINAL)}
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
            layer.origin.remember(layer)


def _form(tensor: Tensor) -> tuple[torch.Size, bool]:
    """What must be alike for a tensor to be copied into another; precisions may differ."""
    return tensor.shape, tensor.is_floating_point()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise SepNormError("save and load need the package safetensors: pip install safetensors.") from error
    return safetensors.torch
