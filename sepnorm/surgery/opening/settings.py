"""Reads files and values of an untrusted model folder safely."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from sepnorm.errors import SepNormError

_LARGEST_JSON = 2**26  # bytes
_LARGEST = 2_000_000  # sizes up to this are accepted even if no tensor is that large
_MOST_LABELS = 100_000  # transformers writes a name for each, whether or not the weights have a head
#: Sizes of parts that an input is padded to or cut into: they take memory when the model runs, whatever its weights.
_PARTS = frozenset(
    "attention_window block_size chunk_length global_block_size local_attn_chunk_length local_radius lsh_attn_chunk_length "
    "window_size".split()
)
_LARGEST_PART = 4096
_LARGEST_IMAGE = 2560  # pixels of a side; no weights depend on it where positions are relative, as in Swin
#: Integer settings that are no sizes.
_NO_SIZES = frozenset("rope_theta global_rope_theta local_rope_theta rotary_emb_base".split())
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")


def regular(path: Path) -> Path | None:
    """The regular file at ``path``, links resolved as in hub caches; None if there is none. Raises for other things."""
    try:
        found = path.resolve(strict=True)
        mode = found.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise SepNormError(f"{path} is a broken link: copy the folder again.") from None
        return None
    except (OSError, RuntimeError, ValueError) as error:
        raise SepNormError(f"{path} cannot be read: {error}.") from error
    if not stat.S_ISREG(mode):
        raise SepNormError(f"{path} is not a regular file: it is not opened.")
    return found


def read_settings(path: Path) -> Any:
    """The content of a small JSON file; None if there is no such file."""
    found = regular(path)
    if found is None:
        return None
    if found.stat().st_size > _LARGEST_JSON:
        raise SepNormError(f"{path} has {found.stat().st_size / 2**20:.0f} MiB, which is too much for settings.")
    try:
        return json.loads(found.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError, RecursionError, MemoryError) as error:
        raise SepNormError(f"{path} is damaged: {error}.") from error


def read_named(path: Path) -> dict[str, Any] | None:
    """The object in a small JSON file; None if there is no such file."""
    found = read_settings(path)
    return None if found is None else named(found, path)


def named(value: Any, where: Path) -> dict[str, Any]:
    """``value`` if it is a dictionary; otherwise raises that ``where`` is damaged."""
    if not isinstance(value, dict):
        raise SepNormError(f"{where} is damaged: expected a JSON object.")
    return value


def weight_files(folder: Path) -> Iterator[str]:
    """Names of the safetensors files of a model: a single file, or those in its index."""
    if regular(folder / "model.safetensors") is not None:
        yield "model.safetensors"
        return
    place = folder / "model.safetensors.index.json"
    index = read_named(place)
    if index is None:
        return
    for name in dict.fromkeys(named(index.get("weight_map"), place).values()):
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise SepNormError(
                f"{place} names the weights {name!r}, which are no safetensors in its folder: it is not opened."
            )
        yield name


def is_below(path: str) -> bool:
    """Whether a relative path from a file stays in its folder."""
    parts = PurePosixPath(path.replace("\\", "/"))
    return not parts.is_absolute() and ".." not in parts.parts and "\0" not in path and ":" not in path


def is_number(value: Any) -> bool:
    """Whether a value is a number, a bool or None."""
    return value is None or isinstance(value, int | float)


def is_dtype(value: Any) -> bool:
    """Whether a value is None or a floating-point dtype that we open."""
    return value is None or str(value).removeprefix("torch.") in DTYPES


def vet_size(key: str, value: Any, where: Path, largest: int) -> Any:
    """Returns ``value``; raises if it is a size that weights with sides up to ``largest`` cannot have."""
    if key == "num_labels" and isinstance(value, int) and value > _MOST_LABELS:
        raise SepNormError(
            f"{where} has num_labels={value:,}, more than the {_MOST_LABELS:,} that sepnorm opens: the model is not built."
        )
    if key in _PARTS and isinstance(value, int) and value > _LARGEST_PART:
        raise SepNormError(
            f"{where} has {key}={value:,}, more than the {_LARGEST_PART:,} that sepnorm opens: the model is not built."
        )
    if key in ("image_size", "img_size") and isinstance(value, int) and value > _LARGEST_IMAGE:
        raise SepNormError(
            f"{where} has {key}={value:,}, more than the {_LARGEST_IMAGE:,} that sepnorm opens: the model is not built."
        )
    if isinstance(value, int) and abs(value) > max(_LARGEST, largest) and key not in _NO_SIZES:
        raise SepNormError(
            f"{where} has {key}={value:,}, but no dimension of its weights exceeds {largest:,}: the model is not built."
        )
    return value


def shown(value: Any) -> str:
    """A value for a message, truncated."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
