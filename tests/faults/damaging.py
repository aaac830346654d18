"""Damage to files, and words and settings that nobody should type, all drawn by a seed."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

#: Values that do not belong where they are put.
ODD: list[Any] = [
    None, True, -1, 0, 0.5, 2**31, 10**12, 10**40, -(2**63), 1e-320, 1e308, float("nan"), float("inf"), "", " ", "\0", "\ud800",
    "..", "../../../outside", "/etc/hostname", "~", "é" * 300, "x" * 5000, "{}", [], {}, [[]], [None], {"": None}, [1, "a"],
    "1e999", "-0", "0x10", "NaN", "None", "true", "bn+ln", "final", "*", "%s", "{0}", "<script>", "'; --", "a=b", "\u202e",
]  # fmt: skip
_DEEP = "[" * 60_000
_PROGRAM = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(%pipe%true) (w) file\nshowpage\n%%EOF\n"


def damage(content: bytes, name: str, rng: Random) -> bytes:
    """The content of a file after something happened to it; half of the time something that fits its kind."""
    kind = Path(name).suffix
    if rng.random() < 0.5:
        if kind == ".json":
            return _damaged_json(content, rng)
        if kind in (".csv", ".tsv", ".smi", ".txt", ".jsonl", ".label"):
            return _damaged_table(content, kind, rng)
        if kind in (".png", ".jpg") and rng.random() < 0.1:
            return _PROGRAM
        if kind in (".npy", ".safetensors"):
            return _damaged_header(content, rng)
    return rng.choice(_BYTEWISE)(content, rng)


# ---- bytes --------------------------------------------------------------------------------------------------------------


def cut(content: bytes, rng: Random) -> bytes:
    """The beginning of it."""
    return content[: rng.randrange(max(len(content), 1))]


def flip(content: bytes, rng: Random) -> bytes:
    """One byte is another."""
    if not content:
        return b"\xff"
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :]


def _flip_early(content: bytes, rng: Random) -> bytes:
    """Headers are at the beginning, and say how everything else is read."""
    return flip(content[:200], rng) + content[200:]


def _flip_many(content: bytes, rng: Random) -> bytes:
    for _ in range(rng.randrange(2, 30)):
        content = flip(content, rng)
    return content


def _span(content: bytes, rng: Random) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.choice((1, 4, 64, 1000)))


def _zeros(content: bytes, rng: Random) -> bytes:
    start, stop = _span(content, rng)
    return content[:start] + bytes(stop - start) + content[stop:]


def _lacking(content: bytes, rng: Random) -> bytes:
    start, stop = _span(content, rng)
    return content[:start] + content[stop:]


def _inserted(content: bytes, rng: Random) -> bytes:
    start, _ = _span(content, rng)
    return content[:start] + rng.randbytes(rng.choice((1, 4, 64))) + content[start:]


def _repeated(content: bytes, rng: Random) -> bytes:
    start, stop = _span(content, rng)
    return content[:stop] + content[start:]


def _noise(content: bytes, rng: Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 7, 100, 4096)))


_BYTEWISE: list[Callable[[bytes, Random], bytes]] = [
    cut, cut, flip, flip, flip, _flip_early, _flip_many, _zeros, _lacking, _inserted, _repeated, _noise
]  # fmt: skip


# ---- kinds --------------------------------------------------------------------------------------------------------------


def _damaged_json(content: bytes, rng: Random) -> bytes:
    """Another value at some place of it."""
    if rng.random() < 0.03:
        return _DEEP.encode()
    try:
        value = json.loads(content)
    except ValueError:
        return flip(content, rng)
    places = list(_places(value))
    if not places or rng.random() < 0.05:
        return _dumped(rng.choice(ODD))
    holder, key = rng.choice(places)
    what = rng.randrange(4)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder[key], int | float):
        holder[key] = holder[key] * rng.choice((-1, 2, 1000)) + rng.choice((0, 1, 0.5))
    elif what == 2:
        holder[key] = rng.choice(places)[0]
        return _dumped(value) if not _loops(value) else _dumped([])
    else:
        holder[key] = rng.choice(ODD)
    return _dumped(value)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _loops(value: Any) -> bool:
    try:
        json.dumps(value)
    except ValueError:
        return True
    return False


def _places(value: Any) -> Any:
    """Every place of a JSON value, as what holds it and the key or number there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _damaged_table(content: bytes, kind: str, rng: Random) -> bytes:
    """Another cell, another line, or other separators."""
    lines = content.split(b"\n")
    number = rng.choice((0, rng.randrange(len(lines))))
    mark = {".csv": b",", ".smi": b" ", ".label": b" "}.get(kind, b"\t")
    cells = lines[number].split(mark)
    what = rng.randrange(6)
    if what == 0:
        cells[rng.randrange(len(cells))] = str(rng.choice(ODD)).encode("utf-8", "surrogatepass")
    elif what == 1:
        cells.append(b"more")
    elif what == 2:
        cells.pop()
    elif what == 3:
        cells[rng.randrange(len(cells))] = rng.choice((b'"', b"\0", b"\r", b'""', b"\xff\xfe", b"NaN", b"1e999", b"-"))
    elif what == 4:
        return mark.join(content.split(mark)[: rng.randrange(4)]) if rng.random() < 0.3 else content.replace(mark, b";")
    else:
        lines = lines[: rng.randrange(4)]
        return b"\n".join(lines)
    lines[number] = mark.join(cells)
    return b"\n".join(lines)


