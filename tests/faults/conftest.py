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
