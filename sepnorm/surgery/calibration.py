"""Batch statistics from data: ``calibrate`` measures, ``match`` fits them to an old norm, ``freeze`` folds them."""

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
from torch.utils.hooks import RemovableHandle

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import ScaleShift, TokenNorm
from sepnorm.layer.batch_rules import BatchRules
from sepnorm.layer.kinds import BATCH_NORMS, batch_rules
from sepnorm.layer.padding import padded_left, refuse_left_padding, rows_that_count
from sepnorm.surgery import model_call
from sepnorm.surgery.padding import PaddingContext
from sepnorm.surgery.weights import require_values, require_weights, require_whole


class Moments:
    """Mean and variance per channel of rows that arrive in parts, in double precision.

    ``where`` names the site in error messages. Squares must fit ``dtype``, the dtype of the statistics.
    """

    def __init__(self, where: str = "", dtype: torch.dtype = torch.float32) -> None:
        self.where, self.most = where, math.sqrt(torch.finfo(torch.promote_types(dtype, torch.float32)).max)
        self.batches = 0
        self.count: float = 0
        self.mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, rows: Tensor, shares: Tensor | None = None) -> None:
        """Adds the rows (count, channels) of one more batch, optionally weighted by ``shares`` (count,)."""
        rows = rows.detach().double()
        count: float = rows.shape[0] if shares is None else float(shares.sum())
        self.batches += 1
        if count == 0:
            return
        if not bool(rows.abs().amax() <= self.most):  # also catches NaN
            raise SepNormError(
                f"batch {self.batches} of the data gives values at {self.where} that are not finite, or too large for a variance: "
                "nothing was changed. Look for broken samples in that batch, or for weights of the model that are not finite."
            )
        if shares is None:
            mean = rows.mean(0)
            squares = (rows - mean).square().sum(0)
        else:
            mean = shares.double() @ rows / count
            squares = shares.double() @ (rows - mean).square()
        if self.mean is None or self._squares is None:
            self.count, self.mean, self._squares = count, mean, squares
            return
        total, shift = self.count + count, mean - self.mean
        self._squares = self._squares + squares + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total

    @property
    def var(self) -> Tensor:
        """Unbiased variance, as batch norm keeps it."""
        assert self._squares is not None
        return self._squares / (self.count - 1)

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()


@dataclass(eq=False)
class Matched:
    """Moments of one part of the sequence, before and after a norm."""

    before: Moments
    after: Moments


