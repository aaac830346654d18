"""What a user named: something here, a path to nothing, or a name of the hub. Only the last is looked for elsewhere."""

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

#: Suffixes of files of embeddings.
VECTORS = (".npy", ".npz", ".parquet", ".csv")
#: Suffixes that files have and names of the hub do not.
_SUFFIXES = frozenset(
    ".txt .text .csv .tsv .json .jsonl .parquet .arrow .feather .xlsx .xls .md .html .xml .yaml .yml .log .npy .npz .pt .pth .bin "
    ".ckpt .safetensors .onnx .pkl .h5 .hdf5 .mat .gz .xz .bz2 .zip .tar .tgz .zst .7z .smi .sdf .mol .pdb .bmp .gif .jpeg "
    ".jpg .png .ppm .tif .tiff .webp .py".split()
)
_SECONDS = 3.0  # in which the hub must answer
_ALIKE = 0.75  # how near the name of a file here must be to be a hint


def looks_like_path(name: str) -> bool:
    """Whether a name can only be a path: by its beginning, its suffix, its depth, or because a part of it is here.

    Names of the hub are ``NAME`` or ``OWNER/NAME``, and ``:CONFIG`` behind them.
    """
    plain = name.partition(":")[0]
    if name.startswith((".", "/", "~", "\\")) or "\\" in name or plain.count("/") > 1 or not name.strip():
        return True
    first, slash, _ = plain.partition("/")
    return Path(plain).suffix.lower() in _SUFFIXES or bool(slash and Path(first).is_dir())


def require_here(name: str, what: str = "file or folder") -> None:
    """Refuses a path to nothing at once; a name that may be one of the hub's is let through."""
    try:
        there = os.path.lexists(name)
    except (OSError, ValueError) as error:
        raise UnreadableDataError(f"{name!r} cannot be the name of a file: {error}.") from None
    if not there and looks_like_path(name):
        home = " The shell leaves ~ as it is inside of quotes: write the whole path." if name.startswith("~") else ""
        raise UnreadableDataError(f"there is no {what} {name}.{nearest_file(name)}{home}")


def nearest_file(name: str) -> str:
    """``" Did you mean 'data/images'?"`` where a file or folder beside the missing one has nearly its name, else nothing."""
    path = Path(name)
    try:
        beside = [each.name for each in path.parent.iterdir()] if path.name else []
    except (OSError, ValueError):
        return ""
    match = difflib.get_close_matches(path.name, beside, n=1, cutoff=_ALIKE)
    return f" Did you mean {str(path.parent / match[0])!r}?" if match else ""


@cache
def prepare_hub() -> bool:
    """Whether the hub can be asked. Where it cannot, its libraries are told to look in their cache alone.

    Otherwise they would try again for half a minute. To be called before a name is looked up.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if _has_proxy() or _answers():
        return True
    os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported, also in processes that we start
    for module, flag in (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE")):
        if module in sys.modules:
            setattr(sys.modules[module], flag, True)
    return False


def _has_proxy() -> bool:
    return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))


def _answers() -> bool:
    """Whether something listens where the hub is. A name server that is silent is not waited for."""
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


def why_not(name: str, kind: str, error: BaseException) -> str:
    """Why a name could not be looked up, for the end of a message."""
    asked = one_line(error) if prepare_hub() else "the hub cannot be asked from here, and its cache does not hold it"
    return f"{asked}. It is no file or folder here, so it was taken for a name of {kind}.{nearest_file(name)}"
