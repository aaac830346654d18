"""Opens models of transformers, sentence-transformers and timm from vetted folders, always with the same arguments."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError
from sepnorm.surgery.config_trace import is_ours
from sepnorm.surgery.opening.own_models import own_class
from sepnorm.surgery.opening.sentence_settings import KNOWN, class_of, vet_modules
from sepnorm.surgery.opening.settings import read_named, read_settings, shown
from sepnorm.surgery.opening.sizes import require_fitting
from sepnorm.surgery.opening.stage import PATTERNS, new_module, stage_sentences, stage_tokeniser, stage_transformers
from sepnorm.surgery.opening.tokenisers import require_bounded

#: Arguments for every call of a library's loader: no download, no remote code, no pickle.
_CLOSED: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
_WEIGHTS: dict[str, Any] = {"use_safetensors": True, "weights_only": True}


@dataclass(eq=False)
class Opened:
    """A model, the folder it came from, and the names of weights there that it does not use."""

    model: Any
    source: Path
    left_out: list[str] = field(default_factory=list)


def open_model(target: str, whole: bool = False) -> Opened:
    """Opens a model of transformers or sentence-transformers, from a folder or the hub.

    Args:
        target: a folder, or a name on the hub.
        whole: whether to open the class that the config names, with its head; by default only the encoder.
    """
    source = _source(target)
    with _scratch() as stage:
        if (source / "modules.json").exists():
            _require_sentence_transformers(source)
            stage_sentences(source, stage)
            return Opened(_sentences(source, stage), source)
        model, info = (_whole_transformer if whole else _encoder)(source, stage)
    return Opened(model, source, sorted(info["unexpected_keys"]) if whole else [])


def names_separate_norms(source: Path) -> bool:
    """Whether the config of a model saved by its own library records a conversion."""
    modules = read_settings(source / "modules.json")
    if modules is not None:
        source = source / vet_modules(modules, source / "modules.json")[0]["path"]
    config = read_named(source / "config.json") or {}
    return is_ours(config.get("quantization_config"))


def open_for_masked_words(target: str) -> tuple[Any, list[str]]:
    """A text encoder with its masked-language-model head, and the names of missing weights."""
    source = _source(target)
    with _scratch() as stage:
        size = stage_transformers(source, stage)
        auto, config = _auto("AutoModelForMaskedLM"), _config(stage)
        require_fitting(lambda: auto.from_config(config, trust_remote_code=False), size, source / "config.json")
        model, info = _loaded(auto, stage, source)
    return model, sorted(info["missing_keys"])


def fresh_transformer(source: Path, name: str, attention: str | None, weights: Path) -> nn.Module:
    """A model of a class of transformers or ours, with new weights, from the config in a ``sepnorm.save`` folder."""
    with _scratch() as stage:
        size = stage_transformers(source, stage, weights)
        config = _config(stage)
        if attention in ("eager", "sdpa"):
            config._attn_implementation = attention
        cls = _class_named(name, config, source)
        require_fitting(lambda: cls(config), size, source / "config.json")
        model: nn.Module = cls(config)
    return model


def fresh_sentence_transformer(source: Path, weights: Path) -> nn.Module:
    """A model of sentence-transformers with new weights, from the settings in a folder of ``sepnorm.save``."""
    import transformers

    with _scratch() as stage:
        modules = stage_sentences(source, stage, weights)
        first = stage / modules[0]["path"]
        with without_bars():
            config = _config(first)
            # sentence-transformers opens only folders with weights
            transformers.AutoModel.from_config(config, trust_remote_code=False).save_pretrained(first)
        for module in modules[1:]:
            if KNOWN[class_of(module)].weights:
                folder = stage / module["path"]
                settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                (folder / "fresh").mkdir()
                new_module(module, settings).save(str(folder / "fresh"))
                (folder / "fresh" / "model.safetensors").rename(folder / "model.safetensors")
        with without_bars():
            model: nn.Module = _sentences(source, stage)
    return model


def open_tokeniser(source: Path) -> Any:
    """The tokeniser in a model's folder."""
    import transformers

    with _scratch() as stage:
        stage_tokeniser(source, stage)
        tokenizer = transformers.AutoTokenizer.from_pretrained(stage, **_CLOSED)
        _point_back(tokenizer, stage, source)
    return require_bounded(tokenizer, source)


def open_timm(target: str) -> Any:
    """Opens ``NAME`` of timm's registry, ``NAME:FILE`` with your weights, or ``local-dir:FOLDER`` as timm writes it."""
    try:
        import timm
    except Exception as error:  # a torchvision built for another torch can raise anything
        raise SepNormError(
            f"timm cannot be imported ({error}): install timm with a torchvision that fits torch."
        ) from error
    from sepnorm.surgery.opening.timm_settings import from_file, from_folder, from_registry

    prefix, _, rest = target.partition(":")
    if prefix == "local-dir" and rest:
        return from_folder(timm, Path(rest))
    if rest:
        return from_file(timm, prefix, Path(rest))
    return from_registry(timm, target)


