from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import sepnorm
from sepnorm.data.records import Record
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.domains.images.model import MaskedAutoencoder, positions
from sepnorm.domains.images.recipe import ImageRecipe
from sepnorm.geometry import summary
from sepnorm.losses import uniformity_loss

TINY = PRESETS["demo"].changed(
    dict(width=16, depth=2, heads=2, decoder_width=8, decoder_depth=1, decoder_heads=2, max_steps=10, batch_size=32)
)
NORMS = ["ln", "bn", "bn+ln", "ln+bn", "bn+bn", "ln+ln"]


@pytest.fixture(scope="module")
def recipe() -> ImageRecipe:
    return ImageRecipe(TINY.changed({"pretrain_images": 300}))


def batch(count: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1, 8, 8), torch.rand(count, TINY.patches)


def discrepancies(recipe: ImageRecipe, model: MaskedAutoencoder) -> list[float]:
    encoder: Any = model.mae.vit
    encoder.config.mask_ratio = 0.0
    try:
        found = sepnorm.inspect(encoder, [{"pixel_values": recipe.pixels(recipe.data.train.images)}])
    finally:
        encoder.config.mask_ratio = model.settings.mask_ratio
    return [site.discrepancy for site in found.sites if site.discrepancy is not None]


def test_positions_have_the_closed_form():
    width, side = 16, 3
    found = positions(width, side)
    assert found.shape == (1, 10, 16) and found.dtype == torch.float32
    assert not found[0, 0].any()
    for row in range(side):
        for column in range(side):
            expected = []
            for place in (column, row):
                angles = [place / 10_000 ** (i / 4) for i in range(4)]
                expected += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            assert found[0, 1 + row * side + column].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("width", [5, 7, 10, 18])
def test_positions_of_widths_that_four_does_not_divide_are_filled_with_zeros(width):
    found = positions(width, 2)
    assert found.shape == (1, 5, width)
    assert not found[..., width // 4 * 4 :].any()
    assert len(found[0].unique(dim=0)) == 5


def test_both_position_embeddings_are_set():
    mae: Any = MaskedAutoencoder(TINY).mae
    assert torch.equal(mae.vit.embeddings.position_embeddings, positions(16, 4))
    assert torch.equal(mae.decoder.decoder_pos_embed, positions(8, 4))
    assert len(mae.vit.embeddings.position_embeddings[0].unique(dim=0)) == 17


@pytest.mark.parametrize("normalised", [True, False])
def test_the_loss_and_its_gradients_are_those_of_transformers(normalised):
    for norm in ("ln", "bn+ln"):
        changes = {"normalised_pixels": normalised, "norm": norm, "sites": "all", "decoder_depth": 2}
        model = MaskedAutoencoder(TINY.changed(changes)).double()
        pixels, noise = batch()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        ours, theirs = model(pixels.double(), noise)["loss"], model.mae(pixels.double(), noise=noise).loss
        assert torch.allclose(ours, theirs, rtol=1e-12)
        gradients = zip(torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-12) for a, b in gradients)


def test_weights_are_drawn_by_their_sizes():
    """With the deviation of 0.02 that transformers draws by, narrow models hardly learn."""
    model = MaskedAutoencoder(TINY.changed({"width": 64, "heads": 4}))
    weight = model.mae.vit.layers[0].mlp.fc1.weight
    assert float(weight.std()) == pytest.approx((2 / (64 + 256)) ** 0.5, rel=0.05)
    assert float(model.mae.decoder.mask_token.detach().abs().max()) > 0


def test_the_patches_of_lowest_noise_are_seen():
    model = MaskedAutoencoder(TINY)
    pixels, noise = batch()
    latent, logits, mask = model.reconstruct(pixels, noise)
    assert latent.shape == (12, 5, 16) and logits.shape == (12, 16, 4)
    seen = torch.zeros(12, 16).scatter_(1, noise.argsort(1)[:, :4], 1.0)
    assert torch.equal(mask, 1 - seen)


