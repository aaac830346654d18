"""Writes a healing to a folder: map, results, page, and vectors or a model that work without sepnorm."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.healing.maps import FILE, write_map
from sepnorm.domains.healing.models import healed_parts, save_parts, sentence_parts, write_sentence_encoder
from sepnorm.errors import SepNormError
from sepnorm.files import make_folder, write_text, write_whole
from sepnorm.geometry.linear_maps import LinearMap

if TYPE_CHECKING:
    from sepnorm.domains.healing.healing import Healing

VECTORS, ONNX = "vectors.npy", "model.onnx"


def write_healing(healing: Healing, folder: Path) -> Path:
    """Writes everything and returns the page's path."""
    from sepnorm.domains.healing.healing import as_json
    from sepnorm.domains.healing.page import write_page_of

    make_folder(folder)
    write_map(folder / FILE, healing.map, healing.pooling)
    origin = healing.source.origin
    if isinstance(origin, EmbeddingFile):
        write_vectors(folder / VECTORS, origin, healing.map)
    elif origin is not None:
        _write_model(healing, origin, folder)
    write_text(folder / "results.json", as_json(healing))
    return write_page_of(healing, folder / "report.html")


def write_vectors(path: Path, file: EmbeddingFile, found: LinearMap) -> int:
    """Writes all vectors of a file, healed and in order, as float32 ``.npy``, in parts; returns their number."""
    import numpy

    out, apply = found.weight.shape[0], found.in_single_precision()
    rows = 0

    def header(handle: Any) -> None:
        # of fixed length, since it is written again once the number of rows is known
        numpy.lib.format.write_array_header_1_0(handle, {"descr": "<f4", "fortran_order": False, "shape": (rows, out)})

    def write(scratch: str) -> None:
        nonlocal rows
        with open(scratch, "wb") as handle:
            header(handle)
            begin = handle.tell()
            for part in file.parts():
                handle.write(apply(part.rows).numpy().data)
                rows += len(part.rows)
            handle.seek(0)
            header(handle)
            if handle.tell() != begin:
                raise SepNormError(f"{file.path} has more vectors than the header of an .npy file was made for.")

    write_whole(path, write)
    return rows


def _write_model(healing: Healing, origin: Any, folder: Path) -> None:
    if not isinstance(origin, str):  # a sentence encoder in memory
        parts = sentence_parts(origin)
        if parts is None:
            healing.notes.append("The model is in memory and no SentenceTransformer: the map alone was written.")
            return
        save_parts(healed_parts(parts, healing.map, healing.pooling) if healing.changed else parts, folder)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if write_sentence_encoder(origin, Path(scratch), healing.map, healing.pooling):
            for path in Path(scratch).iterdir():
                path.replace(folder / path.name)
            return
    if any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        healing.notes.append("The map alone was written: for the model as ONNX, pip install 'sepnorm[export]'.")
        return
    from sepnorm.domains.export import export_onnx

    try:
        export_onnx(origin, folder / ONNX, healing=folder)
    except SepNormError as error:
        healing.notes.append(f"The map alone was written, since the model is not exported: {error}")
