"""Records of converted norms, one per site: written, validated, and turned into layers again.

Records are in ``sepnorm.json`` and in the config of a model. They may come from untrusted folders, so ``vet_sites``
accepts only what ``describe_site`` can write.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer import Origin, ScaleShift, SepNorm, SharedNorm, TokenNorm
from sepnorm.layer.kinds import KINDS, build_norm, kind_of
from sepnorm.layer.mixture import MOST_COMPONENTS
from sepnorm.layer.mixture_scales import blank_scales
from sepnorm.layer.statistics import MOST_CHANNELS
from sepnorm.surgery.opening.settings import shown
from sepnorm.surgery.replacement import guard, replace_modules, settle, spec_of
from sepnorm.surgery.sites import norm_kind, norm_width

#: Prefix for tensors of norms that a conversion replaced.
ORIGINAL = "sepnorm.original."
_PLACES = ({"norm"}, {"cls_norm", "token_norm"})
_LONGEST_PATH = 1000


def describe_site(path: str, layer: TokenNorm) -> dict[str, Any]:
    """The record of one layer, without its tensors."""
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
        return {"kind": "scale"} | ({"components": child.components} if child.components else {})
    if origin is not None and norm_kind(child) == origin.kind:
        return {"kind": "original"}
    kind = kind_of(child)
    if kind is None:
        return {"kind": "custom"}
    options = {name: getattr(child, name, None) for name in ("eps", "momentum", *KINDS[kind].options)}
    return {"kind": kind, **options, "affine": child.weight is not None}


# ---- checks -------------------------------------------------------------------------------------------------------


def vet_sites(found: Any, where: Path | str) -> list[dict[str, Any]]:
    """Validates the records of a file: every field has a type and range that a layer can have."""
    if not isinstance(found, list):
        raise _damaged(where, "sites", found)
    sites = [_vet_site(site, where) for site in found]
    paths = [site["path"] for site in sites]
    if len(set(paths)) < len(paths):
        raise SepNormError(f"{where} is damaged: it names a site twice.")
    return sites


def _vet_site(found: Any, where: Path | str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise _damaged(where, "a site", found)
    children = found.get("children")
    fits = {
        "path": isinstance(found.get("path"), str) and len(found["path"]) <= _LONGEST_PATH,
        "dim": _is_whole(found.get("dim"), 1, MOST_CHANNELS),
        "num_cls": _is_whole(found.get("num_cls"), 0, MOST_CHANNELS),
        "token_dim": _is_whole(found.get("token_dim"), 0, 1),
        "sync": isinstance(found.get("sync"), bool),
        "original": found.get("original") is None or _is_kind(found["original"]),
        "children": isinstance(children, Mapping) and set(children) in _PLACES,
    }
    for key, right in fits.items():
        if not right:
            raise _damaged(where, key, found.get(key))
    assert isinstance(children, Mapping)
    kept = {key: found[key] for key in fits} | {"trained": bool(found.get("trained", True))}
    kept["children"] = {name: _vet_child(child, where) for name, child in children.items()}
    return kept


def _vet_child(found: Any, where: Path | str) -> dict[str, Any]:
    kind = found.get("kind") if isinstance(found, Mapping) else None
    if kind in ("original", "custom"):
        return {"kind": kind}
    if kind == "scale":
        several = "components" in found
        return {"kind": kind} | (
            {"components": _vet_whole(found, "components", MOST_COMPONENTS, where)} if several else {}
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise _damaged(where, "the kind of a norm", kind)
    kept = {"kind": kind, **{key: found.get(key) for key in ("eps", "momentum", "affine")}}
    for key, most in (("eps", 1e6), ("momentum", 1)):
        if kept[key] is not None and not _is_number(kept[key], most):
            raise _damaged(where, key, kept[key])
    if not isinstance(kept["affine"], bool):
        raise _damaged(where, "affine", kept["affine"])
    return kept | {name: _vet_whole(found, name, most, where) for name, most in KINDS[kind].options.items()}


def _vet_whole(found: Any, name: str, most: int, where: Path | str) -> int:
    value = found.get(name)
    if not _is_whole(value, 1, most):
        raise _damaged(where, name, value)
    return int(value)


def _is_kind(value: Any) -> bool:
    return isinstance(value, str) and value in KINDS


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def _damaged(where: Path | str, key: str, value: Any) -> SepNormError:
    return SepNormError(f"{where} is damaged: {key} is {shown(value)}, which no conversion writes.")


# ---- building -----------------------------------------------------------------------------------------------------


def rebuild(model: nn.Module, sites: list[dict[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    """Repeats a conversion: puts the recorded layers in place of the model's norms. Weights are loaded afterwards.

    ``tensors`` holds those of the replaced norms, if they were saved.
    """
    modules = dict(model.named_modules())
    new: dict[int, nn.Module] = {}
    for site in sites:
        path, kind, old = site["path"], site["original"], modules.get(site["path"])
        expected = "a SepNorm layer" if kind is None else f"a {kind} norm"
        right = isinstance(old, TokenNorm) if kind is None else old is not None and _is_norm(old, kind)
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


def _is_norm(module: nn.Module, kind: str) -> bool:
    """Whether a module is a norm of this kind. On the meta device, only class and shape can tell."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.is_meta and kind_of(module) is None:
        return weight.dim() == 1 and not isinstance(module, TokenNorm) and not any(True for _ in module.children())
    return norm_kind(module) == kind


def _layer(site: dict[str, Any], old: nn.Module, tensors: Mapping[str, Tensor]) -> TokenNorm:
    children = {name: _child(child, site["dim"], old) for name, child in site["children"].items()}
    options = {"token_dim": site["token_dim"], "sync": site["sync"]}
    layer: TokenNorm
    if "norm" in children:
        layer = SharedNorm(site["dim"], lambda dim: children["norm"], **options)
        tokens = children["norm"]
    else:
        cls, tokens = children["cls_norm"], children["token_norm"]
        layer = SepNorm(site["dim"], lambda dim: cls, lambda dim: tokens, num_cls=site["num_cls"], **options)
    recorded = site["children"]["norm" if "norm" in children else "token_norm"]
    original = tokens if recorded["kind"] == "original" else _original(site["path"], old, tensors)
    layer.train(old.training)
    guard(layer, old)
    layer.origin = Origin(original, site["original"], trained_before=site["trained"])
    return layer


def _original(path: str, old: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    """The norm that the conversion replaced; None if its tensors were not saved."""
    prefix = f"{ORIGINAL}{path}."
    if not any(key.startswith(prefix) for key in tensors) and any(True for _ in old.state_dict()):
        return None
    original = copy.deepcopy(old)
    for key, target in original.state_dict().items():
        target.copy_(tensors[prefix + key])
    return original


def _child(child: dict[str, Any], dim: int, old: nn.Module) -> nn.Module:
    kind = child["kind"]
    if kind == "original":
        return copy.deepcopy(old)
    if kind == "scale":
        return blank_scales(dim, child.get("components", 0))
    if kind not in KINDS:
        raise SepNormError(
            f"a norm of kind {kind!r} cannot be built from a file: build the model with its layers and pass it as "
            "load(folder, model)."
        )
    return build_norm(kind, dim, **{name: value for name, value in child.items() if name != "kind"})
