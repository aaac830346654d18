"""Moments against their definition, both roots against each other, the sketch against its expectation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepnorm import SepNormError
from sepnorm.pooling import MomentPool, moment_matrix
from sepnorm.pooling.moments import ROOTS
from sepnorm.pooling.powers import EigenPower

SHAPES = [(3, 9, 4), (3, 4, 9)]  # more tokens than dimensions, and fewer: the work is done on the smaller side


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) + 0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_one_the_mean_and_the_second_moment(shape):
    x = drawn(*shape)
    found = moment_matrix(x)
    torch.testing.assert_close(found[:, 0, 0], torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found[:, 0, 1:], x.mean(1))
    torch.testing.assert_close(found[:, 1:, 0], x.mean(1))
    torch.testing.assert_close(found[:, 1:, 1:], torch.einsum("btd,bte->bde", x, x) / shape[1])


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_root_squared_gives_the_matrix_back(shape, root):
    x = drawn(*shape)
    found = MomentPool(shape[2], root=root).matrix(x)
    torch.testing.assert_close(found @ found, moment_matrix(x), atol=1e-8, rtol=0)
    assert torch.linalg.eigvalsh(found).min() > -1e-9


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.integers(1, 12), st.floats(1e-3, 1e3), st.integers(0, 100))
def test_both_ways_agree(tokens, dim, scale, seed):
    x = drawn(2, tokens, dim, seed=seed) * scale
    one, other = (MomentPool(dim, root=root).matrix(x) for root in ("eigen", "newton"))
    torch.testing.assert_close(one, other, atol=1e-6 * scale, rtol=1e-6)
    low, exact = (MomentPool(dim, root=root).matrix(x.float()) for root in ("newton", "eigen"))
    torch.testing.assert_close(low, exact, atol=2e-3 * max(scale, 1), rtol=0)
    torch.testing.assert_close(exact.double(), one, atol=2e-3 * max(scale, 1), rtol=0)


@pytest.mark.parametrize("power", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_powers_are_those_of_eigenvalues(shape, power):
    x = drawn(*shape)
    values, vectors = torch.linalg.eigh(moment_matrix(x))
    expected = (vectors * values.clamp(min=0).pow(power)[:, None]) @ vectors.mT
    torch.testing.assert_close(MomentPool(shape[2], power).matrix(x), expected, atol=1e-4, rtol=0)


def test_inner_products_of_vectors_are_those_of_matrices():
    pool, x = MomentPool(5), drawn(4, 7, 5)
    vectors, matrices = pool(x), pool.matrix(x).flatten(1)
    assert vectors.shape == (4, pool.out_dim) == (4, 21)
    torch.testing.assert_close(vectors @ vectors.T, matrices @ matrices.T)


def test_the_sketch_is_what_ffts_of_count_sketches_give():
    """The sum over rows y of a root Y of the matrix of the circular convolutions of two count sketches of y."""
    pool, x = MomentPool(6, sketch=10), drawn(2, 9, 6)
    matrix = pool.matrix(x)
    values, vectors = torch.linalg.eigh(matrix)
    rows = (vectors * values.clamp(min=0).sqrt()[:, None]).mT  # rows.mT @ rows is the matrix
    counts = []
    for places, signs in zip(pool.places, pool.signs, strict=True):
        counts.append(torch.zeros(2, 7, 10, dtype=torch.float64).index_add_(2, places, rows * signs))
    both = torch.fft.rfft(counts[0]) * torch.fft.rfft(counts[1])
    torch.testing.assert_close(pool(x), torch.fft.irfft(both.sum(1), n=10))


def test_inner_products_of_sketches_are_unbiased():
    """The variance of one is at most (2 + 3^2) / size times the squared norms (Avron et al., NeurIPS 2014)."""
    x, seeds, size = drawn(2, 9, 6), 1000, 12
    full = MomentPool(6)(x)
    found = torch.stack(
        [MomentPool(6, sketch=size, seed=seed).vector(MomentPool(6).matrix(x)) for seed in range(seeds)]
    )
    products = torch.einsum("sbd,scd->sbc", found, found)
    norms = full.square().sum(1)
    bound = (11 / size * norms[:, None] * norms / seeds).sqrt()  # of the mean over seeds, one standard deviation
    assert ((products.mean(0) - full @ full.T).abs() < 4 * bound).all()
    assert (products.var(0) <= 11 / size * norms[:, None] * norms).all()
    wrong = full @ full.T * (1 + 1 / size)
    assert not ((products.mean(0) - wrong).abs() < products.std(0) / math.sqrt(seeds)).all()  # this test can tell


@pytest.mark.parametrize("root", ["eigen", "newton"])
@pytest.mark.parametrize("sketch", [None, 8])
@pytest.mark.parametrize("shape", [(2, 6, 3), (2, 3, 5)])
def test_gradients(shape, sketch, root):
    mask = torch.ones(shape[:2], dtype=torch.bool)
    mask[0, -1] = False
    pool = MomentPool(shape[2], sketch=sketch, root=root)
    x = drawn(*shape).requires_grad_()
    assert torch.autograd.gradcheck(pool, (x, mask) if shape[1] > shape[2] + 1 else (x,))
    assert torch.autograd.gradcheck(MomentPool(shape[2], 0.3), (x,))


@pytest.mark.parametrize("root", ["eigen", "newton"])
@pytest.mark.parametrize("shape", [(2, 6, 3), (2, 3, 5)])
def test_second_derivatives(shape, root):
    pool, x = MomentPool(shape[2], root=root), drawn(*shape).requires_grad_()
    mask = torch.ones(shape[:2], dtype=torch.bool)
    mask[0, -1] = False
    assert torch.autograd.gradgradcheck(pool, (x, mask) if shape[1] > shape[2] + 1 else (x,))
    assert torch.autograd.gradgradcheck(MomentPool(shape[2], 1), (x,))
    once, again = (torch.autograd.grad(pool(x).sin().sum(), x, create_graph=more)[0] for more in (False, True))
    torch.testing.assert_close(once, again, rtol=1e-6, atol=1e-6)


def test_second_derivatives_of_other_powers_are_refused():
    x = drawn(2, 6, 3).requires_grad_()
    with pytest.raises(SepNormError, match=r"moment pooling of power 0.3 has no second derivatives .* use power=0.5"):
        torch.autograd.grad(MomentPool(3, 0.3)(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-4), (torch.float32, 1e-2)])
def test_a_padded_sample_has_the_gradients_of_its_tokens(dtype, most, root):
    """Its matrix has fewer dimensions than it is wide, and every way works on the matrix."""
    pool, x = MomentPool(16, root=root), drawn(1, 30, 16, dtype=dtype) * 2
    mask = (torch.arange(30) < 5).expand(1, -1)
    found = []
    for tokens, keep in ((x.clone(), mask), (x[:, :5].double(), None)):
        out = pool(tokens.requires_grad_(), keep)
        out.square().sum(1).sin().sum().backward()
        found.append((out.detach().double(), tokens.grad[:, :5].double()))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < most * other.norm()


def test_gradients_at_equal_eigenvalues():
    """There autograd's way through eigh divides by 0."""
    matrix = torch.diag(torch.tensor([2.0, 2.0, 2.0, 5.0], dtype=torch.float64)).requires_grad_()
    shift = torch.zeros(1, 1, dtype=torch.float64)

    def symmetric(x: torch.Tensor) -> torch.Tensor:
        return EigenPower.apply((x + x.mT) / 2, shift, -0.5)

    assert torch.autograd.gradcheck(symmetric, (matrix,))
    x = drawn(1, 3, 8, dtype=torch.float32).expand(2, -1, -1).clone()
    x[:, 1] = x[:, 0]  # two equal tokens: a matrix without full rank
    x.requires_grad_()
    MomentPool(8)(x).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().max() < 1e3