def measure_norms(
    model: nn.Module, data: Iterable[Any], norms: Mapping[str, tuple[nn.Module, int, tuple[str, ...]]], num_cls: int
) -> dict[str, dict[str, Matched]]:
    """Measures input and output moments of norms before they are replaced, on ``data``, in evaluation mode.

    ``norms`` maps a path to the module, its token dimension and the parts to measure.
    """
    found = {
        path: {part: Matched(*(Moments(f"{path} ({part})", _dtype(norm)) for _ in range(2))) for part in parts}
        for path, (norm, _, parts) in norms.items()
    }
    context = PaddingContext()
    context.attach(model, [module for module, _, _ in norms.values()])

    def watch(path: str, token_dim: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if "cls" in found[path] and context.value is not None and padded_left(context.value):
                refuse_left_padding(tuple(context.value.shape), output.shape[1 - token_dim], output.shape[token_dim])
            for part, matched in found[path].items():
                matched.before.add(rows_that_count(args[0], part, num_cls, token_dim, context.value))
                matched.after.add(rows_that_count(output, part, num_cls, token_dim, context.value))

        return hook

    with ExitStack() as hooks:
        hooks.callback(context.detach, model)
        for path, (module, token_dim, _) in norms.items():
            hooks.enter_context(module.register_forward_hook(watch(path, token_dim)))
        _run_all(model, data)
    for path, parts in found.items():
        for part, matched in parts.items():
            _require_two(matched.before.count, f"{path} ({part})")
    return found


def match(bn: Any, matched: Matched) -> None:
    """Sets ``bn`` in place so that its output has the mean and variance of the old norm's output."""
    mean, var = matched.before.mean, matched.before.var
    assert mean is not None and matched.after.mean is not None
    with torch.no_grad():
        _rules(bn).store(bn, torch.tensor([float(matched.before.count)]), mean.unsqueeze(0), var.unsqueeze(0))
        # compensate eps, so that a channel with little variance keeps its scale too
        bn.weight.copy_(matched.after.std * ((var + bn.eps) / var.clamp(min=1e-30)).sqrt().clamp(max=1e3))
        bn.bias.copy_(matched.after.mean)


def calibrate(model: nn.Module, data: Iterable[Any]) -> nn.Module:
    """Measures the running statistics of all batch norms in SepNorm layers again, from ``data``. Weights do not change.

    Use it after training on inputs unlike those of evaluation, such as masked images. Dropout is off. Each batch is
    normalised by its own statistics, as in training; the stored statistics are those of all the data. A mixture norm is
    fitted to each batch, and each row counts for the components by its responsibilities.

    Args:
        model: a converted model, or any model with ``SepNorm`` layers. Changed in place.
        data: an iterable of batches (see ``sepnorm.surgery.model_call.run``), with at least two samples in all, and
            for a mixture norm two rows per component.

    Returns:
        The model.

    Raises:
        SepNormError: if the model has no batch statistics, or the data has too few samples or non-finite values. The
            model is unchanged then.
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
    found = [_SharedMoments(name, bn) for name, _, _, bn in places]
    state = [copy.deepcopy(bn.state_dict()) for _, _, _, bn in places]
    with ExitStack() as stack:
        for (_, norm, part, _), moments in zip(places, found, strict=True):
            stack.enter_context(_hooked(norm, part, moments))
        stack.enter_context(warnings.catch_warnings())
        # a batch of one sample still counts for the pooled statistics
        warnings.filterwarnings("ignore", "a training batch with a single sample", SepNormWarning)
        try:
            _run_all(model, data, [bn for _, _, _, bn in places])
            for (name, *_), moments in zip(places, found, strict=True):
                _require_two(moments.count, name)
                moments.require_rows()
        finally:
            for (_, _, _, bn), before in zip(places, state, strict=True):
                bn.load_state_dict(before)
    for moments in found:
        moments.store()
    return model


def freeze(model: nn.Module) -> nn.Module:
    """Folds every batch norm in SepNorm layers into a fixed scale and shift. Outputs in evaluation do not change.

    The model then exports without batch norm and never depends on the batch, not even in training mode. ``revert``
    still works.

    Args:
        model: a converted model, or any model with ``SepNorm`` layers. Changed in place.

    Returns:
        The model.

    Raises:
        SepNormError: if the model has no batch statistics to fold.
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
    from sepnorm.surgery.config_trace import write_trace  # here, because that module imports this one

    write_trace(model)
    return model


def fold(bn: Any) -> ScaleShift:
    """The scale and shift that a batch norm applies in evaluation."""
    folded = _rules(bn).fold(bn)
    folded.requires_grad_(bn.weight is not None and bn.weight.requires_grad)
    return folded.train(bn.training)


def parts_of(norm: TokenNorm) -> list[tuple[str, nn.Module]]:
    """The parts of the sequence that a layer normalises separately, each with its norm."""
    cls_norm, token_norm = norm._places()
    return [("all", token_norm)] if cls_norm is None else [("cls", cls_norm), ("tokens", token_norm)]


def _rules(norm: nn.Module) -> BatchRules:
    rules = batch_rules(norm)
    assert rules is not None
    return rules


class _SharedMoments:
    """Moments of rows for each set of statistics of a norm."""

    def __init__(self, where: str, norm: nn.Module) -> None:
        self.where, self.norm, self.rules = where, norm, _rules(norm)
        self.sets: list[Moments] = []

    def add(self, rows: Tensor) -> None:
        """Adds the rows (count, channels) of the batch that the norm has just seen."""
        shares = self.rules.shares(self.norm, rows.detach())
        columns = [None] if shares is None else list(shares.unbind(1))
        self.sets = self.sets or [Moments(self.where, self.norm.get_buffer("running_mean").dtype) for _ in columns]
        for moments, column in zip(self.sets, columns, strict=True):
            moments.add(rows, column)

    @property
    def count(self) -> float:
        return sum(moments.count for moments in self.sets)

    def require_rows(self) -> None:
        """Raises if the rows are too few for so many sets: a component with fewer than two has no variance."""
        least = 2 * len(self.sets)
        if self.count < least or max(moments.count for moments in self.sets) < 2:
            raise SepNormError(
                f"a mixture of {len(self.sets)} components is calibrated with at least {least} rows, but the data gave "
                f"{self.count:g} at {self.where}: pass a few hundred samples or more."
            )

    def store(self) -> None:
        """Writes the moments of all rows to the norm."""
        empty = torch.zeros(self.norm.get_buffer("running_mean").shape[-1:])
        moments = [(empty, empty) if found.mean is None else (found.mean, found.var) for found in self.sets]
        mean, var = (torch.stack([part.to(moments[0][0]) for part in parts]) for parts in zip(*moments, strict=True))
        self.rules.store(self.norm, mean.new_tensor([found.count for found in self.sets]), mean, var)


def _hooked(norm: TokenNorm, part: str, moments: _SharedMoments) -> RemovableHandle:
    """A hook that adds the rows of a part to ``moments``."""

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        x = args[0]
        padding = kwargs.get("padding_mask", args[1] if len(args) > 1 else None)
        if padding is None and norm.padding is not None:
            padding = norm.padding.current(x.shape[1 - norm.token_dim], x.shape[norm.token_dim])
        moments.add(rows_that_count(x, part, norm.num_cls, norm.token_dim, padding))

    return norm.register_forward_hook(after, with_kwargs=True)


def _run_all(model: nn.Module, data: Iterable[Any], in_training: Iterable[nn.Module] = ()) -> None:
    """Runs every batch in evaluation mode, with the modules ``in_training`` in training mode."""
    with model_call.quiet(model), torch.no_grad():
        for module in in_training:
            module.train()
        for batch in model_call.batches(data):
            model_call.run(model, batch)


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters()), torch.float32)


def _require_two(count: float, where: str) -> None:
    if count < 2:
        raise SepNormError(
            f"statistics need at least two samples, but the data gave {count:g} at {where}. Pass an iterable of batches that "
            "is not used up yet, a few hundred samples or more."
        )


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether any SepNorm layer has batch statistics."""
    norms = [module for module in model.modules() if isinstance(module, TokenNorm)]
    return any(isinstance(child, BATCH_NORMS) for norm in norms for child in norm.children())
