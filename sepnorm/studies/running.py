"""``sepnorm reproduce`` and ``sepnorm study``: run what is not finished, then draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.domains import open_domain
from sepnorm.errors import SepNormError, UnreadableDataError
from sepnorm.experiment.comparison import Comparison
from sepnorm.experiment.launchers import Watch
from sepnorm.experiment.running import compare
from sepnorm.files import write_text
from sepnorm.report.diagnosis import finite
from sepnorm.report.page import write_page
from sepnorm.report.tables import markdown
from sepnorm.studies.drawing import DRAWERS
from sepnorm.studies.drawn import Drawn
from sepnorm.studies.parts import Part, Study, configs_of
from sepnorm.training.sharding import refuse_sharding


def run_study(
    name: str,
    study: Study,
    parts: Sequence[Part],
    given: Mapping[str, Any],
    folder: Path,
    launcher: str = "local",
    watch: Watch | None = None,
    own: Any = None,
    seeds: int | None = None,
) -> Path:
    """Runs the parts of a study that are not finished; writes its page, ``.md`` and ``.json``; returns the page's path.

    ``own`` is the config of a study without parts, and ``seeds`` its number of seeds.
    """
    if study.draw == "tuning":
        from sepnorm.studies.tuning import tuning

        drawn = tuning(own, seeds, folder, launcher, watch)
    elif study.draw == "calibration":
        from sepnorm.studies.survival import survival

        drawn = survival(given)
    else:
        drawn = DRAWERS[study.draw]([(part, _compare(part, given, folder, launcher, watch)) for part in parts])
    return _write(name, study.title, drawn, folder)


def _compare(
    part: Part,
    given: Mapping[str, Any],
    folder: Path,
    launcher: str,
    watch: Watch | None,
) -> Comparison:
    base, configs = configs_of(part, given)
    refuse_sharding(base)
    domain = open_domain(part.domain)
    place = folder / part.folder
    try:
        return compare(domain.recipe, domain.metrics, base, configs, range(part.seeds), place, launcher, watch)
    except UnreadableDataError as error:
        raise SepNormError(
            f"the data of {part.name}, {base.data}, is not available here: download it where there is a network (datasets and "
            f"the Hub keep a copy), or name a copy by --data '{part.shared or part.name}=PATH'. {error}"
        ) from error


def _write(name: str, title: str, drawn: Drawn, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(markdown(*each) for each in drawn.tables)
    said = f"# {title}\n\n{text}\n{drawn.note}\n"
    tables = [{"header": header, "rows": rows} for header, rows in drawn.tables]
    write_text(folder / f"{name}.md", said)
    write_text(folder / f"{name}.json", json.dumps(finite({"title": title, "tables": tables})))
    return write_page(folder / f"{name}.html", title, drawn.lead(), drawn.sections)