def test_the_order_of_tokens_does_not_matter_and_padding_touches_nothing():
    x, pool = drawn(3, 7, 4), MomentPool(4, sketch=11)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pool(x[:, order]), pool(x))
    padded = torch.cat([x, torch.full((3, 2, 4), math.nan, dtype=x.dtype)], dim=1).requires_grad_()
    mask = torch.arange(9).expand(3, -1) < 7
    for each in (mask, mask.long(), mask.double()):
        found = pool(padded, each)
        torch.testing.assert_close(found, pool(x))
    found.sum().backward()
    assert padded.grad.isfinite().all() and not padded.grad[:, 7:].any()


def test_a_sample_of_one_token_among_others_has_its_moments():
    mask = torch.tensor([[True] * 4, [True] + [False] * 3])
    x = drawn(2, 4, 3).requires_grad_()
    for root in ("eigen", "newton"):
        found = MomentPool(3, root=root).matrix(x, mask)
        one = torch.cat([x.new_ones(1), x[1, 0]])
        torch.testing.assert_close(found[1], one * one[:, None] / one.norm(), atol=5e-3, rtol=0)
        found.sum().backward()
        assert x.grad.isfinite().all()


def test_a_sample_without_tokens_is_refused():
    mask, said = torch.tensor([[True] * 4, [False] * 4]), "the mask leaves sample 1 of 2 without tokens"
    for each in (mask, mask.long(), mask.double()):
        for pooled in (MomentPool(3), moment_matrix):
            with pytest.raises(SepNormError, match=said):
                pooled(drawn(2, 4, 3), each)


