"""``inspect``: statistics of [CLS] and tokens at each norm of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from sepnorm.arguments import require_module, whole
from sepnorm.errors import SepNormError, in_columns
from sepnorm.geometry.cloud import Directions, Sample, Triangle
from sepnorm.geometry.measures import entropy_rank
from sepnorm.geometry.spread import high_norm_share_of
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import batch_rules, short_name
from sepnorm.layer.padding import masked_mean, rows_that_count
from sepnorm.surgery import model_call
from sepnorm.surgery.calibration import Moments, parts_of
from sepnorm.surgery.padding import PaddingContext
from sepnorm.surgery.replacement import spec_of
from sepnorm.surgery.sites import Site, find_sites
from sepnorm.surgery.weights import require_weights

_RANKED = 2048  # size of the sample for the effective rank


@dataclass(eq=False)
class PartStatistics:
    """Statistics of the vectors of one part, [CLS] or tokens, on one side of a norm.

    Attributes:
        count: number of vectors.
        mean: mean over channels of the mean per channel.
        variance: mean over channels of the variance between samples.
        norm: mean Euclidean length.
        cosine: mean cosine between different vectors.
        effective_rank: see ``sepnorm.geometry.effective_rank``; of at most 2,048 vectors.
        high_norm: share of vectors more than three times as long as the median (``sepnorm.geometry.high_norm_share``);
            of at most 2,048 vectors.
    """

    count: int
    mean: float
    variance: float
    norm: float
    cosine: float
    effective_rank: float
    high_norm: float = 0.0


@dataclass(eq=False)
class SideStatistics:
    """Statistics of [CLS] and tokens on one side of a norm, input or output.

    Attributes:
        cls: statistics of [CLS].
        tokens: statistics of the other tokens.
        cls_token_cosine: mean cosine between a sample's [CLS] and its own tokens.
    """

    cls: PartStatistics
    tokens: PartStatistics
    cls_token_cosine: float


@dataclass(eq=False)
class SiteStatistics(SideStatistics):
    """Statistics of one norm that sees [CLS] and other tokens: of its input, and in ``after`` of its output.

    Attributes:
        cls: statistics of [CLS] at the input.
        tokens: statistics of the other tokens at the input.
        cls_token_cosine: mean cosine between a sample's [CLS] and its own tokens at the input.
        path: dotted path of the norm in the model.
        norm: the norm as written: ``ln``, or ``bn+ln`` if it is converted.
        degenerate: whether [CLS] is the same for every sample here.
        after: the same statistics at the output.
        discrepancy: distance of the running statistics from those of the data; None without batch statistics. For each
            part, two root mean squares over channels: the difference of means in standard deviations, and the log ratio
            of standard deviations. The largest of these counts.
    """

    path: str
    norm: str
    degenerate: bool
    after: SideStatistics
    discrepancy: float | None = None


@dataclass(eq=False)
class Inspection:
    """Statistics of every site, in the order of calls. ``print`` shows a table; ``as_dicts`` is for programs.

    The table shows what leaves the norms, and the variances that enter.

    Attributes:
        model: class name of the model.
        samples: number of samples in the data.
        sites: one ``SiteStatistics`` per norm that sees [CLS] and other tokens.
    """

    model: str
    samples: int
    sites: list[SiteStatistics] = field(repr=False)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Each site as a dictionary, ready for JSON."""
        return [asdict(site) for site in self.sites]

    def __str__(self) -> str:
        return "\n".join([f"{self.model}, {self.samples} samples", *in_columns(table(self.sites))])


def table(sites: list[SiteStatistics]) -> list[list[str]]:
    """A header and one row per site, as text."""
    header = "site,norm,|cls|,|tok|,var cls,var tok,cos cls,cos tok,cls~tok,rank cls,rank tok,long tok,train/eval,"
    rows = [header.split(",")]
    for site in sites:
        out = site.after
        numbers = [out.cls.norm, out.tokens.norm, out.cls.variance, out.tokens.variance]
        numbers += [out.cls.cosine, out.tokens.cosine, out.cls_token_cosine]
        ranks = [f"{part.effective_rank:.1f}" for part in (out.cls, out.tokens)]
        ranks.append(f"{site.tokens.high_norm:.1%}" if site.tokens.high_norm else "")
        gap = "" if site.discrepancy is None else f"{site.discrepancy:.2f}"
        degenerate = "degenerate" if site.degenerate else ""
        rows.append([site.path, site.norm, *(f"{value:.3g}" for value in numbers), *ranks, gap, degenerate])
    return rows


def inspect(model: nn.Module, data: Iterable[Any], *, example: Any = None, num_cls: int = 1) -> Inspection:
    """Measures [CLS] and tokens before and after every norm that sees both, converted or not.

    Args:
        model: as for ``convert``. Runs in evaluation mode and is not changed.
        data: an iterable of batches (see ``sepnorm.surgery.model_call.run``), with at least two samples in all.
        example: a batch of at least two different samples, to find [CLS] in models of unknown families, as for
            ``convert``.
        num_cls: number of leading tokens that count as [CLS]. Converted norms use their own.

    Returns:
        An ``Inspection``; ``print`` it.

    Raises:
        SepNormError: if no [CLS] is found, or the data has fewer than two samples or non-finite values.
    """
    require_module(model)
    require_weights(model)
    num_cls = whole(num_cls, "num_cls", 1)
    with watch(model, example=example, num_cls=num_cls) as watchers, model_call.quiet(model), torch.no_grad():
        for batch in model_call.batches(data):
            model_call.run(model, batch)
    return conclude(model, watchers)


