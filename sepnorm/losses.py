"""Objectives on embeddings. In several processes all are over the global batch, with gradients to every process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sepnorm.arguments import number, require_floats
from sepnorm.distributed import gather, total
from sepnorm.errors import SepNormError, nearest

__all__ = ["info_nce", "uniformity_loss"]

FORMS = ("squared", "inner")


def info_nce(x: Tensor, y: Tensor, negatives: Tensor | None = None, *, temperature: float = 0.05) -> Tensor:
    """Contrastive loss: each row of ``x`` is to find its partner in ``y`` among all rows of ``y`` and of ``negatives``.

    ``x`` and ``y`` are (samples, dim), row n of one the partner of row n of the other; ``negatives`` (any number, dim) are
    partners of none, such as hard negatives. Cross-entropy of cosines over ``temperature``; a scalar. Van den Oord et al.,
    "Representation Learning with Contrastive Predictive Coding", 2018; as used by SimCSE (Gao et al., EMNLP 2021).
    """
    for name, rows in (("x", x), ("y", y), ("negatives", x if negatives is None else negatives)):
        require_floats(rows, name)
    if x.shape != y.shape or x.dim() != 2 or 0 in x.shape:
        raise SepNormError(
            f"info_nce takes two tensors (samples, dim) of one shape, found {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if negatives is not None and (negatives.dim() != 2 or negatives.shape[1] != x.shape[1]):
        raise SepNormError(f"negatives are (any number, dim) beside {tuple(x.shape)}, found {tuple(negatives.shape)}.")
    if number(temperature, "temperature") <= 0:
        raise SepNormError(f"temperature is above 0, found {temperature}.")
    temperature = float(temperature) if isinstance(temperature, int) else temperature
    others, start = gather(F.normalize(y, dim=1))
    if negatives is not None:
        others = torch.cat([others, gather(F.normalize(negatives, dim=1))[0]])
    cosines = F.normalize(x, dim=1) @ others.T
    partners = torch.arange(start, start + x.shape[0], device=x.device)
    loss = F.cross_entropy(cosines / temperature, partners, reduction="sum")
    return total(loss) / total(loss.new_tensor(float(x.shape[0])))


def uniformity_loss(x: Tensor, form: str = "squared", *, within: str = "batch") -> Tensor:
    """Pushes embeddings apart: a mean over pairs of different embeddings, scaled to length one here; a scalar.

    Args:
        x: (samples, dim), or (samples, tokens, dim) for tokens.
        form: ``"squared"``, the mean *squared cosine* of pairs, as in the code of U-MAE (Zhang et al., NeurIPS 2022);
            ``"inner"``, their mean inner product, as in the equation of the SepNorm paper.
        within: for tokens, whether pairs are of the whole ``"batch"`` or of one ``"sample"`` each.

    The cost grows with the number of embeddings, not with its square: the pairs are summed as a (dim, dim) matrix or a
    vector of sums, which is also all that processes exchange.
    """
    require_floats(x, "x")
    if form not in FORMS:
        raise SepNormError(f"form is one of {', '.join(FORMS)}, found {form!r}.{nearest(form, FORMS)}")
    if within not in ("batch", "sample"):
        raise SepNormError(f"within is 'batch' or 'sample', found {within!r}.{nearest(within, ('batch', 'sample'))}")
    if x.dim() not in (2, 3) or 0 in x.shape or (x.dim() == 2 and within == "sample"):
        raise SepNormError(
            f"uniformity_loss takes (samples, dim), or (samples, tokens, dim), which within='sample' needs, found {tuple(x.shape)}."
        )
    unit = F.normalize(x.float(), dim=-1)
    if within == "sample":
        tokens = x.shape[1]
        if form == "inner":
            pairs = unit.sum(1).square().sum(-1)
        else:
            pairs = (unit.transpose(1, 2) @ unit).square().sum((1, 2))
        means = (pairs - tokens) / max(tokens * (tokens - 1), 1)
        return total(means.sum()) / total(means.new_tensor(float(x.shape[0])))
    unit = unit.reshape(-1, x.shape[-1])
    count = total(unit.new_tensor(float(unit.shape[0])))
    if form == "inner":
        pairs = total(unit.sum(0)).square().sum()
    else:
        pairs = total(unit.T @ unit).square().sum()
    return (pairs - count) / (count * (count - 1)).clamp(min=1)
