"""Where [CLS] is normalised beside other tokens in a model: found by running it, not by guessing from names.

A batch of different samples goes through the model with hooks on every norm. [CLS] is the first token where that is
the same for every sample while the others differ. A site is *degenerate* where [CLS] still is the same for every
sample, because it has not seen the other tokens yet: batch statistics there have nothing to measure. Whether it has
is asked of autograd, exactly, not read off rounded numbers.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError, nearest
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import token_norm_kind
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.families import Trial, find_trial
from sepnorm.surgery.forward_trace import NormCall, Trace, run_trial, trial_of_example

Choice = str | Sequence[str] | Callable[["Site"], bool]
_NAMED = ("all", "final", "blocks", "degenerate")


@dataclass(eq=False)
class Site:
    """One norm of a model and what is known of it."""

    path: str
    module: nn.Module = field(repr=False)
    kind: str  #: ``layer``, ``rms``, or how a converted site is written, as ``bn+ln``
    dim: int
    order: int = -1  #: place in the order of calls; -1 where it was not called
    calls: int = 0
    token_dim: int = 1
    sees_cls: bool = False  #: [CLS] beside other tokens goes through it
    degenerate: bool = False  #: [CLS] is the same for every sample here
    usual: bool = False  #: taken by ``sites="all"``
    reason: str = "not called in a forward pass"


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
    norms: dict[str, nn.Module] = {}
    inner: set[int] = set()  # the norms inside of layers that are converted already
    for path, module in model.named_modules():
        if isinstance(module, TokenNorm):
            inner |= {id(child) for child in module.children()}
        if isinstance(module, TokenNorm) or (norm_kind(module) and id(module) not in inner):
            norms[path] = module
    sites = {path: _site(path, module) for path, module in norms.items()}
    with feed.quiet(model):
        trial = find_trial(model) if example is None else trial_of_example(model, example)
        trace = run_trial(trial, {_below(path, trial.prefix): module for path, module in norms.items()}, num_cls)
    if trace.first_cls is None:
        leading = "is the first token" if num_cls == 1 else f"are the first {num_cls} tokens, as num_cls says,"
        raise SepNormError(
            f"{type(model).__name__} has no [CLS] that could be found: at no point of the forward pass {leading} the "
            "same for every sample while the others differ. Mean pooling, a [CLS] in another place and left padding look so."
        )
    for path, calls in trace.calls.items():
        site = sites[_above(path, trial.prefix)]
        _judge(site, calls, trace, trial)
    width = Counter(site.dim for site in sites.values() if site.usual and not site.degenerate).most_common(1)
    for site in sites.values():
        if site.usual and site.degenerate:
            site.usual, site.reason = False, "degenerate: [CLS] is the same for every sample here"
        elif site.usual and width and site.dim != width[0][0]:
            site.usual, site.reason = False, f"{site.dim} channels wide, the encoder has {width[0][0]}"
    cls_sites = [site for site in sites.values() if site.sees_cls]
    if cls_sites and all(site.degenerate for site in cls_sites):
        raise SepNormError(
            f"{type(model).__name__} is a causal decoder, or its attention hides the other tokens from the first: at no norm does "
            "the first token depend on the others, so it cannot stand for the whole input."
        )
    if trial.doubt:
        raise SepNormError(trial.doubt)
    return sorted(sites.values(), key=lambda site: (site.order < 0, site.order))


def choose(sites: list[Site], choice: Choice) -> list[Site]:
    """The sites that ``choice`` means: a name of ``_NAMED``, a glob, several, or a predicate (see ``convert``)."""
    usual = [site for site in sites if site.usual]
    if callable(choice):
        chosen = [site for site in sites if site.sees_cls and choice(site)]
        if not chosen:
            raise SepNormError(f"the predicate chose none of the sites. {_listing(sites)}")
        return chosen
    if isinstance(choice, str) and choice in _NAMED:
        if not usual:
            raise SepNormError(f"there is no norm that sees [CLS] beside other tokens. {_listing(sites)}")
        if choice == "degenerate":
            return [site for site in sites if site.usual or site.degenerate]
        return {"all": usual, "final": usual[-1:], "blocks": usual[:-1] or usual}[choice]
    patterns = [choice] if isinstance(choice, str) else list(choice)
    chosen_paths: set[str] = set()
    for pattern in patterns:
        matched = [site for site in sites if fnmatch.fnmatchcase(site.path, pattern)]
        possible = [site for site in matched if site.sees_cls and not site.degenerate]
        if not possible:
            why = (
                f"sites pattern {pattern!r} matches no norm.{nearest(pattern, _NAMED)}"
                if not matched
                else f"sites pattern {pattern!r} matches only norms that are left alone ({matched[0].path}: {matched[0].reason})."
            )
            raise SepNormError(f"{why} {_listing(sites)}")
        chosen_paths |= {site.path for site in possible}
    return [site for site in sites if site.path in chosen_paths]


def _site(path: str, module: nn.Module) -> Site:
    if isinstance(module, TokenNorm):
        return Site(path, module, "converted", module.dim)
    return Site(path, module, norm_kind(module) or "", norm_width(module))


def _judge(site: Site, calls: list[NormCall], trace: Trace, trial: Trial) -> None:
    first = calls[0]
    site.order, site.calls = first.order, len(calls)
    if len(first.shape) == 2:
        site.reason = "after pooling: sees one vector a sample"
    elif len(first.shape) != 3:
        site.reason = f"sees a tensor of rank {len(first.shape)}: queries or keys of one head, or an image"
    elif first.token_dim is None:
        site.reason = f"sees the shape {first.shape}, in which {trace.samples} samples cannot be found"
    elif first.shape[first.token_dim] <= trace.num_cls:
        site.reason = "sees [CLS] alone, without other tokens"
    elif trace.first_cls is None or first.order < trace.first_cls:
        site.reason = "comes before [CLS] joins the tokens"
    else:
        site.sees_cls, site.token_dim = True, first.token_dim
        site.degenerate = any(call.degenerate for call in calls)
        inside = not trial.core or _below(site.path, trial.prefix).startswith(f"{trial.core}.")
        site.usual = inside
        site.reason = "sees [CLS] beside other tokens" if inside else "outside the encoder, in a head or a decoder"
        if inside and site.calls > 1:
            site.reason += f"; called {site.calls} times, with one set of statistics for all"


def _above(path: str, prefix: str) -> str:
    return f"{prefix}.{path}" if prefix else path


def _below(path: str, prefix: str) -> str:
    return path[len(prefix) + 1 :] if prefix and path.startswith(f"{prefix}.") else path


def _listing(sites: list[Site]) -> str:
    usual = [site.path for site in sites if site.usual]
    shown = ", ".join(usual[:40]) + (f" and {len(usual) - 40} more" if len(usual) > 40 else "")
    return f"The sites are: {shown or 'none'}."
