"""Runs the commands behind the tables, keeps what they found in records/, and renders the pages. Hours for all; resumable.

    python docs/results/regenerate.py [NAME ...] [--data FOLDER] [--out runs/results]
    python docs/results/regenerate.py --render

``--data`` has the files that are not packaged (docs/data.md says where they come from), in any folder of it. A table whose file is
missing is skipped with a message. A comparison runs in the folder ``OUT/NAME``; if that is finished already, its record is made
from it and nothing is run. ``--render`` runs nothing: it writes all pages and pictures from the records.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import records
import rendering
from tables import PICTURES, TABLES, Table


def found_in(folder: Path | None, name: str) -> Path | None:
    if folder is None or name == ".":
        return folder
    return next(iter(sorted(folder.rglob(name))), None)


def words_of(name: str, table: Table, data: Path | None) -> list[str] | None:
    """The command with the paths of its files; None, and a message, where one is missing."""
    files = {need: found_in(data, need) for need in table.needs()}
    if missing := [need for need, path in files.items() if path is None]:
        print(f"{name} is skipped: {', '.join(missing)} is not in --data.", file=sys.stderr)
        return None
    return table.with_data({need: path for need, path in files.items() if path is not None})


def run(name: str, table: Table, words: list[str], out: Path) -> dict:
    """The record of a table, run where it is not finished."""
    if table.kind == "script":
        return records.of_text(table.command, records.here(), _printed([sys.executable, *words]))
    if table.kind == "command":
        return records.of_text(table.command, records.here(), _printed([sys.executable, "-m", "sepnorm", *words]))
    folder = out / ("studies" if table.kind == "study" else name)  # studies share runs
    folder = rendering.ROOT / table.folder if table.folder else folder
    fresh, began, seconds = not folder.exists(), time.monotonic(), None
    if table.kind == "study" or not (folder / "results.json").is_file():
        done = subprocess.run([sys.executable, "-m", "sepnorm", *words, "--out", str(folder), "--quiet"], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        seconds = time.monotonic() - began if fresh else None  # a resumed comparison took longer than that
    elif name in records.names():
        seconds = records.read(name).get("seconds")
    if table.kind == "study":
        text = (folder / f"{name}.md").read_text(encoding="utf-8").split("\n\n", 1)[1]
        return records.of_text(table.command, records.where(folder), text)
    spectra = PICTURES[name].arms if name in PICTURES else ()
    return records.of_comparison(table.command, folder, spectra, seconds)


def _printed(words: list[str]) -> str:
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, text=True, cwd=rendering.ROOT)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)}: by default all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--render", action="store_true", help="run nothing, write pages from records")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in TABLES]:
        parser.error(f"there is no {unknown[0]!r}: there are {', '.join(TABLES)}.")
    for name in [] if options.render else options.names or TABLES:
        words = words_of(name, TABLES[name], options.data)
        if words is not None:
            records.write(name, run(name, TABLES[name], words, options.out))
            print(f"{name} has its record.", file=sys.stderr)
    for path in rendering.render():
        print(f"{path.relative_to(rendering.ROOT)} is written.", file=sys.stderr)
    for complaint in rendering.complaints():
        print(complaint, file=sys.stderr)


if __name__ == "__main__":
    main()
