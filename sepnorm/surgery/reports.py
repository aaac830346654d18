"""The report of a conversion, norm by norm."""

from __future__ import annotations

from dataclasses import dataclass, field

from sepnorm.errors import in_columns


@dataclass(eq=False)
class SiteReport:
    """What a conversion did to one norm.

    Attributes:
        path: dotted path of the norm in the model.
        before: the norm before, as written: ``ln``.
        after: the norm now: ``bn+ln``, or the same as before.
        reason: why it was changed or kept.
    """

    path: str
    before: str
    after: str
    reason: str

    @property
    def changed(self) -> bool:
        """Whether the norm was changed."""
        return self.before != self.after


@dataclass(eq=False)
class ConversionReport:
    """What a conversion did. ``print`` it to see every norm of the model.

    Attributes:
        model: class name of the model.
        norm: the new norm, as written: ``bn+ln``.
        sites: one ``SiteReport`` per norm of the model, in the order of calls.
        parameters_added: number of parameters added; negative if some were removed.
        notes: sentences on the model as a whole, such as that its head does not read [CLS].
    """

    model: str
    norm: str
    sites: list[SiteReport] = field(repr=False)
    parameters_added: int = 0
    notes: list[str] = field(default_factory=list, repr=False)

    @property
    def converted(self) -> list[SiteReport]:
        """The norms that changed."""
        return [site for site in self.sites if site.changed]

    @property
    def kept(self) -> list[SiteReport]:
        """The norms that did not change."""
        return [site for site in self.sites if not site.changed]

    def __repr__(self) -> str:
        return (
            f"<ConversionReport {self.model} to {self.norm}: {len(self.converted)} of {len(self.sites)} norms, "
            f"{self.parameters_added:+,} parameters>"
        )

    def __str__(self) -> str:
        rows = [("site", "before", "after", "reason"), *((s.path, s.before, s.after, s.reason) for s in self.sites)]
        summary = (
            f"{self.model} to {self.norm}: {len(self.converted)} of {len(self.sites)} norms changed, "
            f"{self.parameters_added:+,} parameters"
        )
        return "\n".join([summary, *in_columns(rows), *(f"Note: {note}" for note in self.notes)])
