"""Records: what a comparison measured or a command printed, from which pages are rendered without running anything.

A record is one JSON file. A comparison has its arms with the value of each metric by seed; intervals and verdicts are computed from
these as the command does. Anything else has the printed text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from tables import TABLES

from sepnorm.domains import open_domain
from sepnorm.experiment.comparison import Arm, Comparison
from sepnorm.experiment.intervals import difference
from sepnorm.experiment.slugs import slug
from sepnorm.training.configs import ArmConfig

RECORDS = Path(__file__).parent / "records"
#: What tells arms apart.
_SETTINGS = ("norm", "sites", "num_cls", "uniformity_weight", "uniformity_form", "uniformity_on", "uniformity_within")
_DIGITS = 9  # significant, of a kept value: more than any table shows


def names() -> list[str]:
    return sorted(path.stem for path in RECORDS.glob("*.json"))


@cache
def read(name: str) -> dict[str, Any]:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda numbers: f"[{' '.join(numbers[1].split())}]", text)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    for each in (read, comparison, quantity):
        each.cache_clear()


def of_comparison(
    command: str, folder: Path, spectra: tuple[str, ...] = (), seconds: float | None = None
) -> dict[str, Any]:
    """The record of a finished comparison, from the files that it wrote to its folder, and how long it took where that is known."""
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    words = command.split()
    require_same(words, found)
    kept = {arm["name"]: arm for arm in found["arms"]}
    domain = words[2]
    keys = list(dict.fromkeys(key for arm in kept.values() for metrics in arm["seeds"].values() for key in metrics))
    record = {
        "command": command,
        "where": where(folder),
        "domain": domain,
        "most": found["most_seeds"],
        "margin": float(words[words.index("--margin") + 1]) if "--margin" in words else None,
        "seeds": [int(seed) for seed in next(iter(kept.values()))["seeds"]],
        "arms": {
            name: {
                "settings": {key: arm["config"][key] for key in _SETTINGS if arm["config"][key] != _default(key)},
                "metrics": {
                    key: [_rounded(metrics.get(key)) for metrics in arm["seeds"].values()]
                    for key in keys
                    if any(key in metrics for metrics in arm["seeds"].values())
                },
            }
            for name, arm in kept.items()
        },
    }
    if seconds is not None:
        record["seconds"] = round(seconds)
    if spectra:
        record["spectra"] = {name: spectrum(folder / "runs" / f"{slug(name)}-seed0") for name in spectra}
    return record


def of_text(command: str, place: str, text: str) -> dict[str, Any]:
    """The record of anything else: what was printed."""
    return {"command": command, "where": place, "text": [line.rstrip() for line in text.strip("\n").splitlines()]}


def require_same(words: list[str], found: dict[str, Any]) -> None:
    """Refuses a folder of another command: other arms, settings or seeds than the words say."""
    options = dict(pairwise(words))
    sets = dict(word.split("=", 1) for before, word in pairwise(words) if before == "--set")
    config, arms = found["arms"][0]["config"], [arm["name"] for arm in found["arms"]]
    wanted = options.get("--norms", open_domain(words[2]).arms).split(",")
    if "--lambdas" not in options and wanted != arms:
        raise SystemExit(f"the folder has the arms {', '.join(arms)}, and the command {', '.join(wanted)}.")
    for key, value in sets.items():
        kept = config.get(key)
        if value == ".":  # all of the data, wherever it was
            continue
        if str(kept) != value and not _alike(kept, value) and Path(str(kept)).name != Path(value).name:
            raise SystemExit(f"the folder has {key}={kept}, and the command {key}={value}.")
    count = len(found["arms"][0]["seeds"])
    seeds = options.get("--seeds", "6")
    most = int(options.get("--most", "12")) if seeds == "auto" else None
    if found["most_seeds"] != most or (most is None and count != int(seeds)):
        raise SystemExit(
            f"the folder has {count} seeds of at most {found['most_seeds']}, and the command --seeds {seeds}."
        )


def _alike(kept: Any, value: str) -> bool:
    try:
        return float(kept) == float(value)
    except (TypeError, ValueError):
        return str(kept).lower() == {"null": "none"}.get(value, value)


def where(folder: Path) -> str:
    """Versions and machine of the first run in a folder."""
    run = next(iter(sorted(folder.rglob("environment.json"))), None)
    if run is None:
        return here()
    found = json.loads(run.read_text(encoding="utf-8"))
    machine = f"{found['machine']}, {found['device']}, threads of a run: {found['threads']}"
    return f"sepnorm {found['sepnorm']}, torch {found['torch']}, {machine}."


def here() -> str:
    """Versions and machine of this process."""
    import os
    import platform

    import torch

    from sepnorm import __version__

    return f"sepnorm {__version__}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores."


def spectrum(run: Path) -> list[float]:
    """Singular values of [CLS] of a run, its mean vector included, relative to the largest."""
    with np.load(run / "embeddings.npz") as arrays:
        values = np.linalg.svd(arrays["cls"].astype(np.float64), compute_uv=False)
    return [float(f"{value:.4g}") for value in values / values[0]]


def _default(key: str) -> Any:
    return ArmConfig.model_fields[key].default


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


@cache
def comparison(name: str) -> Comparison:
    """A comparison as the command had it, from its record."""
    record = read(name)
    arms = []
    for title, kept in record["arms"].items():
        arm = Arm(title, ArmConfig(data=record["domain"], **kept["settings"]))
        for place, seed in enumerate(record["seeds"]):
            arm.metrics[seed] = {
                key: values[place] for key, values in kept["metrics"].items() if values[place] is not None
            }
        arms.append(arm)
    return Comparison(arms, open_domain(record["domain"]).metrics, record["margin"], record["most"])


_WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()


@dataclass(frozen=True)
class Quantity:
    """What a claim refers to. ``{}`` is its text as tables show it; ``{:.2f}`` and ``{:.0%}`` format the mean.

    ``{:points}`` is the mean in hundredths, ``{:minutes}`` a time, ``{:words}`` a whole number as a word, ``{:Words}`` at the
    beginning of a sentence. ``{:verdict}`` and ``{:seeds}`` are those of a difference; ``{:seed_words}`` is the number of
    seeds as a word.
    """

    text: str
    mean: float | None = None
    verdict: str = ""
    seeds: int = 0

    def __format__(self, spec: str) -> str:
        if spec in ("", "verdict", "seeds"):
            return {"": self.text, "verdict": self.verdict, "seeds": str(self.seeds)}[spec]
        if spec == "seed_words":
            return _WORDS[self.seeds]
        value = float(self.text) if self.mean is None else self.mean
        if spec in ("words", "Words"):
            word = _WORDS[int(value)]
            return word if spec == "words" else word.capitalize()
        if spec == "minutes":
            return f"{value / 60:.0f}"
        return f"{100 * abs(value):.0f}" if spec == "points" else format(value, spec)


_ARMS = re.compile(r"(?P<record>[\w-]+): (?P<arm>.+?)(?: minus (?P<to>.+?))?, (?P<metric>\w+)")


@cache
def quantity(reference: str) -> Quantity:
    """``demo: bn+bn@final minus ln, cls_knn``; ``demo seconds``; ``bench ~ REGEX`` for text; ``code [percent] sepnorm.NAME``.

    Of settings: ``command digits ~ REGEX`` in the words of a table's command, ``preset images demo epochs``.
    """
    if (code := re.fullmatch(r"code (percent )?(\S+)", reference)) is not None:
        value = float(resolve_name(code[2])) * (100 if code[1] else 1)
        return Quantity(f"{value:g}", value)
    if (preset := re.fullmatch(r"preset (\w+) (\S+) (\w+)", reference)) is not None:
        value = float(getattr(open_domain(preset[1]).presets[preset[2]], preset[3]))
        return Quantity(f"{value:,g}", value)
    name, tilde, pattern = reference.partition(" ~ ")
    if tilde:
        command = TABLES[name.removeprefix("command ")].command if name.startswith("command ") else ""
        found = re.findall(pattern, command or "\n".join(read(name)["text"]), re.MULTILINE)
        if len(found) != 1:
            raise LookupError(f"{pattern!r} is {len(found)} times in the record {name}.")
        return Quantity(found[0])
    if (whole := re.fullmatch(r"([\w-]+) seconds", reference)) is not None:
        return Quantity(str(read(whole[1])["seconds"]), read(whole[1])["seconds"])
    match = _ARMS.fullmatch(reference)
    if match is None:
        raise LookupError(f"{reference!r} is no reference into a record.")
    return _measured(**match.groupdict())


def within(record: str, arm: str, metric: str, minus: str) -> str:
    """The difference of two metrics of the same runs, paired by seed; bold where its interval leaves out 0."""
    found = next(each for each in comparison(record).arms if each.name == arm)
    gap = difference(found.values(metric), found.values(minus), None)
    if gap is None:
        raise LookupError(f"{arm} of {record} has no seed with {metric} and {minus}.")
    return f"**{gap}**" if abs(gap.mean) > gap.half else str(gap)


def _measured(record: str, arm: str, to: str | None, metric: str) -> Quantity:
    whole = comparison(record)
    by_name = {each.name: each for each in whole.arms}
    one = by_name[arm]
    if to is None:
        mean = one.interval(metric)
        if mean is None:
            raise LookupError(f"{arm} of {record} has no {metric}.")
        return Quantity(str(mean), mean.mean, "", mean.count)
    known = whole.declared.find(metric)
    if known == whole.primary:
        decision = whole.decisions(by_name[to])[arm]
        return Quantity(str(decision), decision.mean, decision.verdict, decision.count)
    gap = whole.difference(one, known, by_name[to])
    if gap is None:
        raise LookupError(f"{metric} of {arm} and {to} in {record} is not compared.")
    return Quantity(str(gap), gap.mean, "", gap.count)