def test_a_mask_is_not_read_where_it_has_no_values_yet():
    x, mask, pool = drawn(3, 5, 4), torch.arange(5).expand(3, -1) < torch.tensor([[5], [2], [1]]), MomentPool(4)
    compiled = torch.compile(pool, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask), pool(x, mask))
    each = torch.vmap(lambda one, keep: moment_matrix(one[None], keep[None])[0])(x, mask)
    torch.testing.assert_close(each, moment_matrix(x, mask))


@pytest.mark.parametrize("root", ["eigen", "newton"])
def test_nan_stays_in_its_sample(root):
    x = drawn(3, 5, 3)
    x[1, 2, 0] = math.nan
    found = MomentPool(3, root=root)(x)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[::2], MomentPool(3, root=root)(x[::2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    x, pool = drawn(2, 9, 4).to(dtype), MomentPool(4)
    assert pool(x).dtype == pool.matrix(x).dtype == torch.float32
    torch.testing.assert_close(pool(x), pool(x.float()))
    assert MomentPool(4, 1)(300 * x).isfinite().all()  # squares that float16 does not hold
    torch.testing.assert_close(pool.to(dtype)(x), pool(x.float()))  # also where a model is cast as a whole
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(pool.matrix(x.float()), pool.matrix(x))
        assert moment_matrix(x).dtype == torch.float32


def test_a_sketch_is_the_same_for_a_seed_and_comes_with_the_weights():
    x = drawn(2, 5, 4)
    first, same, other = MomentPool(4, sketch=9), MomentPool(4, sketch=9), MomentPool(4, sketch=9, seed=1)
    assert torch.equal(first(x), same(x)) and not torch.equal(first(x), other(x))
    other.load_state_dict(first.state_dict())
    assert torch.equal(first(x), other(x))
    assert not MomentPool(4).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("sketch", [None, 9])
def test_it_is_exported_by_matrix_products(sketch):
    pool, x = MomentPool(4, sketch=sketch), drawn(2, 7, 4, dtype=torch.float32)
    program = torch.export.export(
        pool, (x,), dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("n", min=6)},)
    )
    assert "eigh" not in str(program.graph)
    other = drawn(3, 9, 4, dtype=torch.float32)
    torch.testing.assert_close(program.module()(other), pool(other), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_it_runs_in_onnx(tmp_path):
    import onnxruntime

    pool, x = MomentPool(4, sketch=9), drawn(2, 7, 4, dtype=torch.float32)
    torch.onnx.export(pool.eval(), (x,), tmp_path / "pool.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "pool.onnx"))
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), pool(x), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 0}, "dim is a whole number, at least 1"),
        ({"power": 0}, "power is above 0 and at most 1, found 0"),
        ({"power": 1.5}, "power is above 0 and at most 1, found 1.5"),
        ({"power": 0.3, "root": "newton"}, "root='newton' is for the power 0.5, found 0.3"),
        ({"root": "newtons"}, "unknown root 'newtons'.*Did you mean 'newton'"),
        ({"sketch": 0}, "sketch is a whole number, at least 1"),
        ({"sketch": 16}, "a sketch of 16 numbers is wider than the moment matrix of dim 4, which has 15"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(SepNormError, match=said):
        MomentPool(**{"dim": 4} | options)


@pytest.mark.parametrize(
    ("tokens", "mask", "said"),
    [
        (torch.zeros(2, 1, 4), None, "moment pooling needs at least two tokens per sample, found one"),
        (torch.zeros(2, 5, 3), None, "tokens have 3 dimensions, and this pooling was made for 4"),
        (torch.zeros(2, 4), None, r"tokens are \(batch, tokens, dim\), none of them 0, found \(2, 4\)"),
        (torch.zeros(2, 5, 4).long(), None, "tokens is a tensor of floating-point numbers"),
        (
            torch.zeros(2, 5, 4),
            torch.ones(2, 4),
            r"the mask of tokens \(2, 5, 4\) is \(batch, tokens\).*found \(2, 4\)",
        ),
        (torch.zeros(2, 5, 4), [[True]], "found list"),
        (
            torch.zeros(2, 5, 4),
            torch.tensor([[0.0] * 4 + [-1e9]] * 2),
            "is 1 for tokens and 0 for padding, found other",
        ),
        (torch.zeros(2, 5, 4), torch.full((2, 5), math.nan), "is 1 for tokens and 0 for padding, found other numbers"),
    ],
)
def test_wrong_tokens_are_refused(tokens, mask, said):
    with pytest.raises(SepNormError, match=said):
        MomentPool(4)(tokens, mask)
