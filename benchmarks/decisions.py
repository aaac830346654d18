"""Error rates and power of verdicts, in simulated comparisons.

    python benchmarks/decisions.py [--count 10000] [--most 12] [--json FILE]

Each comparison has one baseline and some arms, with one normal value a seed unless noted. Differences are to the
baseline, in units of the standard deviation of a paired difference. `decide` is called after every seed up to `most`,
and an arm keeps its first verdict: this stopping rule makes mistakes most likely. Rates are in per cent of comparisons,
with Wilson's 95 % interval for the simulation error. Takes two minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from sepnorm.experiment.decisions import decide

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


OTHERS: dict[str, Draw] = {
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape) * np.sqrt(3),
    "Laplace": lambda rng, shape: rng.laplace(size=shape) / np.sqrt(2),
    "Student's t, 3 df": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "100 test samples, accuracy 0.9": lambda rng, shape: (rng.binomial(100, 0.9, shape) - 90) / 3,
}


def comparisons(count: int, effects: list[float], seeds: int, seed: int, draw: Draw = normal) -> np.ndarray:
    """Paired differences (count, arms, seeds) of standard deviation 1 to a baseline that the arms share."""
    rng = np.random.default_rng(seed)
    arms = draw(rng, (count, len(effects), seeds)) - draw(rng, (count, 1, seeds))
    return arms / np.sqrt(2) + np.array(effects)[:, None]


def first_verdicts(differences: np.ndarray, margin: float, most: int) -> tuple[list[str], float]:
    """The first verdict on each arm of one comparison (arms, seeds), and the mean number of seeds until then."""
    verdicts, seeds = ["undecided"] * len(differences), [most] * len(differences)
    for n in range(2, most + 1):
        found = decide(dict(enumerate(differences[:, :n])), margin=margin, higher_is_better=True, most=most)
        for arm, decision in found.items():
            if verdicts[arm] == "undecided" and decision.verdict != "undecided":
                verdicts[arm], seeds[arm] = decision.verdict, n
        if "undecided" not in verdicts:
            break
    return verdicts, float(np.mean(seeds))


class Table:
    """Rows of rates, printed as they are computed."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[dict[str, object]] = []
        print(f"\n{title}")

    def add(self, label: str, hits: int, count: int, seeds: float | None = None) -> None:
        low, high = binomtest(hits, count).proportion_ci(method="wilson")
        rate = [round(100 * value, 2) for value in (hits / count, low, high)]
        self.rows.append({"case": label, "rate": rate[0], "low": rate[1], "high": rate[2], "seeds": seeds})
        after = "" if seeds is None else f"   {seeds:.1f} seeds on average"
        print(f"  {label:<44} {rate[0]:6.2f} ({rate[1]:.2f} to {rate[2]:.2f}){after}", flush=True)


def mistaken(values: np.ndarray, most: int | None, nulls: slice = slice(None)) -> int:
    """Number of comparisons in which an arm of ``nulls`` is called better or worse."""
    wrong = 0
    for differences in values:
        if most is None:
            found = decide(dict(enumerate(differences)), margin=0.0, higher_is_better=True)
            verdicts = [decision.verdict for decision in found.values()]
        else:
            verdicts, _ = first_verdicts(differences, 0.0, most)
        wrong += any(verdict in ("better", "worse") for verdict in verdicts[nulls])
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="simulated comparisons a row")
    parser.add_argument("--most", type=int, default=12, help="seeds at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count, most, tables = options.count, options.most, []

    tables.append(
        table := Table(f"No arm differs: some arm is called better or worse, stopping anywhere up to {most} seeds")
    )
    for arms in range(1, 9):
        table.add(f"{arms} arm{'s' * (arms > 1)}", mistaken(comparisons(count, [0.0] * arms, most, arms), most), count)
    tables.append(table := Table("The same for five seeds, fixed in advance"))
    for arms in (1, 2, 4, 8):
        table.add(f"{arms} arm{'s' * (arms > 1)}", mistaken(comparisons(count, [0.0] * arms, 5, arms), None), count)
    tables.append(table := Table("The same where other arms differ by 3 standard deviations"))
    for arms in (2, 4, 8):
        values = comparisons(count, [0.0] * (arms // 2) + [3.0] * (arms // 2), most, arms)
        table.add(f"{arms // 2} of {arms} arms differ", mistaken(values, most, slice(arms // 2)), count)
    tables.append(table := Table("The same for one arm and runs that are not normal"))
    for name, draw in OTHERS.items():
        table.add(name, mistaken(comparisons(count, [0.0], most, 1, draw), most), count)

    for arms in (1, 4):
        tables.append(table := Table(f"One of {arms} arms truly differs: called better within {most} seeds"))
        for effect in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
            values = comparisons(count, [effect] + [0.0] * (arms - 1), most, 20)
            if arms > 1:
                found = [first_verdicts(differences, 0.0, most)[0][0] for differences in values]
                table.add(f"{effect} standard deviations", found.count("better"), count)
            else:
                pairs = [first_verdicts(differences, 0.0, most) for differences in values]
                hits = sum(verdicts[0] == "better" for verdicts, _ in pairs)
                table.add(f"{effect} standard deviations", hits, count, float(np.mean([seeds for _, seeds in pairs])))

    for share, title in (
        (0.0, "No difference: called equal"),
        (1.0, "A difference as large as the margin: wrongly called equal"),
    ):
        tables.append(table := Table(f"{title} within {most} seeds"))
        for margin in (0.5, 0.75, 1.0, 1.5, 2.0, 4.0):
            values = comparisons(count, [share * margin], most, 30)
            pairs = [first_verdicts(differences, margin, most) for differences in values]
            hits = sum(verdicts[0] == "equal" for verdicts, _ in pairs)
            table.add(
                f"margin of {margin} standard deviations", hits, count, float(np.mean([seeds for _, seeds in pairs]))
            )

    if options.json:
        options.json.write_text(
            json.dumps([{"title": table.title, "rows": table.rows} for table in tables], indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
