"""Surgery: ``convert`` puts separate norms into a model that exists, ``revert`` takes them out again."""

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
) -> ConversionReport:
    """Gives [CLS] a norm of its own in a model that exists; changes the model in place.

    Args:
        model: a transformers, sentence-transformers or timm model with a [CLS] token, an ``nn.TransformerEncoder``, a
            module that holds one of these, or any module with a [CLS] first, by ``example``.
        norm: as the paper writes it: ``"bn+ln"`` ([CLS] first), ``"bn+bn"``, ``"ln+bn"``, ``"ln+ln"``; shared ``"ln"`` or
            ``"bn"``; ``rms`` in any place.
        sites: ``"final"``, the last norm of the encoder that sees [CLS] beside other tokens; ``"all"`` of them;
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
    require_choice(sites)
    _refuse_wrapped(model)
    _refuse_converted(model)
    num_cls = whole(num_cls, "num_cls", 1)
    require_whole(model)
    require_weights(model)
    found = survey(model, example, num_cls)
    chosen = {site.path: site for site in choose(found, sites)}
    changing = [site for site in chosen.values() if not (spec.cls is None and spec.tokens == site.kind)]
    notes = [*found.remarks, *_doubts(found, changing, sites == "final", type(model).__name__)]
    matched: dict[str, dict[str, Matched]] = {}
    if spec.uses_batch and calibrate is not None:
        matched = measure_norms(
            model,
            calibrate,
            {site.path: (site.module, site.token_dim, _batch_parts(spec)) for site in changing},
            num_cls,
        )
    for text in [*notes[len(found.remarks) :], *_changes(spec, changing, calibrate is not None)]:
        warnings.warn(text, SepNormWarning, stacklevel=2)
    parameters = _count(model)
    new = {site.path: build_layer(spec, site, num_cls, matched.get(site.path, {})) for site in changing}
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
    return ConversionReport(type(model).__name__, str(spec), reports, _count(model) - parameters, notes)


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
    require_whole(model)
    lost = next((path for path, layer in layers if layer.origin is not None and layer.origin.module is None), None)
    if lost is not None:
        raise SepNormError(
            f"the norm that stood at {lost} is not in the folder that this model was loaded from: only sepnorm.save keeps norms "
            "that a conversion took out. Load the model from before the conversion."
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
    restore_fast_path(model)
    write_trace(model)
    return ConversionReport(type(model).__name__, "what it was", reports, _count(model) - parameters)


def _restored(layer: TokenNorm) -> tuple[nn.Module, str]:
    """The norm to put back, and what was kept and dropped."""
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


# ---- checks -------------------------------------------------------------------------------------------------------------


def _refuse_wrapped(model: nn.Module) -> None:
    for path, module in model.named_modules():
        name = type(module).__name__
        if name in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "OptimizedModule"):
            where = f" at {path}" if path else ""
            raise SepNormError(
                f"convert the model before it is wrapped or compiled: found {name}{where}, which has recorded the old norms."
            )
        if is_compiled(module):
            raise SepNormError(
                f"convert the model before compile(): {path or name} is compiled already, with the old norms in it."
            )


def _refuse_converted(model: nn.Module) -> None:
    path, layer = next(((p, m) for p, m in model.named_modules() if isinstance(m, TokenNorm)), (None, None))
    if layer is not None:
        raise SepNormError(
            f"the model is converted already ({path or 'itself'} is {spec_of(layer)}): sepnorm.revert(model) first, then convert."
        )


def _doubts(found: Sites, changing: list[Site], final: bool, name: str) -> list[str]:
    """What a user has to know before trusting the converted norms: [CLS] goes around one, or is not read."""
    texts = []
    if final and found.around and changing:
        path, last = changing[0].path, changing[0].last
        later = next((site for site in found.all if site.order > last and not site.sees_cls), None)
        texts.append(
            f"[CLS] also goes around {path}, the last norm that it shares with other tokens, by a residual connection: it leaves "
            "the encoder without passing a norm of its own."
            + (f" Behind it there is only {later.path} ({later.reason})." if later else "")
        )
    wider = [site for site in found.all if final and changing and site.other_width and site.order > changing[0].last]
    if wider:
        texts.append(
            f"{changing[0].path} is taken for the last norm of the encoder, and {wider[-1].path}, which comes after it, for one "
            f"of a decoder, as it is {wider[-1].dim} channels wide and not {changing[0].dim}. If that is wrong, name it by sites=."
        )
    unread = [site.path for site in changing if not site.cls_reaches]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        texts.append(
            f"what leaves {unread[-1]}{more} at [CLS] does not reach the output of {name}, which reads the other tokens: a norm of "
            "its own changes nothing there. Read [CLS] from the last hidden state, or pool by [CLS]."
        )
    return texts


def _changes(spec: NormSpec, sites: list[Site], calibrated: bool) -> list[str]:
    """Where weights that have learnt something meet a norm that behaves otherwise."""
    trained = sites if calibrated else [site for site in sites if _is_trained(site.module)]
    if not trained:
        return []
    others = [kind for kind in (spec.cls, spec.tokens) if kind is not None and not KINDS[kind].uses_batch]
    moved = [(site.kind, kind) for site in trained for kind in others if kind != site.kind]
    texts = []
    if spec.uses_batch and not calibrated:
        texts.append(
            f"{len(trained)} of the norms have trained weights, and a batch norm that starts from copies of them gives other "
            "outputs: a pretrained model stops working until it is trained again. Pass calibrate=, batches of ordinary "
            "inputs, and it keeps working."
        )
    if moved and spec.uses_batch:
        old, new = moved[0]
        kept = "+".join(short_name(kind if KINDS[kind].uses_batch else old) for kind in (spec.cls, spec.tokens) if kind)
        texts.append(
            f"{len(moved)} of the norms change from {short_name(old)} to {short_name(new)}, which no calibration makes up for: the "
            f"outputs of a pretrained model move. Take {kept!r}, which leaves them as they are."
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
