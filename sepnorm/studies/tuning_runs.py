"""One run of the study of tuning: one method, task and seed, trained and scored on parts of a classification set."""

from __future__ import annotations

import copy
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sepnorm.domains.linear_heads import Rows
from sepnorm.domains.logistic import fit_classes
from sepnorm.domains.probes import STRENGTHS
from sepnorm.domains.text.classification import Classification
from sepnorm.domains.text.config import PRESETS
from sepnorm.domains.text.sets import load_sets
from sepnorm.domains.text.starting import Start, open_start
from sepnorm.domains.text.tokens import Tokens
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.experiment.runs import Outcome
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.saving import safetensors
from sepnorm.training.configs import ArmConfig
from sepnorm.training.trainer import Report
from sepnorm.tuning import tune_special

TASKS = ("mr", "sst2", "trec")
#: Learning rates to try on development data, by method. Full fine-tuning comes first, as the baseline.
RATES: dict[str, tuple[float, ...]] = {
    "full": (3e-5, 1e-4, 3e-4),
    "linear": (),
    "pasta": (3e-3, 1e-2, 3e-2),
    "cls-norm": (3e-3, 1e-2, 3e-2),
    "lora": (3e-3, 1e-2, 3e-2),
    "ln-tuning": (3e-3, 1e-2, 3e-2),
}
_EVALUATED = 64  # samples at a time
_REPORTED = 20  # steps between reports
_TIMED = 4  # steps that are timed; the fastest counts
_DRAWN_FROM = 20_000  # texts from which seeds draw their training texts
_POOL = 8  # batches whose samples are sorted by length together


class TuningConfig(ArmConfig):
    """The settings of a run."""

    data: str = ""  # table or folder with MR, SST2 and TREC; empty for the Hub
    task: Literal["mr", "sst2", "trec"] = "mr"
    method: Literal["full", "linear", "pasta", "cls-norm", "lora", "ln-tuning"] = "full"
    model: str = "minilm"  # text encoder with [CLS]
    steps: int = Field(120, gt=0)  # of training; no sample occurs twice
    batch_size: int = Field(32, gt=1)  # samples in a step
    length: int = Field(40, gt=4)  # largest number of tokens of a text
    learning_rate: float = Field(0.0, ge=0)  # of the tuned parameters; chosen on development data
    head_learning_rate: float = Field(1e-3, gt=0)  # of the head, or learning_rate if that is higher
    held_out: int = Field(500, gt=1)  # largest number of development samples
    tested: int = Field(2000, gt=1)  # largest number of test samples
    choosing: bool = False  # whether the run tries a learning rate and is scored on development data
    device: Literal["cpu"] = "cpu"
    threads: int = Field(1, ge=0)

    @property
    def arm(self) -> str:
        """The method, with the learning rate if rates are compared."""
        return f"{self.method} {self.learning_rate:g}" if self.choosing else self.method


