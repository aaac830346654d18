"""Tables of presets and settings for ``sepnorm presets``. A setting's meaning is the comment beside its field."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from sepnorm.domains import Domain
from sepnorm.errors import in_columns

_WIDTH = 118


def preset_table(domain: Domain) -> str:
    """One line for each preset: its name, its data and how long it trains."""
    rows = []
    for name, config in domain.presets.items():
        steps = (
            f"{config.max_steps:,} steps" if config.max_steps else f"{config.epochs:,} epoch{'s' * (config.epochs > 1)}"
        )
        rows.append([name, f"data={config.data}", f"{steps} of {config.batch_size}"])
    return "\n".join(f"  {line}" for line in in_columns(rows))


def setting_table(domain: Domain) -> str:
    """One entry for each setting: its name, its value in each preset, and its meaning."""
    cls = type(next(iter(domain.presets.values())))
    meanings = meanings_of(cls)
    lines = []
    for name in cls.model_fields:
        values = [_said(getattr(config, name)) for config in domain.presets.values()]
        shown = values[0] if len(set(values)) == 1 else " | ".join(values)
        text = f"{name} = {shown}"
        meaning = meanings.get(name, "")
        lines += textwrap.wrap(f"{text}  # {meaning}" if meaning else text, _WIDTH, subsequent_indent=" " * 6)
    order = f"Settings, of {' | '.join(domain.presets)} where they differ:"
    return "\n".join([order, *(f"  {line}" for line in lines)])


def meanings_of(cls: type[Any]) -> dict[str, str]:
    """The comments beside the fields of a config class, by field name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not hasattr(each, "model_fields") or each.__module__.startswith("pydantic"):
            continue
        try:
            lines = inspect.getsource(each).splitlines()
        except (OSError, TypeError):  # the class has no source file
            continue
        name = None
        for line in lines:
            begun = re.match(r"    (\w+): ", line)
            name = begun[1] if begun else (name if line.startswith("        ") or line == "    )" else None)
            comment = re.search(r"  # (.+)$", line)
            if name is not None and name in each.model_fields and comment:
                found[name] = comment[1]
    return found


def _said(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