@pytest.mark.parametrize("form", ["squared", "inner"])
@pytest.mark.parametrize("within", ["batch", "sample"])
@pytest.mark.parametrize("on", ["cls", "tokens", "both"])
def test_the_uniformity_term_is_added_with_its_weight(form, within, on):
    changes = {"uniformity_form": form, "uniformity_on": on, "uniformity_within": within}
    plain, model = MaskedAutoencoder(TINY), MaskedAutoencoder(TINY.changed(changes | {"uniformity_weight": 0.7}))
    pixels, noise = batch()
    latent = plain.reconstruct(pixels, noise)[0]
    expected = torch.tensor(0.0)
    if on != "tokens":
        expected = expected + uniformity_loss(latent[:, 0], form)
    if on != "cls":
        expected = expected + uniformity_loss(latent[:, 1:], form, within=within)
    assert float(expected.detach()) > 0.01
    assert torch.allclose(model(pixels, noise)["loss"], plain(pixels, noise)["loss"] + 0.7 * expected, rtol=1e-5)


@pytest.mark.parametrize("on", ["cls", "tokens", "both"])
def test_the_gradient_reaches_the_cls_token(on):
    model = MaskedAutoencoder(TINY.changed({"norm": "bn+ln", "uniformity_weight": 0.1, "uniformity_on": on}))
    model(*batch())["loss"].backward()
    gradient = model.mae.vit.embeddings.cls_token.grad
    assert gradient is not None and bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sites", ["all", "final"])
def test_every_norm_makes_a_step(norm, sites):
    model = MaskedAutoencoder(TINY.changed({"norm": norm, "sites": sites, "uniformity_weight": 0.1}))
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    pixels, noise = batch()
    losses = []
    for _ in range(8):
        loss = model(pixels, noise)["loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert all(math.isfinite(value) for value in losses) and losses[-1] < losses[0]
    batch_norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    assert bool(batch_norms) == ("bn" in norm)
    if sites == "all" and norm in ("bn+ln", "ln+bn"):
        assert len(batch_norms) > 1


@pytest.mark.parametrize("norm", ["ln", "bn+bn"])
def test_whole_images_are_encoded(recipe, norm):
    model = MaskedAutoencoder(TINY.changed({"norm": norm}))
    some = recipe.data.test.take(torch.arange(270))  # more than are encoded at a time
    cls, mean = recipe.encode(model, some)
    assert model.mae.vit.config.mask_ratio == TINY.mask_ratio
    encoder: Any = MaskedAutoencoder(TINY.changed({"norm": norm, "mask_ratio": 1e-9})).mae.vit.eval()
    encoder.config.mask_ratio = 0.0
    with torch.no_grad():
        hidden = encoder(recipe.pixels(some.images)).last_hidden_state
    assert hidden.shape == (270, 17, 16)
    assert torch.allclose(cls, hidden[:, 0], atol=1e-4) and torch.allclose(mean, hidden[:, 1:].mean(1), atol=1e-4)


def test_the_mask_ratio_is_put_back_after_an_error(recipe):
    model = MaskedAutoencoder(TINY)
    wrong = replace(recipe.data.test, images=torch.zeros(4, 1, 6, 6, dtype=torch.uint8))
    with pytest.raises(ValueError, match="size"):
        recipe.encode(model, wrong)
    assert model.mae.vit.config.mask_ratio == TINY.mask_ratio


def test_encoding_twice_gives_the_same_bits(recipe):
    model = MaskedAutoencoder(TINY)
    state = torch.get_rng_state()
    first, second = recipe.encode(model, recipe.data.test), recipe.encode(model, recipe.data.test)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("norm", "sites"), [("bn+ln", "final"), ("bn+bn", "all"), ("bn", "final")])
def test_recalibration_measures_the_statistics_on_whole_images(recipe, tmp_path, norm, sites):
    model, _ = recipe.pretrain(TINY.changed({"norm": norm, "sites": sites}), tmp_path)
    before = discrepancies(recipe, model)
    recipe.recalibrate(model)
    after = discrepancies(recipe, model)
    assert len(before) == len(after) > 0
    assert max(before) > 0.1 > 0.05 > max(after[:1])
    assert max(after) < 0.5 * max(before)
    assert model.mae.vit.config.mask_ratio == TINY.mask_ratio


