"""Images of unusual modes and sizes, and photographs that are stored on their side."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, UnidentifiedImageError

from sepnorm.data.pictures import open_image, to_image

PROGRAM = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """A stand-in for Ghostscript, and the file that it leaves when it is started."""
    place, mark = tmp_path / "bin" / "gs", tmp_path / "started"
    place.parent.mkdir()
    place.write_text(f"#!/bin/sh\ntouch {mark}\n")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # looked for once
    return mark


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", ["x.png", "x.eps"])
@pytest.mark.parametrize("form", [Path, Path.read_bytes])
def test_a_program_in_an_image_file_is_not_run(tmp_path, ghostscript, name, form):
    (tmp_path / name).write_bytes(PROGRAM)
    for read in (open_image, to_image):
        with pytest.raises(UnidentifiedImageError):
            read(form(tmp_path / name))
    assert not ghostscript.exists()


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP", "MPO"])
def test_the_usual_formats_are_read(kind):
    assert to_image(encoded(Image.new("RGB", (4, 2)), kind)).size == (4, 2)


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "uint16"), ("TIFF", "uint16"), ("TIFF", "int32")])
@pytest.mark.parametrize("side", [8, 2100])  # of an image that is kept, and of one that is reduced
def test_the_greys_of_deep_images_are_kept(kind, dtype, side):
    ramp = np.linspace(0, 65535, side).round().astype(dtype)
    found = np.asarray(to_image(encoded(Image.fromarray(np.tile(ramp, (side, 1))), kind)))
    expected = np.linspace(0, 255, found.shape[1])
    assert abs(found - expected[None, :, None]).max() <= 1


@pytest.mark.parametrize("values", [np.linspace(0, 1, 64, dtype="float32"), np.arange(-32, 32, dtype="int32") * 1000])
def test_images_of_an_unknown_range_are_refused(values):
    with pytest.raises(ValueError, match="nothing says what is white"):
        to_image(encoded(Image.fromarray(values.reshape(8, 8)), "TIFF"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_photographs_are_turned_upright(kind):
    stored = Image.new("L", (40, 20))
    stored.paste(255, (0, 0, 20, 20))
    turned = Image.Exif()
    turned[0x0112] = 6  # the right side of what is stored belongs at the bottom
    found = to_image(encoded(stored, kind, exif=turned))
    assert found.size == (20, 40)
    assert found.getpixel((10, 5))[0] > 200 > 50 > found.getpixel((10, 35))[0]


def test_damaged_exif_data_leave_an_image_as_it_is():
    assert to_image(encoded(Image.new("L", (40, 20)), "JPEG", exif=b"Exif\0\0nonsense")).size == (40, 20)


@pytest.mark.parametrize(("side", "size"), [(32, (128, 96)), (90, (256, 192)), (200, (512, 384)), (None, (512, 384))])
def test_of_a_large_jpeg_no_more_is_decoded_than_twice_what_is_needed(side, size):
    ramp = Image.linear_gradient("L").resize((512, 384)).convert("RGB")
    file = io.BytesIO()
    ramp.save(file, "JPEG", quality=95)
    found = to_image(file.getvalue(), side)
    assert found.size == size
    small, whole = (image.resize((32, 24), Image.Resampling.BICUBIC) for image in (found, to_image(file.getvalue())))
    assert max(abs(a - b) for a, b in zip(small.tobytes(), whole.tobytes(), strict=True)) <= 3


def tiled(width: int, height: int) -> bytes:
    """A grey TIFF of 4 x 2 pixels in one packed tile of this size."""
    pixels = zlib.compress(bytes(16 * 16))
    tags = [(256, 4), (257, 2), (258, 8), (259, 8), (262, 1), (277, 1), (322, width), (323, height)]
    tags += [(324, 8 + 2 + 12 * (len(tags) + 2) + 4), (325, len(pixels))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries
    return head + bytes(4) + pixels


def test_a_tiff_of_large_tiles_is_refused():
    """Pillow would take room for a whole tile, however small the image is."""
    assert to_image(tiled(16, 16)).size == (4, 2)
    with pytest.raises(ValueError, match="its tiles have 65,536 x 32,768 pixels, and 67,108,864 are the most"):
        to_image(tiled(2**16, 2**15))
