"""Typed settings of a run: config classes, ``key=value`` changes and presets. Unknown keys are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sepnorm.errors import SepNormError, require_known
from sepnorm.training.notation import check_sites, norm_name, parse_arm

__all__ = ["ArmConfig", "RunConfig", "arm_names", "build", "check_keys", "parse_arm", "parse_changes", "preset"]


class ArmConfig(BaseModel):
    """Settings that differ between the arms and runs of a comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    incidental: ClassVar[frozenset[str]] = frozenset()  # settings that may differ when a run is continued or read
    foreign: ClassVar[bool] = False  # whether sepnorm knows the metrics of a run alone, and not how it was trained

    data: str  # file, folder, name of a Hugging Face dataset, or name of packaged data
    norm: str = "ln"  # norms, [CLS] first, then tokens, as bn+ln; ln leaves the model's layer norms
    sites: str = "final"  # norms to replace: final (the last), all, blocks, degenerate, or a pattern of module paths
    num_cls: int = Field(1, ge=1)  # number of leading tokens that are normalised as [CLS]
    momentum: float = Field(0.1, gt=0, le=1)  # weight of a new batch in the running statistics of batch norms
    components: int = Field(3, ge=1, le=1000)  # number of components of mixture norms (mix)
    seed: int = Field(0, ge=0, lt=2**31)  # seed of weights, order of samples, crops, masks and dropout
    varies: Literal["all", "weights", "order"] = "all"  # the seed changes all, weights or order; the rest uses seed 0
    uniformity_weight: float = Field(0.0, ge=0)  # weight of the uniformity loss, lambda in the paper
    uniformity_form: Literal["squared", "inner"] = "squared"  # squared (U-MAE's code) or inner (product, the paper)
    uniformity_on: Literal["cls", "tokens", "both"] = "cls"  # cls, tokens or both: what the uniformity loss spreads
    uniformity_within: Literal["batch", "sample"] = "batch"  # batch or sample: within which tokens are spread
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = (
        "auto"  # auto (the fastest), cpu, cuda, mps or xpu; CUDA_VISIBLE_DEVICES selects a GPU
    )
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto (bf16 on NVIDIA GPUs that have it), fp32 or bf16
    threads: int = Field(0, ge=0)  # CPU threads of a run, 0 for all; the last bits of results depend on it

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
        """Whether a norm of this config keeps batch statistics."""
        from sepnorm.layer.kinds import NormSpec  # here, since reading settings must not import torch

        return NormSpec.parse(self.norm).uses_batch

    @property
    def weights_seed(self) -> int:
        """Seed of the initial weights."""
        return 0 if self.varies == "order" else self.seed

    @property
    def order_seed(self) -> int:
        """Seed of sample order, crops, masks and dropout."""
        return 0 if self.varies == "weights" else self.seed

    @property
    def arm(self) -> str:
        """Name of the arm: norm, sites and weight of the uniformity loss."""
        name = self.norm if self.norm == "ln" else f"{self.norm}@{self.sites}"
        if not self.uniformity_weight:
            return name
        form = "" if self.uniformity_form == "squared" else f",{self.uniformity_form}"
        return f"{name} λ={self.uniformity_weight:g} {self.uniformity_on}{form}"

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with changed values. Raises ``SepNormError`` for unknown keys and invalid values."""
        return build(type(self), self.model_dump() | check_keys(type(self), changes))


class RunConfig(ArmConfig):
    """Settings of every training run. Each domain adds its own fields and presets."""

    epochs: int = Field(gt=0)  # passes over the training data
    max_steps: int | None = Field(None, gt=0)  # optimizer steps after which training stops, if epochs take longer
    batch_size: int = Field(gt=1)  # samples in a batch, over all processes
    accumulation: int = Field(1, gt=0)  # batches in an optimizer step
    statistics: Literal["batch", "step"] = (
        "batch"  # batch or step: normalise [CLS] over each batch, or over all batches of an optimizer step
    )
    learning_rate: float = Field(gt=0)  # highest value, reached after the warm-up
    warmup: float = Field(0.1, ge=0, lt=1)  # share of the steps in which the learning rate rises
    weight_decay: float = Field(0.05, ge=0)  # of AdamW, on weight matrices only
    adam_betas: tuple[float, float] = (0.9, 0.95)  # beta1 and beta2 of AdamW
    clip: float = Field(0.0, ge=0)  # largest norm of the gradient; 0 for no clipping
    checkpoints: int = Field(4, ge=0)  # number of checkpoints in the course of a run
    sharded: bool = (
        False  # spread weights, gradients and optimizer over processes (FSDP2), for models larger than a device
    )
    timeout: int = Field(600, gt=0)  # seconds that processes wait for each other before they stop
    monitor: int = Field(10, ge=0)  # measurements of [CLS] in the course of a run, on a fixed batch; 0 for none

    @model_validator(mode="after")
    def _mixtures_see_single_batches(self) -> Self:
        if self.statistics == "step" and "mix" in self.norm.split("+"):
            raise SepNormError("a mixture is fitted to one batch at a time: statistics=step is for batch norms alone.")
        return self

    def steps_on(self, samples: int) -> int:
        """Number of optimizer steps of a run on ``samples`` samples."""
        batches = self.epochs * max(1, samples // min(self.batch_size, samples))
        return min(math.ceil(batches / self.accumulation), self.max_steps or batches)


def arm_names(configs: Sequence[ArmConfig]) -> list[str]:
    """Names of the arms of a comparison; two of the same name are refused."""
    names = [config.arm for config in configs]
    if len(set(names)) < len(names):
        raise SepNormError(f"arms must differ, found {', '.join(names)}.")
    return names


def build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Builds a config; pydantic's complaint becomes one sentence in a ``SepNormError``."""
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
    """Refuses keys that are no fields of ``cls``."""
    known = cls.model_fields
    for key in changes:
        require_known("setting", key, known)
    return dict(changes)


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """``["width=64", "norm=bn+ln"]`` as a dictionary. A value that is valid JSON is parsed; any other is a string."""
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
    """The preset of a name; an unknown name is refused."""
    return presets[require_known("preset", name, presets)]
