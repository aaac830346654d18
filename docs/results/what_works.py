"""Writes docs/what-works.md: which norm of which model ``sites="final"`` means, or why a model is refused.

    python docs/results/what_works.py [--timm FOLDER]

Every model is a tiny one with random weights, so that this takes a quarter of a minute. timm is run from a folder of its own
(``make .timm``). A test compares the page with what the code says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "what-works.md"
SURVEY = ROOT / "tests" / "surgery" / "families" / "survey.py"

HEAD = """# What works

Which norm `sepnorm.convert(model)` converts by default (`sites="final"`) in {classes} kinds of model of transformers
{transformers} and timm {timm}. In each, it is the last norm that [CLS] passes beside other tokens before it leaves the
encoder; hooks and autograd confirm that without sepnorm. `python docs/results/what_works.py` writes this page, and a
test compares it with the code. For a model that is not here, pass `example=`, a batch as the model takes it.
"""
OPEN = ["<details markdown open>", "<summary>Table</summary>", ""]  # a phone scrolls what is folded
REFUSED = "\n## Refused, and why\n\nThe reason is a part of the message.\n"


def survey(*words: str) -> list[dict[str, Any]]:
    """The rows of one library, from a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, str(SURVEY), *words], env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"library"')]


def versions(timm: str) -> dict[str, str]:
    """Of both libraries, as their folders say."""
    import transformers

    found = [path.name.split("-")[1] for path in Path(timm).glob("timm-*.dist-info")]
    return {"transformers": transformers.__version__, "timm": found[0].removesuffix(".dist") if found else ""}


def page(rows: list[dict[str, Any]], known: dict[str, str]) -> str:
    """The Markdown of the page."""
    lines = [HEAD.format(classes=len(rows), **known)]
    for library in ("transformers", "timm"):
        lines += [f"## {library}", "", *OPEN, "| model | class | last norm | remarks |", "|---|---|---|---|"]
        for row in rows:
            if row["library"] == library and "final" in row:
                remarks = "; ".join(_short(note) for note in row["notes"])
                lines.append(f"| {row['name']} | `{row['class']}` | `{row['final'][0]}` | {remarks} |")
        lines += ["", "</details>", ""]
    lines += [REFUSED.strip("\n"), "", *OPEN, "| model | class | reason |", "|---|---|---|"]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['name']} ({row['library']}) | `{row['class']}` | {_short(row['refused'])} |")
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _short(sentence: str) -> str:
    """What a message says, without what follows from it."""
    said = sentence.split(" cannot be converted: ")[-1].split(", and [CLS] is what")[0]
    return said.split(": ")[0].split(". ")[0].rstrip(".")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--timm", default=os.environ.get("SEPNORM_TIMM") or str(ROOT / ".timm"), help="a folder with timm"
    )
    timm = parser.parse_args().timm
    PAGE.write_text(page([*survey("transformers"), *survey("timm", timm)], versions(timm)), encoding="utf-8")
