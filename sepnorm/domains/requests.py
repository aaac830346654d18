"""Checks of the arguments of verbs on saved models. They need no torch, so mistakes are reported at once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sepnorm.data.places import VECTORS, looks_like_path, nearest_file, require_here
from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.targets import find_model
from sepnorm.errors import SepNormError, require_known
from sepnorm.files import require_writable
from sepnorm.training.notation import check_sites, names_in, norm_name

#: Ways to turn tokens into one vector: the keys of ``sepnorm.pooling.registry.POOLINGS``, known here without torch.
POOLINGS = ("cls", "mean", "cls+mean", "moments")
#: Poolings that need a [CLS].
NEED_CLS = ("cls", "cls+mean")
#: Words that stand for several poolings.
_SEVERAL = {"both": ("cls", "mean"), "all": POOLINGS}
#: File formats of embeddings that ``embed`` writes.
FORMATS = (".parquet", ".npy")


def is_vectors(target: str) -> bool:
    """Whether a target is a file of embeddings rather than a model."""
    return Path(target).suffix.lower() in VECTORS and not Path(target).is_dir()


def check_embedding(model: str, data: str, out: Path, pooling: str) -> None:
    """Refuses arguments of ``embed`` that cannot work."""
    if out.suffix.lower() not in FORMATS:
        raise SepNormError(f"embeddings are written to {' or '.join(FORMATS)} files, found {out.name}: change --out.")
    require_known("pooling", pooling, (*POOLINGS, "healed"))
    folder = Path(find_model(model))
    if pooling == "healed" and not (folder / "healing.npz").is_file():
        raise SepNormError(
            f"{model} was not written by heal: use --pooling {', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}."
        )
    require_here(data)
    require_writable(out.parent)


def poolings_of(said: str) -> tuple[str, ...]:
    """The poolings that ``--pooling`` of ``evaluate`` names: a list with commas, ``both`` (cls and mean) or ``all``."""
    found = [each for name in names_in(said) for each in _SEVERAL.get(name, (name,))]
    return tuple(dict.fromkeys(require_known("pooling", name, (*POOLINGS, *_SEVERAL)) for name in found))


def check_evaluation(model: str, data: str | None, pooling: str, out: Path | None = None) -> None:
    """Refuses arguments of ``evaluate`` that cannot work."""
    if out is not None:
        require_writable(out)
    poolings_of(pooling)
    find_model(model)
    if data is not None:
        require_here(data)


def check_conversion(model: str, data: str, out: Path, norm: str, sites: str) -> None:
    """Refuses arguments of ``convert`` that cannot work."""
    norm_name(norm)
    check_sites(sites)
    _require_new(out)
    find_model(model)
    require_here(data)


def check_diagnosis(
    target: str, data: str | None, column: str | None, label: str | None, max_samples: int | None
) -> None:
    """Refuses arguments of ``diagnose`` that cannot work."""
    if max_samples is not None and max_samples < 2:
        raise SepNormError(f"max_samples must be at least 2, because pairs are compared, found {max_samples}.")
    if is_vectors(target):
        require_here(target, "file")
        if data is not None:
            raise SepNormError(f"{target} is a file of embeddings: leave out --data, which is for models.")
        EmbeddingFile(target, column, label).look()
        return
    if label is not None:
        raise SepNormError(
            "--label is only for files of embeddings: leave it out, the labels of a model come from its data."
        )
    if data is not None or looks_like_path(target):
        find_model(target, "file or folder")
    if data is None:
        if "/" in target and not target.startswith("timm:") and not Path(target).exists():
            raise SepNormError(
                f"there is no file or folder {target}.{nearest_file(target)} A model on the hub needs --data with a text file, a "
                "table or a folder of images."
            )
        raise SepNormError(
            f"{target} is opened as a model, which needs data: add --data with a text file, a table or a folder of images."
        )
    require_here(data)


def check_healing(
    target: str, data: str | None, test: str | None, column: str | None, label: str | None, out: Path
) -> None:
    """Refuses arguments of ``heal`` that cannot work."""
    _require_new(out)
    if is_vectors(target):
        for given, name in ((data, "--data"), (test, "--test")):
            if given is not None:
                raise SepNormError(
                    f"{name} is for models, and {target} is a file of vectors: leave it out, labels are read from the file."
                )
    if test is not None:
        require_here(test, "file")
    check_diagnosis(target, data, column, label, None)


def _require_new(folder: Path) -> None:
    """Refuses a folder that holds something, or that cannot be written to."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SepNormError(f"{folder} already exists and is not empty: choose a new folder with --out.")
    require_writable(folder)


def check_export(model: str, out: Path) -> None:
    """Refuses arguments of ``export`` that cannot work."""
    if out.suffix.lower() != ".onnx":
        raise SepNormError(f"a model is exported to a .onnx file, found {out.name}: change --out.")
    if any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise SepNormError("export needs onnx and onnxscript: pip install 'sepnorm[export]'.")
    find_model(model)
    require_writable(out.parent)
