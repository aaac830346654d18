"""The domains by name. Each is a folder with a ``domain.py`` that says what the commands need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sepnorm.errors import SepNormError, nearest
from sepnorm.experiment.runs import Recipe
from sepnorm.training.configs import RunConfig

if TYPE_CHECKING:
    from sepnorm.report.comparison_page import Extra

NAMES = ("images", "text", "molecules")


@dataclass(frozen=True)
class Domain:
    """Presets by name, how a recipe is made from a config, the arms that are compared by default, and a page's own sections.

    ``draw`` makes an SVG of a sample from its name.
    """

    presets: Mapping[str, RunConfig]
    recipe: Callable[[Any], Recipe]
    arms: str
    sections: Sequence[Extra] = ()
    draw: Callable[[str], str] | None = None


def open_domain(name: str) -> Domain:
    if name not in NAMES:
        raise SepNormError(f"there is no domain {name!r}: there are {', '.join(NAMES)}.{nearest(name, NAMES)}")
    found: Domain = import_module(f"sepnorm.domains.{name}.domain").DOMAIN
    return found
