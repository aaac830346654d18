"""``convert`` puts separate norms into an existing model; ``revert`` removes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from sepnorm.arguments import require_module, whole
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import KINDS, NormSpec, short_name
from sepnorm.layer.torch_internals import is_compiled
from sepnorm.surgery.calibration import Matched, measure_norms
from sepnorm.surgery.choice import Choice, choose, require_choice
from sepnorm.surgery.config_trace import write_trace
from sepnorm.surgery.left_padding import allow_left_padding
from sepnorm.surgery.padding import contexts
from sepnorm.surgery.replacement import build_layer, replace_modules, restore_fast_path, settle, spec_of
from sepnorm.surgery.reports import ConversionReport, SiteReport
from sepnorm.surgery.sites import Site, Sites, survey
from sepnorm.surgery.weights import require_weights, require_whole


def convert(
    model: nn.Module,
    norm: str | NormSpec = "bn+ln",
    *,
    sites: Choice = "final",
    example: Any = None,
    calibrate: Iterable[Any] | None = None,
    num_cls: int = 1,
    components: int | None = None,
) -> ConversionReport:
    """Gives [CLS] its own norm in an existing model. Changes the model in place.

    Weights, eps, dtype, device, mode and ``requires_grad`` of the old norms are kept, so ``"ln+ln"`` changes no output.

    Args:
        model: a transformers, sentence-transformers or timm model with a [CLS] token, an ``nn.TransformerEncoder``, or
            a module that contains one of these. With ``example``, any module whose first token is [CLS].
        norm: the new norm as the paper writes it, [CLS] first: ``"bn+ln"``, ``"bn+bn"``, ``"ln+bn"``, ``"ln+ln"``, or
            shared ``"ln"`` or ``"bn"``. ``rms``, ``dyt`` and ``mix`` (``sepnorm.MixtureNorm``) work in either place.
        sites: which norms to convert. ``"final"``: the last norm of the encoder that sees [CLS] and other tokens.
            ``"all"``: all of them. ``"blocks"``: all but the last. Or a glob over paths, a list of globs, or a
            predicate of a ``sepnorm.surgery.sites.Site``. Degenerate sites, where [CLS] is still the same for every
            sample, stay as they are unless a predicate selects them. ``"degenerate"`` is ``"all"`` with these.
        example: a batch of at least two different samples, as the model takes it. Needed only for models of unknown
            families; by default a synthetic batch is used.
        calibrate: batches of ordinary inputs, a few hundred samples or more. Batch norms then start with the statistics
            of this data, and with the weights that reproduce the old outputs on average, so that a pretrained model
            keeps working. By default running statistics start at mean 0 and variance 1.
        num_cls: number of leading tokens that count as [CLS]. So text is padded on the right: the converted model refuses
            an attention mask with padding on the left.
        components: number of components of mixture norms. By default three.

    Returns:
        A report. ``print`` it to see every norm, what was done and why.

    Raises:
        SepNormError: if no [CLS] is found, ``sites`` selects nothing, or the model is already converted, compiled,
            wrapped or sharded.

    >>> encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> report = convert(encoder, "ln+ln")
    >>> [site.path for site in report.converted]
    ['layers.1.norm2']
    """
    require_module(model)
    spec = NormSpec.parse(norm)
    require_choice(sites)
    refuse_wrapped(model, "convert")
    _refuse_converted(model)
    num_cls = whole(num_cls, "num_cls", 1)
    options = {} if components is None else {"components": _components(components, spec)}
    require_whole(model)
    require_weights(model)
    found = survey(model, example, num_cls)
    chosen = {site.path: site for site in choose(found, sites)}
    changing = [site for site in chosen.values() if not (spec.cls is None and spec.tokens == site.kind)]
    doubts = _doubts(found, changing, sites == "final", type(model).__name__)
    matched: dict[str, dict[str, Matched]] = {}
    if spec.uses_batch and calibrate is not None:
        matched = measure_norms(
            model,
            calibrate,
            {site.path: (site.module, site.token_dim, _batch_parts(spec)) for site in changing},
            num_cls,
        )
    for text in [*doubts, *_changes(spec, changing, calibrate is not None)]:
        warnings.warn(text, SepNormWarning, stacklevel=2)
    parameters = _count(model)
    new = {site.path: build_layer(spec, site, num_cls, matched.get(site.path, {}), **options) for site in changing}
    replace_modules(model, {id(site.module): new[site.path] for site in changing})
    settle(model)
    write_trace(model)
    reports = [
        SiteReport(
            site.path, short_name(site.kind), str(spec) if site.path in new else short_name(site.kind),
            site.reason if site.path in chosen or not site.usual else "not chosen by sites",
        )
        for site in found.all
    ]  # fmt: skip
    return ConversionReport(
        type(model).__name__, str(spec), reports, _count(model) - parameters, [*found.remarks, *doubts]
    )


def revert(model: nn.Module) -> ConversionReport:
    """Removes the norms of ``convert`` and puts the old ones back. Changes the model in place.

    Without training in between, the model is bit for bit what it was. Otherwise a tokens' norm of the old kind becomes
    the norm of all tokens, and the rest of the new layer is dropped. The report says so for each site.

    Args:
        model: a model that ``convert`` changed, also after ``save`` and ``load``.

    Returns:
        A report. ``print`` it to see what was kept and what was dropped.

    Raises:
        SepNormError: if the model has no converted norm, or the old norm is not in the file that the model came from.
    """
    require_module(model)
    layers = [(path, m) for path, m in model.named_modules() if isinstance(m, TokenNorm) and m.origin is not None]
    if not layers:
        raise SepNormError(
            f"{type(model).__name__} has no norm that sepnorm.convert put in: there is nothing to revert."
        )
    require_whole(model)
    lost = next((path for path, layer in layers if layer.origin is not None and layer.origin.module is None), None)
    if lost is not None:
        raise SepNormError(
            f"the old norm of {lost} is not in the folder that this model was loaded from: only sepnorm.save keeps replaced "
            "norms. Load the original model instead."
        )
    parameters = _count(model)
    reports, back = [], {}
    for path, layer in layers:
        old, reason = _restored(layer)
        reports.append(SiteReport(path, spec_of(layer), short_name(layer.origin.kind if layer.origin else ""), reason))
        back[id(layer)] = old
    for context in list(contexts(model)):
        context.detach(model)
    allow_left_padding(model)
    replace_modules(model, back)
    restore_fast_path(model)
    write_trace(model)
    return ConversionReport(type(model).__name__, "what it was", reports, _count(model) - parameters)


def _restored(layer: TokenNorm) -> tuple[nn.Module, str]:
    """The norm to put back, and a sentence on what was kept and dropped."""
    origin = layer.origin
    assert origin is not None and origin.module is not None
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


# ---- checks -------------------------------------------------------------------------------------------------------


def refuse_wrapped(model: nn.Module, verb: str) -> None:
    """Raises for a wrapped or compiled model, whose wrapper has recorded the old modules."""
    for path, module in model.named_modules():
        name = type(module).__name__
        if name in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "OptimizedModule"):
            where = f" at {path}" if path else ""
            raise SepNormError(
                f"{verb} the model before wrapping or compiling it: found {name}{where}, which still holds the old modules."
            )
        if is_compiled(module):
            raise SepNormError(f"{verb} the model before compile(): {path or name} is already compiled.")


def _refuse_converted(model: nn.Module) -> None:
    path, layer = next(((p, m) for p, m in model.named_modules() if isinstance(m, TokenNorm)), (None, None))
    if layer is not None:
        raise SepNormError(
            f"the model is already converted ({path or 'itself'} is {spec_of(layer)}): call sepnorm.revert(model) first."
        )


def _components(components: int, spec: NormSpec) -> int:
    most = [KINDS[kind].options.get("components", 0) for kind in (spec.cls, spec.tokens) if kind is not None]
    if not any(most):
        raise SepNormError(f"components is for mixture norms, and {spec} has none: write it with mix, as bn+mix.")
    return whole(components, "components", 1, max(most))


def _doubts(found: Sites, changing: list[Site], final: bool, name: str) -> list[str]:
    """Warnings on sites: [CLS] bypasses the converted norm, or the model does not read it."""
    texts = []
    if final and found.around and changing:
        path, last = changing[0].path, changing[0].last
        later = next((site for site in found.all if site.order > last and not site.sees_cls), None)
        texts.append(
            f"[CLS] bypasses {path}, the last norm it shares with other tokens, by a residual connection: it leaves the "
            "encoder unnormalised." + (f" After it there is only {later.path} ({later.reason})." if later else "")
        )
    wider = [site for site in found.all if final and changing and site.other_width and site.order > changing[0].last]
    if wider:
        texts.append(
            f"{changing[0].path} is assumed to be the encoder's last norm, and {wider[-1].path} after it a decoder's, because it "
            f"has {wider[-1].dim} channels, not {changing[0].dim}. If this is wrong, set sites=."
        )
    unread = [site.path for site in changing if not site.cls_reaches]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        texts.append(
            f"{name} does not read [CLS] after {unread[-1]}{more}: its own norm has no effect there. Read [CLS] from the last "
            "hidden state, or pool by [CLS]."
        )
    return texts


def _changes(spec: NormSpec, sites: list[Site], calibrated: bool) -> list[str]:
    """Warnings where trained weights meet a norm that behaves differently."""
    trained = sites if calibrated else [site for site in sites if _is_trained(site.module)]
    if not trained:
        return []
    others = [kind for kind in (spec.cls, spec.tokens) if kind is not None and not KINDS[kind].uses_batch]
    moved = [(site.kind, kind) for site in trained for kind in others if kind != site.kind]
    texts = []
    if spec.uses_batch and not calibrated:
        texts.append(
            f"{len(trained)} of the norms have trained weights, and a batch norm with copies of them has different outputs: a "
            "pretrained model may stop working until it is trained again. To keep it working, pass calibrate=, batches of "
            "ordinary inputs."
        )
    if moved and spec.uses_batch:
        old, new = moved[0]
        kept = "+".join(short_name(kind if KINDS[kind].uses_batch else old) for kind in (spec.cls, spec.tokens) if kind)
        texts.append(
            f"{len(moved)} of the norms change from {short_name(old)} to {short_name(new)}, which calibration cannot compensate: "
            f"the outputs of a pretrained model change. Use {kept!r} to keep them."
        )
    elif moved:
        texts.append(
            f"{len(trained)} of the norms have trained weights and become {spec}: their outputs change, and a pretrained "
            "model may need training before it works as well as before."
        )
    return texts


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


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
