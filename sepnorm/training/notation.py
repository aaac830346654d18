"""Notation of norms, sites and arms, as ``bn+ln@final``. Parsed without torch, so typos are reported at once."""

from __future__ import annotations

import difflib
import re

from sepnorm.errors import SepNormError, nearest

#: Kinds of norms with their short names. ``sepnorm.layer.kinds`` builds them; a test keeps the two in agreement.
KINDS = {"batch": "bn", "layer": "ln", "rms": "rms", "tanh": "dyt", "mixture": "mix"}
#: Named sites; anything else is a pattern of module paths.
SITES = ("all", "final", "blocks", "degenerate")
_LONG = {short: name for name, short in KINDS.items()}
_MEANT = {
    "last": "final",
    "end": "final",
    "top": "final",
    "output": "final",
    "every": "all",
    "each": "all",
    "any": "all",
}
_ALIKE = 0.75  # similarity of a word to a site's name above which it is a typing error; a norm may be called final_norm


def names_in(text: str) -> list[str]:
    """The names in a list that is separated by commas.

    >>> names_in("cls, mean,")
    ['cls', 'mean']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def norm_name(text: str) -> str:
    """Normalises the notation of a norm to the paper's.

    >>> norm_name("Batch + Layer"), norm_name("ln")
    ('bn+ln', 'ln')
    """
    parts = [part.strip() for part in text.lower().split("+")]
    if len(parts) > 2 or not all(parts):
        raise SepNormError(f"a norm is written like 'bn+ln' ([CLS] first) or 'ln', found {text!r}.")
    for part in parts:
        if part not in KINDS and part not in _LONG:
            raise SepNormError(
                f"unknown norm {part!r}: the kinds are {', '.join(KINDS)} (short: {', '.join(_LONG)}), and a pair of them is "
                f"written as 'bn+ln'.{_meant_norm(text) or nearest(part, [*KINDS, *_LONG])}"
            )
    return "+".join(KINDS.get(part, part) for part in parts)


def _meant_norm(text: str) -> str:
    """A hint for a pair that is joined by another sign, such as ``bn-ln``."""
    parts = [part for part in re.split(r"[^a-z]+", text.lower()) if part]
    if len(parts) != 2 or not all(part in KINDS or part in _LONG for part in parts):
        return ""
    return f" Did you mean '{'+'.join(KINDS.get(part, part) for part in parts)}'?"


def check_sites(text: str) -> str:
    """Checks named sites or a pattern. A word that is almost a site's name is refused, since it would match nothing."""
    plain = text.strip().lower()
    if not plain:
        raise SepNormError(
            f"no sites were named: there are {', '.join(SITES)}, or a pattern of paths such as '*.layernorm'."
        )
    if text in SITES or re.search(r"[*?\[.]", text):
        return text
    meant = [_MEANT[plain]] if plain in _MEANT else difflib.get_close_matches(plain, SITES, n=1, cutoff=_ALIKE)
    if meant:
        raise SepNormError(
            f"unknown sites {text!r}: choose from {', '.join(SITES)}, or a pattern of paths. Did you mean {meant[0]!r}?"
        )
    return text


def parse_arm(text: str) -> dict[str, str]:
    """Parses ``"bn+ln@final"`` to changes of a config.

    >>> parse_arm("bn+ln@final")
    {'norm': 'bn+ln', 'sites': 'final'}
    >>> parse_arm("ln")
    {'norm': 'ln'}
    """
    norm, at, sites = text.partition("@")
    return {"norm": norm, "sites": sites} if at else {"norm": norm}
