"""``inspect``: what goes through each norm of a model, [CLS] beside the other tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sepnorm import feed
from sepnorm.calibration import Moments, part_rows, parts_of
from sepnorm.errors import SepNormError
from sepnorm.layer import TokenNorm
from sepnorm.padding import PaddingContext
from sepnorm.sites import Site, find_sites
from sepnorm.spec import short_name
from sepnorm.surgery import spec_of


@dataclass(eq=False)
class PartStatistics:
    """What the vectors of one part, [CLS] or tokens, look like at the input of a norm.

    ``mean`` and ``variance`` are averages over channels (of the mean per channel and of the variance between samples per
    channel); ``norm`` is the mean length; ``cosine`` the mean cosine between vectors of different samples.
    """

    count: int
    mean: float
    variance: float
    norm: float
    cosine: float


@dataclass(eq=False)
class SiteStatistics:
    """One norm that sees [CLS] beside other tokens.

    ``cls_token_cosine``: mean cosine between a sample's [CLS] and its own tokens. ``discrepancy``: where there are batch
    statistics, how far the running ones are from those of the data, as the largest over the parts of the root mean square
    over channels of the difference of means in standard deviations and of the log ratio of standard deviations.
    """

    path: str
    norm: str
    degenerate: bool
    cls: PartStatistics
    tokens: PartStatistics
    cls_token_cosine: float
    discrepancy: float | None = None


@dataclass(eq=False)
class Inspection:
    """The statistics of every site, in the order of calls. ``print`` shows a table; ``as_dicts`` is for machines."""

    model: str
    samples: int
    sites: list[SiteStatistics] = field(repr=False)

    def as_dicts(self) -> list[dict[str, Any]]:
        return [asdict(site) for site in self.sites]

    def __str__(self) -> str:
        header = [
            "site",
            "norm",
            "|cls|",
            "|tok|",
            "var cls",
            "var tok",
            "cos cls",
            "cos tok",
            "cls~tok",
            "train/eval",
            "",
        ]
        rows = [header]
        for s in self.sites:
            numbers = [s.cls.norm, s.tokens.norm, s.cls.variance, s.tokens.variance, s.cls.cosine, s.tokens.cosine]
            cells = [f"{value:.3g}" for value in [*numbers, s.cls_token_cosine]]
            gap = "" if s.discrepancy is None else f"{s.discrepancy:.2f}"
            rows.append([s.path, s.norm, *cells, gap, "degenerate" if s.degenerate else ""])
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"{self.model}, {self.samples} samples", *lines])


def inspect(model: nn.Module, data: Iterable[Any], *, example: Any = None, num_cls: int = 1) -> Inspection:
    """Statistics of [CLS] and of the tokens at the input of every norm that sees both, converted or not.

    Args:
        model: as for ``convert``; it is run in evaluation mode and not changed.
        data: an iterable of batches (see ``sepnorm.feed.run``), at least two samples in all.
        example: as for ``convert``.
        num_cls: how many leading tokens count as [CLS] at norms that are not converted.
    """
    sites = [site for site in find_sites(model, example, num_cls) if site.sees_cls]
    watchers = {site.path: _Watcher(site, num_cls) for site in sites}
    context = PaddingContext()
    context.attach(model, [site.module for site in sites])
    handles = []
    try:
        for site in sites:
            watcher = watchers[site.path]
            handles.append(
                site.module.register_forward_pre_hook(lambda m, args, w=watcher: w.see(args[0], context.mask))
            )
        with feed.quiet(model), torch.no_grad():
            for batch in feed.batches(data):
                feed.run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
        context.detach(model)
    samples = max((watcher.samples for watcher in watchers.values()), default=0)
    if samples < 2:
        raise SepNormError(
            f"inspect needs at least two samples, but the data gave {samples}. Pass an iterable of batches."
        )
    return Inspection(type(model).__name__, samples, [watcher.result() for watcher in watchers.values()])


class _Watcher:
    """Gathers the statistics of one site, batch by batch."""

    def __init__(self, site: Site, num_cls: int) -> None:
        self.site = site
        layer = site.module if isinstance(site.module, TokenNorm) else None
        self.num_cls = (layer.num_cls or num_cls) if layer is not None else num_cls
        self.moments = {"cls": Moments(), "tokens": Moments(), "all": Moments()}
        self.lengths = dict.fromkeys(("cls", "tokens"), 0.0)
        self.directions: dict[str, Tensor | None] = {"cls": None, "tokens": None}
        self.cls_token = 0.0
        self.samples = 0

    def see(self, x: Tensor, padding: Tensor | None) -> None:
        x = x.detach().double()
        dim = self.site.token_dim
        for part in self.moments:
            self.moments[part].add(part_rows(x, part, self.num_cls, dim, padding))
        for part in ("cls", "tokens"):
            rows = part_rows(x, part, self.num_cls, dim, padding)
            self.lengths[part] += float(rows.norm(dim=1).sum())
            total = F.normalize(rows, dim=1).sum(0)
            before = self.directions[part]
            self.directions[part] = total if before is None else before + total
        x = F.normalize(x if dim == 1 else x.transpose(0, 1), dim=-1)
        tokens = x[:, self.num_cls :]
        keep = torch.ones(tokens.shape[:2], dtype=torch.bool, device=x.device)
        if padding is not None:
            keep = ~padding[:, self.num_cls :]
        cosine = (tokens * x[:, :1]).sum(-1)
        self.cls_token += float(((cosine * keep).sum(1) / keep.sum(1).clamp(min=1)).sum())
        self.samples += x.shape[0]

    def result(self) -> SiteStatistics:
        module = self.site.module
        layer = module if isinstance(module, TokenNorm) else None
        return SiteStatistics(
            path=self.site.path,
            norm=spec_of(layer) if layer is not None else short_name(self.site.kind),
            degenerate=self.site.degenerate,
            cls=self._part("cls"),
            tokens=self._part("tokens"),
            cls_token_cosine=self.cls_token / self.samples,
            discrepancy=None if layer is None else self._discrepancy(layer),
        )

    def _part(self, part: str) -> PartStatistics:
        moments, direction = self.moments[part], self.directions[part]
        count = moments.count
        assert moments.mean is not None and direction is not None
        # |sum of unit vectors|^2 counts every pair twice and every vector once with itself
        cosine = (float(direction.square().sum()) - count) / (count * (count - 1)) if count > 1 else 1.0
        variance = float(moments.var.mean()) if count > 1 else 0.0
        return PartStatistics(count, float(moments.mean.mean()), variance, self.lengths[part] / count, cosine)

    def _discrepancy(self, layer: TokenNorm) -> float | None:
        gaps = []
        for part, bn in parts_of(layer):
            if not isinstance(bn, _BatchNorm) or bn.running_mean is None or bn.running_var is None:
                continue
            moments = self.moments[part]
            var = moments.var + bn.eps
            assert moments.mean is not None
            means = (bn.running_mean.double() - moments.mean) / var.sqrt()
            scales = 0.5 * ((bn.running_var.double() + bn.eps) / var).log()
            gaps += [float(means.square().mean().sqrt()), float(scales.square().mean().sqrt())]
        return max(gaps) if gaps else None
