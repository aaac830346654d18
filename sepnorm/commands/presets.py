"""``sepnorm presets``."""

from __future__ import annotations

from typing import Annotated

import typer

from sepnorm.report.terminal import say


def presets(
    domain: Annotated[str | None, typer.Argument(help="images, text or molecules; without it, all domains.")] = None,
) -> None:
    """The presets of every domain, or of one with all its settings: what each is, and its value in each preset."""
    from sepnorm.domains import domains, open_domain
    from sepnorm.domains.settings import preset_table, setting_table

    if domain is None:
        for each in domains():
            say(f"{each.name}\n{preset_table(each)}\n")
        say("sepnorm presets DOMAIN lists the settings too; --set KEY=VALUE changes one.")
        return
    known = open_domain(domain)
    say(f"{preset_table(known)}\n\n{setting_table(known)}")
