"""Runs the commands behind the tables, keeps what they found in records/, and renders the pages. Hours for all; resumable.

    python docs/results/regenerate.py [NAME ...] [--data FOLDER] [--out runs/results] [--again]
    python docs/results/regenerate.py --render

``--data`` has the files that are not packaged (docs/data.md says where they come from), in any folder of it. A table whose file is
missing is skipped with a message. A comparison runs in the folder ``OUT/NAME``; if that is finished already, its record is made
from it and nothing is run. What a script or another command printed is kept where this version printed it; ``--again`` runs it
anew. A table that fails is named at the end. ``--render`` runs nothing: it writes all pages and pictures from the records.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import records
import rendering
from tables import PICTURES, TABLES, Table

import sepnorm


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


def is_printed(name: str, table: Table) -> bool:
    """Whether a script or command was run by this version. Comparisons and studies know themselves what is finished."""
    if table.kind in ("compare", "study") or name not in records.names():
        return False
    record = records.read(name)
    return record["command"] == table.recorded and record["where"].startswith(f"sepnorm {sepnorm.__version__},")


def run(name: str, table: Table, words: list[str], out: Path) -> dict:
    """The record of a table, run where it is not finished."""
    if table.kind == "script":
        return records.of_text(table.recorded, records.here(), _printed(words, rendering.ROOT))
    if table.kind == "command":
        with tempfile.TemporaryDirectory() as empty:  # commands do not write over what an earlier run wrote
            (Path(empty) / "runs").symlink_to(rendering.ROOT / "runs")  # read by the name that is printed
            return records.of_text(table.recorded, records.here(), _printed(["-m", "sepnorm", *words], Path(empty)))
    folder = out / ("studies" if table.kind == "study" else name)  # studies share runs
    folder = rendering.ROOT / table.folder if table.folder else folder
    fresh, began, seconds = not folder.exists(), time.monotonic(), None
    if table.kind == "study" or not (folder / "results.json").is_file():
        done = subprocess.run([sys.executable, "-m", "sepnorm", *words, "--out", str(folder), "--quiet"], check=False)
        if done.returncode:
            raise SystemExit(f"its command ended with code {done.returncode}.")
        seconds = time.monotonic() - began if fresh else None  # a resumed comparison took longer than that
    elif name in records.names():
        seconds = records.read(name).get("seconds")
    if table.kind == "study":
        text = (folder / f"{name}.md").read_text(encoding="utf-8").split("\n\n", 1)[1]
        return records.of_text(table.recorded, records.where(folder), text)
    spectra = PICTURES[name].arms if name in PICTURES else ()
    return records.of_comparison(table.recorded, folder, spectra, seconds)


def _printed(words: list[str], folder: Path) -> str:
    """What Python prints for these words, by the package that this script has imported."""
    paths = [str(Path(sepnorm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *words]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    if done.returncode:
        raise SystemExit(f"its command ended with code {done.returncode}.")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)}: by default all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--again", action="store_true", help="also run what this version has a record of")
    parser.add_argument("--render", action="store_true", help="run nothing, write pages from records")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in TABLES]:
        parser.error(f"there is no {unknown[0]!r}: there are {', '.join(TABLES)}.")
    failed = []
    for name in [] if options.render else options.names or TABLES:
        table = TABLES[name]
        if is_printed(name, table) and not options.again:
            print(f"{name} is skipped: it has a record of this version. --again runs it anew.", file=sys.stderr)
            continue
        words = words_of(name, table, options.data)
        if words is None:
            continue
        try:
            records.write(name, run(name, table, words, options.out))
        except (SystemExit, OSError, LookupError, ValueError) as error:  # the other tables take hours and need not wait
            print(f"{name} has failed: {error}", file=sys.stderr)
            failed.append(name)
        else:
            print(f"{name} has its record.", file=sys.stderr)
    for path in rendering.render():
        print(f"{path.relative_to(rendering.ROOT)} is written.", file=sys.stderr)
    for complaint in rendering.complaints():
        print(complaint, file=sys.stderr)
    if failed:
        raise SystemExit(f"{len(failed)} of the tables failed, for the reasons above: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
