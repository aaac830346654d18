"""Finds the model that a user named: a folder, a finished run or a Hub name. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

from sepnorm.data.places import VECTORS, prepare_hub, require_here, why_not
from sepnorm.errors import SepNormError

_SETTINGS = ("config.json", "modules.json", "sepnorm.json")
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".onnx", ".pkl", ".h5")


def find_model(target: str, what: str = "model") -> str:
    """The folder of a model; for a finished run, that of its model. A Hub name or ``timm:NAME`` is returned as is."""
    if target.startswith("timm:"):
        if not target.startswith("timm:local-dir:"):
            prepare_hub()
        return target
    folder = Path(target)
    if folder.suffix.lower() in _WEIGHTS and not folder.is_dir():
        missing = "" if folder.exists() else f"there is no file {target}, and "
        raise SepNormError(
            f"{missing}a file of weights does not define a model: give the folder of a model, with config.json and "
            "model.safetensors, as written by model.save_pretrained(folder) or sepnorm.save(model, folder)."
        )
    require_here(target, what)
    if folder.exists() and not folder.is_dir():
        raise SepNormError(f"{target} is neither a model's folder nor a file of embeddings ({', '.join(VECTORS)}).")
    if (folder / "metrics.json").is_file():
        folder = folder / "model"
        target = str(folder)
    elif (folder / "results.json").is_file() and (folder / "runs").is_dir():
        runs = sorted(path.parent for path in (folder / "runs").glob("*/metrics.json"))
        first = f", such as {runs[0]}" if runs else ""
        raise SepNormError(f"{target} holds a whole comparison: name the folder of one of its runs{first}.")
    if not folder.is_dir():
        _require_cached(target)
    elif not any((folder / name).is_file() for name in _SETTINGS):
        raise SepNormError(f"{target} holds no model: it has neither config.json nor modules.json nor sepnorm.json.")
    _refuse_decoders(target, folder / "config.json")
    return target


def _refuse_decoders(target: str, settings: Path) -> None:
    """Refuses T5, BART and others whose hidden states come from a decoder. Damaged settings are reported on opening."""
    try:
        found = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(found, dict) and found.get("is_encoder_decoder") is True:
        raise SepNormError(
            f"{target} is an encoder-decoder model (model type {found.get('model_type')!r}), which has no [CLS]: use an encoder "
            "such as BERT, RoBERTa, MPNet or ViT."
        )


def _require_cached(name: str) -> None:
    """If the Hub cannot be reached, refuses a name that its cache does not hold, before heavy imports."""
    if prepare_hub():
        return
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        raise FileNotFoundError(name)
    except (FileNotFoundError, HFValidationError) as error:
        raise SepNormError(f"{name} cannot be opened as a model: {why_not(name, error)}") from error
