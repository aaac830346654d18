"""From the options of ``compare`` and ``pretrain`` to the config of a run, before anything is read or computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepnorm.domains import DEFAULT_PRESET, Domain
from sepnorm.errors import SepNormError, one_line
from sepnorm.experiment.slugs import slug
from sepnorm.files import require_file
from sepnorm.training.configs import RunConfig, build, check_keys, parse_changes


def given_settings(domain: Domain, options: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Settings by options of their own and by ``--set``; one that is given twice, in different ways, is refused.

    Options that the user left out are None.
    """
    given = {key: value for key, value in options.items() if value is not None}
    others = parse_changes(changes)
    for key, value in given.items():
        if key not in _config_class(domain).model_fields:
            raise SepNormError(f"{_option(key)} is not for {domain.name}: leave it out.")
        if key in others and str(others[key]) != str(value):
            raise SepNormError(
                f"{key} is given twice, {value!r} by {_option(key)} and {others[key]!r} by --set {key}=: leave one of them out."
            )
    return others | given


def refuse_beside(changes: Sequence[str], barred: Mapping[str, str]) -> None:
    """Refuses settings that ``--set`` may not have here, each with the option that says the same."""
    for key in parse_changes(changes):
        if key in barred:
            raise SepNormError(f"--set {key}= would be passed over: {barred[key]}.")


def config_of(domain: Domain, preset: str | None, given: Mapping[str, Any], file: Path | None = None) -> RunConfig:
    """A preset, or the ``config.json`` of a run, with what was given."""
    if file is None:
        return domain.settings(preset, given)
    if preset is not None:
        raise SepNormError(
            f"--config {file} and --preset {preset} both say what all settings are: leave one of them out."
        )
    cls = _config_class(domain)
    config: RunConfig = build(cls, _read(file, cls, domain) | check_keys(cls, given))
    return config


def default_folder(verb: str, domain: Domain, preset: str | None, given: Mapping[str, Any], config: RunConfig) -> str:
    """``compare-images-demo``; with data of the user's, or a preset, by their names, so that two do not meet."""
    data = given.get("data")
    parts = [verb, domain.name]
    if data is not None or preset is None:
        own = config.data == domain.presets[DEFAULT_PRESET].data and data is None
        parts.append(DEFAULT_PRESET if own else slug(Path(str(config.data)).name or "data"))
    if preset is not None:
        parts.append(preset)
    return "-".join(parts)


def _config_class(domain: Domain) -> type[RunConfig]:
    return type(next(iter(domain.presets.values())))


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _read(file: Path, cls: type[RunConfig], domain: Domain) -> dict[str, Any]:
    require_file(file)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SepNormError(f"{file} cannot be read as JSON: {one_line(error)}.") from error
    if not isinstance(found, dict):
        raise SepNormError(f"{file} holds no settings: give the config.json of a run.")
    if unknown := [key for key in found if key not in cls.model_fields]:
        raise SepNormError(
            f"{file} is no config of {domain.name}: it has the setting {unknown[0]!r}, which a run of {domain.name} has not."
        )
    return found
