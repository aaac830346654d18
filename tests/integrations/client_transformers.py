"""transformers: ``save_pretrained``, the Trainer, Auto classes, pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from client import Case, Out, converted, hidden, train


def save_pretrained(folder: Path, norm: str = "bn+ln", sites: str = "all") -> Out:
    model: Any = converted(norm, sites)
    train(model)
    model.save_pretrained(folder)
    return hidden(model)


def frozen(folder: Path) -> Out:
    import sepnorm

    model: Any = converted()
    train(model)
    sepnorm.freeze(model)
    model.save_pretrained(folder)
    return hidden(model)


def auto_model(folder: Path) -> Out:
    from transformers import AutoModel

    return hidden(AutoModel.from_pretrained(folder))


def own_class(folder: Path) -> Out:
    from transformers import BertModel

    return hidden(BertModel.from_pretrained(folder))


def _trainer(folder: Path, model: Any, steps: int, **options: Any) -> Any:
    from models import sentences
    from transformers import Trainer, TrainingArguments

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss = model(**inputs).last_hidden_state[:, :3].square().mean()
            return (loss, None) if return_outputs else loss

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            with torch.no_grad():
                return self.compute_loss(model, inputs), None, None

    torch.manual_seed(1)
    rows = [{key: value[0] for key, value in sentences(1, padded=False).items()} for _ in range(40)]
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, save_steps=5, use_cpu=True,
        report_to=[], disable_tqdm=True, remove_unused_columns=False, **options,
    )  # fmt: skip
    return OwnLoss(model, arguments, train_dataset=rows, eval_dataset=rows[:8])


def trainer(folder: Path) -> Out:
    model = converted()
    _trainer(folder, model, 10).train()
    return hidden(model)


def checkpoint(folder: Path) -> Out:
    return auto_model(folder / "checkpoint-10")


def resumed(folder: Path) -> Out:
    """Goes on from the fifth step of ten, in a model that was loaded by the library."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder / "checkpoint-5")
    found = _trainer(folder, model, 10)
    found.train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    return hidden(model)


def best(folder: Path) -> Out:
    """Training that gets worse after its fifth step, so that the best model is not the last."""
    model = converted()
    options = dict(eval_strategy="steps", eval_steps=5, load_best_model_at_end=True, lr_scheduler_type="constant")
    found = _trainer(folder, model, 10, **options)
    losses = iter((1.0, 2.0))
    found.evaluation_loop = lambda *a, **k: _evaluated(next(losses))
    found.train()
    assert found.state.best_model_checkpoint.endswith("checkpoint-5")
    return hidden(model)


def _evaluated(loss: float) -> Any:
    from transformers.trainer_utils import EvalLoopOutput

    return EvalLoopOutput(predictions=None, label_ids=None, metrics={"eval_loss": loss}, num_samples=8)


def best_checkpoint(folder: Path) -> Out:
    return auto_model(folder / "checkpoint-5")


def with_head(folder: Path) -> Out:
    from transformers import AutoModelForMaskedLM

    base = folder / "base"
    save_pretrained(base)
    model = AutoModelForMaskedLM.from_pretrained(base)
    model.save_pretrained(folder)
    return hidden(model.bert)


def words(folder: Path) -> Out:
    """A model with its tokeniser, for a pipeline."""
    import models
    from transformers import AutoModel

    import sepnorm

    torch.manual_seed(0)
    models.text_model(folder)
    model = AutoModel.from_pretrained(folder)
    sepnorm.convert(model, "bn+ln", calibrate=[models.sentences() for _ in range(3)])
    model.save_pretrained(folder)
    return pipeline(folder, model=model)


def pipeline(folder: Path, model: Any = None) -> Out:
    import transformers

    pipe = transformers.pipeline("feature-extraction", model=model or str(folder), tokenizer=str(folder), device="cpu")
    return lambda batch: torch.tensor(pipe("the cat sat on the mat"))


CASES = {
    "save_pretrained, AutoModel": Case(save_pretrained, auto_model),
    "save_pretrained, a class of its own": Case(save_pretrained, own_class),
    "save_pretrained of bn+bn": Case(lambda folder: save_pretrained(folder, "bn+bn"), auto_model),
    "save_pretrained of a shared bn": Case(lambda folder: save_pretrained(folder, "bn"), auto_model),
    "save_pretrained after freeze": Case(frozen, auto_model),
    "saved with a head, loaded without": Case(with_head, auto_model),
    "Trainer, checkpoint": Case(trainer, checkpoint),
    "Trainer, resumed": Case(trainer, resumed),
    "Trainer, best model at the end": Case(best, best_checkpoint),
    "pipeline": Case(words, pipeline),
}
