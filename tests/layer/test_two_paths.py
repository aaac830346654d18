"""The fused and the plain path of a layer give the same, whatever the configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from reference import randomise, reference, reference_running
from torch import Tensor, nn
from two_paths import PATHS, Step, assert_near, assert_same_step, is_fused, plain_copy, step, threads

from sepnorm import SepNorm, SharedNorm
from sepnorm.layer import fused as kernels
from sepnorm.layer.sep_norm import TokenNorm

pytestmark = pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")

TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-5, torch.float16: 8e-3, torch.bfloat16: 4e-2}
#: Large enough that rows that are nearly equal do not blow up the rounding.
EPS = {torch.float64: 1e-5, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.1}
POISONS = [float("nan"), float("inf"), float("-inf"), 1e4, 0.0]


@dataclass(frozen=True)
class Case:
    """One configuration of the layer and of its input; ``cls`` is none where one norm serves all tokens."""

    cls: str | None
    tokens: str
    num_cls: int
    token_dim: int
    batch: int
    length: int
    width: int
    dtype: torch.dtype
    training: bool
    affine: bool
    momentum: float | None
    padding: str
    threads: int
    seed: int

    @property
    def first(self) -> int:
        """How many positions are [CLS]."""
        return 0 if self.cls is None else self.num_cls

    @property
    def kinds(self) -> dict[str, str]:
        return {"norm": self.tokens} if self.cls is None else {"cls_norm": self.cls, "token_norm": self.tokens}

    def layer(self) -> TokenNorm:
        options = dict(eps=EPS[self.dtype], affine=self.affine, dtype=self.dtype)

        def untracked(dim: int) -> nn.Module:
            return nn.BatchNorm1d(dim, track_running_stats=False, **options)

        kinds = [untracked if kind == "untracked" else kind for kind in self.kinds.values()]
        more = dict(momentum=self.momentum, token_dim=self.token_dim)
        if self.cls is None:
            layer = SharedNorm(self.width, *kinds, **options, **more)
        else:
            layer = SepNorm(self.width, *kinds, num_cls=self.num_cls, **options, **more)
        return randomise(layer, self.seed).train(self.training)

    def sample(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, incoming gradient and padding mask."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.batch, self.length, self.width)
        x = torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 1
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        mask = None
        if self.padding != "none":
            share = torch.rand(1, generator=generator)
            mask = torch.rand(shape[:2], generator=generator) < (share if self.padding == "some" else 2.0)
        return self.laid_out(x.to(self.dtype)), self.laid_out(grad.to(self.dtype)), mask

    def laid_out(self, x: Tensor) -> Tensor:
        """(batch, tokens, ...) in the layout of the layer, or back."""
        return x if self.token_dim == 1 else x.transpose(0, 1).contiguous()

    def padded(self, mask: Tensor) -> Tensor:
        """Where the layer sees padding, in its layout and to be used on its input: [CLS] is none."""
        mask = mask.clone()
        mask[:, : self.first] = False
        return self.laid_out(mask)

    def rows(self, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """The rows (count, channels) that each child would take its statistics from."""
        x, keep = self.laid_out(x), torch.ones(self.batch, self.length, dtype=torch.bool) if mask is None else ~mask
        n = self.first
        if self.cls is None:
            return {"norm": x[keep]}
        return {"cls_norm": x[:, :n].reshape(-1, self.width), "token_norm": x[:, n:][keep[:, n:]]}

    def measures(self, name: str) -> bool:
        """Whether a child normalises by the statistics of the batch."""
        return self.kinds[name] == "untracked" or (self.kinds[name] == "batch" and self.training)

    def scarce(self, mask: Tensor | None) -> list[str]:
        """The children that have positions to normalise but no variance to measure: one sample has none of [CLS]."""
        x, _, _ = self.sample()
        rows = self.rows(x, mask)
        there = self.rows(x, None)
        few = {name: len(rows[name]) < 2 or (name == "cls_norm" and self.batch < 2) for name in rows}
        return [name for name in rows if few[name] and len(there[name])]

    def hopeless(self, mask: Tensor | None) -> bool:
        """Whether a batch norm has neither rows enough nor running statistics."""
        return any(self.kinds[name] == "untracked" for name in self.scarce(mask))


#: How often each kind is drawn; the last two have no fused path.
KINDS = {"batch": 6, "layer": 5, "rms": 1, "untracked": 1}


def drawn(seed: int, kinds: Sequence[str], paddings: dict[str, int]) -> Case:
    """A case of a number: every field by itself, so that no combination is rarer than its parts."""
    rng = random.Random(seed)
    weights = [KINDS[kind] for kind in kinds]
    num_cls = rng.randint(1, 3)
    return Case(
        cls=rng.choices([None, *kinds], [4, *weights])[0],
        tokens=rng.choices(kinds, weights)[0],
        num_cls=num_cls,
        token_dim=rng.randint(0, 1),
        batch=rng.randint(1, 6),
        length=rng.randint(num_cls, 8),
        width=rng.randint(1, 33),
        dtype=rng.choice(list(TOLERANCES)),
        training=rng.random() < 0.7,
        affine=rng.random() < 0.6,
        momentum=rng.choice([0.1, None, 0.7]),
        padding=rng.choices(list(paddings), list(paddings.values()))[0],
        threads=rng.randint(1, 4),
        seed=seed,
    )


def cases(kinds: Sequence[str] = tuple(KINDS), **paddings: int) -> st.SearchStrategy[Case]:
    """Cases of these kinds of norm and, by how often, of these kinds of padding."""
    return st.integers(0, 2**32).map(lambda seed: drawn(seed, kinds, paddings))


def check_reference(case: Case, path: str) -> None:
    """The reference in double precision; it knows no running statistics for want of rows. Nobody looks at padding."""
    x, grad, mask = case.sample()
    layer = case.layer()
    measuring = [name for name in case.kinds if case.measures(name)]
    batch_norms = [name for name, kind in case.kinds.items() if kind in ("batch", "untracked")]
    if case.dtype != torch.float64 or (measuring and (measuring != batch_norms or case.scarce(mask))):
        return
    if "rms" in case.kinds.values() and not case.affine:
        return
    where = torch.zeros(x.shape[:2], dtype=torch.bool) if mask is None else case.padded(mask)
    where = where.unsqueeze(-1)
    grad = grad.masked_fill(where, 0.0)
    found = step(PATHS[path](case.layer()), x, mask, grad)
    layer.train(bool(measuring))
    x.requires_grad_()
    out = reference(layer, x, mask)
    assert_near(found.out.masked_fill(where, 0.0), out.masked_fill(where, 0.0), 1e-9, "output beside the reference")
    leaves = {"x": x, **dict(layer.named_parameters())}
    grads = torch.autograd.grad(out, list(leaves.values()), grad, allow_unused=True, materialize_grads=True)
    for name, expected in zip(leaves, grads, strict=True):
        assert_near(found.grads[name], expected, 1e-9, f"gradient of {name} beside the reference")
    for name, rows in case.rows(x.detach(), mask).items():
        norm = layer.get_submodule(name)
        if case.kinds[name] == "batch" and case.training and len(rows):
            mean, var = reference_running(norm, rows, 1.0 if case.momentum is None else case.momentum)
            assert_near(found.buffers[f"{name}.running_mean"], mean, 1e-9, "running mean beside the reference")
            assert_near(found.buffers[f"{name}.running_var"], var, 1e-9, "running variance beside the reference")
            assert found.buffers[f"{name}.num_batches_tracked"] == 1


def attempt(layer: TokenNorm, x: Tensor, mask: Tensor | None, grad: Tensor) -> Step | None:
    """A step, or none where the layer, or torch's norm in it, refuses it."""
    try:
        return step(layer, x, mask, grad)
    except ValueError:
        return None