def _damaged_header(content: bytes, rng: Random) -> bytes:
    """Another number in the text that says how the values lie."""
    digits = [place for place, byte in enumerate(content[:2000]) if 48 <= byte <= 57]
    if not digits:
        return flip(content, rng)
    place = rng.choice(digits)
    new = rng.choice((b"9", b"0", b"-", b"99999999999", b"e", b"]", b"1"))
    return content[:place] + new + content[place + 1 :]


# ---- what is no ordinary file ------------------------------------------------------------------------------------------


def put_odd_file(path: Path, kind: str) -> None:
    """Puts a pipe, or a link of some kind, in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "itself" else kind)


#: Pipes, folders, and what links lead to.
ODD_FILES = (
    "pipe",
    "folder",
    "itself",
    "/dev/zero",
    "/dev/null",
    "/",
    "..",
    "nowhere",
    "/etc/hostname",
)


def bomb(name: str, rng: Random) -> bytes:
    """A packed file of many times its size: lines, one line, or a list that does not end; now and then a small one."""
    unit = rng.choice((b"\n", b"a", b"[[", b'"', b"[1,"))  # no rows: millions of these are work, and no harm
    part = unit * (2**20 // len(unit)) if rng.random() < 0.7 else unit * 2
    packing = Path(name).suffix
    if packing == ".xz":
        return lzma.compress(part, preset=0) * 1500
    if packing == ".bz2":
        return bz2.compress(part, 1) * 1500
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = packer.compress(b"text,label\n") + packer.flush(zlib.Z_FULL_FLUSH)
    return head + (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * 1500


# ---- orders to libraries ------------------------------------------------------------------------------------------------

#: Keys that a library takes for more than a description, and what somebody may put there.
ORDERS = (
    "auto_map trust_remote_code attn_implementation _attn_implementation use_safetensors weights_only quantization_config "
    "backbone use_timm_backbone transformers_weights configuration_files tokenizer_class processor_class vocab vocab_file "
    "fast_tokenizer_files merges_file tokenizer_file init_inputs gguf_file model_args model_kwargs config_args tokenizer_args "
    "processor_kwargs type path activation_function tokenizer_name_or_path transformer_task modality_config architecture "
    "custom_pipelines _name_or_path weight_map num_hidden_layers vocab_size hidden_size max_position_embeddings image_size "
    "dtype model_type architectures class library build aliases in_features out_features "
    "attention_window block_size window_size normalizer post_processor"
).split()
_ORDERED: list[Any] = [
    True, False, "evil.Evil", "evil/repo", "evil--evil.Evil", "../outside", "/etc/hostname", "os.system", "AutoModel",
    "torch.hub.load", "https://localhost:9/x", "sentence_transformers.SentenceTransformer", "timm_wrapper", 3_000_000, 10**10,
    2**62, [2 * 10**9], ["evil.Evil", None], {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"}, {"x": "evil.bin"},
    {"use_safetensors": False, "weights_only": False}, {"trust_remote_code": True}, {"attn_implementation": "evil/kernels"},
    {"quant_method": "bitsandbytes", "load_in_8bit": True},
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 10_000},
]  # fmt: skip


def ordered(content: bytes, rng: Random) -> bytes:
    """JSON with a few orders at its top, or in one of its parts."""
    try:
        value = json.loads(content)
    except ValueError:
        return content
    holders = [each for each in (value, *(holder[key] for holder, key in _places(value))) if isinstance(each, dict)]
    for _ in range(rng.randrange(1, 4) if holders else 0):
        rng.choice(holders[:3])[rng.choice(ORDERS)] = rng.choice(_ORDERED)
    return _dumped(value)


# ---- words --------------------------------------------------------------------------------------------------------------


def odd_word(rng: Random) -> str:
    """What can be typed: no zero bytes; sometimes bytes that are no UTF-8."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1, 9)).replace(b"\0", b"?").decode("utf-8", "surrogateescape")
    value = rng.choice(ODD)
    word = value if isinstance(value, str) else json.dumps(value)
    return word.replace("\0", "").replace("\ud800", "") or "x"


def odd_settings(known: list[str], rng: Random) -> list[str]:
    """A few ``key=value``, most of them of keys that exist."""
    pairs = []
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(known) if rng.random() < 0.9 else odd_word(rng)
        pairs.append(f"{key}={odd_word(rng)}" if rng.random() < 0.95 else odd_word(rng))
    return pairs
