"""Thousands of damaged inputs through the command line, and what became of each.

    python tests/faults/damage.py --count 10000 --seed 0
    python tests/faults/damage.py --only 1234           one case again, with what it printed

A case is a function of the seed and of its number. Most are done in worker processes that call what the ``sepnorm`` command
calls, some in processes of their own. The exit code says whether anything but a refusal in one sentence, or a success, was
seen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Queue
from random import Random

HERE = Path(__file__).parent
for folder in (HERE.parent, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}

from damaging import ODD_FILES, bomb, damage, odd_settings, odd_word, ordered
from whole_files import COMPARE, EXAMPLES, IMAGES, MOLECULES, TEXT, Example, make_all, settings
from workshop import PATIENCE, VERDICTS, Case, Result, run_case, workers

_BASES = {
    "images": (("pictures",), ["--data", "pictures", *settings(*IMAGES)]),
    "text": (("bert", "lines.txt"), ["--data", "lines.txt", *settings(*TEXT)]),
    "molecules": (("s.csv",), ["--data", "s.csv", *settings(*MOLECULES)]),
}
_OPTIONS = "--column --label --split --pooling --batch-size --max-samples --norm --sites --on --compare --data".split()
_ARMS = "ln bn bn+ln bn+bn bn+ln@final bn+ln@all ln+ln rms bm+ln bn+ln+ln @ bn@ +".split()
_READING = ("diagnose", "embed", "evaluate", "convert", "export")
_FOREIGN = ("bert", "sentences", "converted", "vit", "graphormer")
#: Code and a pickle beside a model, which leave a mark outside of the case's folder where they are run.
_EVIL = {
    "evil.py": b"import os\nos.system('true')\nclass Evil: ...\n",
    "evil.bin": b"cos\nsystem\n(S'true'\ntR.",
    "pytorch_model.bin": b"cos\nsystem\n(S'true'\ntR.",
}
#: How often cases without a damaged file come, beside the shares of the examples.
_OTHERS = {"_settings": 40, "_words": 60, "_arms": 10, "_studies": 10, "_odd_files": 40, "_bombs": 12, "_orders": 60}


@dataclass(frozen=True)
class Maker:
    """Cases by their number."""

    seed: int
    whole: Path

    def __call__(self, number: int) -> Case:
        rng = Random(f"{self.seed} {number}")
        shares = [*(example.share for example in EXAMPLES), *_OTHERS.values()]
        (kind,) = rng.choices([*EXAMPLES, *_OTHERS], shares)
        return getattr(self, kind)(number, rng) if isinstance(kind, str) else self._file(number, kind, rng)

    def _file(self, number: int, example: Example, rng: Random) -> Case:
        files = self._files(example)
        chosen = rng.sample(files, min(len(files), rng.choice((1, 1, 1, 2, len(files)))))
        contents = {
            str(path.relative_to(self.whole)): damage(path.read_bytes(), path.name.removesuffix(".gz"), rng)
            for path in chosen
        }
        return Case(number, example.kind, list(example.words), example.needed, contents, example.out)

    def _odd_files(self, number: int, rng: Random) -> Case:
        example = rng.choice([each for each in EXAMPLES if each.words[0] in _READING])
        name = str(rng.choice(self._files(example)).relative_to(self.whole))
        odd = {name: rng.choice(ODD_FILES)}
        return Case(number, "pipes and links", list(example.words), example.needed, {}, example.out, odd)

    def _bombs(self, number: int, rng: Random) -> Case:
        packed = [each for each in EXAMPLES if Path(each.damaged[0]).suffix in (".gz", ".xz", ".bz2")]
        example = rng.choice(packed)
        contents = {example.damaged[0]: bomb(example.damaged[0], rng)}
        return Case(number, "packed bombs", list(example.words), example.needed, contents, example.out)

    def _orders(self, number: int, rng: Random) -> Case:
        folders = [each for each in EXAMPLES if each.kind.startswith("folder of ") and each.needed[0] in _FOREIGN]
        example = rng.choice(folders)
        files = [path for path in self._files(example) if path.suffix == ".json"]
        chosen = rng.sample(files, min(len(files), rng.choice((1, 1, 2))))
        contents = {str(path.relative_to(self.whole)): ordered(path.read_bytes(), rng) for path in chosen}
        contents |= {f"{example.needed[0]}/{name}": content for name, content in _EVIL.items()}
        return Case(number, "orders to libraries", list(example.words), example.needed, contents, example.out)

    def _files(self, example: Example) -> list[Path]:
        return sorted({path for pattern in example.damaged for path in self.whole.glob(pattern) if path.is_file()})

    def _settings(self, number: int, rng: Random) -> Case:
        from sepnorm.domains import open_domain

        domain = rng.choice(list(_BASES))
        needed, words = _BASES[domain]
        # these say how long it takes and where it happens
        fixed = {"max_steps", "accumulation", "threads", "data", "model", "test", "development", "on"}
        known = [name for name in type(open_domain(domain).presets["demo"]).model_fields if name not in fixed]
        odd = settings(*odd_settings(known, rng))
        words = ["pretrain", domain, *words, *odd, "--max-steps", "1", "--out", "out/run"]
        return Case(number, f"settings of {domain}", words, needed)

    def _words(self, number: int, rng: Random) -> Case:
        example = rng.choice(
            [each for each in EXAMPLES if each.words[0] in ("diagnose", "embed", "evaluate", "convert")]
        )
        words = list(example.words)
        stop = words.index("--out")
        if rng.random() < 0.4:
            words[rng.randrange(stop)] = odd_word(rng)
        elif rng.random() < 0.2:
            del words[rng.randrange(len(words))]
        else:
            words += [rng.choice(_OPTIONS), odd_word(rng)]
        return Case(number, "words", words, example.needed)

    def _arms(self, number: int, rng: Random) -> Case:
        arms = [rng.choice(_ARMS) if rng.random() < 0.8 else odd_word(rng) for _ in range(rng.randrange(4))]
        words = [*COMPARE, "--norms", ",".join(arms)]
        if rng.random() < 0.5:
            option = rng.choice(("--lambdas", "--targets", "--launcher", "--preset", "--seeds"))
            words += [option, odd_word(rng)]
        return Case(number, "arms", words, ("compared", "pictures"), out="compared")

    def _studies(self, number: int, rng: Random) -> Case:
        name = rng.choice(("table1", "table4", "figure2", "sites", "whitening", "momentum", odd_word(rng)))
        words = [rng.choice(("reproduce", "study")), name, "--dry-run", "--out", "out"]
        option = rng.choice(("--scale", "--data", "--seeds", "--set", "--launcher"))
        return Case(number, "studies", [*words, option, odd_word(rng)] if rng.random() < 0.9 else words)


def do_all(numbers: Sequence[int], make: Maker, place: Path, processes: set[int], cores: int) -> list[Result]:
    """Every case; those in ``processes`` by a process of their own. Progress goes to stderr."""
    queue: Queue[int] = Queue()
    for number in numbers:
        queue.put(number)
    results: list[Result] = []
    begun = time.monotonic()

    def work(worker: object) -> None:
        while not queue.empty():
            number = queue.get()
            own = number in processes
            result = _alone(make(number), make.whole, place / f"alone{number}") if own else worker.do(number)
            results.append(result)
            if result.verdict not in VERDICTS[:2]:
                print(f"case {result.number}, {result.kind}: {result.verdict}\n{result.said[-3000:]}", flush=True)
            if len(results) % 500 == 0:
                print(f"{len(results)} cases, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    with workers(cores, make, make.whole, place) as found, ThreadPoolExecutor(cores) as pool:
        for future in [pool.submit(work, worker) for worker in found]:
            future.result()
    return results


def _cheap(make: Maker, count: int, wanted: int) -> Iterator[int]:
    """Numbers of cases that a process of its own does quickly, since the command opens no model."""
    numbers = list(range(count))
    Random(make.seed).shuffle(numbers)
    quick = ("diagnose", "pretrain", "compare", "reproduce", "study")
    fitting = (
        number
        for number in numbers
        if (case := make(number)).words[0] in quick and not {"bert", "begun"} & {*case.needed}
    )
    yield from islice(fitting, wanted)


def _alone(case: Case, whole: Path, folder: Path) -> Result:
    def call(words: list[str]) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "sepnorm", *words], cwd=folder, capture_output=True, timeout=PATIENCE, check=False
        )
        return done.returncode, done.stderr.decode("utf-8", "replace")

    try:
        return run_case(case, whole, folder, call)
    except subprocess.TimeoutExpired:
        return Result(case.number, case.kind, "hang")


def table(results: Sequence[Result]) -> str:
    """Counts by kind and verdict, and how long a case of that kind took."""
    kinds = sorted({result.kind for result in results})
    width = max(map(len, kinds))
    lines = ["  ".join(["".ljust(width), *(name.rjust(9) for name in (*VERDICTS, "seconds"))])]
    for kind in [*kinds, "all"]:
        lot = [result for result in results if kind in ("all", result.kind)]
        found = Counter(result.verdict for result in lot)
        seconds = f"{sum(result.seconds for result in lot) / len(lot):.2f}"
        cells = [*(str(found[name]) for name in VERDICTS), seconds]
        lines.append("  ".join([kind.ljust(width), *(cell.rjust(9) for cell in cells)]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=150, help="cases that get a process of their own")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one case")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sepnorm-damage-") as place:
        whole = Path(place) / "whole"
        make_all(whole)
        make = Maker(asked.seed, whole)
        begun = time.monotonic()
        if asked.only is not None:
            case = make(asked.only)
            print(case.kind, case.words, list(case.contents))
            found = do_all([asked.only], make, Path(place), set(), 1)
            print(found[0].verdict, found[0].said, sep="\n")
            return
        alone = set(_cheap(make, asked.count, asked.processes))
        found = do_all(range(asked.count), make, Path(place), alone, asked.cores)
        print(table(found))
        print(
            f"{len(found)} cases in {time.monotonic() - begun:.0f} s, {len(alone)} of them in processes of their own."
        )
        sys.exit(any(result.verdict not in VERDICTS[:2] for result in found))


if __name__ == "__main__":
    main()