@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+bn", "ln+ln", "bn", "ln"])
def test_the_two_paths_of_these_tests_are_two(spec, monkeypatch):
    layer = SepNorm.from_spec(spec, 4)
    x = torch.randn(3, 5, 4, requires_grad=True)
    assert is_fused(layer(x))
    monkeypatch.setattr(kernels, "fused", None)
    assert not is_fused(plain_copy(layer)(x))
    with pytest.raises(TypeError):
        layer(x)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(case=cases(none=4, some=4, all=1))
def test_fused_and_plain_paths_agree_for_any_configuration(case):
    note(repr(case))
    layer, (x, grad, mask) = case.layer(), case.sample()
    with threads(case.threads):
        fused = attempt(layer, x, mask, grad)
        plain = attempt(plain_copy(case.layer()), x, mask, grad)
    assert (fused is None) == (plain is None)
    if fused is None or plain is None:
        assert case.hopeless(mask)
        return
    assert fused.out.dtype == plain.out.dtype == x.dtype
    for name, parameter in layer.named_parameters():
        assert fused.grads[name].dtype == plain.grads[name].dtype == parameter.dtype
    assert_same_step(fused, plain, TOLERANCES[case.dtype])
    for name in fused.buffers:
        if "num_batches" in name:
            assert fused.buffers[name] == plain.buffers[name], name
    if not case.hopeless(mask):
        for path in PATHS:
            check_reference(case, path)


