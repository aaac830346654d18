"""Parts of a study: comparisons at a scale, their data, and the settings of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sepnorm.data.places import require_here
from sepnorm.domains import open_domain
from sepnorm.domains.comparison import parse_arms
from sepnorm.errors import SepNormError, nearest, require_known
from sepnorm.training.configs import RunConfig
from sepnorm.training.configs import preset as choose

SCALES = ("demo", "small", "paper")


@dataclass(frozen=True)
class Part:
    """One comparison: its name in tables, and what it runs."""

    name: str
    domain: str
    preset: str
    norms: tuple[str, ...]  # as for ``--norms``, baseline first
    samples: int  # number of training samples, to estimate the time of a run
    seeds: int = 3
    changes: Mapping[str, Any] = field(default_factory=dict)
    lambdas: str = ""
    targets: str = ""

    shared: str = ""  # name of a part that has the same runs

    @property
    def folder(self) -> str:
        """Folder of its runs, shared by parts of the same name."""
        return f"{self.domain}-{self.shared or self.name}".replace(" ", "-").replace(",", "")


@dataclass(frozen=True)
class Study:
    """What is shown, how its page is drawn, and the parts at each scale. ``ours``: not in the paper."""

    title: str
    draw: str  # name of a function in ``drawing``
    parts: Mapping[str, tuple[Part, ...]]
    ours: bool = False
    copies: tuple[str, ...] = ()  # names of further data, beside those of the parts


def parse_copies(pairs: Sequence[str]) -> dict[str, str]:
    """Parses ``["cifar10=PATH"]`` to paths by name of the part.

    ``stsb.test=PATH`` is the test data of a part, if that is separate.
    """
    found = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path:
            raise SepNormError(
                f"--data of a study names a copy of some of its data, as cifar10=PATH, found {pair!r}. To compare norms on data of "
                "your own: sepnorm compare images --data PATH."
            )
        require_here(path)
        found[name.strip()] = path
    return found


def parts_of(study: Study, scale: str, data: Mapping[str, str] | None = None, seeds: int | None = None) -> list[Part]:
    """The parts at a scale, with the user's copies of data by name."""
    require_known("scale", scale, SCALES)
    parts = study.parts[scale]
    names = [part.shared or part.name for part in parts]
    known = list(dict.fromkeys([*names, *study.copies]))
    for name in (key.removesuffix(".test") for key in data or {}):
        if name not in known:
            raise SepNormError(f"--data names {name!r}, and there are {', '.join(known)}.{nearest(name, known)}")
    found = []
    for part, name in zip(parts, names, strict=True):
        given = {"data": (data or {}).get(name), "test": (data or {}).get(f"{name}.test")}
        changes = dict(part.changes) | {key: path for key, path in given.items() if path is not None}
        found.append(replace(part, changes=changes, seeds=seeds or part.seeds))
    return found


def configs_of(part: Part, given: Mapping[str, Any]) -> tuple[RunConfig, list[RunConfig]]:
    """The common config of a part, and the config of each arm."""
    base = choose(open_domain(part.domain).presets, part.preset).changed({**part.changes, **given})
    norms = ",".join(part.norms)
    arms = parse_arms(norms, part.lambdas, part.targets) if len(part.norms) > 1 else parse_arms(f"ln,{norms}")[1:]
    return base, [base.changed(arm) for arm in arms]


def check_parts(parts: Sequence[Part], given: Mapping[str, Any]) -> None:
    """Refuses settings that do not fit, before anything is run."""
    for part in parts:
        configs_of(part, given)
