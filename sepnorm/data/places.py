"""Tells local paths, missing paths, URLs and names of the Hub apart. Only names are looked up online."""

from __future__ import annotations

import difflib
import os
import socket
import sys
import threading
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from sepnorm.errors import UnreadableDataError, one_line

#: Suffixes of embedding files.
VECTORS = (".npy", ".npz", ".parquet", ".csv")
#: Suffixes of files that names of the Hub do not have.
_SUFFIXES = frozenset(
    ".txt .text .csv .tsv .json .jsonl .parquet .arrow .feather .xlsx .xls .md .html .xml .yaml .yml .log .npy .npz .pt .pth .bin "
    ".ckpt .safetensors .onnx .pkl .h5 .hdf5 .mat .gz .xz .bz2 .zip .tar .tgz .zst .7z .smi .sdf .mol .pdb .bmp .gif .jpeg "
    ".jpg .png .ppm .tif .tiff .webp .py".split()
)
_SECONDS = 3.0  # timeout for the Hub to answer
_ALIKE = 0.75  # similarity from which a local file is suggested


def is_address(name: str) -> bool:
    """Whether a name is a URL, such as ``s3://bucket/images``. Only streams are read from URLs."""
    return "://" in name


def looks_like_path(name: str) -> bool:
    """Whether a name can only be a path, by its start, suffix or depth, or because its first folder exists.

    Names of the Hub are ``NAME`` or ``OWNER/NAME``, optionally with ``:CONFIG``.
    """
    plain = name.partition(":")[0]
    if name.startswith((".", "/", "~", "\\")) or "\\" in name or plain.count("/") > 1 or not name.strip():
        return True
    first, slash, _ = plain.partition("/")
    return Path(plain).suffix.lower() in _SUFFIXES or bool(slash and Path(first).is_dir())


def require_here(name: str, what: str = "file or folder") -> None:
    """Raises for a missing path and for a URL. Accepts names that may be on the Hub."""
    if is_address(name):
        raise UnreadableDataError(
            f"{name} is an address, and only pretrain reads from one, as a stream: add --set stream=SAMPLES, or download it "
            f"and name the {what}."
        )
    try:
        there = os.path.lexists(name)
    except (OSError, ValueError) as error:
        raise UnreadableDataError(f"{name!r} cannot be the name of a file: {error}.") from None
    if not there and looks_like_path(name):
        home = " The shell leaves ~ as it is inside of quotes: write the whole path." if name.startswith("~") else ""
        raise UnreadableDataError(f"there is no {what} {name}.{nearest_file(name)}{home}")


def nearest_file(name: str) -> str:
    """``" Did you mean 'data/images'?"`` if a file or folder beside the missing one has a similar name, else empty."""
    path = Path(name)
    try:
        beside = [each.name for each in path.parent.iterdir()] if path.name else []
    except (OSError, ValueError):
        return ""
    match = difflib.get_close_matches(path.name, beside, n=1, cutoff=_ALIKE)
    return f" Did you mean {str(path.parent / match[0])!r}?" if match else ""


@cache
def prepare_hub() -> bool:
    """Whether the Hub can be reached. If not, its libraries are switched to their cache.

    They would retry for half a minute otherwise. Call this before looking up a name.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if _has_proxy() or _answers():
        return True
    os.environ["HF_HUB_OFFLINE"] = "1"  # libraries read it at import, also in child processes
    for module, flag in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], flag, True)
    return False


def _has_proxy() -> bool:
    return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))


def _answers() -> bool:
    """Whether the Hub accepts a connection within the timeout, which includes the DNS lookup."""
    from huggingface_hub.constants import ENDPOINT

    place = urlsplit(ENDPOINT)
    found: list[bool] = []

    def ask() -> None:
        try:
            port = place.port or (80 if place.scheme == "http" else 443)
            socket.create_connection((place.hostname or "", port), timeout=_SECONDS).close()
            found.append(True)
        except OSError:
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return bool(found)


def why_not(name: str, error: BaseException) -> str:
    """Why a name could not be looked up, for the end of an error message."""
    unreached = ", which cannot be reached, and it is not in the hub's cache"
    found = f": {one_line(error)}" if prepare_hub() else unreached
    return (
        f"there is no file or folder {name} here. It was looked up on the Hugging Face Hub{found}.{nearest_file(name)}"
    )
