"""What commands on saved models were asked for, refused without torch where it cannot be done."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sepnorm.data.places import VECTORS, looks_like_path, require_here
from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.targets import find_model
from sepnorm.errors import SepNormError, require_known
from sepnorm.files import require_writable
from sepnorm.training.notation import check_sites, norm_name

#: How the tokens of an input become one vector.
POOLINGS = ("cls", "mean")
#: What embeddings are written to.
FORMATS = (".parquet", ".npy")


def is_vectors(target: str) -> bool:
    """Whether a target of ``diagnose`` is a file of embeddings, and no model."""
    return Path(target).suffix.lower() in VECTORS and not Path(target).is_dir()


def check_embedding(model: str, data: str, out: Path, pooling: str) -> None:
    """For ``embed``."""
    if out.suffix.lower() not in FORMATS:
        raise SepNormError(f"embeddings are written to {' or '.join(FORMATS)} files, found {out.name}: change --out.")
    require_known("pooling", pooling, (*POOLINGS, "healed"))
    folder = Path(find_model(model))
    if pooling == "healed" and not (folder / "healing.npz").is_file():
        raise SepNormError(f"{model} is no folder that heal wrote: take --pooling cls or mean.")
    require_here(data)
    require_writable(out.parent)


def check_evaluation(model: str, data: str | None, pooling: str, out: Path | None = None) -> None:
    """For ``evaluate``."""
    if out is not None:
        require_writable(out)
    if pooling:
        require_known("pooling", pooling, (*POOLINGS, "both"))
    find_model(model)
    if data is not None:
        require_here(data)


def check_conversion(model: str, data: str, out: Path, norm: str, sites: str) -> None:
    """For ``convert``."""
    norm_name(norm)
    check_sites(sites)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SepNormError(f"{out} is there already and not empty: name a new folder by --out.")
    require_writable(out)
    find_model(model)
    require_here(data)


def check_diagnosis(
    target: str, data: str | None, column: str | None, label: str | None, max_samples: int | None
) -> None:
    """For ``diagnose``."""
    if max_samples is not None and max_samples < 2:
        raise SepNormError(f"max_samples is at least 2, since pairs are compared, found {max_samples}.")
    if is_vectors(target):
        require_here(target, "file")
        if data is not None:
            raise SepNormError(f"{target} holds embeddings already: --data is for models, leave it out.")
        EmbeddingFile(target, column, label).look()
        return
    if label is not None:
        raise SepNormError(
            "--label names a column of a file of embeddings; for a model the labels are those of the data."
        )
    if data is not None or looks_like_path(target):
        find_model(target, "file or folder")
    if data is None:
        raise SepNormError(
            f"{target} is taken for a model, which must be run on something: add --data, such as a text file, "
            "a table or a folder of images."
        )
    require_here(data)


def check_healing(
    target: str, data: str | None, test: str | None, column: str | None, label: str | None, out: Path
) -> None:
    """For ``heal``."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SepNormError(f"{out} is there already and not empty: name a new folder by --out.")
    require_writable(out)
    if is_vectors(target):
        for given, name in ((data, "--data"), (test, "--test")):
            if given is not None:
                raise SepNormError(
                    f"{name} is for models, and {target} holds vectors: leave it out, labels are read with them."
                )
    if test is not None:
        require_here(test, "file")
    check_diagnosis(target, data, column, label, None)


def check_export(model: str, out: Path) -> None:
    """For ``export``."""
    if out.suffix.lower() != ".onnx":
        raise SepNormError(f"a model is exported to a .onnx file, found {out.name}: change --out.")
    if any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise SepNormError("export needs onnx and onnxscript: pip install 'sepnorm[export]'.")
    find_model(model)
    require_writable(out.parent)
