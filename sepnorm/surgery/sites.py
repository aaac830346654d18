"""Finds the norms that see [CLS] and other tokens, by running the model, not from names.

A batch of different samples goes through the model with hooks on every norm. The first token is [CLS] where it is the
same for every sample while the others differ. A site is *degenerate* if [CLS] is still the same for every sample
because it has not attended to other tokens: batch statistics have nothing to measure there. Autograd answers this
exactly. It also tells whether a norm is one of queries or keys, and whether its output at [CLS] reaches the output of
the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import token_norm_kind
from sepnorm.surgery import model_call
from sepnorm.surgery.dependence import NormCall
from sepnorm.surgery.families import is_timm, is_transformers
from sepnorm.surgery.forward_trace import Trace, run_trial
from sepnorm.surgery.trials import Trial, find_trial, trial_of_example


@dataclass(eq=False)
class Site:
    """One norm of a model, and what is known about it. A predicate for ``sites=`` in ``convert`` receives these.

    Attributes:
        path: dotted path in the model.
        module: the norm itself.
        kind: ``layer``, ``rms`` or another kind; ``converted`` for a layer of sepnorm.
        dim: number of channels.
        order: position of the first call among all calls; -1 if it was not called.
        last: position of the last call in which it sees [CLS] and other tokens.
        calls: number of calls in one forward pass.
        token_dim: dimension of the tokens, 0 or 1.
        sees_cls: whether [CLS] and other tokens pass through it.
        degenerate: whether [CLS] is the same for every sample here.
        usual: whether ``sites="all"`` selects it.
        mixed: whether it sees [CLS] and other tokens in one call, and something else in another.
        other_width: whether it was left out because most norms have another width.
        cls_reaches: whether its output at [CLS] influences the output of the model.
        reason: why it is a site, or why not.
    """

    path: str
    module: nn.Module = field(repr=False)
    kind: str
    dim: int
    order: int = -1
    last: int = -1
    calls: int = 0
    token_dim: int = 1
    sees_cls: bool = False
    degenerate: bool = False
    usual: bool = False
    mixed: bool = False
    other_width: bool = False
    cls_reaches: bool = True
    reason: str = "not called in a forward pass"


@dataclass(eq=False)
class Sites:
    """All norms of a model in the order of calls, and findings on the model as a whole."""

    all: list[Site]
    encoder: str = ""  #: path of the encoder proper, if known; outside of it are heads and decoders
    around: bool = False  #: [CLS] bypasses the last norm of the encoder
    remarks: list[str] = field(default_factory=list)

    @property
    def usual(self) -> list[Site]:
        """The sites that ``sites="all"`` selects."""
        return [site for site in self.all if site.usual]

    @property
    def final(self) -> Site:
        """The last norm of the encoder that [CLS] passes; raises if it cannot be converted."""
        last = max(self.usual, key=lambda site: site.last)
        later = [site for site in self.all if site.mixed and site.last > last.last]
        if later:
            raise SepNormError(
                f"the last norm that [CLS] passes is {later[-1].path}, which {later[-1].reason}. sites='final' has no other "
                f"meaning here: name norms by their paths, or take sites='all'. {self.listing()}"
            )
        return last

    def listing(self) -> str:
        """The sites in one sentence."""
        paths = [site.path for site in self.usual]
        shown = ", ".join(paths[:40]) + (f" and {len(paths) - 40} more" if len(paths) > 40 else "")
        return f"The sites are: {shown or 'none'}."


def norm_kind(module: nn.Module) -> str | None:
    """``layer``, ``rms`` or another kind for norms over the channels of one token, else None."""
    return None if isinstance(module, TokenNorm) else token_norm_kind(module)


def norm_width(module: nn.Module) -> int:
    """Number of channels of a norm."""
    norm: Any = module
    shape = getattr(norm, "normalized_shape", None) or norm.weight.shape
    return int(shape[-1])


def find_sites(model: nn.Module, example: Any = None, num_cls: int = 1) -> list[Site]:
    """Every norm of ``model``; called ones first, in the order of calls.

    Args:
        model: as for ``convert``.
        example: a batch of at least two different samples; not needed for models of known families.
        num_cls: number of leading tokens that count as [CLS].
    """
    return survey(model, example, num_cls).all


def survey(model: nn.Module, example: Any = None, num_cls: int = 1) -> Sites:
    """Like ``find_sites``, with findings on the model as a whole."""
    norms: dict[str, nn.Module] = {}
    inner: set[int] = set()  # norms inside converted layers
    for path, module in model.named_modules():
        if isinstance(module, TokenNorm):
            inner |= {id(child) for child in module.children()}
        if isinstance(module, TokenNorm) or (norm_kind(module) and id(module) not in inner):
            norms[path] = module
    sites = {path: _site(path, module) for path, module in norms.items()}
    with model_call.quiet(model), torch.inference_mode(False), torch.enable_grad():
        trial = find_trial(model) if example is None else trial_of_example(model, example)
        trace = run_trial(trial, {_below(path, trial.prefix): module for path, module in norms.items()}, num_cls)
        if trace.first_cls is None:
            leading = "is the first token" if num_cls == 1 else f"are the first {num_cls} tokens, as num_cls says,"
            raise SepNormError(
                f"{type(model).__name__} has no [CLS] that could be found: at no point of the forward pass {leading} the "
                "same for every sample while the others differ. This happens with mean pooling, a [CLS] elsewhere, or left padding."
            )
        for path, calls in trace.calls.items():
            _judge(sites[_above(path, trial.prefix)], path, calls, trace)
        _leave_out(
            list(sites.values()), type(model).__name__, not (is_transformers(trial.module) or is_timm(trial.module))
        )
        if trial.doubt:
            raise SepNormError(trial.doubt)
        found = Sites(sorted(sites.values(), key=lambda site: (site.order < 0, site.order)))
        found.encoder = ".".join(part for part in (trial.prefix, trace.core) if part)
        if found.usual:
            last = max(found.usual, key=lambda site: site.last)
            found.around = trace.dependence.goes_around(_cls_of(trace), _below(last.path, trial.prefix))
    found.remarks = _remarks(trial, trace, type(model).__name__)
    return found


def _site(path: str, module: nn.Module) -> Site:
    if isinstance(module, TokenNorm):
        return Site(path, module, "converted", module.dim)
    return Site(path, module, norm_kind(module) or "", norm_width(module))


def _judge(site: Site, path: str, calls: list[NormCall], trace: Trace) -> None:
    """Fills in what the calls of a norm show about its site."""
    site.order, site.calls = calls[0].order, len(calls)
    against = [_against(call, trace) for call in calls]
    beside = [call for call, reason in zip(calls, against, strict=True) if not reason]
    if not beside:
        site.reason = against[0]
        return
    site.last = beside[-1].order
    if len(beside) < len(calls) or len({call.token_dim for call in beside}) > 1:
        site.mixed = not trace.core or path.startswith(f"{trace.core}.")
        other = next((reason for reason in against if reason), "sees tokens in another dimension")
        way = f"beside other tokens and otherwise ({other.partition(':')[0]})"
        site.reason = f"is called in two ways, {way}: one layer cannot serve both"
        return
    site.sees_cls, site.token_dim = True, beside[0].token_dim or 0
    site.degenerate = any(call.degenerate for call in calls)
    site.cls_reaches = any(call.cls_reaches for call in calls)
    site.usual = not trace.core or path.startswith(f"{trace.core}.")
    site.reason = "sees [CLS] beside other tokens" if site.usual else "outside the encoder, in a head or a decoder"
    if site.usual and site.calls > 1:
        site.reason += f"; called {site.calls} times, with one set of statistics for all"


def _against(call: NormCall, trace: Trace) -> str:
    """Why [CLS] and other tokens do not meet in this call of a norm; empty if they do."""
    if len(call.shape) == 2:
        return "after pooling: sees one vector a sample"
    if len(call.shape) != 3:
        return f"sees a tensor of rank {len(call.shape)}: queries or keys of one head, or an image"
    if call.token_dim is None:
        return f"sees the shape {call.shape}, in which {trace.samples} samples cannot be found"
    if call.shape[call.token_dim] <= trace.num_cls:
        return "sees [CLS] alone, without other tokens"
    if trace.first_cls is None or call.order < trace.first_cls:
        return "comes before [CLS] joins the tokens"
    if call.scores_only:
        return "acts through attention scores alone: a norm of queries or keys"
    return ""


def _leave_out(sites: list[Site], name: str, by_width: bool) -> None:
    """Excludes degenerate sites; raises if [CLS] never depends on other tokens.

    ``by_width`` also excludes norms of another width than most, where nothing tells an encoder from a decoder.
    """
    width = Counter(site.dim for site in sites if site.usual and not site.degenerate).most_common(1)
    for site in sites:
        if site.usual and site.degenerate:
            site.usual, site.reason = False, "degenerate: [CLS] is the same for every sample here"
        elif by_width and site.usual and width and site.dim != width[0][0]:
            site.usual, site.other_width = False, True
            site.reason = f"{site.dim} channels wide, the encoder has {width[0][0]}"
    cls_sites = [site for site in sites if site.sees_cls]
    if cls_sites and all(site.degenerate for site in cls_sites):
        raise SepNormError(
            f"{name} is a causal decoder, or its attention hides the other tokens from the first: at no norm of a known kind does "
            "the first token depend on the others, so it cannot stand for the whole input."
        )


def _cls_of(trace: Trace) -> Any:
    """The output of the encoder at [CLS], or the whole output if it has no token dimension."""
    if trace.encoded is None:
        return None
    dim = trace.layout(tuple(trace.encoded.shape))
    if dim is None or trace.encoded.shape[dim] <= trace.num_cls:
        return trace.encoded
    return trace.encoded.narrow(dim, 0, trace.num_cls)


def _remarks(trial: Trial, trace: Trace, name: str) -> list[str]:
    remarks = []
    if trial.assumed:
        remarks.append(f"nothing in a {name} says where [CLS] is: the first token is taken for it.")
    if trial.prefix:
        remarks.append(
            f"only {trial.prefix} was run, as no example was given: whether {name} reads its [CLS] is not known."
        )
    if trace.cls_vectors > trace.num_cls:
        remarks.append(
            f"the model learns {trace.cls_vectors} [CLS] vectors, of which num_cls={trace.num_cls} are taken."
        )
    return remarks


def _above(path: str, prefix: str) -> str:
    return f"{prefix}.{path}" if prefix else path


def _below(path: str, prefix: str) -> str:
    return path[len(prefix) + 1 :] if prefix and path.startswith(f"{prefix}.") else path
