"""Paths to nothing are refused at once; names of the hub are looked up, without half a minute of retries."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from sepnorm.data.places import looks_like_path, prepare_hub, require_here
from sepnorm.errors import UnreadableDataError


@pytest.mark.parametrize(
    "name",
    ["./x", "../x", "/x/y", "~/x", "a/b/c", "x.txt", "x.CSV", "a/x.parquet", "x.csv.gz", "here/x", "x.pt", "c:\\x", ""],
)
def test_what_can_only_be_a_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert looks_like_path(name)
    with pytest.raises(UnreadableDataError, match="there is no file or folder"):
        require_here(name)


@pytest.mark.parametrize(
    "name",
    [
        "imdb",
        "owner/name",
        "BAAI/bge-small-en-v1.5",
        "Qwen/Qwen2.5-0.5B",
        "owner/name:config",
        "owner/model.v2",
        "cifar10",
    ],
)
def test_what_may_be_a_name_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not looks_like_path(name)
    require_here(name)


def test_what_is_here_is_a_path_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    require_here("a.txt")
    require_here(str(tmp_path))


def test_a_file_of_nearly_that_name_is_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UnreadableDataError, match="Did you mean 'pictures'"):
        require_here("./pictuers")
    with pytest.raises(UnreadableDataError, match="inside of quotes"):
        require_here("~/pictures.txt")


CODE = """
import sys
from sepnorm.data.records import rows_of
try:
    next(rows_of("nobody/no-such-data"))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_hub_that_does_not_answer_is_not_asked_again_and_again():
    environment = {key: value for key, value in os.environ.items() if "PROXY" not in key.upper()}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}  # nobody listens there
    begun = time.monotonic()
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert time.monotonic() - begun < 20  # and not the 30 to 40 of the library's own retries
    said = (
        "nobody/no-such-data cannot be read: there is no file or folder nobody/no-such-data here. It was looked up on the "
        "Hugging Face Hub, which cannot be reached, and it is not in the hub's cache.\n"
    )
    assert found.stdout.endswith(said)


def test_offline_is_as_the_user_says(monkeypatch):
    prepare_hub.cache_clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sepnorm.data.places._answers", lambda: pytest.fail("asked"))
    assert not prepare_hub()
    prepare_hub.cache_clear()
