"""Puts new layers in place of old norms: builds them, replaces modules, and adapts the model around them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sepnorm.layer import Origin, ScaleShift, SepNorm, SharedNorm, TokenNorm
from sepnorm.layer.kinds import BATCH_NORMS, KINDS, NormSpec, kind_of, short_name
from sepnorm.layer.torch_internals import is_watched
from sepnorm.surgery.calibration import Matched, match, parts_of
from sepnorm.surgery.left_padding import refuse_left_padding
from sepnorm.surgery.padding import PaddingContext
from sepnorm.surgery.sites import Site

#: Name of the tensor that prevents loading a converted norm's state into a plain norm.
GUARD = "weight"


def build_layer(spec: NormSpec, site: Site, num_cls: int, matched: dict[str, Matched], **options: int) -> TokenNorm:
    """Builds the layer that replaces the norm at ``site``, with its weights and the calibrated statistics.

    Options of kinds, such as ``components``, go to norms of kinds that have them.
    """
    old = site.module
    tokens = _take_over(spec.tokens, site, options, keep=True)
    layer: TokenNorm
    if spec.cls is None:
        layer = SharedNorm(site.dim, lambda dim: tokens, token_dim=site.token_dim)
    else:
        cls = _take_over(spec.cls, site, options, keep=False)
        layer = SepNorm(site.dim, lambda dim: cls, lambda dim: tokens, num_cls=num_cls, token_dim=site.token_dim)
    for part, child in parts_of(layer):
        if part in matched:
            match(child, matched[part])
    layer.train(old.training)
    guard(layer, old)
    layer.origin = Origin(old, site.kind)
    layer.origin.remember(layer)
    return layer


def guard(layer: TokenNorm, old: nn.Module) -> None:
    """Gives a layer an unused ``weight`` of two numbers, whose shape fits no norm.

    Without ``strict``, torch accepts missing tensors, but not tensors of another shape. So loading the state of a
    converted model into a plain one fails, instead of keeping the plain model's own norms silently.
    """
    weight = getattr(old, "weight", None)
    if isinstance(weight, torch.Tensor):
        layer.register_buffer(GUARD, torch.zeros(2, device=weight.device, dtype=weight.dtype))
        layer.register_load_state_dict_pre_hook(_without_guard)


def _without_guard(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Lets states load that were saved before guards existed."""
    if any(key.startswith(prefix) for key in state):
        state.setdefault(f"{prefix}{GUARD}", getattr(layer, GUARD))


def _take_over(kind: str, site: Site, options: Mapping[str, int], *, keep: bool) -> nn.Module:
    """A norm of ``kind`` with the values of the old one: the old one itself, a copy, or a new one."""
    old: Any = site.module
    if kind == site.kind:
        return old if keep else copy.deepcopy(old)
    weight, bias = getattr(old, "weight", None), getattr(old, "bias", None)
    like = weight if weight is not None else next(old.parameters(), torch.empty(0))
    eps = getattr(old, "eps", None) or getattr(old, "variance_epsilon", None) or 1e-5
    options = {name: value for name, value in options.items() if name in KINDS[kind].options}
    new: Any = KINDS[kind].build(
        site.dim, eps=eps, momentum=0.1, affine=True, device=like.device, dtype=like.dtype, **options
    )
    with torch.no_grad():
        if weight is not None:
            new.weight.copy_(weight)
            new.weight.requires_grad_(weight.requires_grad)
        if getattr(new, "bias", None) is not None and bias is not None:
            new.bias.copy_(bias)
            new.bias.requires_grad_(bias.requires_grad)
        elif getattr(new, "bias", None) is not None and weight is not None:
            new.bias.requires_grad_(weight.requires_grad)
    return new


def replace_modules(model: nn.Module, new: dict[int, Any]) -> None:
    """Replaces modules, wherever they are registered."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in new and new[id(child)] is not parent:
                parent._modules[name] = new[id(child)]


def spec_of(layer: TokenNorm) -> str:
    """The layer as written, such as ``"bn+ln"``; ``frozen`` stands for a folded batch norm."""
    return "+".join(_child_name(norm) for norm in layer._places() if norm is not None)


def settle(model: nn.Module) -> None:
    """Adapts a model to its new layers: passes masks on, and turns off torch's fused encoder, which bypasses them.

    A model that was adapted before may have got more layers since.
    """
    layers = [m for m in model.modules() if isinstance(m, TokenNorm)]
    over_tokens = [m for m in layers if isinstance(m._places()[1], BATCH_NORMS) and m.padding is None]
    if over_tokens:
        context = PaddingContext()
        context.attach(model, list(over_tokens))
        for layer in over_tokens:
            layer.padding = context
    refuse_left_padding(model)
    ours = {id(m) for m in layers}
    for module in model.modules():
        # Torch's fused encoder reads the weights of a norm and never calls it. Both switches are needed.
        if isinstance(module, nn.TransformerEncoderLayer) and ours & {id(module.norm1), id(module.norm2)}:
            if not hasattr(module, "_sepnorm_activation"):
                module._sepnorm_activation = module.activation_relu_or_gelu  # type: ignore[assignment]
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and any(id(m) in ours for m in module.modules()):
            use_no_nested_tensor(module)


def use_no_nested_tensor(encoder: nn.TransformerEncoder) -> None:
    """Makes torch's encoder pass padded tensors to its layers, which norms and hooks can handle."""
    if not hasattr(encoder, "_sepnorm_nested"):
        encoder._sepnorm_nested = encoder.use_nested_tensor  # type: ignore[assignment]
    encoder.use_nested_tensor = False


def restore_fast_path(model: nn.Module) -> None:
    """Undoes ``settle``. Nested tensors stay off if a layer has hooks."""
    for module in model.modules():
        if hasattr(module, "_sepnorm_activation"):
            module.activation_relu_or_gelu = module._sepnorm_activation
            del module._sepnorm_activation
        if isinstance(module, nn.TransformerEncoder) and hasattr(module, "_sepnorm_nested"):
            if any(is_watched(layer) for layer in module.layers):
                continue
            module.use_nested_tensor = bool(module._sepnorm_nested)
            del module._sepnorm_nested


def _child_name(norm: nn.Module) -> str:
    if isinstance(norm, ScaleShift):
        return "frozen"
    kind = kind_of(norm)
    return type(norm).__name__ if kind is None else short_name(kind)
