from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import bert, embeddings, sentences

import sepnorm
from sepnorm import SepNorm, SepNormError
from sepnorm.surgery.calibration import Moments


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e4, 1e4)
)
def test_moments_in_parts_equal_moments_of_the_whole(sizes, scale, shift):
    parts = [torch.randn(size, 3, dtype=torch.float64) * scale + shift for size in sizes]
    whole = torch.cat(parts)
    moments = Moments()
    for part in parts:
        moments.add(part)
    assert moments.count == len(whole)
    if len(whole) > 1:
        torch.testing.assert_close(moments.mean, whole.mean(0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(moments.var, whole.var(0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "bn"])
def test_calibrate_gives_the_statistics_of_the_data(spec):
    layer = SepNorm.from_spec(spec, 6)
    batches = [torch.randn(size, 5, 6) * 3 + 1 for size in (8, 8, 1)]  # a last batch of one counts too
    assert sepnorm.calibrate(layer, batches) is layer
    x = torch.cat(batches)
    parts = {"cls_norm": x[:, 0], "token_norm": x[:, 1:].reshape(-1, 6), "norm": x.reshape(-1, 6)}
    for name, child in layer.named_children():
        if isinstance(child, torch.nn.BatchNorm1d):
            torch.testing.assert_close(child.running_mean, parts[name].mean(0), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(child.running_var, parts[name].var(0), rtol=1e-5, atol=1e-6)
            assert child.num_batches_tracked == 0
    assert layer.training


def test_calibrate_leaves_weights_and_modes_alone_and_skips_padding():
    model = bert(trained=False)
    sepnorm.convert(model, "bn+bn", sites="all")
    model.train()
    weights = {name: p.clone() for name, p in model.named_parameters()}
    data = [sentences(12) for _ in range(3)]
    sepnorm.calibrate(model, data)
    assert model.training
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    first = {name: b.clone() for name, b in model.named_buffers() if "running" in name}
    longer = [
        {key: torch.cat([value, torch.zeros(12, 5, dtype=torch.long)], 1) for key, value in b.items()} for b in data
    ]
    sepnorm.calibrate(model, longer)
    for name, b in model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(b, first[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("data", "count"), [([], 0), ([torch.randn(1, 5, 6)], 1)])
def test_calibrating_on_too_little_is_refused_and_changes_nothing(data, count):
    layer = SepNorm(6)
    layer(torch.randn(4, 5, 6))
    before = {name: b.clone() for name, b in layer.named_buffers()}
    with pytest.raises(SepNormError, match=f"at least two samples, but the data gave {count}"):
        sepnorm.calibrate(layer, data)
    assert all(torch.equal(b, before[name]) for name, b in layer.named_buffers())


def test_calibrating_without_batch_statistics_is_refused():
    with pytest.raises(SepNormError, match="nothing to calibrate"):
        sepnorm.calibrate(bert(), [sentences()])
    with pytest.raises(SepNormError, match="nothing to freeze"):
        sepnorm.freeze(bert())


def test_a_failing_batch_changes_nothing():
    layer = SepNorm(6)
    before = {name: b.clone() for name, b in layer.named_buffers()}
    with pytest.raises(SepNormError, match="built for 6 channels"):
        sepnorm.calibrate(layer, [torch.randn(4, 5, 6), torch.randn(4, 5, 7)])
    assert all(torch.equal(b, before[name]) for name, b in layer.named_buffers())
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "bn", "ln+bn"])
def test_freeze_equals_evaluation_and_trains_on(norm):
    model = bert()
    sepnorm.convert(model, norm, calibrate=[sentences(16)], sites="all")
    batch = sentences()
    before = embeddings(model, batch)
    assert sepnorm.freeze(model) is model
    assert torch.equal(embeddings(model, batch), before)
    assert not any("running" in name for name, _ in model.named_buffers())
    model.train()(**batch).last_hidden_state.square().mean().backward()
    trained = [p for name, p in model.named_parameters() if "LayerNorm.cls_norm" in name]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)


def test_a_frozen_layer_has_the_gradients_of_its_plain_path():
    layer = sepnorm.freeze(SepNorm(6, "batch", "batch"))
    x = torch.randn(4, 5, 6, requires_grad=True)
    grad = torch.randn(4, 5, 6)
    wanted = [x, *layer.parameters()]
    fused, plain = layer(x), layer._plain(x, None, track=False)
    assert "SepNormBackward" in str(fused.grad_fn)
    for a, b in zip(torch.autograd.grad(fused, wanted, grad), torch.autograd.grad(plain, wanted, grad), strict=True):
        torch.testing.assert_close(a, b)
