"""Domains: kinds of data with their model, training and evaluation, found by the entry points ``sepnorm.domains``."""

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
    """What a run of a config will be, found out before training. Each text is a part of one sentence.

    Args:
        model: the model, as ``a masked autoencoder of 4 blocks, width 64``.
        data: the training data, as ``900 images of 8x8 pixels, grey``.
        scored: the evaluation, as ``probes on 897 test images of 10 classes``.
        samples: number of training samples; None if unknown.
        foreign: whether the evaluation is on other data than the user's.
    """

    model: str
    data: str
    scored: str
    samples: int | None = None
    foreign: bool = False

    def line(self, config: RunConfig) -> str:
        """One line: what is trained on which data, for how long, and how it is scored.

        Args:
            config: the config of the run.

        Returns:
            The line.
        """
        steps = config.max_steps if self.samples is None else config.steps_on(self.samples)
        long = f"{config.epochs} epochs" if steps is None else f"{steps:,} step{'s' * (steps > 1)}"
        size = f"{config.accumulation} x {config.batch_size}" if config.accumulation > 1 else config.batch_size
        return f"Training {self.model} on {self.data}: {long} of {size}. Scored by {self.scored}."


class Domain(ABC):
    """One kind of data: everything that commands, studies and pages need of it.

    To add a domain, subclass this and register an instance as an entry point of the group ``sepnorm.domains``; the
    entry point's name is the domain's name. Put heavy imports into the methods.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, RunConfig]]  # configs by name; ``demo`` is the default and needs no download
    arms: ClassVar[str]  # default arms of ``compare``, baseline first
    metrics: ClassVar[Metrics]  # metrics that runs report, including the primary one

    @abstractmethod
    def recipe(self, config: Any) -> Recipe:
        """Reads the data of a config.

        Args:
            config: a config of this domain.

        Returns:
            A recipe, which can run any config with the same data.
        """

    @abstractmethod
    def wrap(self, target: str, model: Any, source: Path) -> Encoder | None:
        """Wraps an opened model, so that it can be run on this domain's data.

        Args:
            target: the name or folder that the user gave.
            model: the opened model.
            source: folder with the settings of the model's input.

        Returns:
            The encoder; None if the model takes other data.
        """

    @abstractmethod
    def evaluate(self, encoder: Encoder, task: Task) -> Evaluation:
        """Measures an encoder, for ``sepnorm evaluate``.

        Args:
            encoder: an encoder that ``wrap`` returned.
            task: data, probes and output folder.

        Returns:
            The metrics.
        """

    @abstractmethod
    def trial(self, config: Any) -> tuple[nn.Module, Callable[[int], dict[str, Any]]]:
        """A model and batches of made-up samples, to measure how long a training step takes.

        Args:
            config: a config of this domain.

        Returns:
            The model as a run trains it, and a function from a number of samples to a batch.
        """

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> RunConfig:
        """The config of a run. A domain may adapt settings that the user left open to the data.

        Args:
            preset: name of a preset; None for ``demo``.
            given: settings that the user gave, which replace the preset's.

        Returns:
            The config.
        """
        return choose(self.presets, preset or DEFAULT_PRESET).changed(given)  # type: ignore[no-any-return]

    def look(self, config: Any) -> Look:
        """Describes a run before training, and refuses data that cannot work. Needs no torch.

        Args:
            config: the config of the run.

        Returns:
            The description.
        """
        return Look(f"a model of {self.name}", str(config.data), "what the domain measures")

    def check(self, configs: Sequence[Any]) -> None:
        """Refuses sites that the model does not have, before the first run begins.

        Args:
            configs: the configs of all runs.
        """
        for config in configs:
            if config.norm != "ln" and config.sites not in SITES:
                self.trial(config)

    def next_commands(self, folder: Path, config: Any) -> list[str]:
        """Suggests commands for the folder of a finished run.

        Args:
            folder: the run's folder.
            config: the run's config.

        Returns:
            Command lines without the leading ``sepnorm``.
        """
        model, data = quote(str(folder / "model")), quote(str(config.data))
        return [f"embed {model} {data} --out embeddings.parquet", f"diagnose {quote(str(folder / 'embeddings.npz'))}"]

    def sections(self, arms: Sequence[Arm], seed: int) -> list[Section]:
        """Sections of a comparison's page that only this domain has.

        Args:
            arms: arms with finished runs.
            seed: the seed whose files are shown.

        Returns:
            The sections.
        """
        return []

    def picture(self, name: str) -> str | None:
        """Draws a sample for a page.

        Args:
            name: the name that the run gave the sample.

        Returns:
            SVG; None if samples have no picture.
        """
        return None


@cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def domain_names() -> list[str]:
    """Names of all installed domains."""
    return list(_entries())


@cache
def open_domain(name: str) -> Domain:
    """The domain of a name. A broken one, from any package, is reported in one sentence."""
    entry = _entries()[require_known("domain", name, domain_names())]
    try:
        found = entry.load()
    except ModuleNotFoundError:
        raise  # the command line says what to install
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
