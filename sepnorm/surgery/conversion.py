"""Surgery: ``convert`` puts separate norms into a model that exists, ``revert`` takes them out again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import Origin, ScaleShift, SepNorm, SharedNorm, TokenNorm
from sepnorm.layer.kinds import KINDS, NormSpec, kind_of, short_name
from sepnorm.surgery.calibration import Matched, match, measure_norms, parts_of
from sepnorm.surgery.padding import PaddingContext, contexts
from sepnorm.surgery.sites import Choice, Site, choose, find_sites


@dataclass(eq=False)
class SiteReport:
    """One norm: where it is, what it was, what it is now, and why."""

    path: str
    before: str
    after: str
    reason: str

    @property
    def changed(self) -> bool:
        """Whether it is another norm now."""
        return self.before != self.after


@dataclass(eq=False)
class ConversionReport:
    """What a conversion did. ``print`` shows every norm of the model; ``converted`` are those that changed."""

    model: str
    norm: str
    sites: list[SiteReport] = field(repr=False)
    parameters_added: int = 0

    @property
    def converted(self) -> list[SiteReport]:
        """The norms that changed."""
        return [site for site in self.sites if site.changed]

    @property
    def kept(self) -> list[SiteReport]:
        """The norms that stayed as they were."""
        return [site for site in self.sites if not site.changed]

    def __repr__(self) -> str:
        return (
            f"<ConversionReport {self.model} to {self.norm}: {len(self.converted)} of {len(self.sites)} norms, "
            f"{self.parameters_added:+,} parameters>"
        )

    def __str__(self) -> str:
        rows = [("site", "before", "after", "reason"), *((s.path, s.before, s.after, s.reason) for s in self.sites)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
        summary = (
            f"{self.model} to {self.norm}: {len(self.converted)} of {len(self.sites)} norms changed, "
            f"{self.parameters_added:+,} parameters"
        )
        return "\n".join([summary, *lines])


def convert(
    model: nn.Module,
    norm: str | NormSpec = "bn+ln",
    *,
    sites: Choice = "all",
    example: Any = None,
    calibrate: Iterable[Any] | None = None,
    num_cls: int = 1,
) -> ConversionReport:
    """Gives [CLS] a norm of its own in a model that exists; changes the model in place.

    Args:
        model: a transformers, sentence-transformers or timm model with a [CLS] token, an ``nn.TransformerEncoder``, a
            module that holds one of these, or any module with a [CLS] first, by ``example``.
        norm: as the paper writes it: ``"bn+ln"`` ([CLS] first), ``"bn+bn"``, ``"ln+bn"``, ``"ln+ln"``; shared ``"ln"`` or
            ``"bn"``; ``rms`` in any place.
        sites: ``"all"`` norms of the encoder that see [CLS] beside other tokens; ``"final"``, the last of them;
            ``"blocks"``, all but the last; ``"degenerate"``, all and those that ought to stay, to see why; a glob
            over paths or a list of globs; or a predicate of a ``sepnorm.surgery.sites.Site``. Degenerate sites, where [CLS] is
            still the same for every sample, stay as they are unless they are asked for.
        example: a batch of at least two different samples, for models of no known family.
        calibrate: batches of ordinary inputs, a few hundred samples or more. Batch norms then start with the statistics of
            that data and with the affine that gives what the old norm gave on average, so that a pretrained model keeps working.
        num_cls: how many leading tokens count as [CLS].

    Returns:
        A ``ConversionReport``; printed, it lists every norm with what was done and why.

    The old norm's weights, eps, dtype, device, mode and ``requires_grad`` are kept: ``"ln+ln"`` changes no output.
    """
    require_module(model)
    spec = NormSpec.parse(norm)
    _refuse_wrapped(model)
    _refuse_converted(model)
    if not isinstance(num_cls, Integral) or num_cls < 1:
        raise SepNormError(f"num_cls counts the [CLS] positions and is at least 1, found {num_cls!r}.")
    found = find_sites(model, example, num_cls)
    chosen = {site.path: site for site in choose(found, sites)}
    changing = [site for site in chosen.values() if not (spec.cls is None and spec.tokens == site.kind)]
    matched: dict[str, dict[str, Matched]] = {}
    if spec.uses_batch and calibrate is not None:
        matched = measure_norms(
            model,
            calibrate,
            {site.path: (site.module, site.token_dim, _batch_parts(spec)) for site in changing},
            num_cls,
        )
    elif changing:
        _warn_trained(spec, changing)
    parameters = _count(model)
    new = {site.path: _build(spec, site, num_cls, matched.get(site.path, {})) for site in changing}
    replace_modules(model, {id(site.module): new[site.path] for site in changing})
    settle(model)
    reports = [
        SiteReport(
            site.path, short_name(site.kind), str(spec) if site.path in new else short_name(site.kind),
            site.reason if site.path in chosen or not site.usual else "not chosen by sites",
        )
        for site in found
    ]  # fmt: skip
    return ConversionReport(type(model).__name__, str(spec), reports, _count(model) - parameters)


def revert(model: nn.Module) -> ConversionReport:
    """Takes the norms that ``convert`` put in out again; changes the model in place.

    Where nothing was trained since, the model is bit for bit the one before. Otherwise the tokens' norm becomes the norm
    of all tokens where it is of the old kind, the rest of the new layer is dropped, and the report says so for each site.
    """
    require_module(model)
    layers = [(path, m) for path, m in model.named_modules() if isinstance(m, TokenNorm) and m.origin is not None]
    if not layers:
        raise SepNormError(
            f"{type(model).__name__} has no norm that sepnorm.convert put in: there is nothing to revert."
        )
    parameters = _count(model)
    reports, back = [], {}
    for path, layer in layers:
        old, reason = _restored(layer)
        reports.append(SiteReport(path, spec_of(layer), short_name(layer.origin.kind if layer.origin else ""), reason))
        back[id(layer)] = old
    for context in list(contexts(model)):
        context.detach(model)
    replace_modules(model, back)
    _restore_fast_path(model)
    return ConversionReport(type(model).__name__, "what it was", reports, _count(model) - parameters)


def spec_of(layer: TokenNorm) -> str:
    """How a layer is written, as ``"bn+ln"``; ``frozen`` stands for a batch norm that was folded."""
    return "+".join(_child_name(norm) for norm in layer._places() if norm is not None)


def settle(model: nn.Module) -> None:
    """What a model needs around new layers: masks handed on, and torch's fused encoder, which skips them, off."""
    layers = [m for m in model.modules() if isinstance(m, TokenNorm)]
    over_tokens = [m for m in layers if isinstance(m._places()[1], nn.BatchNorm1d)]
    if over_tokens:
        context = PaddingContext()
        context.attach(model, list(over_tokens))
        for layer in over_tokens:
            layer.padding = context
    ours = {id(m) for m in layers}
    for module in model.modules():
        # The fused path of torch reads a norm's weights directly and never calls it. Both switches are needed.
        if isinstance(module, nn.TransformerEncoderLayer) and ours & {id(module.norm1), id(module.norm2)}:
            module._sepnorm_activation = module.activation_relu_or_gelu  # type: ignore[assignment]
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and any(id(m) in ours for m in module.modules()):
            module._sepnorm_nested = module.use_nested_tensor  # type: ignore[assignment]
            module.use_nested_tensor = False


