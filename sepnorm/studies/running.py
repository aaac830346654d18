"""What ``sepnorm reproduce`` and ``sepnorm study`` do: run what is not finished, draw the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sepnorm.domains import open_domain
from sepnorm.domains.comparison import parse_arms
from sepnorm.errors import SepNormError, UnreadableDataError, nearest, require_known
from sepnorm.experiment.comparison import Comparison, compare
from sepnorm.files import write_text
from sepnorm.report.diagnosis import finite
from sepnorm.report.page import write_page
from sepnorm.report.tables import markdown
from sepnorm.studies.drawing import DRAWERS, Drawn
from sepnorm.studies.plan import SCALES, STUDIES, Part, Study
from sepnorm.training.configs import RunConfig
from sepnorm.training.configs import preset as choose
from sepnorm.training.trainer import Report


def find_study(name: str, ours: bool) -> Study:
    """A study by its name, of the paper or of ours."""
    known = [each for each, study in STUDIES.items() if study.ours == ours]
    if name not in known:
        other = " It is one of our own: sepnorm study." if name in STUDIES and not ours else ""
        other = " It is the paper's: sepnorm reproduce." if name in STUDIES and ours else other
        raise SepNormError(f"there is no {name!r} here: there are {', '.join(known)}.{other or nearest(name, known)}")
    return STUDIES[name]


def parts_of(study: Study, scale: str, data: Mapping[str, str] | None = None, seeds: int | None = None) -> list[Part]:
    """The parts at a scale, with other data for some of them by their names."""
    require_known("scale", scale, SCALES)
    parts = study.parts[scale]
    names = [part.shared or part.name for part in parts]
    for name in data or {}:
        if name not in names:
            raise SepNormError(
                f"--data names {name!r}, and there are {', '.join(dict.fromkeys(names))}.{nearest(name, names)}"
            )
    found = []
    for part, name in zip(parts, names, strict=True):
        changes = dict(part.changes) | ({"data": data[name]} if data and name in data else {})
        found.append(replace(part, changes=changes, seeds=seeds or part.seeds))
    return found


def configs_of(part: Part, given: Mapping[str, Any]) -> tuple[RunConfig, list[RunConfig]]:
    """The settings that the arms of a part have in common, and those of each arm."""
    base = choose(open_domain(part.domain).presets, part.preset).changed({**part.changes, **given})
    norms = ",".join(part.norms)
    arms = parse_arms(norms, part.lambdas, part.targets) if len(part.norms) > 1 else parse_arms(f"ln,{norms}")[1:]
    return base, [base.changed(arm) for arm in arms]


def run_study(
    name: str,
    study: Study,
    parts: Sequence[Part],
    given: Mapping[str, Any],
    folder: Path,
    launcher: str = "local",
    start: Callable[[str, int], Report | None] | None = None,
) -> Path:
    """Runs the parts of a study, reusing what is finished, and writes its page, ``.md`` and ``.json``; returns the page's path."""
    if study.draw == "calibration":
        from sepnorm.studies.survival import survival

        drawn = survival(given)
    else:
        drawn = DRAWERS[study.draw]([(part, _compare(part, given, folder, launcher, start)) for part in parts])
    return _write(name, study.title, drawn, folder)


def _compare(
    part: Part,
    given: Mapping[str, Any],
    folder: Path,
    launcher: str,
    start: Callable[[str, int], Report | None] | None,
) -> Comparison:
    base, configs = configs_of(part, given)
    domain = open_domain(part.domain)
    place = folder / part.folder
    try:
        return compare(domain.recipe, domain.metrics, base, configs, range(part.seeds), place, launcher, start)
    except UnreadableDataError as error:
        raise SepNormError(
            f"the data of {part.name}, {base.data}, cannot be had here: download it where there is a network (datasets and hubs "
            f"keep a copy), or name a copy by --data '{part.shared or part.name}=PATH'. {error}"
        ) from error


def _write(name: str, title: str, drawn: Drawn, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(markdown(*each) for each in drawn.tables)
    said = f"# {title}\n\n{text}\n{drawn.note}\n"
    tables = [{"header": header, "rows": rows} for header, rows in drawn.tables]
    write_text(folder / f"{name}.md", said)
    write_text(folder / f"{name}.json", json.dumps(finite({"title": title, "tables": tables})))
    return write_page(folder / f"{name}.html", title, drawn.lead(), drawn.sections)
