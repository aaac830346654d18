"""Batch statistics from data: measured anew for a converted model, matched to an old norm, or folded for good."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import ScaleShift, TokenNorm, statistics
from sepnorm.layer.kinds import BATCH_NORMS
from sepnorm.layer.padding import rows_that_count
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.padding import PaddingContext
from sepnorm.surgery.weights import require_values, require_weights, require_whole


class Moments:
    """Mean and variance per channel of rows that arrive in parts, in double precision.

    ``where`` is the place that a refusal names; ``dtype`` is that of the statistics, in which squares have to fit.
    """

    def __init__(self, where: str = "", dtype: torch.dtype = torch.float32) -> None:
        self.where, self.most = where, math.sqrt(torch.finfo(torch.promote_types(dtype, torch.float32)).max)
        self.batches = 0
        self.count = 0
        self.mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Takes (count, channels) of one more batch into account."""
        rows = rows.detach().double()
        count = rows.shape[0]
        self.batches += 1
        if count == 0:
            return
        if not bool(rows.abs().amax() <= self.most):  # NaN is not either
            raise SepNormError(
                f"batch {self.batches} of the data gives values at {self.where} that are not finite, or too large for a variance: "
                "nothing was changed. Look for broken samples in that batch, or for weights of the model that are not finite."
            )
        mean = rows.mean(0)
        squares = (rows - mean).square().sum(0)
        if self.mean is None or self._squares is None:
            self.count, self.mean, self._squares = count, mean, squares
            return
        total, shift = self.count + count, mean - self.mean
        self._squares = self._squares + squares + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total

    @property
    def var(self) -> Tensor:
        """Unbiased variance, which is what batch norm keeps."""
        assert self._squares is not None
        return self._squares / (self.count - 1)

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()


@dataclass(eq=False)
class Matched:
    """Moments of one part of a norm's input and of its output."""

    before: Moments
    after: Moments


def measure_norms(
    model: nn.Module, data: Iterable[Any], norms: Mapping[str, tuple[nn.Module, int, tuple[str, ...]]], num_cls: int
) -> dict[str, dict[str, Matched]]:
    """Input and output moments of norms that are still the old ones, from ``data``, in evaluation mode.

    ``norms``: by path, the module, its token dimension and the parts wanted.
    """
    found = {
        path: {part: Matched(*(Moments(f"{path} ({part})", _dtype(norm)) for _ in range(2))) for part in parts}
        for path, (norm, _, parts) in norms.items()
    }
    context = PaddingContext()
    context.attach(model, [module for module, _, _ in norms.values()])
    handles = []

    def watch(path: str, token_dim: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            for part, matched in found[path].items():
                matched.before.add(rows_that_count(args[0], part, num_cls, token_dim, context.mask))
                matched.after.add(rows_that_count(output, part, num_cls, token_dim, context.mask))

        return hook

    try:
        for path, (module, token_dim, _) in norms.items():
            handles.append(module.register_forward_hook(watch(path, token_dim)))
        _run_all(model, data)
    finally:
        for handle in handles:
            handle.remove()
        context.detach(model)
    for path, parts in found.items():
        for part, matched in parts.items():
            _require_two(matched.before.count, f"{path} ({part})")
    return found


def match(bn: Any, matched: Matched) -> None:
    """Statistics and affine with which ``bn`` gives the mean and variance that the old norm gave (in place)."""
    mean, var = matched.before.mean, matched.before.var
    assert mean is not None and matched.after.mean is not None
    with torch.no_grad():
        bn.running_mean.copy_(mean)
        bn.running_var.copy_(var)
        # eps is taken back out, so that a channel with little variance keeps its scale too
        bn.weight.copy_(matched.after.std * ((var + bn.eps) / var.clamp(min=1e-30)).sqrt().clamp(max=1e3))
        bn.bias.copy_(matched.after.mean)


def calibrate(model: nn.Module, data: Iterable[Any]) -> nn.Module:
    """Measures the running statistics of every batch norm in SepNorm layers anew, from ``data``; weights stay.

    For use after training on other inputs than those of evaluation, as after masked pretraining. Dropout and the like are
    off meanwhile; a norm normalises each batch by its own statistics, as in training, and keeps those of all the data.

    Args:
        model: a converted model, or any model with ``SepNorm`` layers. Changed in place, and returned.
        data: an iterable of batches (see ``sepnorm.surgery.model_call.run``), at least two samples in all.
    """
    require_module(model)
    require_weights(model)
    places = [
        (f"{path} ({part})", norm, part, bn)
        for path, norm in model.named_modules()
        if isinstance(norm, TokenNorm)
        for part, bn in parts_of(norm)
        if isinstance(bn, BATCH_NORMS) and bn.running_mean is not None
    ]
    if not places:
        raise SepNormError(
            f"{type(model).__name__} has no SepNorm layer with batch statistics, so there is nothing to calibrate: "
            "convert it first, to 'bn+ln' for instance."
        )
    found = [Moments(name, bn.get_buffer("running_mean").dtype) for name, _, _, bn in places]
    state = [copy.deepcopy(bn.state_dict()) for _, _, _, bn in places]
    with ExitStack() as stack:
        for (_, norm, part, _), moments in zip(places, found, strict=True):
            stack.enter_context(_hooked(norm, part, moments))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", "a training batch with a single sample", SepNormWarning
        )  # it counts all the same
        try:
            _run_all(model, data, [bn for _, _, _, bn in places])
            for (name, *_), moments in zip(places, found, strict=True):
                _require_two(moments.count, name)
        finally:
            for (_, _, _, bn), before in zip(places, state, strict=True):
                bn.load_state_dict(before)
    for (_, _, _, bn), moments in zip(places, found, strict=True):
        running: Any = bn
        running.running_mean.copy_(moments.mean)
        running.running_var.copy_(moments.var)
    return model


