"""From the options of ``compare`` and ``pretrain`` to the config of a run, before anything is read."""

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
    """Settings from options and from ``--set``. A setting with two different values is an error.

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
    """Refuses settings in ``--set`` that have an option of their own here."""
    for key in parse_changes(changes):
        if key in barred:
            raise SepNormError(f"--set {key}= has no effect here: {barred[key]}.")


def config_of(domain: Domain, preset: str | None, given: Mapping[str, Any], file: Path | None = None) -> RunConfig:
    """The config from a preset, or from a run's ``config.json``, with the given settings."""
    if file is None:
        return domain.settings(preset, given)
    if preset is not None:
        raise SepNormError(f"give either --config {file} or --preset {preset}, not both: each sets everything.")
    cls = _config_class(domain)
    config: RunConfig = build(cls, _read(file, cls, domain) | check_keys(cls, given))
    return config


def default_folder(verb: str, domain: Domain, preset: str | None, given: Mapping[str, Any], config: RunConfig) -> str:
    """Name of the default folder, as ``compare-images-demo``, made of the verb, the domain, data and preset."""
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
            f"{file} is no config of {domain.name}: it has the setting {unknown[0]!r}, which {domain.name} does not have."
        )
    return found
