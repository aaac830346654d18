from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.domains.images.pictures import over_pixels, reconstruct, reconstructions, strip
from sepnorm.domains.images.recipe import ImageRecipe, evenly, some_tokens
from sepnorm.experiment.comparison import Arm
from sepnorm.experiment.runs import perform
from sepnorm.report.runs import read_layers

TINY = PRESETS["demo"].changed(
    dict(width=16, depth=2, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, max_steps=4, batch_size=32)
)
COLOUR = TINY.changed({"channels": 3, "image_size": 12, "patch_size": 3})
MEAN, STD = torch.tensor([0.4, 0.5, 0.6])[:, None, None], torch.tensor([0.2, 0.3, 0.25])[:, None, None]


def images(count: int = 5) -> torch.Tensor:
    return torch.randint(256, (count, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("normalised", [True, False])
def test_a_perfect_prediction_gives_the_image_back(normalised, monkeypatch):
    model = MaskedAutoencoder(COLOUR.changed({"normalised_pixels": normalised}))
    honest = model.reconstruct

    def perfect(pixels, noise):
        latent, _, mask = honest(pixels, noise)
        true = model.mae.patchify(pixels)
        if normalised:
            true = (true - true.mean(-1, keepdim=True)) / (true.var(-1, keepdim=True) + 1e-6).sqrt()
        return latent, true, mask

    monkeypatch.setattr(model, "reconstruct", perfect)
    found = reconstruct(model, images(), MEAN, STD)
    assert torch.equal(found["original"], images().float() / 255)
    assert torch.allclose(found["reconstructed"], found["original"], atol=1e-5)


def test_masks_are_the_same_for_every_model_and_nothing_is_drawn_from_the_common_source():
    state = torch.get_rng_state()
    first = MaskedAutoencoder(COLOUR)
    torch.set_rng_state(state)
    found = [reconstruct(model, images(), MEAN, STD) for model in (first, first)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    other = reconstruct(MaskedAutoencoder(COLOUR.changed({"norm": "bn+bn", "seed": 3})), images(), MEAN, STD)
    assert torch.equal(other["mask"], found[0]["mask"]) and (other["mask"].sum(1) == 12).all()
    assert not torch.equal(other["reconstructed"], found[0]["reconstructed"])
    assert float(other["reconstructed"].min()) >= 0 and float(other["reconstructed"].max()) <= 1


def test_a_mask_of_patches_becomes_one_of_pixels():
    model = MaskedAutoencoder(COLOUR)
    mask = torch.rand(5, 16) < 0.5
    expected = model.mae.unpatchify(mask[..., None].expand(-1, -1, 27).float()).bool()
    assert torch.equal(over_pixels(mask.float(), 12).expand(-1, 3, -1, -1), expected)


def test_a_strip_shows_the_images_side_by_side():
    picture = np.asarray(strip(images().float() / 255))
    assert picture.shape == (12, 5 * 13 - 1, 4)
    for number, image in enumerate(images()):
        assert np.array_equal(picture[:, 13 * number : 13 * number + 12, :3], image.permute(1, 2, 0).numpy())
    assert not picture[:, 12].any()  # between two, nothing
    grey = np.asarray(strip(images()[:, :1].float() / 255))
    assert np.array_equal(grey[:, :12, 0], images()[0, 0].numpy()) and np.array_equal(grey[..., 0], grey[..., 2])
    assert strip(torch.rand(2, 3, 224, 224)).size == (198, 96)


def test_even_choices_reach_over_all_images_and_places():
    assert evenly(10, 4).tolist() == [0, 2, 5, 7] and evenly(3, 8).tolist() == [0, 1, 2]
    numbers = torch.arange(6 * 4).reshape(6, 4, 1)
    assert sorted(some_tokens(numbers, 100).flatten().tolist()) == list(range(24))
    for count in (1, 5, 12, 13, 23):
        found = some_tokens(numbers, count).flatten()
        assert len(set(found.tolist())) == count
        assert (found // 4).bincount(minlength=6).max() <= -(-count // 6)
        assert (found % 4).bincount(minlength=4).max() <= -(-count // 4)


def test_a_run_keeps_what_the_page_needs_and_the_same_each_time(tmp_path):
    recipe = ImageRecipe(TINY.changed({"pretrain_images": 300}))
    config = TINY.changed({"norm": "bn+ln"})
    kept = []
    for name in ("one", "two"):
        perform(recipe, config, tmp_path / name)
        cloud, drawn = (np.load(tmp_path / name / f"{file}.npz") for file in ("embeddings", "reconstructions"))
        assert cloud["tokens"].shape == (4096, 16) and cloud["cls"].shape == (897, 16)
        assert {key: drawn[key].shape for key in drawn.files} == {
            "original": (8, 1, 8, 8),
            "mask": (8, 16),
            "reconstructed": (8, 1, 8, 8),
        }
        layers = read_layers(tmp_path / name / "layers.json")
        assert layers is not None and layers.samples == 512 and layers.sites[-1].norm == "bn+ln"
        # after re-estimation, so that the statistics fit whole images
        assert layers.sites[-1].discrepancy is not None and layers.sites[-1].discrepancy < 0.5
        assert layers.sites[-1].after.tokens.count == 512 * 16
        text = (tmp_path / name / "layers.json").read_text(encoding="utf-8")
        kept.append((cloud["tokens"], drawn["reconstructed"], json.loads(text)))
    assert (
        np.array_equal(kept[0][0], kept[1][0]) and np.array_equal(kept[0][1], kept[1][1]) and kept[0][2] == kept[1][2]
    )


def test_the_section_shows_the_images_masked_and_by_each_arm(tmp_path):
    arms = []
    for number, norm in enumerate(("ln", "bn")):
        arm = Arm(f"<{norm}>", TINY.changed({"norm": norm}), folders={0: tmp_path / str(number)})
        arm.folders[0].mkdir()
        arms.append(arm)
    assert reconstructions(arms, 0) is None
    found = reconstruct(MaskedAutoencoder(COLOUR), images(), MEAN, STD)
    for arm in arms:
        np.savez(arm.folders[0] / "reconstructions.npz", **{key: value.numpy() for key, value in found.items()})
    section = reconstructions(arms, 0)
    assert section is not None and section.body.count("<img") == 4
    assert "&lt;bn&gt;" in section.body and "<bn>" not in section.body
    assert "these two are those of the original patch" in section.body
    plain = [Arm("ln", TINY.changed({"normalised_pixels": False}), folders=arms[0].folders)]
    assert "original patch" not in reconstructions(plain, 0).body
