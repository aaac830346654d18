"""Opens timm models: by registry name with safetensors from the hub, from a file, or from a folder of timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError, nearest, one_line
from sepnorm.surgery.opening.settings import is_number, named, read_named, regular, shown, vet_size
from sepnorm.surgery.opening.sizes import require_fitting, size_of

_SCALE = ("mean", "std", "input_size", "interpolation", "crop_pct")
_WORDS = frozenset(("global_pool", "img_size"))


def from_registry(timm: Any, name: str) -> Any:
    """A model by registry name. Its weights are downloaded as safetensors."""
    _require_known(timm, name)
    from huggingface_hub import hf_hub_download

    known = timm.get_pretrained_cfg(name)
    if known is None or not known.hf_hub_id:
        raise SepNormError(f"timm has no weights on the hub for {name!r}: choose one of timm.list_pretrained().")
    try:
        weights = Path(hf_hub_download(known.hf_hub_id, "model.safetensors"))
    except Exception as error:  # the hub client has an error class for each way to fail
        raise SepNormError(f"timm cannot open {name!r}: {one_line(error)}.") from error
    return _created(timm, name, weights, {}, {})


def from_file(timm: Any, name: str, path: Path) -> Any:
    """A model by registry name, with weights from a safetensors file."""
    _require_known(timm, name)
    weights = regular(path)
    if weights is None or path.suffix != ".safetensors":
        raise SepNormError(
            f"{path} is no safetensors file, and other weights are not opened, since pickles can run code: save them by "
            "safetensors.torch.save_file(model.state_dict(), file)."
        )
    return _created(timm, name, weights, {}, {})


def _require_known(timm: Any, name: str) -> None:
    if not timm.is_model(name.split(".")[0]):
        raise SepNormError(
            f"timm has no model {name!r}: give a name of timm.list_models(), NAME:FILE.safetensors, or local-dir:FOLDER."
            + nearest(name, timm.list_models())
        )


def from_folder(timm: Any, folder: Path) -> Any:
    """A model from a folder with ``config.json`` and ``model.safetensors``."""
    place = folder / "config.json"
    settings, weights = read_named(place), regular(folder / "model.safetensors")
    if settings is None or weights is None:
        raise SepNormError(f"{folder} lacks config.json or model.safetensors, which timm writes.")
    name: Any = settings.get("architecture")
    options = named(settings.get("model_args") or {}, place)
    _vet(timm, name, options, place, size_of([weights]).largest)
    kept = {key: value for key, value in options.items() if key not in ("num_classes", "pretrained_strict")}
    known = settings.get("pretrained_cfg") or settings
    scale = {key: known[key] for key in _SCALE if key in known} | {"num_classes": settings.get("num_classes", 0)}
    return _created(timm, name, weights, kept, scale)


def fresh_timm(timm: Any, name: Any, options: dict[str, Any], folder: Path) -> Any:
    """An architecture of timm with new weights, for a folder of ``sepnorm.save``."""
    weights = folder / "sepnorm.safetensors"
    size = size_of([weights])
    _vet(timm, name, options, folder / "sepnorm.json", size.largest)
    require_fitting(lambda: timm.create_model(name, pretrained=False, **options), size, weights)
    return timm.create_model(name, pretrained=False, **options)


def _vet(timm: Any, name: Any, options: dict[str, Any], where: Path, largest: int) -> None:
    if not isinstance(name, str) or not name.isidentifier() or not timm.is_model(name):
        raise SepNormError(f"{where} names the architecture {shown(name)}, which is none of timm's own.")
    for key, value in options.items():
        if not is_number(value) and key not in _WORDS:
            raise SepNormError(f"{where} builds the model with {key}={shown(value)}: it is not opened.")
        for each in value if isinstance(value, list) else [value]:
            vet_size(key, each, where, largest)


def _created(timm: Any, name: str, weights: Path, options: dict[str, Any], scale: dict[str, Any]) -> Any:
    overlay = {"file": str(weights), "url": None, "hf_hub_id": None, "custom_load": False, **scale}
    size = size_of([weights])
    try:
        require_fitting(lambda: timm.create_model(name, pretrained=False, num_classes=0, **options), size, weights)
        return timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay, **options)
    except SepNormError:
        raise
    except RuntimeError as error:  # weights that do not fit: torch names the first one in the second line
        said = " ".join(line.strip() for line in str(error).splitlines()[:2]).rstrip(".")
        raise SepNormError(f"timm cannot open {name!r}: {said}.") from error
    except Exception as error:  # wrong options can make timm raise anything
        raise SepNormError(f"timm cannot open {name!r}: {one_line(error)}.") from error
