"""Statistics of a step: forward as with one large batch, and a gradient of which the error is known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference import randomise

from sepnorm import SepNorm, SepNormError
from sepnorm.domains import open_domain
from sepnorm.domains.images.model import MaskedAutoencoder
from sepnorm.layer.statistics import StepStatistics
from sepnorm.training.accumulation import Accumulation

TINY = {"width": 16, "depth": 2, "heads": 2, "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}


def layer_for(spec: str, plain: bool) -> SepNorm:
    layer = randomise(SepNorm.from_spec(spec, 6, dtype=torch.float64))
    if plain:  # a hook on a child sends the layer down the plain path
        next(layer.children()).register_forward_hook(lambda *_: None)
    return layer


def in_parts(layer, parts, grads) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs of the two passes over a step's batches, and gradients of the input and the parameters."""
    layer.step = StepStatistics()
    with torch.no_grad():
        for part in parts:
            layer(part)
    layer.step.finish()
    found, total = [], [torch.zeros_like(weight) for weight in layer.parameters()]
    inputs = []
    for part, grad in zip(parts, grads, strict=True):
        part = part.clone().requires_grad_()
        out = layer(part)
        first, *rest = torch.autograd.grad(out, [part, *layer.parameters()], grad)
        total = [a + b for a, b in zip(total, rest, strict=True)]
        found.append(out.detach())
        inputs.append(first)
    layer.step = None
    return torch.cat(found), [torch.cat(inputs), *total]


def whole(layer, x, grad) -> tuple[torch.Tensor, list[torch.Tensor]]:
    x = x.clone().requires_grad_()
    out = layer(x)
    return out.detach(), list(torch.autograd.grad(out, [x, *layer.parameters()], grad))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+bn", "bn"])
def test_forward_is_that_of_the_large_batch_and_statistics_are_tracked_once(spec, plain):
    torch.manual_seed(0)
    x, grad = torch.randn(12, 5, 6, dtype=torch.float64) * 2 + 1, torch.randn(12, 5, 6, dtype=torch.float64)
    layer, other = layer_for(spec, plain), SepNorm.from_spec(spec, 6, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    sizes = [5, 1, 4, 2]
    out, _ = in_parts(layer, x.split(sizes), grad.split(sizes))
    torch.testing.assert_close(out, whole(other, x, grad)[0])
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(layer.get_buffer(name), buffer)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+bn", "bn"])
def test_the_gradient_is_exact_where_batches_agree(spec, plain):
    """With the same samples and gradients in each batch, its own sums are those of the step."""
    torch.manual_seed(0)
    x, grad = torch.randn(4, 5, 6, dtype=torch.float64) * 2 + 1, torch.randn(4, 5, 6, dtype=torch.float64)
    layer, other = layer_for(spec, plain), SepNorm.from_spec(spec, 6, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    _, found = in_parts(layer, [x, x, x], [grad, grad, grad])
    expected = whole(other, x.repeat(3, 1, 1), grad.repeat(3, 1, 1))[1]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_both_paths_have_the_same_gradient():
    torch.manual_seed(0)
    x, grad = torch.randn(12, 5, 6, dtype=torch.float64), torch.randn(12, 5, 6, dtype=torch.float64)
    layers = [layer_for("bn+bn", plain) for plain in (False, True)]
    layers[1].load_state_dict(layers[0].state_dict())
    (_, one), (_, two) = (in_parts(layer, x.split(4), grad.split(4)) for layer in layers)
    for mine, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_second_derivatives_are_those_of_the_plain_path():
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    found = []
    for plain in (False, True):
        torch.manual_seed(1)
        layer = layer_for("bn+ln", plain)
        layer.step = StepStatistics()
        with torch.no_grad():
            for part in x:
                layer(part)
        layer.step.finish()
        part = x[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(layer(part).pow(3).sum(), part, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), part)[0])
    torch.testing.assert_close(*found)


def gradients(model, batches) -> tuple[float, torch.Tensor]:
    losses = [model(**batch)["loss"] / len(batches) for batch in batches]
    for loss in losses:
        loss.backward()
    found = torch.cat([p.grad.flatten() for p in model.mae.vit.parameters() if p.grad is not None])
    model.zero_grad()
    return float(sum(losses).detach()), found


def test_a_model_on_batches_of_eight_has_the_loss_of_the_large_batch_and_a_nearer_gradient():
    config = open_domain("images").presets["demo"].changed(TINY | {"norm": "bn+ln"})
    model = MaskedAutoencoder(config).double()
    torch.manual_seed(0)
    large = {"pixel_values": torch.randn(64, 1, 8, 8).double(), "noise": torch.rand(64, 16).double()}
    parts = [{key: value[start : start + 8] for key, value in large.items()} for start in range(0, 64, 8)]
    loss, true = gradients(model, [large])
    apart_loss, apart = gradients(model, parts)
    accumulation = Accumulation(model)
    accumulation.measure(lambda batch: model(**batch), parts)
    step_loss, step = gradients(model, parts)
    accumulation.end()
    assert step_loss == pytest.approx(loss, abs=1e-12) and apart_loss != pytest.approx(loss, abs=1e-5)
    assert float((step - true).norm()) < 0.7 * float((apart - true).norm())


def test_random_numbers_are_as_they_were():
    model = torch.nn.Sequential(torch.nn.Dropout(), SepNorm(4))
    before = torch.get_rng_state()
    Accumulation(model).measure(model, [torch.ones(4, 3, 4)] * 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_of_accumulated_batches_moves_its_statistics_once_a_step(tmp_path):
    domain = open_domain("images")
    changes = TINY | {"norm": "bn+ln", "batch_size": 8, "accumulation": 4, "statistics": "step", "max_steps": 3}
    config = domain.presets["demo"].changed(changes | {"checkpoints": 0, "monitor": 0})
    model, trained = domain.recipe(config).pretrain(config, tmp_path)
    norm = model.mae.vit.layernorm
    assert norm.cls_norm.num_batches_tracked == 3 and norm.step is None and len(trained.losses) == 3


def test_more_than_one_site_is_refused():
    config = open_domain("images").presets["demo"].changed(TINY | {"norm": "bn+ln", "sites": "all"})
    with pytest.raises(SepNormError, match="statistics=step works with one batch norm, and this model has 4"):
        Accumulation(MaskedAutoencoder(config))
