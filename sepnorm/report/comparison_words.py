"""What a comparison says in sentences: the headline, a clause for each arm, and how verdicts were made."""

from __future__ import annotations

from collections.abc import Sequence

from sepnorm.experiment.comparison import Arm, Comparison, by_mean, comparable
from sepnorm.experiment.decisions import Decision
from sepnorm.experiment.metrics import LOSS, Metric
from sepnorm.report.selection import references

#: What is said of seeds that change nothing.
COPIES = "Every arm has the same metrics in every seed: these are most likely copies of one run"
#: Arms listed by name.
FEW = 6


def headline(comparison: Comparison) -> str:
    """A summary of every arm by the primary metric; without labels, by the geometry."""
    note, clauses, best = verdict_parts(comparison)
    if comparison.primary is None:
        return note
    return f"{note}{comparison.primary.name} against {comparison.arms[0].name}: {'; '.join(clauses)}.{best}"


def verdict_parts(comparison: Comparison) -> tuple[str, list[str], str]:
    """A note on what could be judged, a clause per arm, and the best means."""
    scored = any(metric.kind == "score" for metric in comparison.columns)
    note = _unfinished(comparison)
    if comparison.copies:
        note += f"{COPIES}, and no verdict counts: give every run its seed. "
    note += "" if scored else "The data have no labels, so only geometry was measured. "
    metric = comparison.primary
    if metric is None:
        return note + "None of the metrics is declared as better one way, so there is no verdict.", [], ""
    found = comparison.decisions()
    clauses = [f"{name} is {clause(each, comparison.most)}" for name, each in found.items()]
    if len(found) > FEW:
        verdicts = [each.verdict for each in found.values()]
        counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("better", "equal", "undecided", "worse")]
        best = next(arm.name for arm in comparison.ranked() if arm.name in found)
        clauses = [
            f"of {len(found)} arms {', '.join(counts)}",
            f"{best}, with the best mean, is {clause(found[best], comparison.most)}",
        ]
    unjudged: dict[str, list[str]] = {}
    for arm in comparison.arms[1:]:
        if arm.name not in found:
            unjudged.setdefault(why_unjudged(arm, comparison.arms[0], metric), []).append(arm.name)
    clauses += [f"{', '.join(names)}: {why}" for why, names in unjudged.items()]
    return note, clauses, _best(comparison, metric)


def why_unjudged(arm: Arm, to: Arm, metric: Metric) -> str:
    """Why there is no verdict on an arm by the primary metric."""
    if arm.values(metric.key).keys().isdisjoint(to.values(metric.key)):
        return f"no seed in common with {to.name}"
    return f"no finite value in a seed of {to.name}"


def _unfinished(comparison: Comparison) -> str:
    """Which runs failed or have no score, and what that means for verdicts; empty if there are none."""
    note, metric = "", comparison.primary
    here = {arm.name for arm in comparison.arms}
    if failed := [run for run in comparison.failed if run[0] in here]:
        note = (
            f"Unfinished: {_named(failed)} failed. Seeds with a failed run are left out, so verdicts do not hold if failing "
            "depends on the arm. "
        )
    if gone := [run for run in comparison.failed if run[0] not in here]:
        note += f"Arms left out because runs failed: {_named(gone)}. Verdicts are corrected for them too. "
    if metric is not None and (lacking := comparison.lacking(metric)):
        note += (
            f"Without {metric.name}: {_named(lacking)}. Such seeds are left out of differences, so verdicts do "
            "not hold if failing depends on the arm. "
        )
    return note


def _named(runs: Sequence[tuple[str, int]]) -> str:
    """``bn, seeds 2, 3; rms, seed 2``, some of them if there are many."""
    seeds: dict[str, list[str]] = {}
    for name, seed in runs:
        seeds.setdefault(name, []).append(str(seed))
    said = []
    for name, each in seeds.items():
        more = f" and {len(each) - FEW} more" if len(each) > FEW else ""
        said.append(f"{name}, seed{'s' * (len(each) > 1)} {', '.join(each[:FEW])}{more}")
    more = f", and runs of {len(said) - FEW} more arms" if len(said) > FEW else ""
    return f"{'; '.join(said[:FEW])}{more}"


