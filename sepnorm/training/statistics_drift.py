"""How far the running statistics of batch norms at [CLS] are from those of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import BATCH_NORMS
from sepnorm.layer.padding import rows_that_count
from sepnorm.surgery.calibration import parts_of


@contextmanager
def watch_drift(model: nn.Module) -> Iterator[Callable[[], float | None]]:
    """While this lasts, what enters the norms of ``model`` is looked at.

    Gives a function for afterwards: the largest, over norms, of the root mean square over channels of the difference of means
    in standard deviations, and of the log ratio of standard deviations; None where no norm has batch statistics.
    """
    gaps: list[float] = []
    handles = []

    def before(norm: Any, args: tuple[Any, ...]) -> None:
        for part, batch_norm in parts_of(norm):
            if part != "tokens" and isinstance(batch_norm, BATCH_NORMS) and batch_norm.running_mean is not None:
                gaps.append(
                    _gap(rows_that_count(args[0].detach(), part, norm.num_cls, norm.token_dim, None), batch_norm)
                )

    for module in model.modules():
        if isinstance(module, TokenNorm):
            handles.append(module.register_forward_pre_hook(before))
    try:
        yield lambda: max(gaps, default=None)
    finally:
        for handle in handles:
            handle.remove()


def _gap(rows: Tensor, norm: Any) -> float:
    rows = rows.double()
    var = rows.var(0) + norm.eps
    means = (norm.running_mean.double() - rows.mean(0)) / var.sqrt()
    scales = 0.5 * ((norm.running_var.double() + norm.eps) / var).log()
    return float(torch.stack([means.square().mean().sqrt(), scales.square().mean().sqrt()]).max())
