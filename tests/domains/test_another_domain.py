"""A fourth domain is a folder and an entry point: nothing of sepnorm is edited for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

pytestmark = pytest.mark.slow
TOY = '''
"""Points on a line: the model is a small transformer, and its probe asks on which side of 0 a point lies."""

import torch
from torch import nn

from sepnorm import SepNorm, save
from sepnorm.domains import Domain, Metric, Metrics
from sepnorm.domains.encoders import Encoded, Encoder
from sepnorm.domains.evaluation import Evaluation
from sepnorm.data.records import Record
from sepnorm.experiment.metrics import GEOMETRY, LOSS
from sepnorm.experiment.runs import Outcome
from sepnorm.report.page import Section
from sepnorm.training.arm_norms import give_norms
from sepnorm.training.batching import Samples, Steps
from sepnorm.training.configs import RunConfig
from sepnorm.training.trainer import train
from transformers import ViTConfig, ViTModel


class LineConfig(RunConfig):
    data: str = "line"
    width: int = 16


class Line(nn.Module):
    def __init__(self, config):
        super().__init__()
        torch.manual_seed(config.seed)
        shape = dict(image_size=4, patch_size=2, num_channels=1, hidden_size=config.width)
        self.encoder = ViTModel(
            ViTConfig(**shape, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        )
        self.head = nn.Linear(config.width, 1)
        give_norms(self.encoder, config)

    def forward(self, points):
        vectors = vectors_of(self.encoder, points)[:, 0]
        return {"loss": (self.head(vectors)[:, 0] - points).square().mean()}


def vectors_of(encoder, points):
    return encoder(points[:, None, None, None].expand(-1, 1, 4, 4)).last_hidden_state


def line(config=None):
    return torch.linspace(-1, 1, 40)


class Recipe:
    def __init__(self, config):
        self.points = line(config)

    def run(self, config, folder, report):
        model = Line(config)
        samples = Samples(len(self.points), lambda chosen, own, generator: {"points": self.points[chosen[own]]})
        trained = train(model, Steps(config, samples), folder, report)
        model.eval()
        with torch.no_grad():
            vectors = vectors_of(model.encoder, self.points)[:, 0]
        metrics = {"side_loss_free": side(vectors, self.points), "loss": trained.losses[-1][1]}
        return Outcome(metrics, trained.losses, {"cls": vectors}, lambda folder: self.save(model.encoder, folder))

    def save(self, encoder, folder):
        folder.mkdir(parents=True, exist_ok=True)
        converted = any(isinstance(module, SepNorm) for module in encoder.modules())
        save(encoder, folder) if converted else encoder.save_pretrained(folder)


def side(vectors, points):
    weights = torch.linalg.lstsq(vectors.double(), points.sign().double()[:, None]).solution
    return float(((vectors.double() @ weights)[:, 0].sign() == points.sign()).float().mean())


class LineEncoder(Encoder):
    kind = "line"

    def read(self, data, column=None, split="train", left_out=None):
        return (Record(float(point), None, f"{point:.2f}") for point in line())

    def hidden(self, batch):
        hidden = vectors_of(self.model, batch)
        return Encoded(hidden[:, 0], hidden[:, 1:], torch.ones(hidden.shape[0], hidden.shape[1] - 1, dtype=torch.bool))


class LineDomain(Domain):
    name = "line"
    presets = {"demo": LineConfig(epochs=2, batch_size=8, learning_rate=1e-3, threads=1, checkpoints=0)}
    arms = "ln,bn+ln@final"
    metrics = Metrics([Metric("side_loss_free", "right side", True, primary=True), *GEOMETRY, LOSS])

    def recipe(self, config):
        return Recipe(config)

    def wrap(self, target, model, source):
        small = getattr(getattr(model, "config", None), "image_size", None) == 4
        return LineEncoder(target, model, torch.tensor) if small else None

    def evaluate(self, encoder, task):
        with encoder.evaluating(), torch.no_grad():
            found = side(vectors_of(encoder.model, line())[:, 0], line())
        return Evaluation(encoder.name, task.data, "the line", {"side_loss_free": found})

    def trial(self, config):
        return Line(config), lambda count: {"points": torch.zeros(count)}

    def sections(self, arms, seed):
        return [Section("Only on a line", "<p>A section of the toy.</p>")]


DOMAIN = LineDomain()
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A package as pip would have put it there."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "toy_line.py").write_text(TOY)
    about = folder / "toy_line-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-line\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sepnorm.domains]\nline = toy_line:DOMAIN\n")
    return folder


def sepnorm(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(installed), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "sepnorm", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_another_domain_is_compared_pretrained_evaluated_and_embedded(installed, tmp_path):
    done = sepnorm(installed, tmp_path, "compare", "line", "--seeds", "2", "--out", "c")
    assert done.returncode == 0, done.stderr
    assert "right side against ln: bn+ln@final is" in done.stdout
    assert "A section of the toy." in (tmp_path / "c/report.html").read_text(encoding="utf-8")
    found = json.loads((tmp_path / "c/results.json").read_text(encoding="utf-8"))
    assert found["primary"] == "side_loss_free"
    assert found["decisions"]["bn+ln@final"]["verdict"] in ("better", "worse", "equal", "undecided")

    done = sepnorm(installed, tmp_path, "pretrain", "line", "--norm", "bn+ln@final", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "sepnorm embed r/model line --out embeddings.parquet" in done.stdout
    trained = json.loads((tmp_path / "r/metrics.json").read_text())

    done = sepnorm(installed, tmp_path, "evaluate", "r", "--out", "e", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["side_loss_free"] == pytest.approx(trained["side_loss_free"])

    done = sepnorm(installed, tmp_path, "embed", "r", "line", "--out", "v.npy")
    assert done.returncode == 0, done.stderr
    kept = numpy.load(tmp_path / "r/embeddings.npz")["cls"]
    assert numpy.allclose(numpy.load(tmp_path / "v.npy"), kept, atol=1e-5)


def test_a_domain_that_is_broken_or_none_is_one_sentence(installed, tmp_path):
    about = tmp_path / "bad-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sepnorm.domains]\nbad = json:JSONDecoder\n")
    done = sepnorm(tmp_path, tmp_path, "compare", "bad")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the domain bad (json:JSONDecoder) is a type, and no Domain of sepnorm" in done.stderr