def _best(comparison: Comparison, metric: Metric) -> str:
    """The best means of the primary metric and of the one beside it, often of different arms."""
    if comparison.beside is None:
        return ""
    said = []
    for each in (metric, comparison.beside):
        arm = by_mean(comparison.arms, each)[0]
        if (mean := arm.interval(each.key)) is not None:
            said.append(f"{each.name} {mean} ({arm.name})")
    return f" Best means: {', '.join(said)}."


def clause(decision: Decision, most: int | None = None) -> str:
    """``better (+0.012 ± 0.004, 5 seeds)``; if undecided, with the number of seeds that would probably decide it.

    ``most`` is the largest number of seeds, if it was not fixed.
    """
    seeds = f"{decision.count} seed{'s' * (decision.count > 1)}"
    verdict = "practically equal" if decision.verdict == "equal" else decision.verdict
    more = "" if decision.verdict != "undecided" or decision.count < 2 else _forecast(decision, most)
    return f"{verdict} ({decision}, {seeds}{more})"


def verdict_of(decision: Decision, arm: Arm, to: Arm) -> str:
    """``better``; or ``better after 4 seeds``, if it was reached before the last seed that both arms have."""
    early = decision.verdict != "undecided" and decision.count < len(arm.metrics.keys() & to.metrics.keys())
    return decision.verdict + (f" after {decision.count} seeds" if early else "")


def _forecast(decision: Decision, most: int | None) -> str:
    """How many seeds would decide. Further ones may only be added within ``most``."""
    count, more = decision.count, decision.more_seeds
    ended = "the budget ended, " if count == most else ""
    if more is None:
        return f"; {ended}more seeds would hardly decide it"
    if most is not None and not ended:
        return f"; about {more} more would decide it"
    return f"; {ended}a new comparison of about {count + more} would decide it"


def explanation(comparison: Comparison) -> str:
    """Explains how verdicts and intervals are computed."""
    same = "" if comparison.arms[0].config.foreign else ": the same data, order and first weights"
    note = f"Means over seeds ± 95 % interval (Student). Differences are paired by seed{same}. "
    if comparison.primary is not None:
        margin = f"{comparison.margin_to():.2g}"
        note += f"Arms are judged by {comparison.primary.name} alone, "
        note += _correction(comparison)
        note += (
            f"Equal means that the interval lies within ±{margin}. Other columns are exploratory and have no verdict. "
        )
    if comparison.most is not None:
        cut = comparison.failed and not comparison.decided and len(comparison.arms[0].metrics) < comparison.most
        ended = "a run failed" if cut else "every arm was decided"
        note += (
            f"Seeds were added until {ended}, {comparison.most} at most; intervals of differences in the primary metric allow for "
            "looking after every seed. An arm keeps the difference and interval of the seeds that decided it; means and dots "
            "are of all seeds. "
        )
    if comparison.looks:
        counts = " and ".join(map(str, comparison.looks))
        note += (
            f"The folder held a report on {counts} seeds before this one: verdicts come from more than one look, and the 95 % do "
            "not hold. "
        )
    if comparison.changed:
        verb = "were" if len(comparison.changed) > 1 else "was"
        note += (
            f"The {' and the '.join(comparison.changed)} {verb} set anew after a report in this folder: verdicts come from more "
            "than one look, and the 95 % do not hold. "
        )
    lacking = {each.name: comparison.lacking(each) for each in comparison.columns if each != comparison.primary}
    if said := [f"{name} of {_named(runs)}" for name, runs in lacking.items() if runs]:
        more = f" and {len(said) - FEW} more metrics" if len(said) > FEW else ""
        note += f"Not finite or missing, and left out: {'; '.join(said[:FEW])}{more}. "
    if not all(comparable(arm, comparison.arms[0], LOSS) for arm in comparison.arms):
        note += "The loss has the uniformity term in it, so that of arms with another lambda is not compared. "
    uniformity = any(metric.key == "cls_uniformity" for metric in comparison.columns)
    return note + "Lower uniformity is better." * uniformity


def _correction(comparison: Comparison) -> str:
    """For how many arms verdicts are corrected. Each table of differences is a family of its own."""
    families = [(to.name, len(comparison.family(to))) for to in references(comparison)]
    if families[0][1] == 1:
        return "at 95 %. "
    if len(families) == 1:
        return f"corrected for {families[0][1]} arms (Holm). "
    counts = ", ".join(f"{count} arm{'s' * (count > 1)} minus {name}" for name, count in families)
    return f"corrected for the number of arms (Holm), for each arm that is subtracted by itself: {counts}. "