def _source(target: str) -> Path:
    """The folder of that name, or the downloaded copy of a model on the hub."""
    return Path(target) if Path(target).is_dir() else fetched(target)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for the clean copy of a model."""
    with tempfile.TemporaryDirectory(prefix="sepnorm-", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch).resolve()


def _point_back(tokenizer: Any, stage: Path, source: Path) -> None:
    """Points file names of a tokeniser to the original folder: some read them again when they are saved."""
    for name, value in list(vars(tokenizer).items()):
        if isinstance(value, str) and Path(value).is_relative_to(stage):
            setattr(tokenizer, name, str(source / Path(value).relative_to(stage)))


def _encoder(source: Path, stage: Path) -> tuple[Any, dict[str, Any]]:
    """Loads only the encoder, by ``AutoModel``."""
    stage_transformers(source, stage)
    return _staged_encoder(source, stage)


def _staged_encoder(source: Path, stage: Path) -> tuple[Any, dict[str, Any]]:
    found = _loaded(_auto("AutoModel"), stage, source)
    _require_all(found[1]["missing_keys"], source)
    return found


def _whole_transformer(source: Path, stage: Path) -> tuple[Any, dict[str, Any]]:
    """Loads the class that the config names; only the encoder if the weights have no head."""
    size = stage_transformers(source, stage)
    config = _config(stage)
    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list) or not names:
        return _staged_encoder(source, stage)
    cls = _class_named(names[0], config, source)
    require_fitting(lambda: cls(config), size, source / "config.json")
    found = _loaded(cls, stage, source)
    if found[1]["missing_keys"]:
        encoder = _loaded(_auto("AutoModel"), stage, source)
        _require_all(found[1]["missing_keys"] if encoder[1]["unexpected_keys"] else encoder[1]["missing_keys"], source)
        return encoder
    return found


def _auto(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _config(stage: Path) -> Any:
    return _auto("AutoConfig").from_pretrained(stage, **_CLOSED)


def _loaded(cls: Any, stage: Path, source: Path) -> tuple[Any, dict[str, Any]]:
    with _naming_misfits(source):
        found: tuple[Any, dict[str, Any]] = cls.from_pretrained(stage, **_CLOSED, **_WEIGHTS, output_loading_info=True)
    return found


@contextmanager
def _naming_misfits(source: Path) -> Iterator[None]:
    """Says whose weights have other shapes than the config asks for; transformers names an option that we do not have."""
    try:
        yield
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise SepNormError(
            f"the weights of {source} do not fit its config: some have other shapes. Use the weights and config of the same model."
        ) from error


def _require_all(missing: Iterable[str], source: Path) -> None:
    names = sorted(key for key in missing if not key.startswith("pooler."))  # many checkpoints have no pooler
    if names:
        raise SepNormError(
            f"the weights of {source} do not fit its config: {len(names)} tensors are missing, such as {names[0]}, and would "
            "be random. Use the weights and config of the same model."
        )


def _class_named(name: Any, config: Any, source: Path) -> Any:
    """The class of this name, of transformers or ours, if it fits ``config``."""
    import transformers

    known = name if isinstance(name, str) and name.isidentifier() else ""
    cls: Any = getattr(transformers, known, None) or own_class(known)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise SepNormError(f"{source} names the class {shown(name)}, which this version of transformers does not have.")
    if getattr(cls, "config_class", None) is not type(config):
        raise SepNormError(f"{source} names the class {shown(name)}, which is not one for its config.json.")
    return cls


def _sentences(source: Path, stage: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    with _naming_misfits(source):
        model = SentenceTransformer(str(stage), device="cpu", backend="torch", model_kwargs=dict(_WEIGHTS), **_CLOSED)
    _point_back(model.tokenizer, stage, source)
    require_bounded(model.tokenizer, source)
    return model


def _require_sentence_transformers(source: Path) -> None:
    try:
        import sentence_transformers  # noqa: F401
    except ImportError:
        raise SepNormError(
            f"{source} is a model of sentence-transformers, which is not installed: pip install 'sepnorm[text]'."
        ) from None


def fetched(name: str) -> Path:
    """Downloads the files of a hub model that we may open, and returns their folder in the hub's cache."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=PATTERNS))


@contextmanager
def without_bars() -> Iterator[None]:
    """Hides the progress bars of transformers within this context: our files are temporary."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