class Classifier(nn.Module):
    """An encoder with a linear head on [CLS]."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, **batch: Tensor) -> Tensor:
        return self.head(self.encoder(**batch).last_hidden_state[:, 0])


class TuningRecipe:
    """The texts of one task as tokens, in three parts, and the encoder that every run starts from."""

    def __init__(self, base: TuningConfig) -> None:
        found = load_sets([base.task], base.data or None)[base.task]
        assert isinstance(found, Classification)
        self.start = _start(base)
        texts, labels, self.parts = _parted(found, base)
        self.classes = sorted(set(labels))
        self.labels = torch.tensor([self.classes.index(label) for label in labels])
        self.tokens = Tokens(self.start.tokenizer, texts, base.length)
        for name in ("validation", "test"):
            self.parts[name] = self._by_length(self.parts[name])

    def run(self, config: TuningConfig, folder: Path, report: Report | None) -> Outcome:
        torch.manual_seed(config.seed)
        order = self.parts["train"][torch.randperm(len(self.parts["train"]))][: config.steps * config.batch_size]
        model, _ = self.start.fresh(PRESETS["demo"])
        scored = self.parts["validation" if config.choosing else "test"]
        if config.method == "linear":
            head = nn.Linear(model.config.hidden_size, len(self.classes))
            return _outcome(self._probe(model, order, scored), 0, file_size(head), None)
        classifier, tuned, quickest = self.train(model, config, order, report)
        classifier.eval()
        with torch.no_grad():
            parts = [classifier(**self.tokens.batch(rows)).argmax(1) for rows in scored.split(_EVALUATED)]
        accuracy = float((torch.cat(parts) == self.labels[scored]).double().mean())
        return _outcome(accuracy, tuned, file_size(classifier), quickest)

    def _probe(self, model: Any, train: Tensor, scored: Tensor) -> float:
        """Accuracy of a logistic regression on frozen [CLS], with the penalty chosen on development data."""
        chosen_on = self.parts["validation"]
        train = self._by_length(train)
        train_rows, dev_rows, test_rows = (self._cls(model, rows) for rows in (train, chosen_on, scored))
        rows = Rows(train_rows)
        present, labels = self.labels[train].unique(return_inverse=True)  # a rare class may be missing
        heads = fit_classes(rows, labels, torch.stack([rows.overall_scale()] * len(STRENGTHS)), STRENGTHS)
        right = (present[heads.outputs(dev_rows).argmax(2)] == self.labels[chosen_on][:, None]).sum(0).tolist()
        best = right.index(max(right))  # the stronger penalty of equal ones
        return float((present[heads.outputs(test_rows).argmax(2)[:, best]] == self.labels[scored]).double().mean())

    def _cls(self, model: Any, rows: Tensor) -> Tensor:
        model.eval()
        with torch.no_grad():
            parts = [model(**self.tokens.batch(some)).last_hidden_state[:, 0] for some in rows.split(_EVALUATED)]
        return torch.cat(parts)

    def train(
        self, encoder: Any, config: TuningConfig, order: Tensor, report: Report | None
    ) -> tuple[nn.Module, int, float]:
        """The trained classifier, its number of trained parameters beside the head, and seconds of the fastest step."""
        model = Classifier(encoder, encoder.config.hidden_size, len(self.classes))
        tuned = prepare(model, config.method, self.start.tokenizer)
        groups = [
            {"params": tuned, "lr": config.learning_rate},
            {"params": list(model.head.parameters()), "lr": max(config.learning_rate, config.head_learning_rate)},
        ]
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        model.train()
        batches = self._batches(order, config.batch_size)
        begun = time.perf_counter()
        for step, rows in enumerate(batches, 1):
            loss = self._step(model, optimizer, rows)
            if report is not None and (step % _REPORTED == 0 or step == len(batches)):
                report(step, len(batches), loss, step / (time.perf_counter() - begun))
        timed = order[: config.batch_size]
        copied, again = copy.deepcopy((model, optimizer))  # the timed steps are not part of the training
        seconds = []
        for _ in range(_TIMED):
            start = time.perf_counter()
            self._step(copied, again, timed)
            seconds.append(time.perf_counter() - start)
        return model, sum(p.numel() for p in tuned), min(seconds)

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> float:
        loss = F.cross_entropy(model(**self.tokens.batch(rows)), self.labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def _by_length(self, rows: Tensor) -> Tensor:
        return rows[self.tokens.lengths[rows].argsort()]

    def _batches(self, order: Tensor, size: int) -> list[Tensor]:
        """Batches of samples of similar length, in random order."""
        found: list[Tensor] = []
        for pool in order.split(_POOL * size):
            found += list(self._by_length(pool).split(size))
        return [found[i] for i in torch.randperm(len(found)).tolist()]


def _outcome(accuracy: float, tuned: int, size: int, quickest: float | None) -> Outcome:
    metrics = {"accuracy": accuracy, "tuned_parameters": float(tuned), "bytes": float(size)}
    if quickest is not None:
        metrics["seconds_a_step"] = quickest
    return Outcome(metrics, [], {}, lambda place: place.mkdir(parents=True, exist_ok=True))


def file_size(model: nn.Module) -> int:
    """Bytes of a safetensors file of what is trained, the head included."""
    trained = {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    return len(safetensors().save(trained))


def seconds_a_step(base: TuningConfig, method: str) -> float:
    """Seconds of a training step on made-up texts of half the largest length, as most texts are shorter."""
    start = _start(base)
    encoder, _ = start.fresh(PRESETS["demo"])
    model = Classifier(encoder, encoder.config.hidden_size, 2).train()
    prepare(model, method, start.tokenizer)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0.0)
    ids = torch.randint(len(start.tokenizer), (base.batch_size, max(2, base.length // 2)))
    ids[:, 0], ids[:, -1] = start.tokenizer.cls_token_id, start.tokenizer.sep_token_id
    seconds = []
    for _ in range(_TIMED):
        begun = time.perf_counter()
        F.cross_entropy(model(input_ids=ids), ids[:, 0] * 0).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _start(base: TuningConfig) -> Start:
    return open_start(PRESETS["demo"].changed({"model": base.model, "length": base.length}), [])


def _parted(task: Classification, base: TuningConfig) -> tuple[list[str], list[str], dict[str, Tensor]]:
    """Texts, labels, and indices for training, development and test, the same for every seed.

    A tenth of a set without a split is for testing. Without development data, some training data are used instead.
    """
    texts = [text for part in task.parts.values() for text in part.first]
    labels = [label for part in task.parts.values() for label in part.labels]
    ends = torch.tensor([len(part.labels) for part in task.parts.values()]).cumsum(0).tolist()
    numbers = {
        name: torch.arange(end - len(part.labels), end)
        for (name, part), end in zip(task.parts.items(), ends, strict=True)
    }
    draw = torch.Generator().manual_seed(0)
    if "all" in numbers:
        mixed = numbers.pop("all")[torch.randperm(ends[-1], generator=draw)]
        numbers |= {"test": mixed[: len(mixed) // 10], "train": mixed[len(mixed) // 10 :]}
    if "validation" not in numbers:
        mixed = numbers["train"][torch.randperm(len(numbers["train"]), generator=draw)]
        numbers |= {"validation": mixed[: base.held_out], "train": mixed[base.held_out :]}
    wanted = base.steps * base.batch_size
    if len(numbers["train"]) < wanted:
        raise SepNormError(
            f"{base.steps} steps of {base.batch_size} need {wanted:,} texts to train on, and {base.task} has "
            f"{len(numbers['train']):,}: lower steps."
        )
    for name, most in (("validation", base.held_out), ("test", base.tested), ("train", max(_DRAWN_FROM, wanted))):
        numbers[name] = numbers[name][torch.randperm(len(numbers[name]), generator=draw)[:most]]
    kept = torch.cat(list(numbers.values())).tolist()
    starts = torch.tensor([0, *map(len, numbers.values())]).cumsum(0).tolist()
    parts = {
        name: torch.arange(start, start + len(numbers[name])) for name, start in zip(numbers, starts, strict=False)
    }
    return [texts[i] for i in kept], [labels[i] for i in kept], parts


def prepare(model: Classifier, method: str, tokenizer: Any) -> list[nn.Parameter]:
    """Freezes what a method does not train, and returns the parameters that it trains beside the head."""
    if method == "pasta":
        tune_special(model, ("cls", "sep"), tokenizer=tokenizer)
    elif method == "cls-norm":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SepNormWarning)
            convert(model, "ln+ln", sites="all")
        tune_special(model, train="cls_norm")
    elif method in ("lora", "ln-tuning"):
        _adapt(model, method)
    own = {id(p) for p in model.head.parameters()}
    return [p for p in model.parameters() if p.requires_grad and id(p) not in own]


def _adapt(model: Classifier, method: str) -> None:
    """Adds peft adapters: LoRA of rank 1 on queries and values, or tuning of every LayerNorm."""
    peft = require_peft()
    if method == "lora":
        settings = peft.LoraConfig(r=1, lora_alpha=1, target_modules=["query", "value"])
    else:
        norms = sorted(
            {path.rpartition(".")[2] for path, m in model.encoder.named_modules() if isinstance(m, nn.LayerNorm)}
        )
        settings = peft.LNTuningConfig(target_modules=norms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns that it does not know LayerNorm
        model.encoder = peft.get_peft_model(model.encoder, settings)


def require_peft() -> Any:
    """Imports peft, which only this study needs."""
    try:
        import peft
    except ImportError as error:
        raise SepNormError(
            "the study of tuning compares with LoRA and LN tuning of peft: pip install 'sepnorm[tuning]'."
        ) from error
    return peft