@contextmanager
def watch(model: nn.Module, *, example: Any = None, num_cls: int = 1) -> Iterator[list[_Watcher]]:
    """Collects statistics of inputs and outputs of the norms of ``model`` within this context, for ``conclude``."""
    sites = [site for site in find_sites(model, example, num_cls) if site.sees_cls]
    watchers = [_Watcher(site, num_cls) for site in sites]
    context = PaddingContext()
    context.attach(model, [site.module for site in sites])
    with ExitStack() as hooks:
        hooks.callback(context.detach, model)
        for watcher in watchers:
            hooks.enter_context(
                watcher.site.module.register_forward_hook(
                    lambda module, args, output, w=watcher: w.see(args[0], output, context.value)
                )
            )
        yield watchers


def conclude(model: nn.Module, watchers: list[_Watcher]) -> Inspection:
    """The ``Inspection`` from the statistics that ``watch`` has collected."""
    samples = max((watcher.before.samples for watcher in watchers), default=0)
    if samples < 2:
        raise SepNormError(
            f"inspect needs at least two samples, but the data gave {samples}. Pass an iterable of batches."
        )
    return Inspection(type(model).__name__, samples, [watcher.result() for watcher in watchers])


class _Part:
    """Collects the vectors of one part on one side of a norm."""

    def __init__(self, where: str) -> None:
        self.moments = Moments(where)
        self.directions: Directions | None = None
        self.sample = Sample(_RANKED)

    def add(self, rows: Tensor) -> None:
        self.moments.add(rows)
        rows = rows.cpu()
        self.directions = self.directions or Directions(rows.shape[1])
        self.directions.add(rows)
        self.sample.add(rows)

    def result(self) -> PartStatistics:
        moments, directions = self.moments, self.directions
        if moments.mean is None or directions is None:
            raise SepNormError("the data hold no token beside [CLS]: there is nothing to compare it with.")
        count = int(moments.count)
        triangle = Triangle()
        triangle.add(self.sample.rows)
        return PartStatistics(
            count,
            float(moments.mean.mean()),
            float(moments.var.mean()) if count > 1 else 0.0,
            float(directions.lengths[0]) / count,
            directions.mean_cosine if directions.count > 1 else 1.0,
            entropy_rank(triangle.singular_values()),
            high_norm_share_of(self.sample.rows.double().norm(dim=1)),
        )


class _Side:
    """Collects [CLS] and tokens on one side of a norm, batch by batch."""

    def __init__(self, where: str, num_cls: int, token_dim: int) -> None:
        self.num_cls, self.token_dim = num_cls, token_dim
        self.parts = {part: _Part(f"{where} ({part})") for part in ("cls", "tokens")}
        self.cls_token = 0.0
        self.samples = 0

    def see(self, x: Tensor, padding: Tensor | None) -> None:
        x = x.detach()
        for name, part in self.parts.items():
            part.add(rows_that_count(x, name, self.num_cls, self.token_dim, padding))
        x = x if self.token_dim == 1 else x.transpose(0, 1)
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else ~padding
        keep = keep[:, self.num_cls :]
        cosine = (x[:, self.num_cls :] @ x[:, 0, :, None])[..., 0].double()
        self.cls_token += float(masked_mean(cosine, keep).sum())
        self.samples += x.shape[0]

    def result(self) -> SideStatistics:
        return SideStatistics(
            self.parts["cls"].result(), self.parts["tokens"].result(), self.cls_token / max(self.samples, 1)
        )


class _Watcher:
    """Collects the statistics of one site, on both sides."""

    def __init__(self, site: Site, num_cls: int) -> None:
        self.site = site
        self.layer = site.module if isinstance(site.module, TokenNorm) else None
        num_cls = (self.layer.num_cls or num_cls) if self.layer is not None else num_cls
        self.before, self.after = (_Side(site.path, num_cls, site.token_dim) for _ in range(2))
        self.all = Moments(site.path)

    def see(self, x: Tensor, output: Tensor, padding: Tensor | None) -> None:
        self.before.see(x, padding)
        self.after.see(output, padding)
        self.all.add(rows_that_count(x.detach(), "all", self.before.num_cls, self.site.token_dim, padding))

    def result(self) -> SiteStatistics:
        before = self.before.result()
        return SiteStatistics(
            cls=before.cls,
            tokens=before.tokens,
            cls_token_cosine=before.cls_token_cosine,
            path=self.site.path,
            norm=spec_of(self.layer) if self.layer is not None else short_name(self.site.kind),
            degenerate=self.site.degenerate,
            after=self.after.result(),
            discrepancy=None if self.layer is None else self._discrepancy(self.layer),
        )

    def _discrepancy(self, layer: TokenNorm) -> float | None:
        gaps = []
        for part, bn in parts_of(layer):
            rules, norm = batch_rules(bn), cast(Any, bn)
            if rules is None or norm.running_mean is None:
                continue
            moments = self.all if part == "all" else self.before.parts[part].moments
            var = moments.var + norm.eps
            assert moments.mean is not None
            running_mean, running_var = rules.pooled(norm)
            means = (running_mean - moments.mean) / var.sqrt()
            scales = 0.5 * ((running_var + norm.eps) / var).log()
            gaps += [float(means.square().mean().sqrt()), float(scales.square().mean().sqrt())]
        return max(gaps) if gaps else None
