"""Streaming statistics of embeddings, from which all measures of ``sepnorm.geometry`` are computed.

Embeddings are seen once, part by part, and not kept. Memory grows with the square of the dimension and with the size
of the sample. Up to rounding, the result does not depend on how the embeddings are divided into parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sepnorm.arguments import whole
from sepnorm.errors import SepNormError, SepNormWarning

SAMPLE = 8192  # embeddings in the sample for measures over pairs: 33 million pairs
_HASHED = 4_000_000  # duplicates are counted among this many embeddings


class Triangle:
    """The triangular factor R of a QR decomposition of all rows, with a leading column of ones.

    R holds everything about the rows that rotations do not change. Without its first column, R has the singular values
    of the rows; without its first column and row, those of the *centred* rows. It is updated by decomposing R stacked
    on the next rows. Unlike a Gram matrix, this does not square the condition number.
    """

    def __init__(self) -> None:
        self.count = 0
        self.varies = False  # whether any row differs from the first (R cannot tell, for rounding)
        self._first: Tensor | None = None
        self._r: Tensor | None = None
        self._waiting: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        """Adds rows (count, dim)."""
        self.count += rows.shape[0]
        if not self.varies and rows.shape[0]:
            self._first = rows[0].clone() if self._first is None else self._first
            self.varies = bool(rows.ne(self._first).any())
        self._waiting.append(rows.double())
        if sum(part.shape[0] for part in self._waiting) >= 4 * rows.shape[1]:
            self._reduce()

    def _reduce(self) -> Tensor:
        """R, with all waiting rows included."""
        if self._waiting:
            rows = torch.cat(self._waiting)
            rows = torch.cat([rows.new_ones(rows.shape[0], 1), rows], dim=1)
            stack = rows if self._r is None else torch.cat([self._r, rows])
            self._r = torch.linalg.qr(stack, mode="r").R
            self._waiting = []
        assert self._r is not None
        return self._r

    def singular_values(self, center: bool = False, dimensions: Sequence[int] | None = None) -> Tensor:
        """All min(count, dim) singular values, largest first, optionally of centred rows or of some dimensions."""
        r = self._reduce()
        if dimensions is not None:
            r = r[:, [0, *(i + 1 for i in dimensions)]]
        size = min(self.count, r.shape[1] - 1)
        if center and not self.varies:
            return r.new_zeros(size)
        values = torch.linalg.svdvals(r[1:, 1:] if center else r[:, 1:])
        return torch.cat([values, values.new_zeros(max(size - len(values), 0))])[:size]

    @property
    def mean(self) -> Tensor:
        """Mean per dimension (dim,)."""
        r = self._reduce()
        return r[0, 1:] / r[0, 0]

    @property
    def variance(self) -> Tensor:
        """Unbiased variance per dimension (dim,)."""
        return self._reduce()[1:, 1:].square().sum(0) / max(self.count - 1, 1)

    def scales(self, center: bool = False) -> Tensor:
        """Root of the sum of squares per dimension (dim,), centred or not, relative to the largest value in R."""
        r = self._reduce()[1:, 1:] if center else self._reduce()[:, 1:]
        return (r / r.abs().max().clamp(min=torch.finfo(torch.float64).tiny)).square().sum(0).sqrt()

    def dead(self, below: float) -> int:
        """Number of dimensions whose standard deviation is below ``below`` times the root mean square of all values."""
        r = self._reduce()[:, 1:]
        r = r / r.abs().max().clamp(min=torch.finfo(torch.float64).tiny)  # so that no square overflows or underflows
        variance = r[1:].square().sum(0) / max(self.count - 1, 1)
        return int((variance <= below**2 * (r[0].square() / self.count + variance).mean()).sum())


class Directions:
    """Sums over unit-length embeddings: the mean cosine of all pairs, and the contribution of each dimension."""

    def __init__(self, dim: int) -> None:
        self.count = self.zeros = 0
        self.total = torch.zeros(dim, dtype=torch.float64)
        self.squares = torch.zeros(dim, dtype=torch.float64)
        self.lengths = torch.zeros(2, dtype=torch.float64)  # sum, sum of squares

    def add(self, rows: Tensor) -> None:
        """Adds rows (count, dim)."""
        unit, lengths = to_unit(rows)
        self.zeros += rows.shape[0] - unit.shape[0]
        self.count += unit.shape[0]
        self.total += unit.sum(0)
        self.squares += unit.square().sum(0)
        self.lengths += torch.stack([lengths.sum(), lengths.square().sum()])

    def contributions(self) -> Tensor:
        """What each dimension adds to the mean cosine of all pairs (dim,); the sum is the mean cosine."""
        pairs = self.count * (self.count - 1)
        return (self.total.square() - self.squares) / pairs

    @property
    def mean_cosine(self) -> float:
        """Mean cosine of all pairs of different embeddings."""
        return max(-1.0, min(float(self.contributions().sum()), 1.0))


class Sample:
    """A uniform random sample of ``size`` embeddings. It depends only on the seed and on the order of arrival."""

    def __init__(self, size: int = SAMPLE, seed: int = 0) -> None:
        size, seed = whole(size, "max_samples"), whole(seed, "seed")
        if size < 2:
            raise SepNormError(
                f"pairs are compared, so a sample has at least two embeddings, found max_samples={size}."
            )
        self.size, self.seed, self.seen = size, seed, 0
        self._rows: list[Tensor] = []
        self._keys: list[Tensor] = []
        self._numbers: list[Tensor] = []
        self._limit = torch.iinfo(torch.int64).max

    def add(self, rows: Tensor) -> Tensor:
        """Offers rows (count, dim) to the sample; returns the row numbers of those that are in it so far."""
        numbers = torch.arange(self.seen, self.seen + rows.shape[0])
        self.seen += rows.shape[0]
        keys = _mixed(numbers, self.seed)
        keep = keys <= self._limit
        if keep.any():
            self._rows.append(rows[keep].clone())
            self._keys.append(keys[keep])
            self._numbers.append(numbers[keep])
        if sum(map(len, self._keys)) > 2 * self.size:
            self._cut()
        return numbers[keep]

    def _cut(self) -> None:
        keys, numbers, rows = torch.cat(self._keys), torch.cat(self._numbers), torch.cat(self._rows)
        if len(keys) > self.size:
            chosen = keys.argsort()[: self.size]
            self._limit = int(keys[chosen[-1]])
            chosen = chosen[numbers[chosen].argsort()]
            keys, numbers, rows = keys[chosen], numbers[chosen], rows[chosen]
        self._keys, self._numbers, self._rows = [keys], [numbers], [rows]

    @property
    def rows(self) -> Tensor:
        """The sampled rows (size, dim), in order of arrival."""
        self._cut()
        return self._rows[0]

    @property
    def numbers(self) -> Tensor:
        """Row numbers of the sample, counted from 0 in order of arrival."""
        self._cut()
        return self._numbers[0]


class Cloud:
    """All statistics in one pass, with counts of bad input: NaN, zero vectors, duplicates. Feed it by ``add``."""

    def __init__(self, sample: int = SAMPLE, seed: int = 0) -> None:
        self.dim = self.count = self.nonfinite = 0
        self.triangle = Triangle()
        self.directions = Directions(0)
        self.sample = Sample(sample, seed)
        # one large tensor: many small ones would fragment memory, and large ones between them could not be freed
        self._hashes = torch.empty(_HASHED, dtype=torch.int64)

    def add(self, rows: Tensor) -> Tensor:
        """Adds rows (count, dim); returns the row numbers of those that are in the sample so far."""
        if self.dim == 0:
            self.dim = rows.shape[1]
            self.directions = Directions(self.dim)
        elif rows.shape[1] != self.dim:
            raise SepNormError(
                f"vectors of {rows.shape[1]} dimensions came after vectors of {self.dim}: all must have the same number."
            )
        rows = rows.detach().to("cpu")
        if rows.dtype in (torch.float16, torch.bfloat16):  # exact, and all operations support it
            rows = rows.float()
        finite = rows.isfinite().all(1)
        if not finite.all():
            self.nonfinite += int((~finite).sum())
        # the sample counts every row, so that its numbers are row numbers; ``sampled`` drops non-finite rows later
        kept = self.sample.add(rows)
        rows = rows[finite]
        if rows.shape[0] == 0:
            return kept
        self.triangle.add(rows)
        self.directions.add(rows)
        if (left := _HASHED - self.count) > 0:
            self._hashes[self.count : self.count + rows.shape[0]] = _hashed(rows[:left])
        self.count += rows.shape[0]
        return kept

    @property
    def duplicates(self) -> int:
        """Number of embeddings that equal an earlier one, among the first four million."""
        hashes = self._hashes[: self.count]
        return len(hashes) - len(hashes.unique())

    def sampled(self) -> tuple[Tensor, Tensor]:
        """The finite rows of the sample, and their row numbers."""
        rows, numbers = self.sample.rows, self.sample.numbers
        finite = rows.isfinite().all(1)
        return rows[finite], numbers[finite]


def to_unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (count, dim) at unit length in double precision, without zero vectors; and the lengths of all rows."""
    rows = rows.double()
    lengths = rows.norm(dim=1)
    if bool(((lengths > 1e-150) & (lengths < 1e150)).all()):
        return rows / lengths[:, None], lengths
    largest = rows.abs().amax(1).clamp(min=torch.finfo(torch.float64).tiny)
    scaled = rows / largest[:, None]  # by the largest value first, so that no square overflows or underflows
    lengths = scaled.norm(dim=1)
    there = lengths > 0
    return scaled[there] / lengths[there, None], lengths * largest