def freeze(model: nn.Module) -> nn.Module:
    """Folds every batch norm in SepNorm layers into a scale and a shift: same output as in evaluation, no statistics.

    The model is changed in place and returned. It exports without batch norm and no longer depends on the batch, in
    training mode either; ``revert`` still works.
    """
    require_module(model)
    require_whole(model)
    require_values(model)
    folded = 0
    for norm in model.modules():
        if not isinstance(norm, TokenNorm):
            continue
        batch_norms = [(name, child) for name, child in norm.named_children() if isinstance(child, BATCH_NORMS)]
        trained = norm.origin is not None and norm.origin.trained(norm)
        for name, child in batch_norms:
            setattr(norm, name, fold(child))
            folded += 1
        if norm.origin is not None and batch_norms:
            norm.origin.trained_before = trained
            norm.origin.remember(norm)
    if not folded:
        raise SepNormError(
            f"{type(model).__name__} has no SepNorm layer with batch statistics, so there is nothing to freeze."
        )
    from sepnorm.surgery.config_trace import write_trace  # which knows how norms are built, and so knows this file

    write_trace(model)
    return model


def fold(bn: Any) -> ScaleShift:
    """The scale and shift that a batch norm applies in evaluation."""
    if bn.running_mean is None:
        raise SepNormError("a batch norm without running statistics depends on every batch and cannot be folded.")
    weight = bn.weight
    dtype = torch.promote_types(bn.running_mean.dtype if weight is None else weight.dtype, torch.float32)
    with torch.no_grad():  # by the arithmetic of evaluation, so that not a bit changes
        affine = (None if tensor is None else tensor.to(dtype) for tensor in (bn.weight, bn.bias))
        scale, shift = statistics.scale_shift(statistics.running_statistics(bn, dtype), *affine)
    folded = ScaleShift(scale.clone(), shift.clone())
    folded.requires_grad_(bn.weight is not None and bn.weight.requires_grad)
    return folded.train(bn.training)


def parts_of(norm: TokenNorm) -> list[tuple[str, nn.Module]]:
    """The parts of the sequence that a layer treats apart, each with its norm."""
    cls_norm, token_norm = norm._places()
    return [("all", token_norm)] if cls_norm is None else [("cls", cls_norm), ("tokens", token_norm)]


def _hooked(norm: TokenNorm, part: str, moments: Moments) -> Any:
    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        x = args[0]
        padding = kwargs.get("padding_mask", args[1] if len(args) > 1 else None)
        if padding is None and norm.padding is not None:
            padding = norm.padding.current(x.shape[1 - norm.token_dim], x.shape[norm.token_dim])
        moments.add(rows_that_count(x, part, norm.num_cls, norm.token_dim, padding))

    return _Handle(norm.register_forward_hook(after, with_kwargs=True))


class _Handle:
    """A hook for the length of a ``with`` block."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None:
        self.handle.remove()


def _run_all(model: nn.Module, data: Iterable[Any], in_training: Iterable[nn.Module] = ()) -> None:
    """Every batch through the model in evaluation mode, the modules ``in_training`` excepted."""
    with feed.quiet(model), torch.no_grad():
        for module in in_training:
            module.train()
        for batch in feed.batches(data):
            feed.run(model, batch)


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters()), torch.float32)


def _require_two(count: int, where: str) -> None:
    if count < 2:
        raise SepNormError(
            f"statistics need at least two samples, but the data gave {count} at {where}. Pass an iterable of batches that "
            "is not used up yet, a few hundred samples or more."
        )


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether a norm that ``convert`` put there has some."""
    norms = [module for module in model.modules() if isinstance(module, TokenNorm)]
    return any(isinstance(child, BATCH_NORMS) for norm in norms for child in norm.children())
