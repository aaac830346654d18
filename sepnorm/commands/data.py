"""``sepnorm data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Quiet
from sepnorm.report.terminal import say


def data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Some of those that --list shows, as cifar10 or stsb.", metavar="NAME")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the data, each set in a folder of its name.")] = Path("data"),
    given: Annotated[
        str | None,
        typer.Option("--from", help="The published file, a folder with it, or another address, instead of a download."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Show what there is: files, origin, licence, rows, use.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Download and check the public data of the tables.

    You get files that --data of the other commands takes. Without a name, the sets are listed.

    Example: sepnorm data cifar10 stsb
    """
    from sepnorm.sources.registry import SOURCES, described, find_source

    if listed or not names:
        chosen = [find_source(name) for name in names or SOURCES]
        say("\n\n".join(map(described, chosen)))
        if not names:
            say("\nsepnorm data NAME downloads one of them and writes its files.")
        return
    sources = [find_source(name) for name in dict.fromkeys(names)]
    from sepnorm.errors import InterruptedRunError
    from sepnorm.report.terminal import progress_bar
    from sepnorm.sources.store import obtain

    for source in sources:
        try:
            done = obtain(source, out, given, lambda what: progress_bar(what, quiet))
        except KeyboardInterrupt:
            raise InterruptedRunError(f"{source.name} is not written yet") from None
        for path in done.files:
            say(f"{path}" if done.fresh else f"{path} is there.")
        for note in [] if quiet else done.notes:
            say(f"Note: {note}", error=True)
