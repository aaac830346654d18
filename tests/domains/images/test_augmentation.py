from __future__ import annotations

import pytest
import torch

from sepnorm.domains.images.augmentation import augment


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(5, count, generator=torch.Generator().manual_seed(seed))


def test_without_crop_and_flip_nothing_changes():
    pixels = torch.randn(5, 3, 8, 8)
    assert torch.allclose(augment(pixels, drawn(5), 1.0, False), pixels, atol=1e-5)


@pytest.mark.parametrize(("smallest", "flip"), [(0.2, True), (0.2, False), (1.0, True)])
def test_the_draws_alone_decide(smallest, flip):
    pixels = torch.randn(16, 3, 8, 8)
    first = augment(pixels, drawn(16, 1), smallest, flip)
    torch.rand(7)  # the global generator does not matter
    assert torch.equal(augment(pixels, drawn(16, 1), smallest, flip), first)
    assert not torch.equal(augment(pixels, drawn(16, 2), smallest, flip), first)
    assert first.shape == pixels.shape
    part = augment(pixels[4:9], drawn(16, 1)[:, 4:9], smallest, flip)  # an image does not depend on its neighbours
    assert torch.allclose(part, first[4:9], atol=1e-6)


def test_a_flip_only_mirrors_and_mirrors_about_half():
    pixels = torch.randn(200, 2, 7, 7)
    found = augment(pixels, drawn(len(pixels)), 1.0, True)
    kept = torch.isclose(found, pixels, atol=1e-5).flatten(1).all(1)
    mirrored = torch.isclose(found, pixels.flip(-1), atol=1e-5).flatten(1).all(1)
    assert bool((kept ^ mirrored).all())
    assert 60 < int(mirrored.sum()) < 140


def test_crops_stay_within_the_image():
    pixels = torch.rand(200, 3, 8, 8) + 5
    found = augment(pixels, drawn(len(pixels)), 0.1, True)
    low, high = pixels.flatten(2).amin(2), pixels.flatten(2).amax(2)
    assert bool((found.flatten(2).amin(2) >= low - 1e-5).all())
    assert bool((found.flatten(2).amax(2) <= high + 1e-5).all())


def test_a_crop_is_a_window_of_the_area_and_aspect_asked_for():
    side, count = 32, 300
    line = (torch.arange(side) + 0.5) / side
    pixels = torch.stack([line.expand(side, side), line[:, None].expand(side, side)]).expand(count, -1, -1, -1)
    found = augment(pixels, drawn(len(pixels)), 0.25, False)[
        :, :, 8:24, 8:24
    ]  # away from the edge, where nothing is reflected
    width, height = (
        (found[:, 0, 0, -1] - found[:, 0, 0, 0]) / 15 * side,
        (found[:, 1, -1, 0] - found[:, 1, 0, 0]) / 15 * side,
    )
    assert bool((width <= 1 + 1e-3).all()) and bool((height <= 1 + 1e-3).all())
    assert 0.18 < float((width * height).min()) < 0.35  # an elongated crop of nearly the whole is cut at the edge
    assert float((width / height).min()) > 3 / 4 - 1e-3 and float((width / height).max()) < 4 / 3 + 1e-3
    assert float((found[:, 0] - found[:, 0, :1]).abs().max()) < 1e-4  # not rotated


def test_a_constant_image_stays_constant():
    pixels = torch.tensor([0.3, -2.0])[:, None, None].expand(20, 2, 8, 8)
    assert torch.allclose(augment(pixels, drawn(len(pixels)), 0.05, True), pixels, atol=1e-5)
