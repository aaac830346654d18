"""Mixture Normalisation: closed forms, and everything that a kind with batch statistics goes through."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sepnorm
from sepnorm import MixtureNorm, SepNorm, SepNormError, SepNormWarning, SharedNorm

FAR = torch.tensor([-40.0, 0.0, 40.0], dtype=torch.float64)


def clusters(count: int, dim: int = 5, centres: Tensor = FAR, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows around centres that are far from each other, and which of them each is of; every centre has its share."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.arange(count) % len(centres)
    which = which[torch.randperm(count, generator=generator)]
    spread = torch.arange(1, len(centres) + 1, dtype=torch.float64)[which].unsqueeze(1)
    rows = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return rows * spread + centres[which].unsqueeze(1), which


def layers(dim: int = 5, components: int = 3, **options) -> MixtureNorm:
    return randomise_affine(MixtureNorm(dim, components, dtype=torch.float64, **options))


def randomise_affine(norm: MixtureNorm) -> MixtureNorm:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return norm


def formula(norm: MixtureNorm, x: Tensor, shares: Tensor) -> Tensor:
    """The paper's equation, component by component, with responsibilities (count, K) that are given."""
    out = torch.zeros_like(x)
    for t in shares.t():
        weights = (t / t.sum()).unsqueeze(1)
        mean = (weights * x).sum(0)
        var = (weights * (x - mean) ** 2).sum(0)
        out = out + (t / t.mean().sqrt()).unsqueeze(1) * (x - mean) / torch.sqrt(var + norm.eps)
    return out * norm.weight + norm.bias


def densities(x: Tensor, prior: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Responsibilities by torch's own normal distribution."""
    logs = [torch.distributions.Normal(m, v.sqrt()).log_prob(x).sum(1) for m, v in zip(mean, var, strict=True)]
    return (torch.stack(logs, 1) + prior.log()).softmax(1)


def gradients(out: Tensor, x: Tensor, norm: nn.Module, grad: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out, [x, *norm.parameters()], grad))


# ---- closed forms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_one_component_is_batch_norm_with_its_gradients(momentum):
    ours = layers(components=1, momentum=momentum)
    bn = nn.BatchNorm1d(5, momentum=momentum).double()
    bn.load_state_dict({"weight": ours.weight, "bias": ours.bias}, strict=False)
    for batch in range(3):
        x = (clusters(20, seed=batch)[0] + 7).requires_grad_()
        grad = torch.randn_like(x)
        out, expected = ours(x), bn(x)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
        for found, wanted in zip(gradients(out, x, ours, grad), gradients(expected, x, bn, grad), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours.running_mean[0], bn.running_mean)
        torch.testing.assert_close(ours.running_var[0], bn.running_var)
        assert int(ours.num_batches_tracked) == batch + 1
    torch.testing.assert_close(ours.eval()(x), bn.eval()(x), rtol=1e-10, atol=1e-10)


def test_gradients_by_differences():
    ours, several = layers(components=1), layers(components=3)
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *p: ours(x), (x, *ours.parameters()))
    # where each row is of one component, responsibilities do not move
    rows = clusters(24, 5)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *p: several(x), (rows, *several.parameters()))
    assert torch.autograd.gradgradcheck(several, (rows,), atol=1e-4)


