"""Moment pooling: first and second moments of a sample's tokens, as the root of one matrix, flattened to a vector."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from sepnorm.arguments import number, require_floats, whole
from sepnorm.errors import SepNormError, require_known
from sepnorm.layer.torch_internals import transforms_active
from sepnorm.pooling.powers import EigenPower, inverse_root, shift_of

ROOTS = ("auto", "eigen", "newton")


def moment_matrix(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """First and second moments of each sample's tokens in one matrix, ``[[1, m'], [m, S]]``.

    m is the mean of the tokens and S their second moment, the mean of x x'.

    Args:
        tokens: (batch, tokens, dim), floating-point.
        mask: (batch, tokens), true or 1 for tokens, false or 0 for padding. By default every token counts.

    Returns:
        (batch, 1 + dim, 1 + dim), in float32, or float64 for float64 tokens.

    Raises:
        SepNormError: if ``tokens`` or ``mask`` has another shape or dtype, or the mask leaves a sample without tokens.

    >>> moment_matrix(torch.tensor([[[1.0], [3.0]]])).round()
    tensor([[[1., 2.],
             [2., 5.]]])
    """
    rows = _rows(tokens, mask)
    with torch.autocast(rows.device.type, enabled=False):
        return rows.mT @ rows


def _rows(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens with a leading 1, over the root of their number: (batch, tokens, 1 + dim). Padding becomes zero."""
    check_tokens(tokens)
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    if mask is None:
        return nn.functional.pad(tokens, (1, 0), value=1.0) * tokens.shape[1] ** -0.5
    keep = check_mask(tokens, mask)
    _require_tokens(keep)
    rows = nn.functional.pad(tokens.masked_fill(~keep, 0), (1, 0), value=1.0)
    return rows * (keep / keep.sum(1, keepdim=True).clamp(min=1)).sqrt().to(rows.dtype)


def _require_tokens(keep: Tensor) -> None:
    """Raises for a sample without tokens, whose moments would be zero. Graphs that are compiled or traced cannot."""
    if torch.compiler.is_compiling() or transforms_active():
        return
    if not bool((some := keep.any(1)).all()):
        place = int((~some.flatten()).nonzero()[0])
        raise SepNormError(
            f"the mask leaves sample {place} of {len(keep)} without tokens, and nothing has no moments: leave the sample out."
        )


def check_tokens(tokens: Tensor) -> None:
    """Raises unless ``tokens`` is floating-point, (batch, tokens, dim) and not empty."""
    require_floats(tokens, "tokens")
    if tokens.dim() != 3 or any(size == 0 for size in tokens.shape):
        raise SepNormError(f"tokens are (batch, tokens, dim), none of them 0, found {tuple(tokens.shape)}.")


def check_mask(tokens: Tensor, mask: Tensor) -> Tensor:
    """The mask as bool (batch, tokens, 1), true for tokens, on the device of ``tokens`` (batch, tokens, dim)."""
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape[:2] or mask.is_complex():
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise SepNormError(
            f"the mask of tokens {tuple(tokens.shape)} is (batch, tokens), true for tokens, found {found}."
        )
    if mask.is_floating_point() and not torch.compiler.is_compiling() and not bool(((mask == 0) | (mask == 1)).all()):
        raise SepNormError(
            "the mask of tokens is 1 for tokens and 0 for padding, found other numbers: a mask that is added to scores hides "
            "by large negative numbers, and mask == 0 is what it keeps."
        )
    return mask.to(tokens.device).bool()[..., None]


