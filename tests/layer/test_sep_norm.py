from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import randomise, reference, reference_running
from torch import nn
from torch.utils.checkpoint import checkpoint

from sepnorm import SepNorm, SepNormError, SepNormWarning, SharedNorm
from sepnorm.layer import statistics
from sepnorm.layer.sep_norm import TokenNorm

PAIRS = ["bn+ln", "bn+bn", "ln+bn", "ln+ln"]
ALL = [*PAIRS, "ln", "bn", "rms", "bn+rms", "rms+ln"]


def build(spec: str, dim: int, **options) -> TokenNorm:
    return randomise(SepNorm.from_spec(spec, dim, **options))


def sample(layer: TokenNorm, batch: int = 7, tokens: int = 6, dtype=torch.float64, padded: bool = False):
    """Input (with gradient), incoming gradient and mask; tokens besides [CLS] are as many as channels by default."""
    shape = (batch, layer.num_cls + tokens, layer.dim)
    x = torch.randn(shape, dtype=dtype) * 2 + 1
    x = x if layer.token_dim == 1 else x.transpose(0, 1).contiguous()
    mask = None
    if padded:
        mask = torch.rand(shape[:2]) < 0.4
        mask[:, : max(1, layer.num_cls)] = False
    return x.requires_grad_(), torch.randn_like(x), mask


def gradients(out, x, layer, grad):
    return torch.autograd.grad(out, [x, *layer.parameters()], grad, retain_graph=True)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("token_dim", [1, 0])
