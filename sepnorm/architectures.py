"""How each library's model is described on disk, without its weights, and built again from that description."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from sepnorm.errors import SepNormError, one_line
from sepnorm.families import is_timm, is_transformers
from sepnorm.layer import TokenNorm

#: Where this package has models of its own that are built as those of transformers are.
OWN_MODELS = "sepnorm.molecules.graphormer"


def library_of(model: nn.Module) -> str:
    """Which library can build the model by itself; ``torch`` where none can."""
    module = type(model).__module__
    if module.startswith("sentence_transformers."):
        return "sentence-transformers"
    if is_transformers(model) and module.startswith(("transformers.", OWN_MODELS)):
        return "transformers"
    if is_timm(model) and _timm_architecture(model):
        return "timm"
    return "torch"


def write_architecture(model: Any, folder: Path) -> dict[str, Any]:
    """The library's own files, without weights, and what else building the model takes."""
    library = library_of(model)
    if library == "transformers":
        model.config.save_pretrained(folder)
        return {"attention": getattr(model.config, "_attn_implementation", None)}
    if library == "sentence-transformers":
        with tempfile.TemporaryDirectory(dir=folder) as scratch, _without_bars():
            model.save_pretrained(scratch, create_model_card=False)
            for weights in [*Path(scratch).rglob("model*.safetensors"), *Path(scratch).rglob("*.bin")]:
                weights.unlink()
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
        return {}
    if library == "timm":
        build = {"architecture": _timm_architecture(model), "num_classes": model.num_classes}
        build["outline"] = _outline(model, {path for path, m in model.named_modules() if isinstance(m, TokenNorm)})
        embed: Any = getattr(model, "patch_embed", None)
        if getattr(embed, "img_size", None) is not None:
            build |= {"img_size": list(embed.img_size), "in_chans": embed.proj.in_channels}
        return build
    return {}


def _outline(model: nn.Module, leave_out: set[str]) -> str:
    """A digest of what a model is made of and tensors do not show, such as heads, pooling and activations."""
    lines = []
    for path, module in model.named_modules():
        if any(path == left or path.startswith(f"{left}.") for left in leave_out):
            continue
        if type(module).__name__ in ("Identity", "Dropout", "DropPath"):  # of no effect in evaluation
            continue
        options = {key: getattr(module, key, None) for key in ("num_heads", "global_pool", "eps")}
        lines.append(f"{path} {type(module).__name__} {options}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _timm_architecture(model: Any) -> str | None:
    config = getattr(model, "pretrained_cfg", None) or {}
    return config.get("architecture") or None


def build_architecture(folder: Path, description: dict[str, Any], own_files: tuple[str, ...]) -> nn.Module:
    """The model that a description means, unconverted and with fresh weights."""
    library, name, build = description["library"], description["class"], description["build"]
    if library == "transformers":
        return _build_transformers(folder, name, build)
    if library == "sentence-transformers":
        return _build_sentence_transformer(folder, own_files)
    if library == "timm":
        import timm

        options = {key: build[key] for key in ("num_classes", "img_size", "in_chans") if key in build}
        model: nn.Module = timm.create_model(build["architecture"], pretrained=False, **options)
        if _outline(model, {site["path"] for site in description["sites"]}) != build.get("outline"):
            raise SepNormError(
                f"{folder} holds a {name} that was built with other options than timm gives {build['architecture']}: build "
                "it with these options, without converting it, and pass it as load(folder, model)."
            )
        return model
    raise SepNormError(
        f"{folder} holds a {name}, which no library that sepnorm knows can build: build it yourself, without converting it, "
        "and pass it as load(folder, model)."
    )


def _build_transformers(folder: Path, name: str, build: dict[str, Any]) -> nn.Module:
    import transformers

    cls = getattr(transformers, str(name), None) or getattr(_own_models(), str(name), None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise SepNormError(f"{folder} names the class {name!r}, which this version of transformers does not have.")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if build.get("attention") in ("eager", "sdpa"):
            config._attn_implementation = build["attention"]
        model: nn.Module = cls(config)
        if name == "ViTMAEModel" and (registers := getattr(config, "num_register_tokens", 0)):
            from sepnorm.images.model import give_leading_tokens

            give_leading_tokens(model, 1 + registers)
    except Exception as error:  # whatever a damaged config makes transformers raise
        raise SepNormError(
            f"transformers cannot build a {name} from {folder / 'config.json'}: {one_line(error)}."
        ) from error
    return model


def know_own_models(folder: str) -> None:
    """Makes transformers know our models, where a folder holds one."""
    try:
        kind = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if kind == "sepnorm-graphormer":
        _own_models()


def _own_models() -> Any:
    """Our models of transformers' kind; importing them makes their configs known to transformers."""
    import importlib

    return importlib.import_module(OWN_MODELS)


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws no progress of files that come and go."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _build_sentence_transformer(folder: Path, own_files: tuple[str, ...]) -> nn.Module:
    """The architecture with fresh weights: sentence-transformers opens only folders that have some."""
    import sentence_transformers
    import transformers

    with tempfile.TemporaryDirectory() as scratch, _without_bars():
        ignored = shutil.ignore_patterns(*own_files)
        shutil.copytree(folder, scratch, dirs_exist_ok=True, ignore=ignored)
        for config in Path(scratch).rglob("config.json"):
            if "model_type" in json.loads(config.read_text(encoding="utf-8")):
                options = dict(trust_remote_code=False, local_files_only=True)
                built = transformers.AutoModel.from_config(
                    transformers.AutoConfig.from_pretrained(config.parent, **options)
                )
                built.save_pretrained(config.parent)
        model: nn.Module = sentence_transformers.SentenceTransformer(scratch, device="cpu", local_files_only=True)
    return model
