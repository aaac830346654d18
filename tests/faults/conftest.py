"""Makes what the fault tests share importable, and one set of whole files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """A folder with an example of every kind of file, not to be changed."""
    from whole_files import make_all

    folder = tmp_path_factory.mktemp("whole")
    make_all(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes wrong takes processes, disks and patience: all of it is in make test-all."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("faults") is None:
            item.add_marker(pytest.mark.slow)
