"""Gradients of gradients, other parameters by ``functional_call``, and what changes between forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from reference import randomise, reference
from torch import Tensor, nn
from torch.func import functional_call

from sepnorm import SepNorm, SepNormError
from sepnorm.layer.sep_norm import TokenNorm

SPECS = ["bn+ln", "bn+bn", "ln+ln", "bn"]
#: Options and whether there is padding: the usual case, and another layout with all that is unusual.
FORMS = [
    pytest.param({}, False, id="usual"),
    pytest.param(dict(num_cls=2, token_dim=0), True, id="two [CLS], tokens first, padded"),
]
either_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
either_order = pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "create_graph"])


class Written(nn.Module):
    """A layer by the reference; its parameters are those of the layer, below ``layer``."""

    def __init__(self, layer: TokenNorm) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return reference(self.layer, x, mask)


def build(spec: str, dim: int = 3, **options) -> TokenNorm:
    return randomise(SepNorm.from_spec(spec, dim, dtype=torch.float64, **options))


def sample(layer: TokenNorm, padded: bool = False, batch: int = 4, tokens: int = 3) -> tuple[Tensor, Tensor | None]:
    x = torch.randn(batch, max(1, layer.num_cls) + tokens, layer.dim, dtype=torch.float64) * 2 + 1
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[0, -1] = mask[-1, -2:] = True
    x = x if layer.token_dim == 1 else x.transpose(0, 1).contiguous()
    return x.requires_grad_(), mask if padded else None


def real(layer: TokenNorm, out: Tensor, mask: Tensor | None) -> Tensor:
    """The output with zeros for padding, which nobody looks at."""
    if mask is None:
        return out
    hidden = mask.clone()
    hidden[:, : layer.num_cls] = False
    return out.masked_fill((hidden if layer.token_dim == 1 else hidden.t()).unsqueeze(-1), 0.0)


def others(layer: nn.Module) -> dict[str, Tensor]:
    """Parameters with the names and shapes of the layer's, and other values."""
    return {name: torch.randn_like(p).requires_grad_() for name, p in layer.named_parameters()}


