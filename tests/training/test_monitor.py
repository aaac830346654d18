from __future__ import annotations

import random
import warnings

import numpy
import pytest
import torch
import transformers as T
from models import BERT, bert, sentences
from torch import nn

import sepnorm
from sepnorm import Limits, Monitor, SepNormError
from sepnorm.errors import CollapseWarning
from sepnorm.geometry import summary
from sepnorm.training.monitor_figures import figures_of


def a_model() -> nn.Module:
    model = T.BertModel(T.BertConfig(**BERT))  # with dropout
    sepnorm.convert(model, "bn+ln", sites="final")
    return model.train()


def train(model: nn.Module, monitor: Monitor | None, steps: int = 6) -> list[torch.Tensor]:
    """Steps that draw random numbers of torch, NumPy and Python; gives all weights and statistics."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        batch = sentences(8)
        loss = model(**batch).last_hidden_state[:, 0].square().sum() * (random.random() + numpy.random.rand())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(step)
    return [value.clone() for value in model.state_dict().values()]


def seeded() -> None:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)


def test_a_loop_is_the_same_to_the_bit_with_and_without_it():
    found = []
    for watched in (False, True):
        seeded()
        model = a_model()
        batch = {name: value.clone() for name, value in sentences(16).items()}
        monitor = Monitor(model, batch, every=2) if watched else None
        found.append((train(model, monitor), torch.rand(3), random.random(), numpy.random.rand()))
        assert all(module.training for module in model.modules())
    (plain, *draws), (watched, *others) = found
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(draws[0], others[0]) and draws[1:] == others[1:]
    assert [reading.step for reading in monitor.history] == [2, 4, 6]


def test_buffers_that_evaluation_changes_are_put_back():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x @ self.weight + torch.rand(())

    model = Counting()
    state = torch.get_rng_state()
    Monitor(model, torch.randn(10, 3, 4)).read(0)
    assert model.calls == 0 and not torch.equal(state, torch.zeros_like(state))


def test_figures_are_those_of_geometry():
    rows = torch.randn(200, 12) + 1
    found, expected = figures_of(rows), summary(rows)
    assert found["mean_cosine"] == pytest.approx(expected.mean_cosine)
    assert found["uniformity"] == pytest.approx(expected.uniformity)
    assert found["effective_rank"] == pytest.approx(expected.effective_rank)
    assert found["effective_rank_centered"] == pytest.approx(expected.effective_rank_centered)
    assert found["alpha_req"] == pytest.approx(expected.alpha_req)
    assert found["rank_share"] == pytest.approx(expected.effective_rank_centered / 12)
    rows[:, :3] = 2
    assert figures_of(rows)["dead"] == 0.25


def test_cls_and_mean_leave_padding_out_and_drift_is_that_of_inspect():
    model = a_model().eval()
    batch = sentences(16)
    monitor = Monitor(model, batch)
    found = monitor.measure()
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    kept = [row[mask.bool()].mean(0) for row, mask in zip(hidden, batch["attention_mask"], strict=True)]
    assert found["cls_mean_cosine"] == pytest.approx(figures_of(hidden[:, 0])["mean_cosine"])
    assert found["mean_uniformity"] == pytest.approx(figures_of(torch.stack(kept))["uniformity"], abs=1e-4)
    final = [site for site in sepnorm.inspect(model, [batch]).sites if site.norm == "bn+ln"]
    assert found["drift"] == pytest.approx(final[0].discrepancy, rel=1e-3)
    assert "drift" not in Monitor(bert(), batch).measure()


def readings(monitor: Monitor, *pairs: tuple[float, float]) -> list[bool]:
    found = []
    for cosine, share in pairs:
        figures = {"cls_mean_cosine": cosine, "cls_rank_share": share, "cls_effective_rank_centered": 1.0}
        monitor.measure = lambda figures=figures: figures
        found.append(monitor.read(len(found)).collapsed)
    return found


def test_collapse_is_told_once_and_anew_only_after_recovery():
    monitor = Monitor(
        bert(), sentences(), limits=Limits(cosine=0.9, cosine_recovered=0.7, rank=0.1, rank_recovered=0.2)
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        states = readings(
            monitor,
            (0.5, 0.5),
            (0.95, 0.5),  # one reading is not enough
            (0.5, 0.5),
            (0.95, 0.5),
            (0.95, 0.5),  # two in a row
            (0.8, 0.5),  # between the limits
            (0.95, 0.5),
            (0.6, 0.15),  # of the rank, between the limits
            (0.6, 0.5),  # recovered
            (0.2, 0.05),
            (0.2, 0.05),
        )
    assert states == [False, False, False, False, True, True, True, True, False, False, True]
    assert [warning.category for warning in told] == [CollapseWarning] * 2
    assert "[CLS] collapses" in str(told[0].message) and not monitor.stopped


def test_a_new_model_has_time_to_become_healthy():
    for first, expected in (((1.0, 0.5), 7), ((0.5, 0.5), 3)):  # alike from the start, or healthy once
        monitor = Monitor(bert(), sentences(), on_collapse="nothing")
        states = readings(monitor, first, *[(1.0, 0.5)] * 7)
        assert states.index(True) + 1 == expected


def test_stop_and_nothing():
    for action, stopped in (("stop", True), ("nothing", False)):
        saved: list[int] = []
        monitor = Monitor(bert(), sentences(), on_collapse=action, save=saved.append)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if action == "stop" else "error")
            readings(monitor, (0.5, 0.5), (1.0, 0.5), (float("nan"), 0.5), (1.0, 0.5))
        assert saved == [2] * stopped  # once, when it stops
        assert monitor.stopped is stopped and monitor.collapsed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (dict(every=0), "every is a whole number, at least 1"),
        (dict(on_collapse="halt"), "unknown action on collapse 'halt'"),
        (dict(limits=None, batch=torch.randn(2, 3)), "could not be called with this batch"),
        (
            dict(batch={"input_ids": torch.full((1, 5), 3)}),
            "at least two per batch, found vectors of shape \\(1, 16\\)",
        ),
        (dict(model=nn.Linear(4, 4), batch=torch.randn(5, 4)), "returns a tensor of shape .*, not hidden states"),
        (dict(model="bert"), "a model is a torch module"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(arguments, said):
    given = dict(model=bert(), batch=sentences()) | arguments
    with pytest.raises(SepNormError, match=said):
        Monitor(given.pop("model"), given.pop("batch"), **given).read(1)
    with pytest.raises(SepNormError, match="recovery must be healthier than collapse"):
        Limits(cosine=0.9, cosine_recovered=0.95)


class Texts(torch.utils.data.Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(5, 60, (64, 9), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[number], "labels": self.rows[number, 1] % 2}


def hf_trainer(folder, watched: bool, **options):
    torch.manual_seed(0)
    model = T.BertForSequenceClassification(T.BertConfig(**BERT, num_labels=2))
    sepnorm.convert(model, "bn+ln", sites="final")
    arguments = T.TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=2,
    )
    trainer = T.Trainer(model=model, args=arguments, train_dataset=Texts())
    monitor = Monitor(model.bert, {"input_ids": Texts().rows[:16]}, every=2, **options)
    if watched:
        monitor.attach(trainer)
    return trainer, monitor


def test_the_trainer_of_transformers_trains_the_same_and_logs_the_readings(tmp_path):
    states = []
    for watched in (False, True):
        trainer, monitor = hf_trainer(tmp_path / str(watched), watched)
        trainer.train()
        states.append([value.clone() for value in trainer.model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    logged = [entry for entry in trainer.state.log_history if "cls_uniformity" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6]
    assert logged[-1]["cls_uniformity"] == monitor.history[-1].figures["cls_uniformity"]


def test_a_collapse_stops_the_trainer_with_a_checkpoint(tmp_path):
    limits = Limits(cosine=-1, cosine_recovered=-1, grace=0)  # anything is a collapse
    trainer, monitor = hf_trainer(tmp_path, True, on_collapse="stop", limits=limits)
    with pytest.warns(CollapseWarning):
        trainer.train()
    assert trainer.state.global_step == 4 and monitor.stopped
    assert (tmp_path / "checkpoint-4/model.safetensors").is_file()


def test_given_as_a_callback_it_keeps_readings_in_the_log(tmp_path):
    trainer, monitor = hf_trainer(tmp_path, False)
    trainer.add_callback(monitor)
    trainer.train()
    assert [e["step"] for e in trainer.state.log_history if "cls_uniformity" in e] == [2, 4, 6]


def test_the_trainer_of_sentence_transformers_trains_the_same(tmp_path):
    from datasets import Dataset
    from models import text_model
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    text_model(tmp_path / "model")
    texts = [f"the cat {i % 10} sat on mat {i % 7} and dog {i % 3}" for i in range(32)]
    states = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=8,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
            loss=MultipleNegativesRankingLoss(model),
        )
        if watched:
            monitor = Monitor(model, texts[:16], every=2).attach(trainer)
        trainer.train()
        states.append([value.clone() for value in model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert [reading.step for reading in monitor.history] == [2, 4]
    assert monitor.history[0].figures["cls_effective_rank"] > 1


def test_lightning_calls_it_by_its_hooks():
    class Logger:
        def __init__(self) -> None:
            self.lines: list[tuple[int, float]] = []

        def log_metrics(self, metrics, step):
            self.lines.append((step, metrics["cls_uniformity"]))

    class Trainer:
        global_step, should_stop, saved = 0, False, None

        def __init__(self) -> None:
            self.loggers = [Logger()]

        def save_checkpoint(self, path):
            self.saved = path

    model, trainer = bert(), Trainer()
    monitor = Monitor(
        model, sentences(12), every=2, on_collapse="stop", save="last.ckpt", limits=Limits(-1, 0, -1, 0, grace=0)
    )
    monitor.setup(trainer, model, stage="fit")
    monitor.on_train_start(trainer, model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for batch in range(8):  # two batches are a step
            trainer.global_step = (batch + 1) // 2
            monitor.on_train_batch_end(trainer, model, None, None, batch)
            monitor.on_before_zero_grad(trainer, model, None)
    assert [each.category for each in told] == [CollapseWarning]
    assert [step for step, _ in trainer.loggers[0].lines] == [0, 2, 4]
    assert trainer.should_stop and trainer.saved == "last.ckpt"
    again = Monitor(model, sentences(12))
    again.load_state_dict(monitor.state_dict())
    assert again.history == monitor.history and again.collapsed
    assert monitor.state_key == "Monitor"
    with pytest.raises(AttributeError, match="no attribute 'on_nothing'"):
        _ = monitor.on_nothing


def test_a_collapsing_run_is_warned_of_before_its_probe_has_lost_half():
    """[CLS] of two classes is drawn together by its loss; the monitor sees it while a nearest-mean probe still reads it."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 4
    batch = sentences(64, padded=False)
    batch["input_ids"][:, 1:5] = 10 + labels[:, None]  # what the class is told by
    model = bert()
    monitor = Monitor(model, batch, every=1, limits=Limits())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def probe() -> float:
        """Accuracy above chance of the nearest class mean in units that rounding limits."""
        with torch.no_grad():
            rows = model.eval()(**batch).last_hidden_state[:, 0].half().float()
        means = torch.stack([rows[:32][labels[:32] == k].mean(0) for k in range(4)])
        return float((torch.cdist(rows[32:], means).argmin(1) == labels[32:]).float().mean()) - 0.25

    first = probe()
    assert not monitor.read(0).collapsed
    told_at = lost_at = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(1, 100):
            cls = model.train()(**batch).last_hidden_state[:, 0]
            loss = (cls - cls.mean(0)).square().sum()  # a uniformity term of the wrong sign
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(step)
            told_at = told_at or (step if monitor.collapsed else None)
            lost_at = lost_at or (step if probe() < first / 2 else None)
            if told_at and lost_at:
                break
    assert first > 0.5 and told_at is not None
    assert lost_at is None or told_at < lost_at


def test_what_lightning_puts_on_a_callback_is_not_called():
    """Lightning sets ``log`` and ``log_dict`` of every callback to those of its module."""
    lines = []
    monitor = sepnorm.Monitor(bert(), sentences(8), every=1, log=lambda figures, step: lines.append(step))

    def of_the_module(name, value):
        raise AssertionError("not for the monitor")

    monitor.log = monitor.log_dict = of_the_module
    monitor.step(1)
    assert lines == [1]
