"""Runs a model on different samples and notes what its norms see, where [CLS] appears and what it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.families import Trial


@dataclass(eq=False)
class NormCall:
    order: int
    shape: tuple[int, ...]
    token_dim: int | None
    degenerate: bool


@dataclass(eq=False)
class Trace:
    samples: int
    num_cls: int
    calls: dict[str, list[NormCall]] = field(default_factory=dict)
    inputs: list[tuple[NormCall, Tensor]] = field(default_factory=list)
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


def run_trial(trial: Trial, norms: Mapping[str, nn.Module], num_cls: int) -> Trace:
    """Runs the trial part, or the first of its fallbacks that runs, and says what the norms saw."""
    problem: Exception | None = None
    for part in ["", *[path for path in trial.fallback if path]]:
        module = trial.module.get_submodule(part)
        trace = Trace(trial.samples, num_cls, token_dim=trial.token_dim)
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
def _hooks(module: nn.Module, norms: Mapping[str, nn.Module], trace: Trace) -> Iterator[None]:
    handles = []
    by_id = {id(norm): path for path, norm in norms.items()}

    def before_norm(norm: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        trace.look(x)
        call = NormCall(trace.clock, tuple(x.shape), trace.layout(tuple(x.shape)), False)
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


def _as_leaves(inputs: Any, trace: Trace) -> Any:
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


def _ask_autograd(trace: Trace) -> None:
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


def trial_of_example(model: nn.Module, example: Any) -> Trial:
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
