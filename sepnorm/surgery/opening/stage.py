"""Makes a clean copy of a model folder: vetted settings, links to safetensors and vocabularies, nothing else."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError
from sepnorm.surgery.opening.sentence_settings import (
    KNOWN,
    TRANSFORMER_FILES,
    class_of,
    vet_module,
    vet_modules,
    vet_sentence_settings,
    vet_transformer_settings,
)
from sepnorm.surgery.opening.settings import read_named, read_settings, regular, weight_files
from sepnorm.surgery.opening.sizes import Size, require_fitting, size_of
from sepnorm.surgery.opening.transformers_settings import VOCABULARIES, vet_config, vet_special_tokens, vet_tokeniser

_INDEX = "model.safetensors.index.json"
_LARGEST_VOCABULARY = 2**28  # bytes; tokenisers read them whole
#: Files to download of a hub model, also from the module folders of a sentence encoder.
PATTERNS = [
    name
    for file in (
        *VOCABULARIES, *TRANSFORMER_FILES, "config.json", "modules.json", "config_sentence_transformers.json", _INDEX,
        "tokenizer_config.json", "special_tokens_map.json", "preprocessor_config.json", "model.safetensors",
        "model-*-of-*.safetensors", "sepnorm.json", "sepnorm.safetensors",
    )
    for name in (file, f"*_*/{file}")
]  # fmt: skip


def stage_transformers(source: Path, stage: Path, weights: Path | None = None) -> Size:
    """Stages a transformers model with its tokeniser. ``weights`` is their file if it is not the library's own."""
    _read_config(source)  # first, since a folder without a config holds no model
    names = [] if weights else list(weight_files(source))
    files = [weights] if weights else [_required(source / name) for name in names]
    if not files:
        raise SepNormError(
            f"{source} has no safetensors weights, and other files are not opened, because pickles can run code: save the "
            "model again with save_pretrained of a current version."
        )
    size = size_of(files)
    stage_tokeniser(source, stage, size.largest, converted=weights is None)
    for name in names:
        _link(source / name, stage / name)
    if names and names != ["model.safetensors"]:
        index = read_named(source / _INDEX) or {}
        _write(stage / _INDEX, {"metadata": {}, "weight_map": index["weight_map"]})
    _require_fitting(stage, size, source / "config.json")
    return size


def stage_tokeniser(source: Path, stage: Path, largest: int = 2**62, converted: bool = False) -> None:
    """Stages a tokeniser and the config that names its class. ``largest`` is the longest side of the weights."""
    stage.mkdir(parents=True, exist_ok=True)
    _write(stage / "config.json", vet_config(_read_config(source), source / "config.json", largest, converted))
    for name, vet in (("tokenizer_config.json", vet_tokeniser), ("special_tokens_map.json", vet_special_tokens)):
        _write_vetted(source / name, stage / name, vet)
    for name in VOCABULARIES:
        found = regular(source / name)
        if found is not None and found.stat().st_size > _LARGEST_VOCABULARY:
            raise SepNormError(
                f"{source / name} has {found.stat().st_size / 2**20:,.0f} MiB, and a vocabulary has at most "
                f"{_LARGEST_VOCABULARY // 2**20}: it is not read."
            )
        _link(source / name, stage / name)


def _read_config(source: Path) -> dict[str, Any]:
    config = read_named(source / "config.json")
    if config is None:
        raise SepNormError(f"{source} has no config.json: it is incomplete, copy or save it again.")
    return config


def stage_sentences(source: Path, stage: Path, weights: Path | None = None) -> list[dict[str, Any]]:
    """Stages a sentence-transformers model; returns its modules."""
    modules = vet_modules(read_settings(source / "modules.json"), source / "modules.json")
    first = modules[0]["path"]
    size = stage_transformers(_folder(source, first), stage / first, weights)
    _write(stage / "modules.json", modules)
    _write_vetted(
        source / "config_sentence_transformers.json", stage / "config_sentence_transformers.json", vet_sentence_settings
    )
    found = ((source / first / name, read_named(source / first / name)) for name in TRANSFORMER_FILES)
    place, settings = next(((place, each) for place, each in found if each), (source, {}))
    _write(stage / first / TRANSFORMER_FILES[0], vet_transformer_settings(settings, place))
    for module in modules[1:]:
        folder, kind = _folder(source, module["path"]), class_of(module)
        place, target = folder / "config.json", stage / module["path"]
        target.mkdir(parents=True, exist_ok=True)
        own = size  # without files of their own, modules are in ``weights``
        if KNOWN[kind].weights and weights is None:
            files = _link(folder / "model.safetensors", target / "model.safetensors")
            if not files:
                raise SepNormError(
                    f"{folder} has no model.safetensors, and pickles are not opened: save the model again."
                )
            own = size_of(files)
        settings = vet_module(read_named(place) or {}, kind, place, max(size.largest, own.largest))
        if KNOWN[kind].weights:
            require_fitting(partial(new_module, module, settings), own, place)
        _write(target / "config.json", settings)
    return modules


def new_module(module: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """A module of sentence-transformers with new weights, from its vetted entry and settings."""
    place, _, name = module["type"].rpartition(".")
    sizes = {key: value for key, value in settings.items() if key != "activation_function"}  # which has no weights
    return getattr(importlib.import_module(place), name)(**sizes)


def _folder(source: Path, path: str) -> Path:
    """The folder of a module; raises if it is a link."""
    folder = source
    for part in Path(path).parts:
        folder = folder / part
        if folder.is_symlink():
            raise SepNormError(f"{folder} is a link to another place: it is not opened.")
    return folder


def _required(path: Path) -> Path:
    found = regular(path)
    if found is None:
        raise SepNormError(f"there is no file {path}, which an index beside it names: copy the model again.")
    return found


def _require_fitting(stage: Path, size: Size, where: Path) -> None:
    import transformers

    config = transformers.AutoConfig.from_pretrained(stage, trust_remote_code=False, local_files_only=True)
    require_fitting(lambda: transformers.AutoModel.from_config(config, trust_remote_code=False), size, where)


def _write_vetted(source: Path, target: Path, vet: Callable[[Mapping[str, Any], Path], dict[str, Any]]) -> None:
    found = read_named(source)
    if found is not None:
        _write(target, vet(found, source))


def _write(path: Path, settings: Any) -> None:
    path.write_text(json.dumps(settings), encoding="utf-8")


def _link(source: Path, target: Path) -> list[Path]:
    """Links to a regular file, if there is one; copies it if links are not possible."""
    found = regular(source)
    if found is None:
        return []
    try:
        os.symlink(found, target)
    except OSError:
        shutil.copyfile(found, target)
    return [found]
