"""Several commands, one after another, in one process: for each its exit code, what it said, and the peak of memory so far.

Takes a JSON list of folders with words on stdin and gives a JSON list of results on stdout.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
from whole_files import command


def peak_of_memory() -> int:
    """In bytes, of this program alone: ``ru_maxrss`` has also what the process held that started it."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def main() -> None:
    results = []
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for folder, words in json.load(sys.stdin):
        os.chdir(folder)
        sys.stderr = said = io.StringIO()
        try:
            code = command(words)
        except BaseException:
            code = -1
            traceback.print_exc()
        sys.stderr = sys.__stderr__
        peak = peak_of_memory()
        results.append({"code": code, "said": said.getvalue(), "peak": peak})
    json.dump(results, answer)


if __name__ == "__main__":
    main()
