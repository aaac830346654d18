"""Typed settings of a run: presets, changes by key=value, and refusal of what is unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sepnorm.errors import SepNormError, require_known
from sepnorm.training.notation import check_sites, norm_name, parse_arm

__all__ = ["ArmConfig", "RunConfig", "build", "check_keys", "parse_arm", "parse_changes", "preset"]


class ArmConfig(BaseModel):
    """What tells the arms and runs of a comparison apart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str  # a file, a folder, or a name of datasets or of data that is packaged
    norm: str = "ln"  # as bn+ln, that of [CLS] first; ln is what a model has
    sites: str = "final"  # which norms are replaced: all, final, blocks, degenerate, or a pattern of paths
    num_cls: int = Field(1, ge=1)  # how many leading tokens have the norm of [CLS]
    momentum: float = Field(0.1, gt=0, le=1)  # of the running statistics of batch norms
    seed: int = Field(0, ge=0, lt=2**31)  # of weights, order, crops and masks
    varies: Literal["all", "weights", "order"] = "all"  # what seeds change: the rest is that of seed 0
    uniformity_weight: float = Field(0.0, ge=0)  # lambda of the paper
    uniformity_form: Literal["squared", "inner"] = "squared"  # of U-MAE's code, or the paper's inner product
    uniformity_on: Literal["cls", "tokens", "both"] = "cls"  # what is spread
    uniformity_within: Literal["batch", "sample"] = "batch"  # which tokens are pushed apart
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = (
        "auto"  # the fastest; of several GPUs CUDA_VISIBLE_DEVICES chooses
    )
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # bf16 where a GPU is good at it, or always, or never
    threads: int = Field(0, ge=0)  # of a run without an accelerator, 0 for all; the last bits of a result depend on it

    @field_validator("norm")
    @classmethod
    def _known_norm(cls, value: str) -> str:
        return norm_name(value)

    @field_validator("sites")
    @classmethod
    def _known_sites(cls, value: str) -> str:
        return check_sites(value)

    @property
    def uses_batch(self) -> bool:
        """Whether its norms keep batch statistics."""
        from sepnorm.layer.kinds import NormSpec  # torch is not needed to read settings

        return NormSpec.parse(self.norm).uses_batch

    @property
    def weights_seed(self) -> int:
        """Of the first weights."""
        return 0 if self.varies == "order" else self.seed

    @property
    def order_seed(self) -> int:
        """Of order, crops, masks and dropout."""
        return 0 if self.varies == "weights" else self.seed

    @property
    def arm(self) -> str:
        """How the setting that is compared is called: norm, sites and lambda."""
        name = self.norm if self.norm == "ln" else f"{self.norm}@{self.sites}"
        if not self.uniformity_weight:
            return name
        form = "" if self.uniformity_form == "squared" else f",{self.uniformity_form}"
        return f"{name} λ={self.uniformity_weight:g} {self.uniformity_on}{form}"

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with other values; unknown keys and values that do not fit are refused."""
        return build(type(self), self.model_dump() | check_keys(type(self), changes))


class RunConfig(ArmConfig):
    """What every domain's run has. Each domain adds its own fields and presets."""

    epochs: int = Field(gt=0)  # times round the data
    max_steps: int | None = Field(None, gt=0)  # stop earlier
    batch_size: int = Field(gt=1)  # samples of a batch
    accumulation: int = Field(1, gt=0)  # batches before a step
    learning_rate: float = Field(gt=0)  # the highest, after the warm-up
    warmup: float = Field(0.1, ge=0, lt=1)  # share of the steps
    weight_decay: float = Field(0.05, ge=0)  # of AdamW, on weights alone
    adam_betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    clip: float = Field(0.0, ge=0)  # largest norm of the gradient; 0 for none
    checkpoints: int = Field(4, ge=0)  # how often a run is saved on its way
    monitor: int = Field(10, ge=0)  # how often [CLS] is measured on its way, on a fixed batch; 0 for never

    def steps_on(self, samples: int) -> int:
        """How many steps a run has on so many samples."""
        batches = self.epochs * max(1, samples // min(self.batch_size, samples))
        return min(math.ceil(batches / self.accumulation), self.max_steps or batches)


def build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """An object of a config class, with pydantic's complaints put in one sentence."""
    try:
        return cls(**values)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, SepNormError):
            raise cause from None
        key = ".".join(str(part) for part in first["loc"])
        where = f"{key}={first['input']!r}: " if key else ""
        raise SepNormError(f"{where}{first['msg'].removeprefix('Value error, ')}.") from None


def check_keys(cls: type[BaseModel], changes: Mapping[str, Any]) -> dict[str, Any]:
    known = cls.model_fields
    for key in changes:
        require_known("setting", key, known)
    return dict(changes)


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """``["width=64", "norm=bn+ln"]`` as a dictionary; values are read as JSON where they are JSON."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SepNormError(f"a setting is written key=value, found {pair!r}.")
        try:
            found[key.strip()] = json.loads(value)
        except ValueError:
            found[key.strip()] = value
    return found


def preset(presets: Mapping[str, Any], name: str) -> Any:
    return presets[require_known("preset", name, presets)]