@pytest.mark.parametrize("num_cls", [1, 2, 5])
@pytest.mark.parametrize("spec", ALL)
def test_outputs_gradients_and_statistics_equal_the_reference(spec, num_cls, token_dim, padded, training):
    dim = 6
    layer = build(spec, dim, num_cls=num_cls, token_dim=token_dim, dtype=torch.float64).train(training)
    x, grad, mask = sample(layer, tokens=dim, padded=padded)  # L - 1 == dim: where BatchNorm1d silently goes wrong
    before = copy.deepcopy(layer)
    expected = reference(before, x, mask)
    out = layer(x, mask)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(gradients(out, x, layer, grad), gradients(expected, x, before, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    rows = x.detach() if token_dim == 1 else x.detach().transpose(0, 1)
    keep = torch.ones(rows.shape[:2], dtype=torch.bool) if mask is None else ~mask
    n = layer.num_cls
    parts = {"cls_norm": rows[:, :n].reshape(-1, dim), "token_norm": rows[:, n:][keep[:, n:]], "norm": rows[keep]}
    for name, child in layer.named_children():
        if isinstance(child, nn.BatchNorm1d):
            old = before.get_submodule(name)
            mean, var = reference_running(old, parts[name]) if training else (old.running_mean, old.running_var)
            torch.testing.assert_close(child.running_mean, mean, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(child.running_var, var, rtol=1e-10, atol=1e-10)
            assert child.num_batches_tracked.item() == int(training)


@pytest.mark.parametrize("spec", [*PAIRS, "bn"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_gradcheck_of_first_and_second_order(spec, training, padded):
    layer = build(spec, 3, num_cls=1, dtype=torch.float64).train(training)
    x, _, mask = sample(layer, batch=4, tokens=3, padded=padded)
    parameters = list(layer.parameters())

    def function(x, *ignored):
        return layer(x, mask)

    assert "SepNormBackward" in str(layer(x, mask).grad_fn)
    assert torch.autograd.gradcheck(function, (x, *parameters))
    assert torch.autograd.gradgradcheck(function, (x, *parameters))


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(PAIRS),
    batch=st.integers(2, 9),
    tokens=st.integers(1, 9),
    dim=st.integers(1, 9),
    num_cls=st.integers(1, 4),
    token_dim=st.sampled_from([0, 1]),
    training=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_fused_and_plain_paths_agree_for_any_shape(spec, batch, tokens, dim, num_cls, token_dim, training, seed):
    torch.manual_seed(seed)
    layer = build(spec, dim, num_cls=num_cls, token_dim=token_dim, dtype=torch.float64).train(training)
    x, grad, _ = sample(layer, batch, tokens)
    fused, plain = layer(x), layer._plain(x, None, track=False)
    assert "SepNormBackward" in str(fused.grad_fn)
    torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(gradients(fused, x, layer, grad), gradients(plain, x, layer, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("spec", PAIRS)
def test_one_training_batch_does_not_mix_cls_and_tokens(spec):
    """An outlying [CLS], as trained transformers have it, leaves the tokens' outputs and gradients alone."""
    layer = build(spec, 8)
    x, grad, _ = sample(layer, dtype=torch.float32)
    wild = x.detach().clone()
    wild[:, 0] *= 1e4
    wild.requires_grad_()
    quiet_out, wild_out = layer(x), layer(wild)
    torch.testing.assert_close(wild_out[:, 1:], quiet_out[:, 1:])
    ours, theirs = (torch.autograd.grad(out, leaf, grad)[0] for out, leaf in ((wild_out, wild), (quiet_out, x)))
    torch.testing.assert_close(ours[:, 1:], theirs[:, 1:])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("spec", PAIRS)
def test_without_affine_and_without_bias(spec, affine):
    layer = SepNorm.from_spec(spec, 5, affine=affine, dtype=torch.float64)
    if affine:  # ModernBERT's layer norms have a weight and no bias
        for child in layer.children():
            if isinstance(child, nn.LayerNorm):
                child.bias = None
    x, grad, _ = sample(layer)
    plain = layer._plain(x, None, track=False)
    out = layer(x)
    torch.testing.assert_close(out, plain, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(gradients(out, x, layer, grad), gradients(plain, x, layer, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", [*PAIRS, "bn"])
def test_backward_twice_and_incoming_gradient_untouched(spec):
    layer = build(spec, 4)
    x, grad, _ = sample(layer, dtype=torch.float32)
    kept, version = grad.clone(), grad._version
    out = layer(x)
    first = gradients(out, x, layer, grad)
    second = gradients(out, x, layer, grad)
    assert torch.equal(grad, kept)
    assert grad._version == version
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_expanded_incoming_gradient():
    layer = build("bn+ln", 4)
    x, _, _ = sample(layer, dtype=torch.float32)
    weights = torch.linspace(0, 1, 4)
    ours = torch.autograd.grad((layer(x) * weights).sum(), x)[0]
    theirs = torch.autograd.grad((layer._plain(x, None, track=False) * weights).sum(), x)[0]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("spec", ALL)
def test_non_contiguous_input(spec):
    layer = build(spec, 6, dtype=torch.float64)
    x = torch.randn(6, 9, 7, dtype=torch.float64).permute(2, 1, 0)
    assert not x.is_contiguous()
    torch.testing.assert_close(layer(x), reference(layer, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", PAIRS)
def test_sequence_that_is_only_cls(spec):
    layer = build(spec, 6, num_cls=2, dtype=torch.float64)
    x = torch.randn(5, 2, 6, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out, reference(layer, torch.cat([x, x], 1))[:, :2], rtol=1e-10, atol=1e-10)
    out.sum().backward()


@pytest.mark.parametrize("spec", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_what_the_plain_path_gives(spec, dtype):
    layer = build(spec, 16)
    x, grad, _ = sample(layer, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        low = x.to(dtype)
        out, plain = layer(low), layer._plain(low, None, track=False)
        assert out.dtype == nn.LayerNorm(16)(low).dtype
    torch.testing.assert_close(out, plain, rtol=2e-2, atol=2e-2)
    layer.zero_grad()
    out.backward(grad.to(out.dtype))
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    for child in layer.children():
        if isinstance(child, nn.BatchNorm1d):
            assert child.running_mean.dtype == torch.float32


@pytest.mark.parametrize("spec", [*PAIRS, "bn"])
def test_a_model_in_bfloat16_trains(spec):
    layer = build(spec, 16).bfloat16()
    x, grad, _ = sample(layer, dtype=torch.float32)
    x = x.detach().bfloat16().requires_grad_()
    out = layer(x)
    assert out.dtype == torch.bfloat16
    exact = copy.deepcopy(layer).double()
    expected = reference(exact, x.double())
    torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.05)
    out.backward(grad.bfloat16())
    theirs = torch.autograd.grad(expected, list(exact.parameters()), grad.bfloat16().double())
    for p, g in zip(layer.parameters(), theirs, strict=True):
        torch.testing.assert_close(p.grad.double(), g, rtol=0.05, atol=0.3)


def test_half_precision_bias_gradient_is_no_difference_of_sums():
    layer = build("bn+ln", 16).bfloat16()
    x, grad, _ = sample(layer, dtype=torch.float32)
    grad = grad.bfloat16()
    grad[:, 0] *= 1000
    out = layer(x.detach().bfloat16())
    out.backward(grad)
    torch.testing.assert_close(
        layer.token_norm.bias.grad.float(), grad[:, 1:].float().sum((0, 1)), rtol=0.02, atol=0.05
    )


@pytest.mark.parametrize("spec", [*PAIRS, "bn"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_compiles_as_one_graph(spec, training):
    torch._dynamo.reset()
    layer = build(spec, 8).train(training)
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, grad, _ = sample(layer, dtype=torch.float32)
    out, expected = compiled(x), twin(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients(out, x, layer, grad), gradients(expected, x, twin, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("spec", ALL)
def test_torch_export(spec):
    layer = build(spec, 8).eval()
    x = torch.randn(3, 5, 8)
    dynamic = {"x": {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("tokens", min=3)}}
    exported = torch.export.export(layer, (x,), dynamic_shapes=dynamic).module()
    other = torch.randn(4, 9, 8)
    torch.testing.assert_close(exported(other), layer(other))


@pytest.mark.parametrize("spec", PAIRS)
def test_onnx_export_agrees(spec, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = build(spec, 8).eval()
    x = torch.randn(3, 5, 8)
    path = str(tmp_path / "layer.onnx")
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False, dynamic_shapes={"x": {0: "batch"}})
    session = onnxruntime.InferenceSession(path)
    other = torch.randn(7, 5, 8)
    out = session.run(None, {session.get_inputs()[0].name: other.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(out), layer(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("spec", [*PAIRS, "bn", "bn+rms"])
def test_gradient_checkpointing_updates_statistics_once(spec, reentrant):
    layer = build(spec, 8)
    twin = copy.deepcopy(layer)
    x, grad, _ = sample(layer, dtype=torch.float32)
    y = x.detach().clone().requires_grad_()
    twin(y).backward(grad)
    checkpoint(layer, x, use_reentrant=reentrant).backward(grad)
    torch.testing.assert_close(x.grad, y.grad)
    for ours, theirs in zip(layer.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("spec", ALL)
def test_copies(spec, copier):
    layer = build(spec, 8)
    twin = copier(layer)
    x = torch.randn(4, 5, 8)
    assert torch.equal(layer(x), twin(x))
    assert layer.state_dict().keys() == twin.state_dict().keys()


def test_state_dict_keys_are_stable():
    bn = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    expected = {f"cls_norm.{key}" for key in bn} | {"token_norm.weight", "token_norm.bias"}
    assert set(SepNorm(4).state_dict()) == expected
    assert set(SepNorm.shared(4, "batch").state_dict()) == {f"norm.{key}" for key in bn}


def test_children_are_plain_modules_and_hooks_on_them_are_called():
    layer = SepNorm(4)
    assert type(layer.cls_norm) is nn.BatchNorm1d
    assert type(layer.token_norm) is nn.LayerNorm
    seen = []
    layer.cls_norm.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    layer.token_norm.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    layer(torch.randn(3, 5, 4))
    assert seen == [(3, 4), (3, 4, 4)]


def test_callables_build_either_place():
    layer = SepNorm(6, cls=lambda dim: nn.GroupNorm(1, dim), tokens=lambda dim: nn.Identity(), num_cls=6)
    x = torch.randn(4, 9, 6)
    assert torch.equal(layer(x)[:, 6:], x[:, 6:])
    with pytest.raises(SepNormError, match="must build a torch module"):
        SepNorm(6, cls=lambda dim: dim)


@pytest.mark.parametrize("num_cls", [1, 3])
def test_a_single_training_sample_uses_running_statistics_and_warns_once(num_cls):
    layer = build("bn+ln", 6, num_cls=num_cls)
    frozen = copy.deepcopy(layer).eval()
    x = torch.randn(1, 9, 6, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            out = layer(x)
    assert sum(issubclass(w.category, SepNormWarning) for w in caught) == 1
    torch.testing.assert_close(out, frozen(x))
    assert torch.equal(layer.cls_norm.running_mean, frozen.cls_norm.running_mean)
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_children_in_evaluation_mode_keep_their_statistics_in_training():
    """Freezing the statistics of a batch norm by ``eval()`` on it alone is common practice."""
    layer = build("bn+ln", 6)
    layer.cls_norm.eval()
    before = layer.cls_norm.running_mean.clone()
    x = torch.randn(5, 4, 6)
    torch.testing.assert_close(layer(x), copy.deepcopy(layer).eval()(x))
    assert torch.equal(layer.cls_norm.running_mean, before)


def test_momentum_none_averages_over_batches():
    layer = SepNorm(4, momentum=None)
    batches = [torch.randn(6, 3, 4) for _ in range(5)]
    for x in batches:
        layer(x)
    expected = torch.stack([x[:, 0].mean(0) for x in batches]).mean(0)
    torch.testing.assert_close(layer.cls_norm.running_mean, expected)


def test_function_transforms_and_forward_mode_take_the_plain_path():
    layer = build("bn+ln", 4, dtype=torch.float64).eval()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    jacobian = torch.func.jacrev(layer)(x)
    assert jacobian.shape == (*x.shape, *x.shape)
    _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    assert tangent.isfinite().all()


def test_convert_sync_batchnorm_is_harmless():
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(build("bn+ln", 4))
    x = torch.randn(5, 3, 4)
    assert layer(x).isfinite().all()


def test_functional_call_uses_the_given_parameters():
    layer = build("bn+ln", 4)
    other = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    out = torch.func.functional_call(layer, other, (torch.randn(3, 5, 4),))
    assert not out.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SepNorm(4)(torch.randn(3, 4)), "rank 3, found the shape"),
        (lambda: SepNorm(4)(torch.randn(3, 5, 6)), "built for 4 channels"),
        (lambda: SepNorm(4, num_cls=6)(torch.randn(3, 5, 4)), "num_cls is 6, but there are only 5 tokens"),
        (lambda: SepNorm(4, num_cls=0), "at least 1, found 0"),
        (lambda: SepNorm(4, token_dim=2), "token_dim is 1"),
        (lambda: SepNorm(4, momentum=2), "momentum is .* from 0 to 1, or None .*, found 2"),
        (lambda: SepNorm(4, momentum=-0.1), "momentum is a finite number of at least 0, found -0.1"),
        (lambda: SepNorm.shared(4, "batch", momentum=1.5), "momentum is .* from 0 to 1, or None .*, found 1.5"),
        (lambda: SepNorm(2**70), "dim is a whole number, at least 1 and at most 2147483647, found 11805916207174"),
        (
            lambda: SepNorm(2**70, lambda dim: nn.Identity(), lambda dim: nn.Identity()),
            "dim is a whole number, at least",
        ),
        (lambda: SepNorm(4, device="mtia:99"), "a batch norm of 4 channels cannot be built with device=mtia:99: "),
        (lambda: SepNorm(4, dtype=torch.int32), "a batch norm of 4 channels cannot be built with dtype=torch.int32: "),
        (lambda: SepNorm(4, cls="bacth"), "Did you mean 'batch'"),
        (lambda: SepNorm(4, tokens="layr"), "Did you mean 'layer'"),
        (lambda: SepNorm(4, tokens="batch")(torch.randn(3, 5, 4), torch.ones(3, 5)), "padding_mask is boolean"),
        (
            lambda: SepNorm(4)(torch.randn(3, 5, 4), torch.zeros(5, 3, dtype=torch.bool)),
            r"\(batch, tokens\) = \(3, 5\)",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message):
    with pytest.raises(SepNormError, match=message):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device")
@pytest.mark.parametrize("spec", ["bn+ln", "ln+ln", "rms", "dyt"])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(spec):
    with pytest.raises(SepNormError, match=r"norm of 4 channels cannot be built with device=cuda: .+\.$") as error:
        SepNorm.from_spec(spec, 4, device="cuda")
    assert "\n" not in str(error.value)


def test_shared_norm_of_one_layer_norm_is_a_layer_norm():
    shared = SepNorm.shared(6, "layer")
    assert isinstance(shared, SharedNorm)
    x = torch.randn(3, 4, 6)
    assert torch.equal(shared(x), nn.LayerNorm(6)(x))


def test_padding_of_wild_values_never_reaches_the_statistics():
    layer = build("bn+bn", 6)
    x = torch.randn(4, 8, 6)
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 5:] = True
    wild = x.clone()
    wild[:, 5:] = 1e9
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(layer(wild, mask)[:, :5], twin(x, mask)[:, :5])
    torch.testing.assert_close(layer.token_norm.running_var, twin.token_norm.running_var)


def test_token_moments_leave_cls_out_without_cancellation():
    x = torch.randn(16, 9, 4)
    x[:, 0] += 1e6
    mean, var, count = statistics.token_moments(x, 1, 1, None)
    rows = x[:, 1:].reshape(-1, 4).double()
    assert count == len(rows)
    torch.testing.assert_close(mean.double(), rows.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(var.double(), rows.var(0, unbiased=False), rtol=1e-5, atol=1e-5)


def test_empty_batch():
    for spec, training in itertools.product(PAIRS, [True, False]):
        layer = build(spec, 4).train(training)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = torch.randn(0, 5, 4, requires_grad=True)
            out = layer(x)
        assert out.shape == (0, 5, 4)
        out.sum().backward()
        assert all(p.grad is None or not p.grad.any() for p in layer.parameters())