class MomentPool(nn.Module):
    """Pools tokens (batch, tokens, dim) to the root of their moment matrix, a vector (batch, (dim + 1)(dim + 2) / 2).

    The matrix is that of ``moment_matrix``. Its power damps the directions in which tokens vary most. The vector is the
    upper triangle, with entries off the diagonal times sqrt(2), so that inner products of vectors equal those of
    matrices. Gradients are bounded, also where eigenvalues coincide, so you can train through it. Second derivatives
    exist for the powers 0.5 and 1.

    Eigenvalues l become l (l + e)^(power - 1), with e = 8e-6 of the trace (2.3e-10 for float64 tokens). This removes
    eigenvalues that are only rounding.

    Gou et al., "MoNet: Moments Embedding Network", CVPR 2018 (arXiv 1802.07303). The sketch is that of Pham and Pagh
    (KDD 2013), used as in Gao et al., CVPR 2016.

    Args:
        dim: dimension of the tokens.
        power: exponent of the matrix, above 0 and at most 1. 0.5 is the root; 1 damps nothing.
        sketch: size of the vector, for a compact form. A tensor sketch of the root keeps inner products on average,
            with a variance of order 1 / ``sketch``. By default (None) the vector holds the whole matrix.
        seed: seed of the sketch. The drawn numbers are the buffers ``places`` and ``signs``, so a state dict keeps
            them.
        root: how the power is computed. ``"eigen"`` uses eigenvalues. ``"newton"`` uses matrix products alone and needs
            ``power=0.5``. ``"auto"`` uses eigenvalues on a CPU, where they are faster, and Newton steps on accelerators
            and in exports.

    Raises:
        SepNormError: if an argument is out of range, or ``sketch`` is larger than the whole matrix.

    >>> pool = MomentPool(384, sketch=4096)
    >>> pool(torch.randn(8, 197, 384)).shape
    torch.Size([8, 4096])
    """

    places: Tensor
    signs: Tensor
    upper: Tensor

    def __init__(
        self, dim: int, power: float = 0.5, sketch: int | None = None, *, seed: int = 0, root: str = "auto"
    ) -> None:
        super().__init__()
        self.dim = whole(dim, "dim", 1, 2**14)
        self.power = number(power, "power")
        if not 0 < self.power <= 1:
            raise SepNormError(f"power is above 0 and at most 1, found {power}: 0.5 is the root.")
        self.root = require_known("root", root, ROOTS)
        if root == "newton" and self.power != 0.5:
            raise SepNormError(f"root='newton' is for the power 0.5, found {power}: take root='eigen'.")
        side = self.dim + 1
        full = side * (side + 1) // 2
        self.sketch = None if sketch is None else whole(sketch, "sketch", 1)
        if self.sketch is not None and self.sketch > full:
            raise SepNormError(
                f"a sketch of {self.sketch:,} numbers is wider than the moment matrix of dim {self.dim}, which has {full:,} "
                "of its own: take a smaller one, or sketch=None for the matrix itself."
            )
        self.out_dim = full if self.sketch is None else self.sketch
        if self.sketch is None:
            first, second = torch.triu_indices(side, side)
            self.register_buffer("upper", first * side + second, persistent=False)
            return
        draw = torch.Generator().manual_seed(whole(seed, "seed", -(2**63), 2**63 - 1))
        self.register_buffer("places", torch.randint(self.sketch, (2, side), generator=draw))
        self.register_buffer("signs", (2 * torch.randint(2, (2, side), generator=draw) - 1).to(torch.int8))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pools tokens to vectors (batch, out_dim).

        Args:
            tokens: (batch, tokens, dim), at least two tokens, of which some may be padding.
            mask: (batch, tokens), true or 1 for tokens, false or 0 for padding. By default every token counts. A sample
                with a single token has the moments of this token; one without tokens raises.

        Returns:
            (batch, out_dim), with ``out_dim`` = ``sketch`` or (dim + 1)(dim + 2) / 2. In float32, or float64 for float64
            tokens: second moments can exceed float16.
        """
        return self.vector(self.matrix(tokens, mask))

    def matrix(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The moment matrix raised to ``power``, before it is flattened.

        Args:
            tokens: (batch, tokens, dim), as for ``forward``.
            mask: (batch, tokens), as for ``forward``.

        Returns:
            (batch, 1 + dim, 1 + dim), in float32, or float64 for float64 tokens.
        """
        check_tokens(tokens)
        if tokens.shape[2] != self.dim:
            raise SepNormError(f"tokens have {tokens.shape[2]} dimensions, and this pooling was made for {self.dim}.")
        if tokens.shape[1] == 1:
            raise SepNormError("moment pooling needs at least two tokens per sample, found one: use cls or mean.")
        with torch.autocast(tokens.device.type, enabled=False):
            rows = _rows(tokens, mask)
            # X'X and XX' have the same nonzero eigenvalues: decompose the smaller one
            few = rows.shape[1] < rows.shape[2]
            small = rows @ rows.mT if few else rows.mT @ rows
            if self.power == 1:
                return rows.mT @ rows if few else small
            damped = self._damped(small)
            return rows.mT @ (damped @ rows) if few else small @ damped

    def _damped(self, matrix: Tensor) -> Tensor:
        """A^(power - 1): times A, it is A^power."""
        newton = self.root == "newton"
        if self.root == "auto" and self.power == 0.5:
            newton = matrix.device.type != "cpu" or torch.compiler.is_exporting()
        shift = shift_of(matrix)
        return inverse_root(matrix, shift) if newton else EigenPower.apply(matrix, shift, self.power - 1)

    def vector(self, matrix: Tensor) -> Tensor:
        """Flattens symmetric matrices to vectors.

        Args:
            matrix: symmetric matrices (batch, 1 + dim, 1 + dim), such as ``matrix`` returns.

        Returns:
            (batch, out_dim), the scaled upper triangle, or its sketch.
        """
        flat, side = matrix.flatten(1), self.dim + 1
        if self.sketch is None:
            off = self.upper % (side + 1) != 0  # diagonal entries are side + 1 apart
            return flat.index_select(1, self.upper) * torch.where(off, sqrt(2), 1.0).to(flat.dtype)
        # For the matrix Y'Y: circular convolutions of two count sketches of each row of Y, summed over rows.
        places = ((self.places[0, :, None] + self.places[1]) % self.sketch).flatten()
        signs = (self.signs[0, :, None] * self.signs[1]).flatten()
        return flat.new_zeros(flat.shape[0], self.sketch).scatter_add(1, places.expand_as(flat), flat * signs)

    def extra_repr(self) -> str:
        return f"{self.dim}, power={self.power:g}, sketch={self.sketch}, root={self.root}"