def chunks(x: Any) -> Iterator[Tensor]:
    """Yields the rows of a tensor or array (count, dim) in parts of a few megabytes; memory maps are read lazily."""
    x = from_lists(x)
    shape = tuple(getattr(x, "shape", ()))
    if len(shape) != 2:
        found = f"the shape {shape}" if shape else f"a {type(x).__name__}"
        raise SepNormError(f"embeddings are a tensor or array (samples, dimensions), found {found}.")
    if 0 in shape:
        raise SepNormError(f"there is nothing to measure: the embeddings are empty, of shape {shape}.")
    count, dim = shape
    size = max(256, min(max(4 * dim, 2**20 // dim), 2**23 // dim))
    for start in range(0, count, size):
        part = x[start : start + size]
        if not isinstance(part, Tensor):
            part = _from_array(part)
        if part.is_complex() or part.dtype == torch.bool:
            raise SepNormError(f"embeddings are real numbers, found {str(part.dtype).removeprefix('torch.')}.")
        part = part.detach().to("cpu")
        yield part if part.is_floating_point() and part.element_size() > 1 else part.double()


def from_lists(x: Any) -> Any:
    """Lists of numbers as a tensor; other input unchanged."""
    if not isinstance(x, list | tuple):
        return x
    try:
        found = torch.tensor(x)
        return torch.tensor(x, dtype=torch.float64) if found.is_floating_point() else found
    except (TypeError, ValueError, RuntimeError) as error:
        raise SepNormError(f"embeddings are numbers in rows of equal length: {error}.") from error


def finite_chunks(x: Any) -> Iterator[Tensor]:
    """Like ``chunks``, without rows that hold NaN or infinity. Warns of them, and raises if there are no others."""
    left_out = kept = 0
    for part in chunks(x):
        finite = part.isfinite().all(1)
        left_out += int((~finite).sum())
        kept += int(finite.sum())
        if finite.any():
            yield part[finite]
    refuse_or_warn_of_nonfinite(left_out, kept)


def refuse_or_warn_of_nonfinite(left_out: int, kept: int) -> None:
    """Raises if no embedding is finite; warns if some are not."""
    if not kept:
        raise SepNormError(f"every one of the {left_out} embeddings holds NaN or infinity: nothing can be measured.")
    if left_out:
        warnings.warn(
            f"{left_out} of {left_out + kept} embeddings hold NaN or infinity and were left out.",
            SepNormWarning,
            stacklevel=3,
        )


def _from_array(part: Any) -> Tensor:
    """A part of a NumPy array as a tensor, also bfloat16 and foreign byte orders."""
    import numpy

    if part.dtype.kind == "V" and part.dtype.itemsize == 2:  # bfloat16, for which NumPy has no type
        return torch.from_numpy(numpy.array(part).view(numpy.int16)).view(torch.bfloat16)
    try:
        part = numpy.array(part)  # a copy: a file mapped into memory is read-only
        return torch.from_numpy(part.astype(part.dtype.newbyteorder("="), copy=False))
    except TypeError as error:
        raise SepNormError(f"embeddings are numbers, found an array of {getattr(part, 'dtype', '?')}.") from error


def _mixed(numbers: Tensor, seed: int) -> Tensor:
    """A pseudo-random 64-bit number per number (SplitMix64). It does not depend on the division into parts."""
    z = (numbers + (seed + 1) * 1_000_003 % 2**62) * -7046029254386353131
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _hashed(rows: Tensor) -> Tensor:
    """A 64-bit hash of each row's bits."""
    # In 16-bit words: integers stored as floats differ only in their high bits, and a product would leave them there.
    bits = (rows + 0.0).contiguous().view(torch.int16).long()  # + 0.0 turns -0 into 0
    return _mixed(bits @ _mixed(torch.arange(bits.shape[1]), 7), 11)
