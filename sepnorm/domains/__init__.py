"""Domains: what is trained on what, and how it is judged. Each is one object, found by its entry point ``sepnorm.domains``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from sepnorm.errors import SepNormError, one_line, require_known
from sepnorm.experiment.metrics import Metric, Metrics
from sepnorm.training.configs import RunConfig
from sepnorm.training.configs import preset as choose
from sepnorm.training.notation import SITES

if TYPE_CHECKING:
    from torch import nn

    from sepnorm.domains.encoders import Encoder
    from sepnorm.domains.evaluation import Evaluation, Task
    from sepnorm.experiment.comparison import Arm
    from sepnorm.experiment.runs import Recipe
    from sepnorm.report.page import Section

__all__ = ["Domain", "Look", "Metric", "Metrics", "domain_names", "domains", "open_domain"]
GROUP = "sepnorm.domains"
DEFAULT_PRESET = "demo"


@dataclass(frozen=True)
class Look:
    """What a run of a config is, found out before anything is trained: each part is a piece of one sentence."""

    model: str  #: as ``a masked autoencoder of 4 blocks, width 64``
    data: str  #: as ``1,297 images of 8x8 pixels, grey``
    scored: str  #: as ``probes on 500 test images of 10 classes``
    samples: int | None = None  #: for training, where they are counted

    def line(self, config: RunConfig) -> str:
        """One line: what is trained on what, for how long, and what it is scored on."""
        steps = config.max_steps if self.samples is None else config.steps_on(self.samples)
        long = f"{config.epochs} epochs" if steps is None else f"{steps:,} step{'s' * (steps > 1)}"
        return f"Training {self.model} on {self.data}: {long} of {config.batch_size}. Scored by {self.scored}."


class Domain(ABC):
    """All that commands, studies and pages ask of a domain. Nothing else asks which domain it is in.

    A package adds one by an entry point of the group ``sepnorm.domains``, whose name is the domain's and whose value is an
    object of a class like this. Heavy imports belong into the methods.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, RunConfig]]  #: settings by name; ``demo`` is the default and needs no download
    arms: ClassVar[str]  #: what ``compare`` runs unless told otherwise, the baseline first
    metrics: ClassVar[Metrics]  #: what runs report, the primary metric among them

    @abstractmethod
    def recipe(self, config: Any) -> Recipe:
        """Reads the data of a config; runs any config with the same data."""

    @abstractmethod
    def wrap(self, target: str, model: Any, source: Path) -> Encoder | None:
        """A model that was opened, with the way from this domain's data to its input; None if it takes other data.

        ``target`` is what the user named, ``source`` the folder with the settings of the model's input.
        """

    @abstractmethod
    def evaluate(self, encoder: Encoder, task: Task) -> Evaluation:
        """What ``sepnorm evaluate`` measures of an encoder that ``wrap`` gave."""

    @abstractmethod
    def trial(self, config: Any) -> tuple[nn.Module, Callable[[int], dict[str, Any]]]:
        """A model as a run of this config trains, and batches of made-up samples, to measure how long a step takes."""

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """A preset, by default ``demo``, with what the user gave; a domain may let the rest follow the data."""
        return choose(self.presets, preset or DEFAULT_PRESET).changed(given)  # type: ignore[no-any-return]

    def look(self, config: Any) -> Look:
        """Reads as much of the data as it takes to refuse what cannot work, without torch, and says what a run will be."""
        return Look(f"a model of {self.name}", str(config.data), "what the domain measures")

    def check(self, configs: Sequence[Any]) -> None:
        """Refuses sites that the model does not have, before the first of several runs is begun."""
        for config in configs:
            if config.norm != "ln" and config.sites not in SITES:
                self.trial(config)

    def next_commands(self, folder: Path, config: Any) -> list[str]:
        """What one may want to do with the folder of a finished run, without the leading ``sepnorm``."""
        model, data = quote(str(folder / "model")), quote(str(config.data))
        return [f"embed {model} {data} --out embeddings.parquet", f"diagnose {quote(str(folder / 'embeddings.npz'))}"]

    def sections(self, arms: Sequence[Arm], seed: int) -> list[Section]:
        """What the page of a comparison shows of this domain alone, for arms with figures and the seed of these."""
        return []

    def picture(self, name: str) -> str | None:
        """A sample as SVG, by the name that the run gave it."""
        return None


@cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def domain_names() -> list[str]:
    """The names of all domains that are installed."""
    return list(_entries())


@cache
def open_domain(name: str) -> Domain:
    """The domain of this name; a package that brings one may be broken, which is said in one sentence."""
    entry = _entries()[require_known("domain", name, domain_names())]
    try:
        found = entry.load()
    except ModuleNotFoundError:
        raise  # the command says what is to be installed
    except Exception as error:
        raise SepNormError(f"the domain {name} ({entry.value}) cannot be loaded: {one_line(error)}.") from error
    if not isinstance(found, Domain):
        raise SepNormError(f"the domain {name} ({entry.value}) is a {type(found).__name__}, and no Domain of sepnorm.")
    return found


def domains() -> list[Domain]:
    """All domains whose libraries are installed."""
    found = []
    for name in domain_names():
        try:
            found.append(open_domain(name))
        except ModuleNotFoundError:
            continue
    return found
