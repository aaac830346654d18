"""Distance of running batch statistics at [CLS] from the statistics of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import batch_rules
from sepnorm.layer.padding import rows_that_count
from sepnorm.surgery.calibration import parts_of


@contextmanager
def watch_drift(model: nn.Module) -> Iterator[Callable[[], float | None]]:
    """Records the inputs of the batch norms at [CLS] within the context.

    Yields a function to call afterwards. It returns the largest distance over all norms: the root mean square over
    channels of the difference of means in standard deviations, or of the log ratio of standard deviations, whichever is
    larger. It returns None if no norm has batch statistics.
    """
    gaps: list[float] = []

    def before(norm: Any, args: tuple[Any, ...]) -> None:
        for part, batch_norm in parts_of(norm):
            rules, its = batch_rules(batch_norm), cast(Any, batch_norm)
            if part != "tokens" and rules is not None and its.running_mean is not None:
                rows = rows_that_count(args[0].detach(), part, norm.num_cls, norm.token_dim, None)
                gaps.append(_gap(rows, *rules.pooled(its), its.eps))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, TokenNorm):
                hooks.enter_context(module.register_forward_pre_hook(before))
        yield lambda: max(gaps, default=None)


def _gap(rows: Tensor, running_mean: Tensor, running_var: Tensor, eps: float) -> float:
    rows = rows.double()
    var = rows.var(0) + eps
    means = (running_mean - rows.mean(0)) / var.sqrt()
    scales = 0.5 * ((running_var + eps) / var).log()
    return float(torch.stack([means.square().mean().sqrt(), scales.square().mean().sqrt()]).max())
