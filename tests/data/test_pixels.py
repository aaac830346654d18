from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from sepnorm.data import pixels
from sepnorm.data.pixels import SETTINGS, Picture
from sepnorm.domains.images.data import to_bytes

MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(4, 6), (40, 7), (7, 40), (1, 1), (3, 200)])
def test_any_image_gets_the_size_of_the_model(shape):
    found = Picture((6, 10), MEAN, STD)([Image.fromarray(noise(*shape)), Image.fromarray(noise(6, 10))])
    assert found.shape == (2, 3, 6, 10)
    assert found.dtype == torch.float32
    assert found.isfinite().all()


def test_pixels_are_scaled_by_the_figures_of_each_channel():
    array = noise(5, 5)
    expected = (array.transpose(2, 0, 1) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    found = Picture((5, 5), MEAN, STD)([Image.fromarray(array)])[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("shape", "middle"), [((4, 10), np.s_[:, 3:7]), ((11, 4), np.s_[3:7, :])])
def test_the_middle_of_the_longer_side_is_cut_out(shape, middle):
    array = noise(*shape)
    found = Picture((4, 4), [0, 0, 0], [1, 1, 1])([Image.fromarray(array)])[0]
    np.testing.assert_allclose(found.numpy() * 255, array[middle].transpose(2, 0, 1), atol=1e-4)


def test_the_shorter_side_is_resized_first():
    array = noise(12, 24)
    resized = np.asarray(Image.fromarray(array).resize((12, 6), Image.Resampling.BICUBIC))
    found = Picture((6, 6), [0, 0, 0], [1, 1, 1])([Image.fromarray(array)])[0]
    np.testing.assert_allclose(found.numpy() * 255, resized[:, 3:9].transpose(2, 0, 1), atol=1e-4)


def test_rounding_leaves_no_black_border():
    for height in range(40, 60):
        white = Image.new("RGB", (90, height), "white")  # 47 * (6 / 47) is less than 6
        assert Picture((6, 10), [0, 0, 0], [1, 1, 1])([white]).eq(1).all()


def test_one_channel_takes_greyscale_and_colour():
    grey, colour = noise(5, 5, channels=1), noise(5, 5)
    found = Picture((5, 5), [0.5], [0.25])([Image.fromarray(grey), Image.fromarray(colour)])
    assert found.shape == (2, 1, 5, 5)
    np.testing.assert_allclose(found[0, 0].numpy(), (grey / 255 - 0.5) / 0.25, atol=1e-6)
    luminance = colour @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose((found[1, 0].numpy() * 0.25 + 0.5) * 255, luminance, atol=1)


def test_three_channels_take_greyscale_and_drop_transparency():
    grey, see_through = noise(5, 5, channels=1), noise(5, 5, channels=4)
    found = Picture((5, 5), [0, 0, 0], [1, 1, 1])([Image.fromarray(grey), Image.fromarray(see_through)])
    np.testing.assert_allclose(found[0].numpy() * 255, np.stack([grey] * 3), atol=1e-4)
    np.testing.assert_allclose(found[1].numpy() * 255, see_through[..., :3].transpose(2, 0, 1), atol=1e-4)


def test_a_name_makes_a_batch_of_keywords():
    image = Image.fromarray(noise(4, 4))
    named = Picture((4, 4), MEAN, STD, name="pixel_values")([image])
    assert named.keys() == {"pixel_values"}
    assert torch.equal(named["pixel_values"], Picture((4, 4), MEAN, STD)([image]))


@pytest.mark.parametrize("shape", [(1, 12_000), (12_000, 1), (3, 4000)])
def test_a_long_image_is_not_scaled_whole(monkeypatch, shape):
    sizes = []
    resize = Image.Image.resize

    def noted(image, size, *rest, **more):
        sizes.append(size)
        return resize(image, size, *rest, **more)

    monkeypatch.setattr(Image.Image, "resize", noted)
    Picture((224, 256), MEAN, STD)([Image.fromarray(noise(*shape))])
    to_bytes(Image.fromarray(noise(*shape)), 224, 3)
    assert sizes == [(256, 224), (224, 224)]


@pytest.mark.parametrize("shape", [(3, 40), (50, 3), (9, 9)])
def test_the_centre_alone_is_scaled_to_the_same_pixels(monkeypatch, shape):
    image = Image.fromarray(noise(*shape))
    whole = np.asarray(pixels.cover(image, 32, 48)).astype(int)
    monkeypatch.setattr(pixels, "_MOST_SCALED", 0)
    centre = np.asarray(pixels.cover(image, 32, 48)).astype(int)
    assert whole.shape == centre.shape and abs(whole - centre).mean() < 5  # half a pixel of the result


@pytest.mark.parametrize("shape", [(40, 30), (30, 41), (300, 450), (3, 200)])
def test_usual_images_are_scaled_whole_and_then_cropped(shape):
    image = Image.fromarray(noise(*shape))
    scale = max(24 / shape[0], 32 / shape[1])
    scaled = image.resize(
        (max(32, round(shape[1] * scale)), max(24, round(shape[0] * scale))), Image.Resampling.BICUBIC
    )
    left, top = (scaled.width - 32) // 2, (scaled.height - 24) // 2
    assert np.array_equal(pixels.cover(image, 24, 32), scaled.crop((left, top, left + 32, top + 24)))


def test_what_is_saved_makes_the_same_picture_again(tmp_path):
    first = Picture((6, 4), MEAN, STD)
    first.save(tmp_path)
    settings = json.loads((tmp_path / SETTINGS).read_text(encoding="utf-8"))
    assert settings["do_normalize"] is True
    size = (settings["size"]["height"], settings["size"]["width"])
    assert size == (6, 4)
    again = Picture(size, settings["image_mean"], settings["image_std"])
    image = Image.fromarray(noise(9, 9))
    assert torch.equal(again([image]), first([image]))
