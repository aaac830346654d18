"""What holds for the package as a whole."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import sepnorm

ROOT = Path(__file__).parents[1]
MODULES = [module.name for module in pkgutil.walk_packages(sepnorm.__path__, "sepnorm.")]


def test_importing_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import sepnorm; "
        "print(' '.join(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in out if name not in sys.stdlib_module_names] == ["sepnorm"]


def test_names_are_there_and_others_are_not():
    assert set(dir(sepnorm)) == set(sepnorm.__all__)
    assert callable(sepnorm.convert)
    with pytest.raises(AttributeError, match="no attribute 'covert'"):
        _ = sepnorm.covert


@pytest.mark.parametrize(
    "name",
    "diagnosis.diagnose embedding.write_embeddings evaluation.evaluate exporting.export_onnx feed.run images.model.positions "
    "inspection.SiteStatistics layer.SepNorm molecules.graphormer.GraphormerModel pretraining.pretrain sites.Site "
    "surgery.SiteReport text.sts.Pairs verdict.Verdict".split(),
)
def test_documented_names_of_before_are_still_there(name):
    """In a process of its own, where nothing is imported yet."""
    place, _, what = f"sepnorm.{name}".rpartition(".")
    code = f"from {place} import {what} as found; print(found.__module__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    module = importlib.import_module(out.strip())
    assert getattr(module, what) is getattr(importlib.import_module(place), what)


def test_the_top_of_the_package_has_few_modules():
    assert len(list((ROOT / "sepnorm").glob("*.py"))) <= 8


def test_every_public_name_is_documented():
    for module in (sepnorm, sepnorm.geometry, sepnorm.losses, sepnorm.pooling, sepnorm.tuning):
        for name in module.__all__:
            if name != "__version__":
                assert getattr(module, name).__doc__, name


def with_examples() -> list[str]:
    """Modules whose docstrings hold some."""
    return [name for name in MODULES if ">>>" in Path(str(find_spec(name).origin)).read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", with_examples())
def test_docstring_examples(name):
    found = doctest.testmod(importlib.import_module(name), extraglobs={"torch": importlib.import_module("torch")})
    assert found.attempted and not found.failed


def test_every_module_says_what_it_is():
    silent = [
        name
        for name in MODULES
        if not ast.get_docstring(ast.parse(Path(str(find_spec(name).origin)).read_text(encoding="utf-8")))
    ]
    assert silent == ["sepnorm._version"]


def test_the_citation_names_this_version_and_the_paper():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["version"] == sepnorm.__version__
    (paper,) = found["references"]
    assert paper["url"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Paper"]
    assert paper["authors"][0]["family-names"] == "Chen" and len(paper["authors"]) == 5


def test_the_readmes_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    scope: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
