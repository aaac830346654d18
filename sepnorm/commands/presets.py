"""The verb ``sepnorm presets``."""

from __future__ import annotations

from typing import Annotated

import typer

from sepnorm.report.terminal import say


def presets(
    domain: Annotated[str | None, typer.Argument(help="images, text or molecules; default all domains.")] = None,
) -> None:
    """List presets, and the settings that --set changes.

    Without a domain, the presets of all domains are listed. With one, every setting is shown too: its name, its value
    in each preset, and what it means.

    Example: sepnorm presets images
    """
    from sepnorm.domains import domains, open_domain
    from sepnorm.domains.settings import preset_table, setting_table

    if domain is None:
        for each in domains():
            say(f"{each.name}\n{preset_table(each)}\n")
        say("sepnorm presets DOMAIN lists the settings too; --set KEY=VALUE changes one.")
        return
    known = open_domain(domain)
    say(f"{preset_table(known)}\n\n{setting_table(known)}")