def by_layer(layer: TokenNorm, parameters: dict[str, Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
    return real(layer, functional_call(layer, parameters, (x, mask)), mask)


def by_reference(layer: TokenNorm, parameters: dict[str, Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
    out = functional_call(Written(layer), {f"layer.{name}": p for name, p in parameters.items()}, (x, mask))
    return real(layer, out, mask)


def weights_like(tensors: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]


def grads(value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    found = torch.autograd.grad(value, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True)
    return list(found)


def loss(out: Tensor) -> Tensor:
    """A number that bends with every output."""
    return (out.sin() * weights_like([out])[0]).sum()


def derivatives(out: Tensor, leaves: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """First derivatives of a loss by ``leaves``, and those of a weighted sum of the first."""
    first = grads(loss(out), leaves, create_graph=True)
    mixed = sum((g * w).sum() for g, w in zip(first, weights_like(first, seed=2), strict=True))
    return {"first": [g.detach() for g in first], "second": grads(mixed, leaves)}


def assert_all_near(found: Sequence[Tensor], expected: Sequence[Tensor], what: str = "gradient") -> None:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-8, atol=1e-8, msg=lambda text, number=number: f"{what} {number}: {text}"
        )


def right_or_refused(compute: Callable[[], Sequence[Tensor]], expected: Sequence[Tensor]) -> None:
    """What was needed is gone: an error is as good as the right gradient, anything else is not."""
    try:
        found = compute()
    except (SepNormError, RuntimeError):
        return
    assert_all_near(found, expected)


# ---- second derivatives -------------------------------------------------------------------------------------------------


@either_mode
@pytest.mark.parametrize(("options", "padded"), FORMS)
@pytest.mark.parametrize("spec", SPECS)
def test_gradgradcheck_with_the_layers_own_parameters(spec, options, padded, training):
    layer = build(spec, 2, **options).train(training)
    x, mask = sample(layer, padded, batch=3, tokens=2)
    assert torch.autograd.gradgradcheck(lambda x, *ignored: real(layer, layer(x, mask), mask), (x, *layer.parameters()))


@either_mode
@pytest.mark.parametrize(("options", "padded"), FORMS)
@pytest.mark.parametrize("spec", SPECS)
def test_gradgradcheck_with_parameters_of_a_functional_call(spec, options, padded, training):
    layer = build(spec, 2, **options).train(training)
    x, mask = sample(layer, padded, batch=3, tokens=2)
    given = others(layer)

    def function(x: Tensor, *parameters: Tensor) -> Tensor:
        return by_layer(layer, dict(zip(given, parameters, strict=True)), x, mask)

    assert torch.autograd.gradcheck(function, (x, *given.values()))
    assert torch.autograd.gradgradcheck(function, (x, *given.values()))


@pytest.mark.parametrize("order", ["first", "second"])
@either_mode
@pytest.mark.parametrize(("options", "padded"), FORMS)
@pytest.mark.parametrize("spec", SPECS)
def test_a_functional_call_has_the_derivatives_of_what_it_was_given(spec, options, padded, training, order):
    layer = build(spec, **options).train(training)
    x, mask = sample(layer, padded)
    given = others(layer)
    leaves = [x, *given.values()]
    expected = derivatives(by_reference(copy.deepcopy(layer), given, x, mask), leaves)
    found = derivatives(by_layer(layer, given, x, mask), leaves)
    assert_all_near(found[order], expected[order], f"{order} derivative")


@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "bn"])
def test_a_functional_call_in_evaluation_has_the_derivatives_of_the_statistics_it_was_given(spec):
    layer = build(spec).eval()
    x, _ = sample(layer)
    twin = randomise(copy.deepcopy(layer), seed=7)
    given = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    leaves = [x, *twin.parameters()]
    expected = derivatives(reference(twin, x), leaves)
    found = derivatives(by_layer(layer, given, x), leaves)
    assert_all_near(found["first"], expected["first"], "first derivative")
    assert_all_near(found["second"], expected["second"], "second derivative")


#: Weights of the layer, by name, that depend on each other or on the input.
DEPENDENT: dict[str, Callable[[Tensor, Tensor], dict[str, Tensor]]] = {
    "tied": lambda x, w: {"cls_norm.weight": w, "token_norm.weight": w},
    "derived": lambda x, w: {"cls_norm.weight": w, "token_norm.weight": 2 * w},
    "of the input": lambda x, w: {"token_norm.weight": w + x.mean((0, 1))},
}


@either_mode
@pytest.mark.parametrize("weights", DEPENDENT)
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "ln+ln"])
def test_weights_that_depend_on_each_other_or_on_the_input_have_the_derivatives_of_plain_operations(
    spec, weights, training
):
    layer = build(spec).train(training)
    x, _ = sample(layer)
    leaf = torch.rand(layer.dim, dtype=torch.float64, requires_grad=True)
    leaves = [x, leaf]

    def given() -> dict[str, Tensor]:
        return dict(layer.named_parameters()) | DEPENDENT[weights](x, leaf)

    expected = derivatives(by_reference(copy.deepcopy(layer), given(), x), leaves)
    found = derivatives(by_layer(layer, given(), x), leaves)
    plain = grads(loss(by_layer(layer, given(), x)), leaves)
    assert_all_near(plain, expected["first"], "first derivative without a graph")
    assert_all_near(found["first"], expected["first"], "first derivative")
    assert_all_near(found["second"], expected["second"], "second derivative")


def test_one_norm_for_cls_and_tokens_has_the_same_gradient_with_and_without_a_graph():
    layer = build("ln+ln")
    layer.token_norm = layer.cls_norm
    x, _ = sample(layer)
    leaves = [x, *layer.parameters()]
    assert_all_near(grads(loss(layer(x)), leaves, create_graph=True), grads(loss(layer(x)), leaves))


class Learner(nn.Module):
    """A small model around a norm, for learning to learn."""

    def __init__(self, norm: nn.Module, dim: int) -> None:
        super().__init__()
        self.before = nn.Linear(dim, dim, dtype=torch.float64)
        self.norm = norm
        self.after = nn.Linear(dim, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.norm(self.before(x)).tanh())


@pytest.mark.parametrize("steps", [1, 2])
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_through_inner_steps_is_that_of_plain_operations(spec, training, steps):
    """As in MAML: the loss after steps of gradient descent, by the parameters before them."""
    layer = build(spec)
    ours = Learner(layer, 3).train(training)
    theirs = copy.deepcopy(ours)
    theirs.norm = Written(theirs.norm)
    support, query = (sample(layer, batch=6)[0] for _ in range(2))

    def after(model: Learner) -> tuple[float, list[Tensor]]:
        own = dict(model.named_parameters())
        parameters = own
        for _ in range(steps):
            inner = loss(functional_call(model, parameters, (support,)))
            found = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
            parameters = {name: p - 0.02 * g for (name, p), g in zip(parameters.items(), found, strict=True)}
        outer = loss(functional_call(model, parameters, (query,)))
        return outer.item(), grads(outer, [support, *own.values()])

    value, expected = after(theirs)
    found_value, found = after(ours)
    assert found_value == pytest.approx(value, rel=1e-9)
    assert_all_near(found, expected, "gradient through the steps")


@either_mode
@pytest.mark.parametrize("mixed", [False, True], ids=["one type", "weights in float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_asking_for_a_graph_changes_no_gradient_in_lower_precision(spec, dtype, mixed, training):
    layer = build(spec).to(torch.float32 if mixed else dtype).train(training)
    x = sample(layer)[0].detach().to(dtype).requires_grad_()
    leaves = [x, *layer.parameters()]
    out = layer(x)
    assert out.dtype == dtype
    first = torch.autograd.grad(loss(out), leaves, retain_graph=True)
    again = torch.autograd.grad(loss(out), leaves, create_graph=True)
    tolerance = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}[dtype]
    for ours, theirs in zip(again, first, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.detach(), theirs, rtol=tolerance, atol=tolerance)
    second = torch.autograd.grad(sum(g.float().square().sum() for g in again), leaves, allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in second)
    assert second[0].any()


@either_mode
@pytest.mark.parametrize(("options", "padded"), FORMS)
@pytest.mark.parametrize("spec", SPECS)
def test_the_gradient_of_a_gradient_penalty(spec, options, padded, training):
    layer = build(spec, **options).train(training)
    x, mask = sample(layer, padded)
    twin = copy.deepcopy(layer)

    def penalty(out: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        (slope,) = torch.autograd.grad(loss(out), x, create_graph=True)
        return grads((slope.flatten(1).norm(dim=1) - 1).square().mean(), [x, *parameters])

    expected = penalty(real(twin, reference(twin, x, mask), mask), list(twin.parameters()))
    assert_all_near(penalty(real(layer, layer(x, mask), mask), list(layer.parameters())), expected)


# ---- changes between forward and backward ----------------------------------------------------------------------------------


def gradients(out: Tensor, leaves: Sequence[Tensor], create_graph: bool) -> list[Tensor]:
    return [g.detach() for g in grads(loss(out), leaves, create_graph)]


@either_order
@either_mode
@pytest.mark.parametrize(("options", "padded"), FORMS)
@pytest.mark.parametrize("spec", SPECS)
def test_a_change_of_mode_before_the_backward_pass_changes_no_gradient(spec, options, padded, training, create_graph):
    layer = build(spec, **options).train(training)
    x, mask = sample(layer, padded)
    twin = copy.deepcopy(layer)
    expected = gradients(real(twin, reference(twin, x, mask), mask), [x, *twin.parameters()], create_graph)
    out = real(layer, layer(x, mask), mask)
    layer.train(not training)
    assert_all_near(gradients(out, [x, *layer.parameters()], create_graph), expected)


@pytest.mark.parametrize("spec", SPECS)
def test_a_change_of_mode_between_two_backward_passes_changes_no_second_derivative(spec):
    layer = build(spec)
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = derivatives(reference(twin, x), [x, *twin.parameters()])["second"]
    leaves = [x, *layer.parameters()]
    first = grads(loss(layer(x)), leaves, create_graph=True)
    layer.eval()
    mixed = sum((g * w).sum() for g, w in zip(first, weights_like(first, seed=2), strict=True))
    assert_all_near(grads(mixed, leaves), expected)


@either_order
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_parameters_put_in_before_the_backward_pass_change_no_gradient(spec, training, create_graph):
    """New objects, as ``load_state_dict(assign=True)`` puts in; the gradient is that of the old ones."""
    layer = build(spec).train(training)
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = gradients(reference(twin, x), [x, *twin.parameters()], create_graph)
    leaves = [x, *layer.parameters()]
    out = layer(x)
    layer.load_state_dict(randomise(copy.deepcopy(layer), seed=7).state_dict(), assign=True)
    assert_all_near(gradients(out, leaves, create_graph), expected)


@either_order
@pytest.mark.parametrize("change", ["another batch", "reset"])
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "bn"])
def test_running_statistics_that_move_on_change_no_gradient_of_a_training_batch(spec, change, create_graph):
    layer = build(spec)
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = gradients(reference(twin, x), [x, *twin.parameters()], create_graph)
    out = layer(x)
    if change == "another batch":
        layer(torch.randn_like(x) * 5)
    else:
        for child in layer.children():
            if isinstance(child, nn.BatchNorm1d):
                child.reset_running_stats()
    assert_all_near(gradients(out, [x, *layer.parameters()], create_graph), expected)


@either_order
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn", "bn"])
def test_running_statistics_that_change_after_an_evaluation_are_never_silently_the_wrong_ones(spec, create_graph):
    layer = build(spec).eval()
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = gradients(reference(twin, x), [x, *twin.parameters()], create_graph)
    out = layer(x)
    layer.train()(torch.randn_like(x) * 5 + 3)
    layer.eval()
    right_or_refused(lambda: gradients(out, [x, *layer.parameters()], create_graph), expected)


@either_order
@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
@pytest.mark.parametrize("spec", ["bn+ln", "bn+bn"])
def test_a_single_sample_followed_by_a_batch_is_never_silently_wrong(spec, create_graph):
    """A single sample is normalised by running statistics, which the batch after it moves."""
    layer = build(spec)
    x, _ = sample(layer, batch=1)
    twin = copy.deepcopy(layer)
    twin.cls_norm.eval()
    cls = torch.nn.functional.batch_norm(
        x[:, 0], twin.cls_norm.running_mean, twin.cls_norm.running_var, twin.cls_norm.weight, twin.cls_norm.bias
    )
    tokens = reference(twin, torch.cat([x, x]))[:1, 1:] if spec == "bn+ln" else reference(twin, x)[:, 1:]
    expected = gradients(torch.cat([cls[:, None], tokens], 1), [x, *twin.parameters()], create_graph)
    out = layer(x)
    layer(torch.randn(6, *x.shape[1:], dtype=x.dtype) * 5 + 3)
    right_or_refused(lambda: gradients(out, [x, *layer.parameters()], create_graph), expected)


@either_order
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_values_changed_in_place_before_the_backward_pass_are_never_silently_used(spec, training, create_graph):
    layer = build(spec).train(training)
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = gradients(reference(twin, x), [x, *twin.parameters()], create_graph)
    for name in ["x", *dict(layer.named_parameters())]:
        changed = copy.deepcopy(layer)
        leaf = x.detach().clone().requires_grad_()
        leaves = {"x": leaf, **dict(changed.named_parameters())}
        out = changed(leaf)
        with torch.no_grad():
            leaves[name].mul_(3).add_(1)
        values = list(leaves.values())
        right_or_refused(lambda out=out, values=values: gradients(out, values, create_graph), expected)


@either_order
@either_mode
@pytest.mark.parametrize("spec", SPECS)
def test_a_state_loaded_before_the_backward_pass_is_never_silently_used(spec, training, create_graph):
    layer = build(spec).train(training)
    x, _ = sample(layer)
    twin = copy.deepcopy(layer)
    expected = gradients(reference(twin, x), [x, *twin.parameters()], create_graph)
    out = layer(x)
    layer.load_state_dict(randomise(copy.deepcopy(layer), seed=7).state_dict())
    right_or_refused(lambda: gradients(out, [x, *layer.parameters()], create_graph), expected)


@either_order
@pytest.mark.parametrize("spec", ["bn+bn", "bn"])
def test_a_mask_changed_in_place_before_the_backward_pass_is_never_silently_used(spec, create_graph):
    """Loaders that fill one buffer again and again do this."""
    layer = build(spec)
    x, mask = sample(layer, padded=True)
    twin = copy.deepcopy(layer)
    expected = gradients(real(twin, reference(twin, x, mask.clone()), mask), [x, *twin.parameters()], create_graph)
    out = real(layer, layer(x, mask), mask)
    mask.logical_not_()
    right_or_refused(lambda: gradients(out, [x, *layer.parameters()], create_graph), expected)
