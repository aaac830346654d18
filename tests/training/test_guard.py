from __future__ import annotations

import pytest
import torch
from torch import nn

from sepnorm import SepNorm, SepNormError
from sepnorm.domains.images.config import PRESETS
from sepnorm.training.batching import Samples, Steps
from sepnorm.training.guard import PATIENCE, Guard
from sepnorm.training.trainer import train

CONFIG = PRESETS["demo"].changed({"epochs": 1, "batch_size": 4, "learning_rate": 0.1, "checkpoints": 0, "clip": 1.0})


class Model(nn.Module):
    """A norm and a layer, on tokens (samples, 3, 8)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = SepNorm(8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.out(self.norm(x)).square().mean()}


def steps(broken: set[int], count: int = 10) -> Steps:
    """Batches of noise; the samples with these numbers hold a NaN."""
    rows = torch.randn(count * 4, 3, 8, generator=torch.Generator().manual_seed(1))
    rows[list(broken)] = torch.nan
    return Steps(CONFIG, Samples(count * 4, lambda chosen, *_: {"x": rows[chosen]}))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_a_broken_sample_costs_one_step_and_poisons_nothing(tmp_path, caplog):
    model = Model()
    trained = train(model, steps({13}), tmp_path / "run")
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    said = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(said) == 1 and "its loss is nan" in said[0] and "13" in said[0].split("samples")[1]
    losses = [loss for _, loss in trained.losses]
    assert len(losses) == 10 and sum(loss != loss for loss in losses) == 1


def test_a_step_that_is_refused_changes_no_weight_and_no_statistic():
    model, guard = Model(), Guard()
    before = state(model)
    guard.begin(model)
    loss = model(torch.full((4, 3, 8), torch.inf))["loss"]
    loss.backward()
    assert not same(before, state(model))  # the statistics have seen it
    assert not guard.allows(model, [loss.detach()], 1, lambda: "these")
    assert same(before, state(model)) and all(weight.grad is None for weight in model.parameters())


def test_gradients_that_are_not_finite_are_enough():
    model, guard = Model(), Guard()
    guard.begin(model)
    loss = model(torch.randn(4, 3, 8))["loss"]
    loss.backward()
    assert guard.allows(model, [loss.detach()], 1, lambda: "these")
    model.out.weight.grad[0, 0] = torch.nan
    assert not guard.allows(model, [loss.detach()], 2, lambda: "these")


def test_a_run_stops_after_some_in_a_row_and_says_what_to_do(tmp_path):
    with pytest.raises(SepNormError, match=f"{PATIENCE} steps in a row, up to step {PATIENCE},.*lower learning_rate"):
        train(Model(), steps(set(range(40))), tmp_path / "run")


def test_good_steps_between_bad_ones_start_the_count_anew():
    model, guard = Model(), Guard()
    for number in range(4 * PATIENCE):
        guard.begin(model)
        loss = model(torch.full((4, 3, 8), torch.nan if number % 2 else 1.0))["loss"]
        loss.backward()
        assert guard.allows(model, [loss.detach()], number, lambda: "these") == (number % 2 == 0)