def test_the_equation_with_soft_responsibilities():
    """A start from running components, two steps of EM written out by torch's distributions, and the equation."""
    torch.manual_seed(1)
    norm = layers(components=3)
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(3, 5) * 0.7)
        norm.running_var.copy_(torch.rand(3, 5) + 0.5)
        norm.running_prior.copy_(torch.tensor([0.5, 0.2, 0.3]))
        prior, mean, var = norm.running_prior.clone(), norm.running_mean.clone(), norm.running_var.clone()
        for _ in range(2):
            t = densities(x, prior, mean, var + norm.eps)
            count = t.sum(0).unsqueeze(1)
            mean = t.t() @ x / count
            var = torch.stack([t[:, k] @ (x - mean[k]) ** 2 for k in range(3)]) / count
            prior = t.mean(0)
            var = (count * var + prior @ var) / (count + 1)
        t = densities(x, prior, mean, var + norm.eps)
    assert ((t > 0.05) & (t < 0.95)).float().mean() > 0.2  # soft indeed
    grad = torch.randn_like(x)
    before = norm.running_mean.clone()
    out, expected = norm(x), formula(norm, x, t)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    for found, wanted in zip(gradients(out, x, norm, grad), gradients(expected, x, norm, grad), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    batch_means = (t / t.sum(0)).t() @ x.detach()
    torch.testing.assert_close(norm.running_mean, 0.9 * before + 0.1 * batch_means)
    torch.testing.assert_close(
        norm.running_prior, 0.9 * torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64) + 0.1 * t.mean(0)
    )
    # evaluation: the same equation with running values
    running = norm.eval()(x)
    t = densities(x, norm.running_prior, norm.running_mean, norm.running_var + norm.eps)
    each = (x.unsqueeze(1) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    expected = ((t / norm.running_prior.sqrt()).unsqueeze(2) * each).sum(1) * norm.weight + norm.bias
    torch.testing.assert_close(running, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("token_dim", [0, 1])
def test_known_populations_are_separate_batch_norms_up_to_their_shares(token_dim):
    """[CLS] far from the tokens: a shared mixture of two is ``bn+bn`` with 1/sqrt of the shares."""
    torch.manual_seed(0)
    x = torch.randn(8, 5, 6, dtype=torch.float64)
    x[:, 0] = 3 * x[:, 0] + 60
    x = (x if token_dim == 1 else x.transpose(0, 1).contiguous()).requires_grad_()
    mixed = SharedNorm(6, lambda dim: MixtureNorm(dim, 2), token_dim=token_dim).double()
    pair = SepNorm(6, "batch", "batch", token_dim=token_dim).double()
    with torch.no_grad():  # of the shares, 1/5 and 4/5
        pair.cls_norm.weight.fill_(5**0.5)
        pair.token_norm.weight.fill_(1.25**0.5)
    grad = torch.randn_like(x)
    out, expected = mixed(x), pair(x)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    found, wanted = (torch.autograd.grad(y, x, grad)[0] for y in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert sorted(mixed.norm.running_prior.tolist()) == pytest.approx([0.2, 0.8])


def test_the_order_of_components_does_not_matter():
    torch.manual_seed(0)
    norm = layers(4, 4)
    norm(torch.randn(60, 4, dtype=torch.float64) * torch.tensor([1, 4, 1, 2]))
    other = copy.deepcopy(norm)
    order = torch.tensor([2, 0, 3, 1])
    for buffer in (other.running_mean, other.running_var, other.running_prior):
        buffer.copy_(buffer[order].clone())
    x = torch.randn(50, 4, dtype=torch.float64)
    torch.testing.assert_close(norm.eval()(x), other.eval()(x))
    torch.testing.assert_close(norm.train()(x), other.train()(x))
    torch.testing.assert_close(norm.running_mean[order], other.running_mean)


def test_components_are_found_and_stay_themselves_from_batch_to_batch():
    norm = MixtureNorm(5).double()
    for batch in range(30):
        out = norm(clusters(60, seed=batch)[0]).detach()
        assert float(out.var()) == pytest.approx(3, abs=0.2)  # as the docstring says
    means = norm.running_mean.mean(1)
    order = means.argsort()
    torch.testing.assert_close(means[order], FAR, atol=0.4, rtol=0)
    torch.testing.assert_close(
        norm.running_var.mean(1)[order].sqrt(), torch.tensor([1.0, 2, 3]).double(), rtol=0.1, atol=0
    )
    torch.testing.assert_close(norm.running_prior, torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-3, rtol=0)


def test_a_large_offset_costs_no_precision():
    x = clusters(60)[0]
    norm, far = MixtureNorm(5), MixtureNorm(5)
    out, moved = norm(x.float()), far((x + 1e4).float())
    torch.testing.assert_close(moved, out, atol=2e-2, rtol=0)  # a float32 at 1e4 has a spacing of 1e-3
    torch.testing.assert_close(far.eval()((x + 1e4).float()), norm.eval()(x.float()), atol=2e-2, rtol=0)


# ---- components without rows, and too few rows ---------------------------------------------------------------------------


def test_a_component_that_loses_its_rows_sits_out_and_then_starts_again_with_a_warning(recwarn):
    norm = MixtureNorm(5).double()
    norm(clusters(60)[0])
    dying = int(norm.running_mean.mean(1).argmax())
    x = clusters(60, centres=FAR[:2], seed=1)[0].requires_grad_()
    mean = norm.running_mean[dying].clone()
    out = norm(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert float(out.detach().var()) == pytest.approx(2, abs=0.1)  # two components
    torch.testing.assert_close(norm.running_mean[dying], mean)  # it waits where it was
    assert norm.running_prior[dying] == pytest.approx(0.3)
    assert not recwarn.list
    for batch in range(150):
        norm(clusters(60, centres=FAR[:2], seed=batch)[0])
    (said,) = recwarn.list  # once
    assert said.category is SepNormWarning
    assert "1 of 3 components of a mixture norm lost all rows and restart" in str(said.message)
    assert (norm.running_mean[dying] - mean).abs().min() > 10  # it went to where rows are
    assert norm.running_prior[dying] > 0.05


def norm_on(norm: MixtureNorm, batches: Iterable[Tensor]) -> None:
    for x in batches:
        norm(x)


@pytest.mark.parametrize("components", [2, 3])
def test_all_components_but_one_that_die_start_again_as_parts_and_the_statistics_stay(components):
    def lone(seed: int) -> Tensor:
        return clusters(60, centres=FAR[:1], seed=seed)[0]

    norm = MixtureNorm(5, components).double()
    norm(clusters(60, centres=FAR[:components])[0])
    with pytest.warns(SepNormWarning, match=f"{components - 1} of {components} components") as said:
        norm_on(norm, (lone(batch) for batch in range(150)))
    assert len(said) == 1
    with pytest.warns(SepNormWarning, match="the running components are used"):
        norm(lone(0)[: 2 * components - 1])
    assert norm.running_mean.mean(1).sub(FAR[0]).abs().max() < 2
    other = MixtureNorm(5, components).double()
    other.load_state_dict(norm.state_dict())
    for each in (norm, other):  # restored after loading: the next batch moves them by the momentum alone
        before = each.running_mean.clone()
        each(lone(200))
        assert (each.running_mean - before).norm() < 1
    torch.testing.assert_close(other.running_mean, norm.running_mean)


@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
def test_a_few_outliers_in_every_batch_do_not_reset_the_statistics():
    """Their share is below that of a dead component, at which two of three restart."""
    norm = MixtureNorm(5).double()
    places = torch.tensor([100.0, -100.0, 300.0], dtype=torch.float64).unsqueeze(1)
    jumps = []
    for batch in range(60):
        x = torch.randn(2000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(batch))
        x[:3] += places
        before = norm.running_mean.clone()
        norm(x)
        jumps.append(float((norm.running_mean - before).norm()))
    assert max(jumps[-10:]) < 10


def test_fewer_rows_than_the_mixture_needs(recwarn):
    norm = MixtureNorm(5).double()
    few = clusters(5)[0]
    with pytest.raises(
        SepNormError, match="mixture of 3 components is fitted to at least 6 rows, and a training batch has 5"
    ):
        norm(few)
    norm(clusters(60)[0])
    state = copy.deepcopy(norm.state_dict())
    with pytest.warns(SepNormWarning, match="the running components are used"):
        out = norm(few)
    recwarn.clear()
    norm(few)
    assert not recwarn.list
    torch.testing.assert_close(out, norm.eval()(few))
    assert all(torch.equal(value, state[key]) for key, value in norm.state_dict().items())
    one = MixtureNorm(5, 1).double()
    assert torch.equal(one(few[:1]), one.eval()(few[:1]))  # as a batch norm in this package


def test_input_that_is_not_finite_shows_in_the_statistics_and_breaks_nothing_else():
    norm, x = MixtureNorm(5).double(), clusters(60)[0]
    norm(x)
    norm(x.index_fill(0, torch.tensor([3]), float("nan")))
    assert norm.running_mean.isnan().any()  # as in a batch norm
    assert norm(x).isfinite().all()


@pytest.mark.parametrize("components", [0, -1, 2.5, "3", 1001, None])
def test_numbers_of_components_that_there_are_not(components):
    with pytest.raises(SepNormError, match="components"):
        MixtureNorm(4, components)


def test_rows_that_are_all_the_same():
    norm = MixtureNorm(4)
    x = torch.full((20, 4), 7.0, requires_grad=True)
    out = norm(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out)) and x.grad.isfinite().all()


# ---- draws, layouts, padding, precision ----------------------------------------------------------------------------------


def test_draws_leave_other_generators_alone_and_are_the_same_again():
    before, python = torch.get_rng_state(), random.getstate()
    first, second = MixtureNorm(5).double(), MixtureNorm(5).double()
    x = torch.sin(torch.arange(300, dtype=torch.float64)).view(60, 5)
    torch.testing.assert_close(first(x), second(x), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == python


TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 0.15}


@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
@settings(max_examples=30, deadline=None)
@given(
    spec=st.sampled_from(["mix", "bn+mix", "ln+mix", "mix+ln", "mix+mix"]),
    dtype=st.sampled_from(list(TOLERANCES)),
    token_dim=st.integers(0, 1),
    batch=st.integers(8, 12),
    tokens=st.integers(3, 8),
    width=st.integers(1, 9),
    padded=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_layouts_padding_and_precisions_agree(spec, dtype, token_dim, batch, tokens, width, padded, training, seed):
    """In any precision, what (batch, tokens, channels) in double gives, whatever lies in padding."""
    generator = torch.Generator().manual_seed(seed)
    draw = dict(generator=generator, dtype=torch.float64)
    which = torch.randint(0, 3, (batch, tokens, 1), generator=generator)
    x = (torch.randn(batch, tokens, width, **draw) + 30 * which).to(dtype).double()
    grad = torch.randn(batch, tokens, width, **draw).to(dtype).double()
    mask = torch.zeros(batch, tokens, dtype=torch.bool)
    if padded:
        mask[:, 1:] = torch.rand(batch, tokens - 1, generator=generator) < 0.3
    plain = SepNorm.from_spec(spec, width, eps=0.1).double()
    plain(x)  # as of now the mixtures have components
    other = SepNorm.from_spec(spec, width, eps=0.1, token_dim=token_dim).double()
    other.load_state_dict(plain.state_dict())
    other = other.to(torch.promote_types(dtype, torch.float32)).to(dtype).train(training)
    plain.train(training)
    dirty = x.masked_fill(mask.unsqueeze(-1), float("nan")).to(dtype)
    dirty = (dirty if token_dim == 1 else dirty.transpose(0, 1)).requires_grad_()
    clean = x.masked_fill(mask.unsqueeze(-1), 0.0).requires_grad_()
    out = other(dirty, mask if padded else None)
    out = out if token_dim == 1 else out.transpose(0, 1)
    expected = plain(clean, mask if padded else None)
    keep, tolerance = ~mask, TOLERANCES[dtype]
    torch.testing.assert_close(out[keep].double(), expected[keep], rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(out, dirty, torch.where(keep.unsqueeze(-1), grad, 0.0).to(dtype))[0]
    wanted = torch.autograd.grad(expected, clean, torch.where(keep.unsqueeze(-1), grad, 0.0))[0]
    found = found if token_dim == 1 else found.transpose(0, 1)
    torch.testing.assert_close(found[keep].double(), wanted[keep], rtol=10 * tolerance, atol=10 * tolerance)
    if padded and training:
        assert torch.equal(found[mask], torch.zeros_like(found[mask]))
    for name, buffer in other.named_buffers():
        assert not buffer.is_floating_point() or buffer.dtype == torch.promote_types(dtype, torch.float32), name
        torch.testing.assert_close(buffer.double(), plain.get_buffer(name).double(), rtol=tolerance, atol=tolerance)


def test_autocast_leaves_the_statistics_in_full_precision():
    x = clusters(60)[0].float()
    norm, plain = MixtureNorm(5), MixtureNorm(5)
    with torch.autocast("cpu", torch.bfloat16):
        out, later = norm(x), norm.eval()(x)
    torch.testing.assert_close(out, plain(x), rtol=0, atol=0)
    torch.testing.assert_close(later, plain.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_gradient_checkpointing_is_the_same_step(reentrant, fresh):
    torch.manual_seed(0)
    layer = SepNorm.from_spec("bn+mix", 8)
    if not fresh:
        layer(torch.randn(8, 6, 8) * 2)
    twin = copy.deepcopy(layer)
    x = torch.randn(8, 6, 8, requires_grad=True)
    y, grad = x.detach().clone().requires_grad_(), torch.randn(8, 6, 8)
    twin(y).backward(grad)
    checkpoint(layer, x, use_reentrant=reentrant).backward(grad)
    assert torch.equal(x.grad, y.grad)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(layer.buffers(), twin.buffers(), strict=True))


# ---- surgery -------------------------------------------------------------------------------------------------------------


def trained(spec: str = "bn+mix", dim: int = 8) -> SepNorm:
    torch.manual_seed(3)
    layer = SepNorm.from_spec(spec, dim)
    for _ in range(3):
        layer(torch.randn(16, 5, dim) + 5 * torch.randint(0, 3, (16, 5, 1)))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def test_frozen_is_what_evaluation_was():
    layer = trained()
    x = torch.randn(4, 5, 8) + 5 * torch.randint(0, 3, (4, 5, 1))
    out = layer.eval()(x)
    frozen = sepnorm.freeze(copy.deepcopy(layer))
    assert torch.equal(frozen(x)[:, 1:], out[:, 1:])
    assert torch.equal(frozen.train()(x)[:, 1:], out[:, 1:])  # no batch in it any more
    assert frozen.token_norm.weight.shape == (3, 8)
    frozen(x).sum().backward()
    assert frozen.token_norm.weight.grad.abs().sum() > 0
    half = copy.deepcopy(frozen).half()
    assert half.token_norm.density_quadratic.dtype == torch.float32
    torch.testing.assert_close(half(x.half()).float(), out, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("spec", "frozen"), [("bn+mix", True), *(pytest.param(s, False, marks=pytest.mark.slow) for s in ("bn+mix", "mix"))]
)
def test_compiles_and_exports_in_evaluation(spec, frozen, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = trained(spec).eval()
    x, other = torch.randn(3, 5, 8), torch.randn(7, 5, 8) + 4
    expected = layer(other)
    layer = sepnorm.freeze(layer) if frozen else layer
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(other), expected, rtol=1e-4, atol=1e-5)
    path = str(tmp_path / "layer.onnx")
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False, dynamic_shapes={"x": {0: "batch"}})
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: other.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_compiles_in_parts():
    torch._dynamo.reset()
    layer = trained()
    twin = copy.deepcopy(layer)
    x = torch.randn(8, 5, 8)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), twin(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.token_norm.running_mean, twin.token_norm.running_mean)


def bert():
    T = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = T.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=60
    )
    return T.BertModel(config).eval()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("spec", ["bn+mix", "mix", "mix+ln"])
def test_converted_models_come_back_from_their_folders(spec, frozen, tmp_path):
    T = pytest.importorskip("transformers")
    model, ids = bert(), torch.randint(5, 60, (12, 7))
    before = copy.deepcopy(model)
    batches = [{"input_ids": ids, "attention_mask": (torch.arange(7) < 5).long().expand(12, 7)}]
    sepnorm.convert(model, spec, calibrate=batches)
    # one component at first, which is a batch norm
    alike = copy.deepcopy(before)
    sepnorm.convert(alike, spec.replace("mix", "bn"), calibrate=batches)
    torch.testing.assert_close(model(ids).last_hidden_state, alike(ids).last_hidden_state, rtol=1e-4, atol=1e-4)
    untouched = copy.deepcopy(model)
    sepnorm.revert(untouched)
    assert torch.equal(untouched(ids).last_hidden_state, before(ids).last_hidden_state)
    sepnorm.calibrate(model, batches)
    assert sepnorm.inspect(model, batches).sites[-1].discrepancy < 0.1  # variances of few rows
    if frozen:
        sepnorm.freeze(model)
    out = model(ids).last_hidden_state
    sepnorm.save(model, tmp_path / "ours")
    assert torch.equal(sepnorm.load(tmp_path / "ours")(ids).last_hidden_state, out)
    model.save_pretrained(tmp_path / "theirs")
    assert torch.equal(T.AutoModel.from_pretrained(tmp_path / "theirs").eval()(ids).last_hidden_state, out)
    half = T.AutoModel.from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16)
    wide = [name for name, buffer in half.named_buffers() if "running_" in name or "density_" in name]
    assert wide and all(half.get_buffer(name).dtype == torch.float32 for name in wide)
    assert half(ids).last_hidden_state.isfinite().all()


def test_a_layer_of_another_number_of_components_comes_back(tmp_path):
    def build() -> nn.Module:
        return nn.Sequential(SepNorm(8, "batch", lambda dim: MixtureNorm(dim, 5)))

    model = build()
    model(torch.randn(16, 9, 8))
    sepnorm.save(model.eval(), tmp_path)
    x = torch.randn(3, 9, 8)
    assert torch.equal(sepnorm.load(tmp_path, build())(x), model(x))
    with pytest.raises(SepNormError, match="another shape"):
        sepnorm.load(tmp_path, nn.Sequential(SepNorm(8, "batch", "mixture")))


def test_a_conversion_has_as_many_components_as_it_is_asked_for(tmp_path):
    model, ids = bert(), torch.randint(5, 60, (12, 7))
    sepnorm.convert(model, "mix+mix", components=5, calibrate=[ids])
    norms = [module for module in model.modules() if isinstance(module, MixtureNorm)]
    assert [norm.components for norm in norms] == [5, 5]
    model.train()(ids)
    sepnorm.save(model.eval(), tmp_path)
    assert torch.equal(sepnorm.load(tmp_path)(ids).last_hidden_state, model(ids).last_hidden_state)
    for norm, components, message in (
        ("bn+ln", 5, "components is for mixture norms, and bn.ln has none"),
        ("mix", 0, "components is a whole number, at least 1"),
        ("mix", 1001, "components"),
    ):
        with pytest.raises(SepNormError, match=message):
            sepnorm.convert(bert(), norm, components=components)


@pytest.mark.parametrize("norm", ["ln+mix", "bn+ln"])
def test_a_config_says_the_number_of_components(norm):
    from sepnorm.domains.images.config import PRESETS
    from sepnorm.training.arm_norms import give_norms

    model = bert()
    give_norms(model, PRESETS["demo"].changed({"norm": norm, "components": 4}))
    assert [m.components for m in model.modules() if isinstance(m, MixtureNorm)] == [4] * ("mix" in norm)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("value", [0, 2.5, "3", 10**9])
def test_a_damaged_number_of_components_is_refused(frozen, value, tmp_path):
    model = bert()
    sepnorm.convert(model, "bn+mix")
    model = sepnorm.freeze(model) if frozen else model
    sepnorm.save(model, tmp_path)
    record = json.loads((tmp_path / "sepnorm.json").read_text())
    assert record["sites"][0]["children"]["token_norm"]["components"] == 3
    record["sites"][0]["children"]["token_norm"]["components"] = value
    (tmp_path / "sepnorm.json").write_text(json.dumps(record))
    with pytest.raises(SepNormError, match="damaged: components is"):
        sepnorm.load(tmp_path)


def test_calibration_of_one_component_is_that_of_a_batch_norm():
    ours = nn.Sequential(SharedNorm(6, lambda dim: MixtureNorm(dim, 1)))
    theirs = nn.Sequential(SharedNorm(6, "batch"))
    batches = [torch.randn(size, 4, 6) * 3 + 1 for size in (3, 8, 5)]
    for model in (ours, theirs):
        sepnorm.calibrate(model, batches)
    torch.testing.assert_close(ours[0].norm.running_mean[0], theirs[0].norm.running_mean)
    torch.testing.assert_close(ours[0].norm.running_var[0], theirs[0].norm.running_var)


def test_calibration_finds_the_moments_of_populations_over_all_batches():
    rows, which = zip(*(clusters(40, seed=seed) for seed in range(3)), strict=True)
    model = nn.Sequential(SharedNorm(5, "mixture")).double()
    sepnorm.calibrate(model, [part.view(8, 5, 5) for part in rows])
    norm, rows, which = model[0].norm, torch.cat(rows), torch.cat(which)
    for number, component in enumerate(norm.running_mean.mean(1).argsort().tolist()):
        mine = rows[which == number]
        torch.testing.assert_close(norm.running_mean[component], mine.mean(0))
        torch.testing.assert_close(norm.running_var[component], mine.var(0))
        assert norm.running_prior[component] == pytest.approx(len(mine) / len(rows))


@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
def test_too_few_rows_for_the_components_are_refused_and_change_nothing():
    model = nn.Sequential(trained("mix+ln"))
    state = copy.deepcopy(model.state_dict())
    for count in (2, 5):
        message = rf"mixture of 3 components is calibrated with at least 6 rows, but the data gave {count} at 0 \(cls\)"
        with pytest.raises(SepNormError, match=message):
            sepnorm.calibrate(model, [torch.randn(count, 5, 8)])
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    sepnorm.calibrate(model, [torch.randn(6, 5, 8)])
    assert model[0].cls_norm.running_prior.isfinite().all()


def test_weights_of_the_norm_are_exempt_from_weight_decay():
    T = pytest.importorskip("transformers")
    model = bert()
    sepnorm.convert(model, "bn+mix")
    decayed = T.Trainer.get_decay_parameter_names(None, model)
    assert decayed and not [name for name in decayed if "_norm" in name]
