"""The sdist and the wheel: built, installed into an empty environment, and used from another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from sepnorm._version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SITE = Path(sysconfig.get_paths()["purelib"])
CORE = """
import sys, torch, sepnorm
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, nn.LayerNorm(16))

x, model = torch.randn(8, 5, 16), build()
x[:, 0] = x[0, 0]  # [CLS]
print(sepnorm.convert(model, "bn+ln", example=x, calibrate=[x]))
sepnorm.save(model, "saved")
assert torch.equal(sepnorm.load("saved", build())(x), model.eval()(x))
assert "transformers" not in sys.modules
print(sepnorm.__file__)
"""


def call(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command that sees nothing of this folder."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=own, capture_output=True, text=True)


def done(*words: object, cwd: Path | None = None) -> str:
    found = call(*words, cwd=cwd)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist of the sources, and the wheel that is built from what the sdist holds."""
    folder = tmp_path_factory.mktemp("build")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sepnorm", folder / "sources" / "sepnorm", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "sources" / name)
    build = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    done(sys.executable, "-c", build, "build_sdist", folder, cwd=folder / "sources")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    done(sys.executable, "-c", build, "build_wheel", folder, cwd=folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def environment(folder: Path, wheel: Path, packages: Path) -> Path:
    """The commands of a new environment that has the wheel, and beside it what ``packages`` holds, which is not copied."""
    done(sys.executable, "-m", "venv", "--without-pip", folder)
    done(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--no-deps", "--no-index", wheel)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"{packages}\n")
    return folder / "bin"


def names_needed(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it needs, of what is installed."""
    if name not in found:
        found.add(name)
        for line in distribution(name).requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                names_needed(needed.name, found)
    return found


def only(folder: Path, *names: str) -> Path:
    """A folder of links to some distributions and what they need."""
    folder.mkdir()
    needed: set[str] = set()
    for name in names:
        names_needed(name, needed)
    for name in needed:
        for top in {file.parts[0] for file in distribution(name).files or [] if file.parts[0] != ".."}:
            if not (folder / top).exists() and (SITE / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(SITE / top)
    return folder


@pytest.fixture(scope="module")
def full(built, tmp_path_factory) -> Path:
    return environment(tmp_path_factory.mktemp("full") / "venv", built[1], SITE)


def test_the_wheel_holds_the_package_and_nothing_else(built):
    sdist, wheel = built
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"sepnorm", f"sepnorm-{__version__}.dist-info"}
    assert {"sepnorm/report/page.css", "sepnorm/report/page.js", "sepnorm/py.typed", "sepnorm/__init__.pyi"} <= names
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "sepnorm").rglob("*.py")}
    assert {name for name in names if name.startswith("sepnorm/") and name.endswith(".py")} == sources
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    assert {f"sepnorm-{__version__}/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")} <= set(inside)


def test_the_wheel_says_what_it_needs(built):
    (name,) = [name for name in zipfile.ZipFile(built[1]).namelist() if name.endswith("/METADATA")]
    text = zipfile.ZipFile(built[1]).read(name).decode()
    needed = [line for line in re.findall(r"(?m)^Requires-Dist: (.*)$", text) if "extra ==" not in line]
    assert {re.split("[<>=]", line)[0] for line in needed} == {"numpy", "safetensors", "torch"}
    assert "License-Expression: MIT" in text and "License-File: LICENSE" in text


def test_the_core_needs_torch_safetensors_and_numpy_alone(built, tmp_path):
    commands = environment(tmp_path / "venv", built[1], only(tmp_path / "packages", "numpy", "safetensors", "torch"))
    out = done(commands / "python", "-W", "ignore", "-c", CORE, cwd=tmp_path)
    assert "1 of 5 norms changed" in out and str(tmp_path / "venv") in out
    missing = call(commands / "sepnorm", "--help", cwd=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr == "Error: the sepnorm command needs typer: pip install 'sepnorm[report]'.\n"


def test_the_installed_package_is_the_one_in_the_environment(full, tmp_path):
    out = done(full / "python", "-c", "import sepnorm; print(sepnorm.__file__, sepnorm.__version__)", cwd=tmp_path)
    assert out.startswith(str(full.parent)) and out.split()[1] == __version__
    assert "Usage: sepnorm" in done(full / "sepnorm", "--help", cwd=tmp_path)


def test_the_installed_command_compares_and_writes_a_page_with_its_style_and_script_inside(full, tmp_path):
    words = "compare images --norms ln,bn+ln@final --seeds 1 --max-steps 2 --quiet --out found".split()
    done(full / "sepnorm", *words, cwd=tmp_path)
    page = (tmp_path / "found" / "report.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        lines = (ROOT / "sepnorm" / "report" / name).read_text(encoding="utf-8").strip().splitlines()
        assert lines[0] in page and lines[-1] in page
    assert (tmp_path / "found" / "results.json").is_file()


def test_the_installed_command_diagnoses_a_file_of_vectors(full, tmp_path):
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(200, 16)) + 10)
    out = done(full / "sepnorm", "diagnose", "vectors.npy", "--out", "found", cwd=tmp_path)
    assert "off-centre" in out
    assert (tmp_path / "found" / "report.html").is_file()
