"""Tar files in WebDataset's layout: what is one sample, what is passed over, and what is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from sepnorm import SepNormError
from sepnorm.data import tar_shards
from sepnorm.data.streams import open_rows
from sepnorm.data.tar_shards import tar_rows


def write(path: Path, *members: tuple[str, bytes]) -> str:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return str(path)


def test_files_of_one_name_are_one_sample_and_others_are_passed_over(tmp_path):
    first = write(
        tmp_path / "0.tar",
        ("a/1.jpg", b"picture"),
        ("a/1.cls", b"3\n"),
        ("a/1.pth", b"pickled"),
        ("b/1.left.png", b"other"),
        ("b/1.txt", "caf\u00e9".encode()),
        ("README", b"no suffix"),
        (".hidden", b"no name"),
    )
    second = write(tmp_path / "1.tar", ("1.JPEG", b"large letters"))
    assert list(tar_rows([first, second])) == [
        {"jpg": {"bytes": b"picture"}, "cls": "3"},
        {"left.png": {"bytes": b"other"}, "txt": "caf\u00e9"},
        {"jpeg": {"bytes": b"large letters"}},
    ]


def test_a_stream_of_them_goes_on_within_a_shard(tmp_path):
    write(tmp_path / "0.tar", *((f"{number}.txt", b"%d" % number) for number in range(9)))
    rows = open_rows(str(tmp_path / "0.tar"))
    reader = iter(rows)
    assert [next(reader)["txt"] for _ in range(4)] == ["0", "1", "2", "3"]
    again = open_rows(str(tmp_path / "0.tar"))
    again.load_state_dict(rows.state_dict())
    assert [row["txt"] for row in again] == ["4", "5", "6", "7", "8"]


@pytest.mark.parametrize("content", [b"", b"no tar file at all, but long enough to have a header" * 40])
def test_what_is_no_tar_file_is_refused_in_a_sentence(tmp_path, content):
    from sepnorm.data.streams import some_rows

    (tmp_path / "0.tar").write_bytes(content)
    with pytest.raises(SepNormError, match=r"cannot be read as a stream|holds no rows") as caught:
        some_rows("0.tar", open_rows(str(tmp_path / "0.tar")), 4)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_shards, "_LARGEST", 4)
    for members in ([("1.jpg", b"12345")], [("1.png", b"123"), ("1.jpg", b"45")]):
        with pytest.raises(ValueError, match=r"1\.jpg in it brings a sample to 5 bytes, and 4 are the most"):
            list(tar_rows([write(tmp_path / "0.tar", *members)]))
    apart = write(tmp_path / "0.tar", ("1.jpg", b"123"), ("2.jpg", b"45"))
    assert [row["jpg"]["bytes"] for row in tar_rows([apart])] == [b"123", b"45"]


def test_a_file_with_holes_is_not_read(tmp_path):
    """Its block of 512 bytes stands for as many as its header says."""
    entry = tarfile.TarInfo("1.jpg")
    entry.pax_headers = {"GNU.sparse.map": "0,512", "GNU.sparse.size": str(2**27)}
    entry.size = 512
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry, io.BytesIO(bytes(512)))
    with pytest.raises(ValueError, match=r"1\.jpg in it is a file with holes"):
        list(tar_rows([str(tmp_path / "0.tar")]))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_names_of_gigabytes_are_refused_before_they_are_read(tmp_path, kind):
    entry = tarfile.TarInfo("long")
    entry.type, entry.size = kind, 2**32
    with open(tmp_path / "0.tar", "wb") as file:
        file.write(entry.tobuf())
        file.truncate(2**25)
    with pytest.raises(ValueError, match="a name in it has 4,294,967,296 bytes, and 1,048,576 are the most"):
        list(tar_rows([str(tmp_path / "0.tar")]))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read(tmp_path, form):
    name = f"{'a' * 300}.txt"
    with tarfile.open(tmp_path / "0.tar", "w", format=form) as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"cat"))
    assert list(tar_rows([str(tmp_path / "0.tar")])) == [{"txt": "cat"}]
