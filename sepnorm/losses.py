"""Losses on embeddings. With several processes each is over the global batch, and gradients reach all ranks."""

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
    """InfoNCE: each row of ``x`` has to find its partner in ``y`` among all rows of ``y`` and ``negatives``.

    Cross-entropy over cosines divided by ``temperature``. Van den Oord et al., "Representation Learning with
    Contrastive Predictive Coding", 2018; in the form of SimCSE (Gao et al., EMNLP 2021). With several processes, rows
    of all ranks are candidates.

    Args:
        x: embeddings (samples, dim).
        y: embeddings (samples, dim). Row n of ``y`` is the partner of row n of ``x``.
        negatives: extra candidates (any number, dim) that are partners of no row, such as hard negatives. None by
            default.
        temperature: positive number that divides the cosines. Lower values put more weight on the nearest negatives.

    Returns:
        The loss, a scalar.

    Raises:
        SepNormError: if shapes do not match, a tensor is not floating-point, or ``temperature`` is not above 0.

    >>> x = torch.eye(4)
    >>> round(info_nce(x, x, temperature=1.0).item(), 4)
    0.7437
    """
    for name, rows in (("x", x), ("y", y), ("negatives", x if negatives is None else negatives)):
        require_floats(rows, name)
    if x.shape != y.shape or x.dim() != 2 or 0 in x.shape:
        raise SepNormError(
            f"info_nce takes two tensors (samples, dim) of equal shape, found {tuple(x.shape)} and {tuple(y.shape)}."
        )
    if negatives is not None and (negatives.dim() != 2 or negatives.shape[1] != x.shape[1]):
        raise SepNormError(f"negatives must be (any number, {x.shape[1]}), found {tuple(negatives.shape)}.")
    if number(temperature, "temperature") <= 0:
        raise SepNormError(f"temperature must be above 0, found {temperature}.")
    temperature = float(temperature) if isinstance(temperature, int) else temperature
    with torch.autocast(x.device.type, enabled=False):
        others, start = gather(_unit(y))
        if negatives is not None:
            others = torch.cat([others, gather(_unit(negatives))[0]])
        cosines = _unit(x) @ others.T
    partners = torch.arange(start, start + x.shape[0], device=x.device)
    loss = F.cross_entropy(cosines / temperature, partners, reduction="sum")
    return total(loss) / total(loss.new_tensor(float(x.shape[0])))


def uniformity_loss(x: Tensor, form: str = "squared", *, within: str = "batch") -> Tensor:
    """Pushes embeddings apart: the mean similarity of all pairs of different embeddings. Add it to your loss.

    Embeddings are scaled to unit length first. The cost is linear in the number of embeddings: pairs are summed through
    one (dim, dim) matrix or one vector, and ranks exchange only these.

    Args:
        x: embeddings (samples, dim), or tokens (samples, tokens, dim).
        form: ``"squared"`` is the mean *squared cosine* of pairs, as in the code of U-MAE (Zhang et al., NeurIPS 2022).
            ``"inner"`` is their mean cosine, as in the equation of the SepNorm paper.
        within: for tokens, ``"batch"`` pairs tokens of the whole batch, ``"sample"`` only tokens of the same sample.

    Returns:
        The loss, a scalar.

    Raises:
        SepNormError: if ``x`` has another shape or dtype, or ``form`` or ``within`` is unknown.

    >>> uniformity_loss(torch.eye(4)).item()
    0.0
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
    with torch.autocast(x.device.type, enabled=False):
        return _uniformity(_unit(x), form, within)


def _unit(x: Tensor) -> Tensor:
    """Rows of unit length, in float32 at least: in half precision a cosine is off by up to 0.004."""
    return F.normalize(x.float() if x.dtype.itemsize < 4 else x, dim=-1)


def _uniformity(unit: Tensor, form: str, within: str) -> Tensor:
    if within == "sample":
        tokens = unit.shape[1]
        if form == "inner":
            pairs = unit.sum(1).square().sum(-1)
        else:
            pairs = (unit.transpose(1, 2) @ unit).square().sum((1, 2))
        means = (pairs - tokens) / max(tokens * (tokens - 1), 1)
        return total(means.sum()) / total(means.new_tensor(float(unit.shape[0])))
    unit = unit.reshape(-1, unit.shape[-1])
    count = total(unit.new_tensor(float(unit.shape[0])))
    if form == "inner":
        pairs = total(unit.sum(0)).square().sum()
    else:
        pairs = total(unit.T @ unit).square().sum()
    return (pairs - count) / (count * (count - 1)).clamp(min=1)
