"""sentence-transformers: ``save``, the trainer's checkpoints, resumed training, the best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from client import Case, Out

SENTENCES = ["the cat sat on the mat", "a dog and a cat", "number 1 2 3", "the dog sat on a b c"]


def _model(folder: Path) -> Any:
    """A sentence encoder that pools by [CLS], converted and calibrated."""
    import models
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    import sepnorm

    torch.manual_seed(0)
    models.text_model(folder / "words")
    words = modules.Transformer(str(folder / "words"))
    model = SentenceTransformer(modules=[words, modules.Pooling(16, "cls")], device="cpu")
    sepnorm.convert(model, "bn+ln", calibrate=[SENTENCES, SENTENCES[:3]])
    return model


def _encoded(model: Any) -> Out:
    return lambda batch: model.encode(SENTENCES, convert_to_tensor=True)


def _trainer(folder: Path, model: Any, **options: Any) -> Any:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rows = Dataset.from_dict({"anchor": SENTENCES * 10, "positive": SENTENCES[1:] * 10 + SENTENCES[:1] * 10})
    arguments = SentenceTransformerTrainingArguments(
        str(folder / "run"), max_steps=10, per_device_train_batch_size=4, learning_rate=1e-2, save_steps=5, use_cpu=True,
        report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    return SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=rows,
        eval_dataset=rows.select(range(8)),
        loss=MultipleNegativesRankingLoss(model),
    )


def save(folder: Path) -> Out:
    model = _model(folder)
    _trainer(folder, model).train()
    model.save(str(folder / "saved"))
    return _encoded(model)


def by_name(folder: Path) -> Out:
    from sentence_transformers import SentenceTransformer

    return _encoded(SentenceTransformer(str(folder / "saved"), device="cpu"))


def resumed(folder: Path) -> Out:
    """Goes on from the fifth step of ten, in a converted model that was built anew."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder / "run/checkpoint-5"), device="cpu")
    _trainer(folder, model).train(resume_from_checkpoint=str(folder / "run/checkpoint-5"))
    return _encoded(model)


def best(folder: Path) -> Out:
    """The trainer says that the model of the fifth step is the best, and has it at the end."""
    model = _model(folder)
    found = _trainer(folder, model, eval_strategy="steps", eval_steps=5, load_best_model_at_end=True)
    losses = iter((1.0, 2.0))
    found.evaluation_loop = lambda *a, **k: _evaluated(next(losses))
    found.train()
    assert found.state.best_model_checkpoint.endswith("checkpoint-5")
    return _encoded(model)


def _evaluated(loss: float) -> Any:
    from transformers.trainer_utils import EvalLoopOutput

    return EvalLoopOutput(predictions=None, label_ids=None, metrics={"eval_loss": loss}, num_samples=8)


def best_checkpoint(folder: Path) -> Out:
    from sentence_transformers import SentenceTransformer

    return _encoded(SentenceTransformer(str(folder / "run/checkpoint-5"), device="cpu"))


CASES = {
    "save, SentenceTransformer": Case(save, by_name),
    "trainer, resumed": Case(save, resumed),
    "trainer, best model at the end": Case(best, best_checkpoint),
}
