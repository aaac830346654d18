"""Where [CLS] is normalised beside other tokens in a model: found by running it, not by guessing from names.

A batch of different samples goes through the model with hooks on every norm. [CLS] is the first token where that is
the same for every sample while the others differ. A site is *degenerate* where [CLS] still is the same for every
sample, because it has not seen the other tokens yet: batch statistics there have nothing to measure. Whether it has
is asked of autograd, exactly, not read off rounded numbers. So is whether a norm is one of queries or keys, and whether
what leaves it at [CLS] reaches the model's output.
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
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.dependence import NormCall
from sepnorm.surgery.families import is_timm, is_transformers
from sepnorm.surgery.forward_trace import Trace, run_trial
from sepnorm.surgery.trials import Trial, find_trial, trial_of_example


@dataclass(eq=False)
class Site:
    """One norm of a model and what is known of it."""

    path: str
    module: nn.Module = field(repr=False)
    kind: str  #: ``layer``, ``rms``, or how a converted site is written, as ``bn+ln``
    dim: int
    order: int = -1  #: place of the first call in the order of calls; -1 where it was not called
    last: int = -1  #: place of the last call in which it sees [CLS] beside other tokens
    calls: int = 0
    token_dim: int = 1
    sees_cls: bool = False  #: [CLS] beside other tokens goes through it
    degenerate: bool = False  #: [CLS] is the same for every sample here
    usual: bool = False  #: taken by ``sites="all"``
    mixed: bool = False  #: sees [CLS] beside other tokens, and something else in another call
    other_width: bool = False  #: left out because most norms have another width
    cls_reaches: bool = True  #: what leaves it at [CLS] has a part in the model's output
    reason: str = "not called in a forward pass"


@dataclass(eq=False)
class Sites:
    """Every norm of a model, in the order of calls, and what has to be said of the model as a whole."""

    all: list[Site]
    around: bool = False  #: [CLS] leaves the encoder by a way around the last of its norms
    remarks: list[str] = field(default_factory=list)

    @property
    def usual(self) -> list[Site]:
        """Those that ``sites="all"`` takes."""
        return [site for site in self.all if site.usual]

    @property
    def final(self) -> Site:
        """The last norm of the encoder that [CLS] passes; refuses where that one cannot be converted."""
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
    """``layer``, ``rms`` or another kind for norms over the channels of one token, none for anything else."""
    return None if isinstance(module, TokenNorm) else token_norm_kind(module)


def norm_width(module: nn.Module) -> int:
    """How many channels a norm normalises."""
    norm: Any = module
    shape = getattr(norm, "normalized_shape", None) or norm.weight.shape
    return int(shape[-1])


def find_sites(model: nn.Module, example: Any = None, num_cls: int = 1) -> list[Site]:
    """Every norm of ``model``, those that were called first, in the order of their calls.

    Args:
        example: a batch of at least two different samples; not needed for models of known families.
    """
    return survey(model, example, num_cls).all


def survey(model: nn.Module, example: Any = None, num_cls: int = 1) -> Sites:
    """``find_sites``, with what has to be said of the model as a whole."""
    norms: dict[str, nn.Module] = {}
    inner: set[int] = set()  # the norms inside of layers that are converted already
    for path, module in model.named_modules():
        if isinstance(module, TokenNorm):
            inner |= {id(child) for child in module.children()}
        if isinstance(module, TokenNorm) or (norm_kind(module) and id(module) not in inner):
            norms[path] = module
    sites = {path: _site(path, module) for path, module in norms.items()}
    with feed.quiet(model), torch.inference_mode(False), torch.enable_grad():
        trial = find_trial(model) if example is None else trial_of_example(model, example)
        trace = run_trial(trial, {_below(path, trial.prefix): module for path, module in norms.items()}, num_cls)
        if trace.first_cls is None:
            leading = "is the first token" if num_cls == 1 else f"are the first {num_cls} tokens, as num_cls says,"
            raise SepNormError(
                f"{type(model).__name__} has no [CLS] that could be found: at no point of the forward pass {leading} the "
                "same for every sample while the others differ. Mean pooling, a [CLS] in another place and left padding look so."
            )
        for path, calls in trace.calls.items():
            _judge(sites[_above(path, trial.prefix)], path, calls, trace)
        _leave_out(
            list(sites.values()), type(model).__name__, not (is_transformers(trial.module) or is_timm(trial.module))
        )
        if trial.doubt:
            raise SepNormError(trial.doubt)
        found = Sites(sorted(sites.values(), key=lambda site: (site.order < 0, site.order)))
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
    """Why one call of a norm is none in which [CLS] stands beside other tokens; empty where it is."""
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
    """Takes back what is degenerate; refuses where [CLS] never depends on the rest.

    ``by_width``: where nothing tells an encoder from a decoder, also what is of another width than most norms.
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
            f"{name} is a causal decoder, or its attention hides the other tokens from the first: at no norm does "
            "the first token depend on the others, so it cannot stand for the whole input."
        )


def _cls_of(trace: Trace) -> Any:
    """What leaves the encoder at [CLS], or all that the model returns where tokens cannot be told apart in it."""
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
