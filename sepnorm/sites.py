"""Where [CLS] is normalised beside other tokens in a model: found by running it, not by guessing from names.

A batch of different samples goes through the model with hooks on every norm. [CLS] is the first token where that is
the same for every sample while the others differ. A site is *degenerate* where [CLS] still is the same for every
sample, because it has not seen the other tokens yet: batch statistics there have nothing to measure. Whether it has
is asked of autograd, exactly, not read off rounded numbers.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm import feed
from sepnorm.errors import SepNormError, nearest
from sepnorm.families import Trial, find_trial
from sepnorm.layer import TokenNorm

Choice = str | Sequence[str] | Callable[["Site"], bool]


@dataclass
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
    """``layer`` or ``rms`` for norms over the channels of one token, none for anything else.

    Counts ``nn.LayerNorm`` and ``nn.RMSNorm`` with their subclasses, and the classes of that name that libraries define.
    """
    if isinstance(module, TokenNorm):
        return None
    if isinstance(module, nn.LayerNorm):
        return "layer"
    if isinstance(module, nn.RMSNorm):
        return "rms"
    name = type(module).__name__.lower()
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or any(True for _ in module.children()):
        return None
    if "rmsnorm" in name:
        return "rms"
    return "layer" if "layernorm" in name else None


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
    trial = find_trial(model) if example is None else _given(model, example)
    with feed.quiet(model):
        trace = _run(trial, {_below(path, trial.prefix): module for path, module in norms.items()}, num_cls)
    if trace.first_cls is None:
        raise SepNormError(
            f"{type(model).__name__} has no [CLS] that could be found: at no point of the forward pass is the first token the "
            "same for every sample while the others differ. Mean pooling, a [CLS] in another place and left padding look so."
        )
    for path, calls in trace.calls.items():
        site = sites[_above(path, trial.prefix)]
        _judge(site, calls, trace, trial)
    width = Counter(site.dim for site in sites.values() if site.usual and not site.degenerate).most_common(1)
    for site in sites.values():
        if site.usual and width and site.dim != width[0][0]:
            site.usual, site.reason = False, f"{site.dim} channels wide, the encoder has {width[0][0]}"
        if site.degenerate and site.usual:
            site.usual, site.reason = False, "degenerate: [CLS] is the same for every sample here"
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
    """The sites that ``choice`` means: ``"all"``, ``"final"``, a glob, several, or a predicate (see ``convert``)."""
    usual = [site for site in sites if site.usual]
    if callable(choice):
        chosen = [site for site in sites if site.sees_cls and choice(site)]
        if not chosen:
            raise SepNormError(f"the predicate chose none of the sites. {_listing(sites)}")
        return chosen
    if isinstance(choice, str) and choice in ("all", "final"):
        if not usual:
            raise SepNormError(f"there is no norm that sees [CLS] beside other tokens. {_listing(sites)}")
        return usual if choice == "all" else usual[-1:]
    patterns = [choice] if isinstance(choice, str) else list(choice)
    chosen_paths: set[str] = set()
    for pattern in patterns:
        matched = [site for site in sites if fnmatch.fnmatchcase(site.path, pattern)]
        possible = [site for site in matched if site.sees_cls and not site.degenerate]
        if not possible:
            why = (
                f"sites pattern {pattern!r} matches no norm.{nearest(pattern, ['all', 'final'])}"
                if not matched
                else f"sites pattern {pattern!r} matches only norms that are left alone ({matched[0].path}: {matched[0].reason})."
            )
            raise SepNormError(f"{why} {_listing(sites)}")
        chosen_paths |= {site.path for site in possible}
    return [site for site in sites if site.path in chosen_paths]


# ---- running the model -------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    order: int
    shape: tuple[int, ...]
    token_dim: int | None
    degenerate: bool


@dataclass
class _Trace:
    samples: int
    num_cls: int
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    inputs: list[tuple[_Call, Tensor]] = field(default_factory=list)
    leaves: list[tuple[Tensor, int | None]] = field(default_factory=list)  # with their token dimension
    first_cls: int | None = None
    clock: int = 0
    token_dim: int | None = None

    def layout(self, shape: tuple[int, ...]) -> int | None:
        """Which dimension of (?, ?, channels) counts tokens, none where neither counts samples."""
        if len(shape) != 3 or self.samples not in shape[:2]:
            return None
        if shape[0] == shape[1] == self.samples and self.token_dim is None:
            raise SepNormError(
                f"the example has {self.samples} samples of {self.samples} tokens, so batch and tokens cannot be told apart: "
                "give one sample more or less."
            )
        if self.token_dim is not None:
            return self.token_dim if shape[1 - self.token_dim] == self.samples else None
        return 1 if shape[0] == self.samples else 0

    def look(self, x: Any) -> None:
        """Notes when [CLS] is seen for the first time."""
        self.clock += 1
        if self.first_cls is not None or not isinstance(x, Tensor) or not x.is_floating_point():
            return
        dim = self.layout(tuple(x.shape))
        if dim is None or x.shape[dim] <= self.num_cls:
            return
        spread = _spread(x.detach(), dim)
        if bool((spread[: self.num_cls] <= 1e-6).all()) and bool((spread[self.num_cls :] > 1e-3).any()):
            self.first_cls = self.clock


def _spread(x: Tensor, token_dim: int) -> Tensor:
    """By how much each position differs between samples, as a share of the largest value: (tokens,)."""
    x = (x if token_dim == 1 else x.transpose(0, 1)).float()
    return (x - x[:1]).abs().amax(dim=(0, 2)) / x.abs().amax().clamp(min=1e-30)


def _run(trial: Trial, norms: Mapping[str, nn.Module], num_cls: int) -> _Trace:
    """Runs the trial part, or the first of its fallbacks that runs, and says what the norms saw."""
    problem: Exception | None = None
    for part in ["", *[path for path in trial.fallback if path]]:
        module = trial.module.get_submodule(part)
        trace = _Trace(trial.samples, num_cls, token_dim=trial.token_dim)
        inside = {path: norm for path, norm in norms.items() if not part or path.startswith(f"{part}.")}
        try:
            with torch.enable_grad(), _hooks(module, inside, trace):
                torch.manual_seed(0)
                feed.run(module, _as_leaves(trial.inputs, trace))
                _ask_autograd(trace)
            return trace
        except SepNormError:
            raise
        except Exception as error:  # whatever a foreign model raises is reported below, with what to do
            problem = error
    raise SepNormError(
        f"{type(trial.module).__name__} could not be run to find its [CLS]: {type(problem).__name__}: {problem} "
        "Pass example=, a batch of at least two different samples in the form that the model takes."
    ) from problem


@contextmanager
def _hooks(module: nn.Module, norms: Mapping[str, nn.Module], trace: _Trace) -> Iterator[None]:
    handles = []
    by_id = {id(norm): path for path, norm in norms.items()}

    def before_norm(norm: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        trace.look(x)
        call = _Call(trace.clock, tuple(x.shape), trace.layout(tuple(x.shape)), False)
        trace.calls.setdefault(by_id[id(norm)], []).append(call)
        trace.inputs.append((call, x))

    def after_any(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        trace.look(output[0] if isinstance(output, tuple | list) and output else output)

    def after_embedding(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if output.dim() != 3:
            return output
        leaf = output.detach().requires_grad_()
        trace.leaves.append((leaf, trace.layout(tuple(leaf.shape)) if leaf.shape[0] != 1 else 1))
        trace.look(leaf)
        return leaf

    for child in module.modules():
        if id(child) in by_id:
            handles.append(child.register_forward_pre_hook(before_norm))
        if isinstance(child, nn.Embedding):
            handles.append(child.register_forward_hook(after_embedding))
        else:
            handles.append(child.register_forward_hook(after_any))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _as_leaves(inputs: Any, trace: _Trace) -> Any:
    """The inputs with gradients on what is a floating tensor of tokens or of pixels."""
    if isinstance(inputs, Mapping):
        return {key: _as_leaves(value, trace) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_as_leaves(value, trace) for value in inputs)
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.dim() < 3:
        return inputs
    leaf = inputs.detach().clone().requires_grad_()
    dim = trace.layout(tuple(leaf.shape)) if leaf.dim() == 3 else None
    trace.leaves.append((leaf, dim))
    trace.look(leaf)
    return leaf


def _ask_autograd(trace: _Trace) -> None:
    """Marks the calls in which [CLS] depends on none of the other tokens."""
    leaves = [leaf for leaf, _ in trace.leaves]
    for call, x in trace.inputs:
        if call.token_dim is None or x.shape[call.token_dim] <= trace.num_cls:
            continue
        cls = x.narrow(call.token_dim, 0, trace.num_cls)
        spread = _spread(x.detach(), call.token_dim)[: trace.num_cls]
        if bool((spread > 1e-3).any()):
            continue
        if not x.requires_grad:
            call.degenerate = bool((spread == 0).all())
            continue
        total = (cls * torch.randn_like(cls)).sum()
        grads = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        call.degenerate = not any(
            grad is not None and bool(_others(grad, dim, trace.num_cls).any())
            for grad, (_, dim) in zip(grads, trace.leaves, strict=True)
        )


def _others(grad: Tensor, token_dim: int | None, num_cls: int) -> Tensor:
    """The part of a leaf's gradient that does not belong to [CLS]."""
    if token_dim is None or grad.dim() != 3 or grad.shape[token_dim] <= num_cls:
        return grad
    return grad.narrow(token_dim, num_cls, grad.shape[token_dim] - num_cls)