# ---- building -----------------------------------------------------------------------------------------------------------


def _build(spec: NormSpec, site: Site, num_cls: int, matched: dict[str, Matched]) -> TokenNorm:
    old = site.module
    tokens = _take_over(spec.tokens, site, keep=True)
    layer: TokenNorm
    if spec.cls is None:
        layer = SharedNorm(site.dim, lambda dim: tokens, token_dim=site.token_dim)
    else:
        cls = _take_over(spec.cls, site, keep=False)
        layer = SepNorm(site.dim, lambda dim: cls, lambda dim: tokens, num_cls=num_cls, token_dim=site.token_dim)
    for part, child in parts_of(layer):
        if part in matched:
            match(child, matched[part])
    layer.train(old.training)
    layer.origin = Origin(old, site.kind)
    layer.origin.remember(layer)
    return layer


def _take_over(kind: str, site: Site, *, keep: bool) -> nn.Module:
    """A norm of ``kind`` with what the old one had: the old one itself, a copy of it, or a new one with its values."""
    old: Any = site.module
    if kind == site.kind:
        return old if keep else copy.deepcopy(old)
    weight, bias = getattr(old, "weight", None), getattr(old, "bias", None)
    like = weight if weight is not None else next(old.parameters(), torch.empty(0))
    eps = getattr(old, "eps", None) or getattr(old, "variance_epsilon", None) or 1e-5
    new: Any = KINDS[kind].build(site.dim, eps=eps, momentum=0.1, affine=True, device=like.device, dtype=like.dtype)
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
    """Puts new modules in the place of old ones, wherever these are registered."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in new and new[id(child)] is not parent:
                parent._modules[name] = new[id(child)]


def _restored(layer: TokenNorm) -> tuple[nn.Module, str]:
    """The norm to put back, and what was kept and dropped."""
    origin = layer.origin
    assert origin is not None
    token_norm = layer._places()[1]
    current = next(layer.parameters(), None)
    old = origin.module
    if current is not None and old is not token_norm:
        old = old.to(current.device, current.dtype)
    old.train(layer.training)
    if not origin.trained(layer):
        return old, "as it was, bit for bit"
    if old is token_norm:
        return old, "the tokens' trained norm now serves all tokens; what [CLS] had learnt at this site is dropped"
    return old, "the norm from before the conversion is back; what was trained at this site cannot be folded into it"


def _restore_fast_path(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "_sepnorm_activation"):
            module.activation_relu_or_gelu = module._sepnorm_activation
            del module._sepnorm_activation
        if hasattr(module, "_sepnorm_nested"):
            module.use_nested_tensor = module._sepnorm_nested
            del module._sepnorm_nested


# ---- checks -------------------------------------------------------------------------------------------------------------


def _refuse_wrapped(model: nn.Module) -> None:
    name = type(model).__name__
    if name in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "OptimizedModule"):
        raise SepNormError(
            f"convert the model before it is wrapped or compiled: found {name}, which has recorded the old norms."
        )


def _refuse_converted(model: nn.Module) -> None:
    path, layer = next(((p, m) for p, m in model.named_modules() if isinstance(m, TokenNorm)), (None, None))
    if layer is not None:
        raise SepNormError(
            f"the model is converted already ({path or 'itself'} is {spec_of(layer)}): sepnorm.revert(model) first, then convert."
        )


def _warn_trained(spec: NormSpec, sites: list[Site]) -> None:
    """Warns where weights that have learnt something meet a norm that behaves otherwise."""
    trained = [site for site in sites if _is_trained(site.module)]
    if not trained:
        return
    if spec.uses_batch:
        text = (
            f"{len(trained)} of the norms have trained weights, and a batch norm that starts from copies of them gives other "
            "outputs: a pretrained model stops working until it is trained again. Pass calibrate=, batches of ordinary "
            "inputs, and it keeps working."
        )
    elif any(kind not in (None, site.kind) for site in trained for kind in (spec.cls, spec.tokens)):
        text = (
            f"{len(trained)} of the norms have trained weights and become {spec}: their outputs change, and a pretrained "
            "model may need training before it works as well as before."
        )
    else:
        return
    warnings.warn(text, SepNormWarning, stacklevel=3)


def _is_trained(norm: nn.Module) -> bool:
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    return (weight is not None and bool((weight != 1).any())) or (bias is not None and bool((bias != 0).any()))


def _batch_parts(spec: NormSpec) -> tuple[str, ...]:
    if spec.cls is None:
        return ("all",)
    return tuple(
        part
        for part, kind in (("cls", spec.cls), ("tokens", spec.tokens))
        if kind is not None and KINDS[kind].uses_batch
    )


def _child_name(norm: nn.Module) -> str:
    if isinstance(norm, ScaleShift):
        return "frozen"
    kind = kind_of(norm)
    return type(norm).__name__ if kind is None else short_name(kind)


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