def test_recalibration_takes_images_from_the_whole_data(recipe, monkeypatch):
    import sepnorm.domains.images.recipe as module

    seen: list[Tensor] = []
    monkeypatch.setattr(module, "calibrate", lambda encoder, data: seen.extend(b["pixel_values"] for b in data))
    monkeypatch.setattr(module, "_BATCH", 10)
    recipe.recalibrate(MaskedAutoencoder(TINY))
    found = torch.cat(seen)
    assert len(found) == 80
    assert torch.equal(found, recipe.pixels(recipe.data.train.images[torch.arange(80) * 300 // 80]))


@pytest.fixture(scope="module")
def measured(recipe) -> tuple[dict[str, float], dict[str, Tensor]]:
    return recipe.measure(MaskedAutoencoder(TINY))


def test_what_is_measured_is_finite_and_accuracies_are_shares(measured):
    metrics, features = measured
    assert all(math.isfinite(value) for value in metrics.values())
    for name in ("cls", "mean"):
        for key in ("linear_top1", "linear_top5", "linear_bn_top1", "linear_bn_top5", "knn"):
            assert 0 <= metrics[f"{name}_{key}"] <= 1
        assert metrics[f"{name}_linear_top1"] <= metrics[f"{name}_linear_top5"]
        assert metrics[f"{name}_uniformity"] == summary(features[name]).uniformity
        assert features[name].shape == (897, 16)
    assert metrics["mean_linear_bn_top1"] > 0.3  # even random features tell digits apart
    assert not any("penalty" in key for key in metrics)


def test_images_without_labels_are_measured_without_probes(recipe, measured):
    bare = ImageRecipe.__new__(ImageRecipe)
    bare.__dict__ |= recipe.__dict__
    bare.data = replace(recipe.data, train=replace(recipe.data.train, labels=None, classes=[]))
    metrics, _ = bare.measure(MaskedAutoencoder(TINY))
    expected = {f"{name}_{key}" for name in ("cls", "mean") for key in ("uniformity", "effective_rank", "mean_cosine")}
    assert metrics.keys() == expected
    assert metrics == {key: measured[0][key] for key in expected}


@pytest.mark.parametrize("norm", ["ln", "bn+bn"])
def test_more_leading_tokens_are_learnt_kept_out_of_means_and_saved(recipe, norm, tmp_path):
    model, usual = MaskedAutoencoder(TINY.changed({"norm": norm, "num_cls": 3})), MaskedAutoencoder(TINY)
    vit: Any = model.mae.vit
    assert torch.equal(vit.layers[0].mlp.fc1.weight, usual.mae.vit.layers[0].mlp.fc1.weight)  # all else begins alike
    assert torch.equal(vit.embeddings.cls_token[:, :1], usual.mae.vit.embeddings.cls_token)
    model.train()(*batch())["loss"].backward()
    assert bool((vit.embeddings.cls_token.grad[0].abs().sum(1) > 0).all())
    assert torch.isfinite(model.reconstruct(*batch())[1]).all()
    if norm != "ln":
        assert vit.layernorm.num_cls == 3
    cls, mean = recipe.encode(model, recipe.data.test)
    recipe.save(model, tmp_path / "model")
    encoder = open_encoder(str(tmp_path / "model"))
    images = [
        Record(Image.fromarray(rows[0].numpy()), None, str(i)) for i, rows in enumerate(recipe.data.test.images[:4])
    ]
    with encoder.evaluating():
        (_, given), *_ = encoder.batches(iter(images))
        found = encoder.encode(given)
    assert found.tokens.shape[1] == TINY.patches
    assert torch.allclose(found.cls, cls[:4], atol=1e-5) and torch.allclose(found.tokens.mean(1), mean[:4], atol=1e-5)


def test_a_config_that_does_not_fit_is_refused():
    for changes, message in (
        ({"patch_size": 3}, "cannot be cut into patches of 3"),
        ({"heads": 3}, "width 16 cannot be divided among 3 heads"),
        ({"decoder_heads": 3}, "decoder_width 8 cannot be divided among 3 heads"),
        ({"mask_ratio": 0.95}, "leaves none visible"),
    ):
        with pytest.raises(sepnorm.SepNormError, match=message):
            TINY.changed(changes)
    assert isinstance(TINY, ImageConfig) and TINY.patches == 16
