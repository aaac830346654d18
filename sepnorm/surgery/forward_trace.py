"""Runs a model on different samples and records what its norms see, where [CLS] appears and what depends on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import MisfitError, SepNormError
from sepnorm.surgery import model_call
from sepnorm.surgery.dependence import CutScores, Dependence, NormCall, main_output, spread
from sepnorm.surgery.families import CLS_PARAMETERS, is_transformers
from sepnorm.surgery.trials import Trial


class Trace:
    """Records of one forward pass. The autograd graph lives as long as this object."""

    def __init__(self, trial: Trial, module: nn.Module, num_cls: int) -> None:
        self.samples, self.num_cls, self.token_dim = trial.samples, num_cls, trial.token_dim
        self.model = module
        self.calls: dict[str, list[NormCall]] = {}
        self.leaves: list[tuple[Tensor, int | None]] = []  # each with its token dimension
        self.first_cls: int | None = None
        self.clock = 0
        self.core = ""  # path of the encoder proper; outside of it are heads and decoders
        self.output: Tensor | None = None
        self.encoded: Tensor | None = None  # output of the encoder proper
        self.start: Tensor | None = None  # the [CLS] rows where they first appear
        self.cls_vectors = 1  # number of learnt [CLS] vectors

    def layout(self, shape: tuple[int, ...]) -> int | None:
        """The token dimension of (?, ?, channels), 0 or 1; None if neither of these dimensions counts the samples."""
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
        """Records when [CLS] first appears."""
        self.clock += 1
        if self.first_cls is not None or not isinstance(x, Tensor) or not x.is_floating_point():
            return
        dim = self.layout(tuple(x.shape))
        if dim is None or x.shape[dim] <= self.num_cls:
            return
        varies = spread(x.detach(), dim)
        if bool((varies[: self.num_cls] <= 1e-6).all()) and bool((varies[self.num_cls :] > 1e-3).any()):
            self.first_cls = self.clock
            self.start = x.narrow(dim, 0, self.num_cls)

    @property
    def dependence(self) -> Dependence:
        """Autograd queries on this pass."""
        return Dependence(self.calls, self.leaves, self.num_cls)


def run_trial(trial: Trial, norms: Mapping[str, nn.Module], num_cls: int) -> Trace:
    """Runs the trial, or the first of its fallbacks that works, and records what the norms saw."""
    with _gradients(_cls_parameters(trial.module).values()):
        return _run_trial(trial, norms, num_cls)


def _run_trial(trial: Trial, norms: Mapping[str, nn.Module], num_cls: int) -> Trace:
    problem: BaseException | None = None
    for part in ["", *trial.fallback]:
        inside = {path: norm for path, norm in norms.items() if not part or path.startswith(f"{part}.")}
        try:
            trace = _passed(trial, part, inside, num_cls)
            with CutScores():
                without = _passed(trial, part, inside, num_cls)
            trace.dependence.find_degenerate()
            trace.dependence.find_reaching(trace.output, without.calls, without.output)
            if trial.learnt and trace.start is not None:
                _require_learnt_cls(trace, type(trial.module).__name__)
            return trace
        except SepNormError as error:
            if not isinstance(error, MisfitError):
                raise
            problem = problem or error.__cause__ or error
        except Exception as error:  # a foreign model may raise anything; reported below, with what to do
            problem = problem or error
    raise SepNormError(
        f"{type(trial.module).__name__} could not be run to find its [CLS]: {type(problem).__name__}: {problem} "
        "Pass example=, a batch of at least two different samples in the form that the model takes."
    ) from problem


def _passed(trial: Trial, part: str, norms: Mapping[str, nn.Module], num_cls: int) -> Trace:
    module = trial.module.get_submodule(part)
    trace = Trace(trial, module, num_cls)
    encoders: dict[str, _Encoder] = {}
    with _hooks(module, norms, trace, encoders):
        torch.manual_seed(0)
        trace.output = trace.encoded = main_output(model_call.run(module, _as_leaves(trial.inputs, trace)))
    # The encoder proper is the innermost complete transformers model in which [CLS] joins the tokens. ``base_model``
    # may be only a stack of blocks, with the last norm outside.
    holding = [path for path, seen in encoders.items() if trace.first_cls and seen.entered < trace.first_cls]
    core = max(holding, key=lambda path: encoders[path].entered, default="")
    if core:
        trace.core, trace.encoded = core, encoders[core].output
    trace.core = ".".join(name for name in (part, trace.core) if name)
    return trace


class _Encoder:
    """A complete transformers model inside another: when it was first entered, and its output."""

    def __init__(self, entered: int) -> None:
        self.entered, self.output = entered, None


def _hooks(module: nn.Module, norms: Mapping[str, nn.Module], trace: Trace, encoders: dict[str, Any]) -> ExitStack:
    """Hooks every module; they are removed at the end of a ``with`` block."""
    hooks = ExitStack()
    by_id = {id(norm): path for path, norm in norms.items()}

    def before_any(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                trace.look(value)

    def after_norm(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        x = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        shape = tuple(x.shape)
        call = NormCall(trace.clock, shape, trace.layout(shape), x, output)
        trace.calls.setdefault(by_id[id(norm)], []).append(call)

    def after_any(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        trace.look(output[0] if isinstance(output, tuple | list) and output else output)

    def after_embedding(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if output.dim() != 3:
            return output
        leaf = output.detach().requires_grad_()
        trace.leaves.append((leaf, trace.layout(tuple(leaf.shape)) if leaf.shape[0] != 1 else 1))
        trace.look(leaf)
        return leaf

    def watch_encoder(path: str, encoder: nn.Module) -> None:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            encoders.setdefault(path, _Encoder(trace.clock))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            encoders[path].output = main_output(output)

        hooks.enter_context(encoder.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.enter_context(encoder.register_forward_hook(leave))

    for path, child in module.named_modules():
        if path and is_transformers(module) and is_transformers(child):
            watch_encoder(path, child)
        hooks.enter_context(child.register_forward_pre_hook(before_any, with_kwargs=True))
        if id(child) in by_id:
            hooks.enter_context(child.register_forward_hook(after_norm, with_kwargs=True))
        hooks.enter_context(
            child.register_forward_hook(after_embedding if isinstance(child, nn.Embedding) else after_any)
        )
    return hooks


def _as_leaves(inputs: Any, trace: Trace) -> Any:
    """The inputs, with gradients on floating-point tensors of tokens or pixels."""
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


# ---- learnt [CLS] -------------------------------------------------------------------------------------------------


def _cls_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if name.rpartition(".")[2] in CLS_PARAMETERS}


@contextmanager
def _gradients(parameters: Any) -> Iterator[None]:
    """Enables gradients of parameters that may be frozen, within this context."""
    before = [(p, p.requires_grad) for p in parameters]
    for p, _ in before:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p, wanted in before:
            p.requires_grad_(wanted)


def _require_learnt_cls(trace: Trace, name: str) -> None:
    """Raises if the constant first token does not come from a [CLS] parameter: it is a register then."""
    found = [p for p in _cls_parameters(trace.model).values() if trace.dependence.depends(trace.start, [p])]
    if not found:
        raise SepNormError(
            f"{name} has no [CLS] token that sepnorm knows: its first token is the same for every sample, but starts from no "
            f"parameter called {' or '.join(sorted(CLS_PARAMETERS))}. It is a register, a prompt, or one of several."
        )
    trace.cls_vectors = max(p.shape[-2] if p.dim() > 1 else 1 for p in found)
