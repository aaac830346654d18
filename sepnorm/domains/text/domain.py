"""Text: SimCSE on sentences, rated pairs (STS) and transfer tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sepnorm.domains import Domain, Look, Metric, Metrics
from sepnorm.domains.text.config import PRESETS, TextConfig
from sepnorm.experiment.metrics import GEOMETRY, LOSS
from sepnorm.training.notation import SITES

if TYPE_CHECKING:
    from torch import nn

    from sepnorm.domains.encoders import Encoder
    from sepnorm.domains.evaluation import Evaluation, Task
    from sepnorm.domains.text.recipe import TextRecipe
    from sepnorm.experiment.comparison import Arm
    from sepnorm.report.page import Section

METRICS = Metrics(
    [
        Metric("cls_sts_average", "[CLS] STS", True, primary=True, beside="mean_sts_average"),
        Metric("mean_sts_average", "mean STS", True),
        Metric("moments_sts_average", "moments STS", True),
        Metric("cls_transfer_average", "[CLS] transfer", True, primary=True),
        Metric("cls_sts_before", "[CLS] STS before training", True),
        Metric("development", "development set", True),
        Metric("cls_*", "[CLS] {}", True),
        *GEOMETRY,
        LOSS,
        Metric("cls_sts_centred", "[CLS] STS, centred", True, shown=False),
        Metric("cls_sts_whitened", "[CLS] STS, whitened", True, shown=False),
        Metric("mean_transfer_average", "mean transfer", True, shown=False),
        Metric("moments_transfer_average", "moments transfer", True, shown=False),
        Metric("mean_sts_before", "mean STS before training", True, shown=False),
        Metric("mean_sts_centred", "mean STS, centred", True, shown=False),
        Metric("mean_sts_whitened", "mean STS, whitened", True, shown=False),
        Metric("mean_*", "mean {}", True, shown=False),
        Metric("moments_*", "moments {}", True, shown=False),
    ]
)


class Text(Domain):
    name = "text"
    presets = PRESETS
    arms = "ln,bn@final,bn+ln@final"
    metrics = METRICS

    def look(self, config: TextConfig) -> Look:
        from sepnorm.domains.text.look import look_at

        return look_at(config)

    def check(self, configs: Sequence[TextConfig]) -> None:
        """Checks a model that the user named: it may have no [CLS], or other norms than BERT."""
        from sepnorm.domains.text.starting import check_norms

        if any(config.norm != "ln" and (config.model != "minilm" or config.sites not in SITES) for config in configs):
            check_norms(configs)

    def recipe(self, config: TextConfig) -> TextRecipe:
        from sepnorm.domains.text.recipe import TextRecipe

        return TextRecipe(config)

    def wrap(self, target: str, model: Any, source: Path) -> Encoder | None:
        from sepnorm.domains.text.encoder import wrap

        return wrap(target, model, source)

    def evaluate(self, encoder: Any, task: Task) -> Evaluation:
        from sepnorm.domains.text.evaluation import evaluate

        return evaluate(encoder, task)

    def trial(self, config: TextConfig) -> tuple[nn.Module, Callable[[int], dict[str, Any]]]:
        from sepnorm.domains.text.model import SimCSE, made_up_batch
        from sepnorm.domains.text.starting import encoder_of_size

        encoder = encoder_of_size(config)
        return SimCSE(encoder, config), lambda count: made_up_batch(config, count, encoder.config.vocab_size)

    def next_commands(self, folder: Path, config: TextConfig) -> list[str]:
        model, vectors = quote(str(folder / "model")), quote(str(folder / "embeddings.npz"))
        return [f"evaluate {model} --on sts --data FOLDER", f"diagnose {vectors}", f"export {model} --out model.onnx"]

    def sections(self, arms: Sequence[Arm], seed: int) -> list[Section]:
        from sepnorm.domains.text.sections import SECTIONS

        made = (make(arms, seed) for make in SECTIONS)
        return [section for section in made if section is not None]


DOMAIN = Text()
