"""Runs the comparisons and studies of docs/results.md and docs/results/ anew, and puts what they print there. Hours; resumable.

    python docs/results/regenerate.py [--data FOLDER] [--out runs/results] [NAME ...]

``--data`` has the files that are not packaged: cifar10_jpeg.parquet, wiki_1m.txt.xz, stsb.tsv.gz, zinc12k.csv.gz and so on in any
folder of it. What needs a file that is not there is passed over, which is said. Each table of the page stands between the lines
``<!-- NAME -->`` and ``<!-- end -->``; whatever is there is replaced by what the command wrote to its folder. What is finished is
not repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sepnorm.studies.plan import STUDIES

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """A command: its words, in which ``{name}`` is a file or folder of the data."""

    words: str

    def needs(self) -> list[str]:
        return re.findall(r"\{([^}]+)\}", self.words)

    def with_data(self, found: dict[str, Path]) -> list[str]:
        return re.sub(r"\{([^}]+)\}", lambda name: str(found[name[1]]), self.words).split()


SWEEP = "--norms ln,bn@final,ln+ln@final,ln+bn@final,bn+ln@final,bn+bn@final --lambdas 0,0.01,0.1,1 --targets tokens,cls,both"
TABLES = {
    "digits": Table(
        "compare images --seeds 5 --set epochs=40 --norms ln,bn@final,bn+ln@final,bn+bn@final,ln+ln@final,bn+ln@all,bn+bn@all"
    ),
    "digits-lambda": Table(f"compare images --seeds 1 --set epochs=40 {SWEEP}"),
    "cifar10": Table(
        "compare images --preset small --data {cifar10_jpeg.parquet} --seeds 3 "
        "--norms ln,bn@final,ln+ln@all,bn+ln@all,bn+ln@final,bn+bn@final"
    ),
    "lee": Table("compare text --seeds 5"),
    "wikipedia": Table(
        "compare text --preset small --data {wiki_1m.txt.xz} --seeds 3 --norms ln,bn+ln@final,bn+ln@all --set max_steps=150 "
        "--set test={.} --set on=stsb,sick-r,mr,trec --set development={stsb.tsv.gz} --set evaluate_every=75"
    ),
    "nci": Table("compare molecules --seeds 5"),
    "zinc12k": Table(
        "compare molecules --preset slim --data {zinc12k.csv.gz} --seeds 2 --norms ln,bn+ln@final --set epochs=20 "
        "--set learning_rate=2e-3 --set warmup=0.05 --set attention_dropout=0 --set activation_dropout=0"
    ),
    "moleculenet": Table(
        "compare molecules --data {zinc250k.csv.gz} --set task=pretrain --set contrastive_weight=0.1 --set molecules=62500 "
        "--set train_molecules=50000 --set split=random --set test={moleculenet} --norms ln,bn@final,bn+ln@final --seeds 5 "
        "--set max_atoms=128 --set epochs=2 --set learning_rate=1e-3"
    ),
    **{name: Table(f"study {name}") for name, study in STUDIES.items() if study.ours},
}
#: Drawn from a comparison for the README: the file, the score, its name, the arms.
PICTURES = {
    "digits": ("images.svg", "cls_linear_top1", "linear probe of [CLS], each seed", "ln", "bn@final", "bn+bn@final"),
    "wikipedia": ("text.svg", "cls_sts_average", "STS-B and SICK-R, each seed", "ln", "bn+ln@all", "bn+ln@final"),
    "moleculenet": ("molecules.svg", "probe_mae", "error of a probe, each seed", "ln", "bn@final", "bn+ln@final"),
}


def command(table: Table) -> str:
    """As a reader would type it."""
    return f"sepnorm {re.sub(r'[{}]', '', table.words)}"


def written(name: str, folder: Path) -> str:
    """What stands in the page: what printed it, where, and the tables."""
    wrote = folder / ("results.md" if TABLES[name].words.startswith("compare") else f"{name}.md")
    text = wrote.read_text(encoding="utf-8").split("\n\n", 1)[1].strip()
    run = next(iter(sorted(folder.rglob("environment.json"))))
    where = json.loads(run.read_text(encoding="utf-8"))
    machine = f"{where['machine']}, {where['device']}, threads of a run: {where['threads']}"
    said = f"sepnorm {where['sepnorm']}, torch {where['torch']}, {machine}."
    return f"    {command(TABLES[name])}\n\n{said}\n\n{text}"


def put(page: str, name: str, text: str) -> str:
    """The page with another text between the marks of a name."""
    marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if not marks.search(page):
        raise SystemExit(f"there is no place <!-- {name} --> ... <!-- end --> in the page.")
    return marks.sub(lambda found: found[1] + "\n" + text + "\n" + found[2], page)


def page_of(name: str) -> Path:
    """That of the studies, a page of its own where there is one, for long tables, or else that of all results."""
    own = HERE / ("studies.md" if TABLES[name].words.startswith("study") else f"{name}.md")
    return own if own.is_file() else HERE.with_suffix(".md")


def found_in(folder: Path | None, name: str) -> Path | None:
    if folder is None or name == ".":
        return folder
    return next(iter(sorted(folder.rglob(name))), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)}: by default all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in TABLES]:
        parser.error(f"there is no {unknown[0]!r}: there are {', '.join(TABLES)}.")
    for name in options.names or TABLES:
        table = TABLES[name]
        files = {need: found_in(options.data, need) for need in table.needs()}
        if missing := [need for need, path in files.items() if path is None]:
            print(f"{name} is passed over: {', '.join(missing)} is not in --data.", file=sys.stderr)
            continue
        words = table.with_data({need: path for need, path in files.items() if path is not None})
        folder = options.out / ("studies" if words[0] == "study" else name)  # studies share runs
        done = subprocess.run([sys.executable, "-m", "sepnorm", *words, "--out", str(folder), "--quiet"], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        page = page_of(name)
        page.write_text(put(page.read_text(encoding="utf-8"), name, written(name, folder)), encoding="utf-8")
        if name in PICTURES:
            drawing, (file, *words) = HERE.parent / "pictures", PICTURES[name]
            subprocess.run([sys.executable, drawing / "domains.py", folder, drawing / file, *words], check=True)
        print(f"{name}: {page} has it.", file=sys.stderr)


if __name__ == "__main__":
    main()
