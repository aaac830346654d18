"""The report of what is trained and what is frozen."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class TuningReport:
    """What ``tune_special`` trains. ``print`` shows a table.

    Attributes:
        model: class name of the model.
        what: what is tuned, in words.
        tuned: sizes of the tuned parameters by name: vectors, or norms of [CLS].
        head: sizes of the trained parameters outside the encoder, by name.
        frozen: number of frozen parameters.
        notes: sentences on the model, such as assumptions that were made.
    """

    model: str
    what: str
    tuned: dict[str, int] = field(repr=False)
    head: dict[str, int] = field(repr=False)
    frozen: int = 0
    notes: list[str] = field(default_factory=list, repr=False)

    @property
    def parameters(self) -> int:
        """Number of tuned parameters, without the head."""
        return sum(self.tuned.values())

    @property
    def total(self) -> int:
        """Number of parameters of the model."""
        return self.parameters + sum(self.head.values()) + self.frozen

    def __repr__(self) -> str:
        return f"<TuningReport {self.model}: {self.what}, {self.parameters:,} of {self.total:,} parameters>"

    def __str__(self) -> str:
        head = sum(self.head.values())
        parts = sorted({name.partition(".")[0] for name in self.head})
        rows = [
            ("part", "parameters", "share", ""),
            ("tuned", f"{self.parameters:,}", f"{self.parameters / self.total:.3%}", self.what),
            ("head", f"{head:,}", f"{head / self.total:.3%}", ", ".join(parts) or "none: all is encoder"),
            ("frozen", f"{self.frozen:,}", f"{self.frozen / self.total:.3%}", "the rest"),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{row[0].ljust(widths[0])}  {row[1].rjust(widths[1])}  {row[2].rjust(widths[2])}  {row[3]}".rstrip()
            for row in rows
        ]
        return "\n".join([f"{self.model}: {self.what}", *lines, *(f"Note: {note}" for note in self.notes)])
