"""Selects sites: by name, by a glob over paths, by several globs, or by a predicate."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence

from sepnorm.errors import SepNormError, nearest
from sepnorm.surgery.sites import Site, Sites

Choice = str | Sequence[str] | Callable[[Site], bool]
NAMES = ("all", "final", "blocks", "degenerate")
_FORM = "'final', 'all', another name, a pattern of paths, a list of patterns, or a predicate of a site"


def require_choice(choice: object) -> None:
    """Raises for an invalid choice, before the model is run."""
    if isinstance(choice, str) or callable(choice):
        return
    if not isinstance(choice, list | tuple | set | frozenset):
        raise SepNormError(f"sites is {_FORM}, found {choice!r}.")
    if not choice:
        raise SepNormError(f"sites is an empty list, so no norm was chosen: give {_FORM}.")
    wrong = [each for each in choice if not isinstance(each, str)]
    if wrong:
        raise SepNormError(f"a list of sites holds patterns of paths, as '*layer.1.*', found {wrong[0]!r}.")


def choose(sites: Sites, choice: Choice) -> list[Site]:
    """The sites that ``choice`` selects (see ``convert``)."""
    require_choice(choice)
    if callable(choice):
        chosen = [site for site in sites.all if site.sees_cls and choice(site)]
        if not chosen:
            raise SepNormError(f"the predicate chose none of the sites. {sites.listing()}")
        return chosen
    if isinstance(choice, str) and choice in NAMES:
        return _named(sites, choice)
    chosen_paths: set[str] = set()
    for pattern in [choice] if isinstance(choice, str) else choice:
        matched = [site for site in sites.all if fnmatch.fnmatchcase(site.path, pattern)]
        possible = [site for site in matched if site.sees_cls and not site.degenerate]
        if not possible:
            why = (
                f"sites pattern {pattern!r} matches no norm.{nearest(pattern, NAMES)}"
                if not matched
                else f"sites pattern {pattern!r} matches only norms that are left alone ({matched[0].path}: {matched[0].reason})."
            )
            raise SepNormError(f"{why} {sites.listing()}")
        chosen_paths |= {site.path for site in possible}
    return [site for site in sites.all if site.path in chosen_paths]


def _named(sites: Sites, choice: str) -> list[Site]:
    usual = sites.usual
    if not usual:
        raise SepNormError(f"there is no norm that sees [CLS] beside other tokens. {sites.listing()}")
    if choice == "degenerate":
        return [site for site in sites.all if site.usual or site.degenerate]
    if choice == "all":
        return usual
    if choice == "final":
        return [sites.final]
    last = max(usual, key=lambda site: site.last)
    return [site for site in usual if site is not last] or usual