def poisoned(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Input with zeros in padding, the same with poison there, incoming gradient (none at padding), mask, where it is."""
    x, grad, mask = case.sample()
    assert mask is not None
    where = case.padded(mask).unsqueeze(-1)
    generator = torch.Generator().manual_seed(case.seed + 1)
    poison = torch.tensor(POISONS)[torch.randint(len(POISONS), x.shape, generator=generator)].to(x.dtype)
    return x.masked_fill(where, 0.0), torch.where(where, poison, x), grad.masked_fill(where, 0.0), mask, where


def check_poison(case: Case, path: str, *, all_parameters: bool = False) -> None:
    """Poison in padding changes nothing but what is there."""
    clean_x, wild_x, grad, mask, where = poisoned(case)
    with threads(case.threads):
        clean, wild = (step(PATHS[path](case.layer()), x, mask, grad) for x in (clean_x, wild_x))
    tolerance = 0.0 if path == "fused" else 1e-6
    assert_near(wild.out.masked_fill(where, 0), clean.out.masked_fill(where, 0), tolerance, "output")
    inner = wild.grads["x"].masked_fill(where, 0), clean.grads["x"].masked_fill(where, 0)
    assert_near(*inner, tolerance, "gradient of x")
    for name, _ in case.layer().named_parameters():
        child = name.split(".")[0]
        if all_parameters or child == "cls_norm" or case.measures(child):
            assert_near(wild.grads[name], clean.grads[name], tolerance, f"gradient of {name}")
    for name, expected in clean.buffers.items():
        assert_near(wild.buffers[name], expected, tolerance, name)
    if case.tokens in ("batch", "untracked"):
        assert wild.grads["x"].isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=cases(("batch", "layer", "rms"), some=6, all=1))
def test_what_is_in_padding_reaches_nothing_else(path, case):
    """Weights of tokens' norms that do not measure the batch, and so take no notice of the mask, are tested below."""
    note(repr(case))
    check_poison(case, path)


USUAL = Case("batch", "batch", 1, 1, 4, 6, 5, torch.float32, True, True, 0.1, "some", 1, 0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("cls", "tokens", "training"),
    [
        ("batch", "layer", True),
        ("layer", "layer", True),
        ("batch", "rms", True),
        (None, "layer", True),
        ("batch", "batch", False),
        (None, "batch", False),
    ],
)
def test_what_is_in_padding_reaches_no_weight_of_a_norm_without_batch_statistics(cls, tokens, training, path):
    check_poison(replace(USUAL, cls=cls, tokens=tokens, training=training), path, all_parameters=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token_dim", [1, 0])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("padding", ["none", "some"])
@pytest.mark.parametrize("cls", ["untracked", "layer", None])
def test_batch_norms_without_running_statistics_measure_the_batch_in_either_mode(
    cls, padding, training, token_dim, path
):
    case = replace(
        USUAL, cls=cls, tokens="untracked", training=training, token_dim=token_dim, padding=padding, dtype=torch.float64
    )
    check_reference(case, path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("cls", ["untracked", "layer", None])
def test_what_is_in_padding_reaches_no_batch_norm_without_running_statistics(cls, training, path):
    check_poison(replace(USUAL, cls=cls, tokens="untracked", training=training), path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("cls", "tokens", "batch", "length", "padding"),
    [("untracked", "layer", 1, 4, "none"), ("layer", "untracked", 1, 2, "none"), (None, "untracked", 3, 4, "all")],
    ids=["one [CLS]", "one token", "all padded"],
)
def test_without_running_statistics_too_few_rows_are_refused_or_finite(
    cls, tokens, batch, length, padding, training, path
):
    case = replace(USUAL, cls=cls, tokens=tokens, batch=batch, length=length, padding=padding, training=training)
    x, grad, mask = case.sample()
    assert case.hopeless(mask)
    found = attempt(PATHS[path](case.layer()), x, mask, grad)
    if found is not None:
        assert found.out.isfinite().all()
        assert all(grad.isfinite().all() for grad in found.grads.values())
