"""Images of any form and mode, as upright RGB images of bounded size."""

from __future__ import annotations

import io
import math
from contextlib import suppress
from typing import Any

#: What Pillow may read, in whatever file it is. It knows more, of which EPS starts Ghostscript with the program in a file.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 2**26  # of an image that is opened; one of this size takes 256 MiB while it is read
_KEPT_PIXELS = 2**22  # of an image that is kept; larger ones are reduced at once
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # grey, with more than 8 bits


def open_image(content: Any) -> Any:
    """Opens a path, bytes, an image dictionary of ``datasets`` or a Pillow image; pixels are not read yet."""
    from PIL import Image

    if isinstance(content, dict):
        content = content.get("bytes") or content.get("path")
    if isinstance(content, Image.Image):
        return content
    return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS)


def to_image(content: Any, side: int | None = None) -> Any:
    """Converts a path, bytes, an image dictionary of ``datasets`` or a Pillow image to an upright RGB image.

    Large images are reduced by a whole factor, so that many fit into memory. Very large ones are refused. A JPEG whose
    shorter side will be ``side`` pixels is decoded at a half, a quarter or an eighth, but at least twice that size.
    """
    image = open_image(content)
    pixels = image.width * image.height
    if pixels > _MOST_PIXELS:
        raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, and {_MOST_PIXELS:,} are the most")
    _require_small_tiles(image)
    if side is not None:
        image.draft("RGB", (2 * side, 2 * side))
        pixels = image.width * image.height
    if image.mode in _DEEP:
        image = _eight_bit(image)
    if pixels <= _KEPT_PIXELS:
        return _upright(image.convert("RGB"))
    factor = math.ceil(math.sqrt(pixels / _KEPT_PIXELS))
    image.draft("RGB", (image.width // factor, image.height // factor))  # JPEGs are decoded at a smaller size
    factor = math.ceil(math.sqrt(image.width * image.height / _KEPT_PIXELS))
    image = image if image.mode in ("RGB", "L") else image.convert("RGB")
    return _upright(image.reduce(factor).convert("RGB"))


def _require_small_tiles(image: Any) -> None:
    """Raises for a TIFF whose tiles are larger than any image that is opened: Pillow takes room for a whole tile."""
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(322), tags.get(323)
    if isinstance(width, int) and isinstance(height, int) and width * height > _MOST_PIXELS:
        raise ValueError(f"its tiles have {width:,} x {height:,} pixels, and {_MOST_PIXELS:,} are the most")


def _eight_bit(image: Any) -> Any:
    """A grey image of 16 bits with 8. Pillow's own conversion makes all values above 255 white."""
    import numpy
    from PIL import Image

    values = numpy.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError(
            f"its pixels run from {values.min():g} to {values.max():g}, and nothing says what is white: save it with 8 or 16 bits"
        )
    return Image.fromarray(((values.astype("uint32") + 128) // 257).astype("uint8"))


def _upright(image: Any) -> Any:
    """Turns an image in place as its EXIF data say, if they can be read."""
    from PIL import ImageOps

    with suppress(Exception):  # Pillow raises many kinds of errors at damaged EXIF data, which leave the image alone
        ImageOps.exif_transpose(image, in_place=True)
    return image