# ---- what to make of it --------------------------------------------------------------------------------------------------


def _site(path: str, module: nn.Module) -> Site:
    if isinstance(module, TokenNorm):
        return Site(path, module, "converted", module.dim)
    return Site(path, module, norm_kind(module) or "", norm_width(module))


def _judge(site: Site, calls: list[_Call], trace: _Trace, trial: Trial) -> None:
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


def _given(model: nn.Module, example: Any) -> Trial:
    """A trial of the whole model with the user's example."""
    if isinstance(example, list) and example and isinstance(example[0], Tensor):
        example = example[0]
    if isinstance(example, str) or (isinstance(example, list) and example and isinstance(example[0], str)):
        example = feed._tokenised(model, [example] if isinstance(example, str) else example)
    tensor = _first_tensor(example)
    if tensor is None:
        raise SepNormError(
            f"example is a batch as the model takes it, found {type(example).__name__} without a tensor."
        )
    layout = next((m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer)), None)
    token_dim = None
    samples = tensor.shape[0]
    if tensor.dim() == 3 and tensor.is_floating_point() and layout is not None and not layout.self_attn.batch_first:
        token_dim, samples = 0, tensor.shape[1]
    batch = tensor if token_dim is None else tensor.transpose(0, 1)
    if samples < 2 or bool((batch == batch[:1]).all()):
        raise SepNormError(
            f"example needs at least two different samples to tell [CLS] from other tokens, found {samples}"
            + (" equal ones." if samples > 1 else ".")
        )
    core = getattr(model, "base_model_prefix", "") if hasattr(model, "config") else ""
    core = core if core and hasattr(model, core) else ""
    return Trial("", model, _noisy(example), samples=samples, token_dim=token_dim, core=core)


def _noisy(example: Any) -> Any:
    """Images with a little noise: the first patch of many a data set is the same black in every sample."""
    if isinstance(example, Mapping):
        return {key: _noisy(value) for key, value in example.items()}
    if isinstance(example, tuple):
        return tuple(_noisy(value) for value in example)
    if isinstance(example, Tensor) and example.is_floating_point() and example.dim() >= 4:
        return example + torch.randn_like(example) * example.std().clamp(min=0.1)
    return example


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for found in map(_first_tensor, items) if found is not None), None)


def _above(path: str, prefix: str) -> str:
    return f"{prefix}.{path}" if prefix else path


def _below(path: str, prefix: str) -> str:
    return path[len(prefix) + 1 :] if prefix and path.startswith(f"{prefix}.") else path


def _listing(sites: list[Site]) -> str:
    usual = [site.path for site in sites if site.usual]
    shown = ", ".join(usual[:40]) + (f" and {len(usual) - 40} more" if len(usual) > 40 else "")
    return f"The sites are: {shown or 'none'}."
