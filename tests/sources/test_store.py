"""Downloads and files in a folder: checked, gone on with, passed over where they are right, and never half there."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from dataclasses import replace

import pytest
from stand_ins import senteval_files, serving, stand_in, tarred

from sepnorm import SepNormError
from sepnorm.sources import download as downloads
from sepnorm.sources.registry import SOURCES, described
from sepnorm.sources.store import SUMS, obtain


def test_a_download_is_written_and_not_repeated(tmp_path):
    with serving(tmp_path / "published") as served:
        source = stand_in("moleculenet", served.folder, served.address)
        first = obtain(source, tmp_path / "data")
        assert first.fresh and all(path.is_file() for path in first.files)
        assert len(served.asked) == 4
        second = obtain(source, tmp_path / "data")
        assert not second.fresh and second.files == first.files and len(served.asked) == 4
    done = subprocess.run(["sha256sum", "--check", SUMS], cwd=first.files[0].parent, capture_output=True)
    assert done.returncode == 0
    first.files[0].write_bytes(b"damaged")
    third = obtain(source, tmp_path / "data")  # from what was downloaded, without the server
    assert third.fresh and third.files[0].stat().st_size > 20


def test_one_archive_serves_three_sets(tmp_path):
    with serving(tmp_path / "published") as served:
        for name in ("stsb", "sick", "transfer"):
            obtain(stand_in(name, served.folder, served.address), tmp_path / "data")
        assert served.asked == [("senteval.tar", None)]


def test_a_download_that_was_cut_goes_on(tmp_path):
    with serving(tmp_path / "published") as served:
        source = stand_in("cifar10", served.folder, served.address)
        whole = (served.folder / "cifar-10-binary.tar.gz").read_bytes()
        served.cut = 1000
        with pytest.raises(SepNormError, match=r"stopped after 1,000 of [\d,]+ bytes .* the same command goes on from"):
            obtain(source, tmp_path / "data")
        with pytest.raises(SepNormError, match="stopped after 2,000 of"):
            obtain(source, tmp_path / "data")
        served.cut = None
        assert obtain(source, tmp_path / "data").fresh
        assert served.asked[-1][1] == "bytes=2000-"
        kept = tmp_path / "data/originals/cifar10"
        assert [path.name for path in kept.iterdir()] == ["cifar-10-binary.tar.gz"]
        assert (kept / "cifar-10-binary.tar.gz").read_bytes() == whole


@pytest.mark.parametrize("how", ["another version", "no ranges"])
def test_parts_of_two_versions_are_never_one_file(tmp_path, how):
    with serving(tmp_path / "published") as served:
        source = stand_in("wiki", served.folder, served.address)  # no checksum would tell
        served.cut = 1000
        with pytest.raises(SepNormError, match="stopped after 1,000"):
            obtain(source, tmp_path / "data")
        served.cut = None
        if how == "another version":
            served.version = "2"
        else:
            served.ranges = False
        obtain(source, tmp_path / "data")
        path = tmp_path / "data/originals/wiki/wiki1m_for_simcse.txt"
        assert path.read_bytes() == (served.folder / path.name).read_bytes()


def test_a_wrong_checksum_is_refused(tmp_path):
    with serving(tmp_path / "published") as served:
        source = stand_in("cifar10", served.folder, served.address)
        path = served.folder / "cifar-10-binary.tar.gz"
        found = source.originals[0].checksum.removeprefix("md5:")
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(
            SepNormError, match=rf"has the MD5 [0-9a-f]{{32}}, and {found} is expected, so it was removed"
        ):
            obtain(source, tmp_path / "data")
        assert not [file for file in (tmp_path / "data").rglob("*") if file.is_file() and file.name != ".lock"]
        with pytest.raises(SepNormError, match=rf"{found} is expected: it is damaged or another version, so hand in"):
            obtain(source, tmp_path / "data", str(path))


def test_a_kept_original_that_is_damaged_is_fetched_again(tmp_path):
    with serving(tmp_path / "published") as served:
        source = stand_in("cifar10", served.folder, served.address)
        kept = tmp_path / "data/originals/cifar10/cifar-10-binary.tar.gz"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"damaged")
        assert obtain(source, tmp_path / "data").fresh and len(served.asked) == 1


def test_no_network_is_one_sentence_with_the_address(tmp_path, free_port):
    source = stand_in("wiki", tmp_path / "given", f"http://127.0.0.1:{free_port}")
    with pytest.raises(SepNormError) as caught:
        obtain(source, tmp_path / "data")
    said = str(caught.value)
    assert source.originals[0].address in said and "Connection refused" in said and "by --from FILE_OR_FOLDER" in said


def test_an_address_that_is_gone_or_none_is_said(tmp_path):
    with serving(tmp_path / "published") as served:
        source = stand_in("wiki", served.folder, served.address)
        with pytest.raises(SepNormError, match="the server says 404 Not Found"):
            obtain(source, tmp_path / "data", f"{served.address}/nowhere.txt")
        with pytest.raises(SepNormError, match="has to begin with http"):
            obtain(source, tmp_path / "data", f"file://{served.folder}/wiki1m_for_simcse.txt")


def test_files_that_are_far_too_large_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "_MOST", 1000)
    with serving(tmp_path / "published") as served:
        source = stand_in("wiki", served.folder, served.address)
        with pytest.raises(SepNormError, match="more than any file that is wanted here"):
            obtain(source, tmp_path / "data")


@pytest.mark.parametrize("given", ["{}", "{}/", "{}/wiki1m_for_simcse.txt"])
def test_from_takes_another_address(tmp_path, given):
    with serving(tmp_path / "published") as served:
        source = stand_in("wiki", served.folder)
        if given == "{}":  # of several files it is their folder
            source = stand_in("moleculenet", served.folder)
        assert obtain(source, tmp_path / "data", given.format(served.address)).fresh


def test_from_takes_a_file_or_the_folder_of_several(tmp_path):
    source = stand_in("moleculenet", tmp_path / "given")
    with pytest.raises(SepNormError, match=r"is made of delaney-processed\.csv, SAMPL\.csv, .* name the folder"):
        obtain(source, tmp_path / "data", str(tmp_path / "given/SAMPL.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SepNormError, match=r"holds no delaney-processed\.csv: put the file of http"):
        obtain(source, tmp_path / "data", str(tmp_path / "empty"))
    with pytest.raises(SepNormError, match="there is no file"):
        obtain(stand_in("wiki", tmp_path / "given"), tmp_path / "data", str(tmp_path / "nowhere.txt"))
    assert obtain(source, tmp_path / "data", str(tmp_path / "given")).fresh


def test_rows_that_are_missing_are_refused_and_nothing_is_written(tmp_path):
    source = stand_in("wiki", tmp_path / "given")
    path = tmp_path / "given/wiki1m_for_simcse.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        SepNormError, match=r"would have the rows all 299, and all 300 are expected, so it is not written"
    ):
        obtain(source, tmp_path / "data", str(path))
    assert list((tmp_path / "data/wiki").iterdir()) == []


def test_files_of_others_are_left_alone(tmp_path):
    source = stand_in("wiki", tmp_path / "given")
    own = tmp_path / "data/wiki/wiki_1m.txt.xz"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(SepNormError, match="is there and was not written by this command"):
        obtain(source, tmp_path / "data", str(tmp_path / "given"))
    assert own.read_text() == "mine"


def test_the_file_of_the_tables_is_known_without_a_record(tmp_path):
    source = stand_in("stsb", tmp_path / "given")
    (path,) = obtain(source, tmp_path / "data", str(tmp_path / "given")).files
    known = {"stsb.tsv.gz": hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()}
    (path.parent / SUMS).unlink()
    assert not obtain(replace(source, known=known), tmp_path / "data").fresh
    path.unlink()
    assert obtain(replace(source, known=known), tmp_path / "data", str(tmp_path / "given")).notes == [
        "stsb.tsv.gz is what the tables were run on, byte for byte."
    ]
    path.unlink()
    (note,) = obtain(replace(source, known={"stsb.tsv.gz": "0"}), tmp_path / "data", str(tmp_path / "given")).notes
    assert "not all of its text is the same" in note


def test_what_a_killed_command_left_is_cleared(tmp_path):
    source = stand_in("wiki", tmp_path / "given")
    left = tmp_path / "data/wiki/.sepnorm-abc"
    left.mkdir(parents=True)
    (left / "wiki_1m.txt.xz").write_text("half")
    obtain(source, tmp_path / "data", str(tmp_path / "given"))
    assert sorted(path.name for path in left.parent.iterdir()) == [SUMS, "wiki_1m.txt.xz"]


def hostile(path, member: tarfile.TarInfo, content: bytes = b"") -> None:
    with tarfile.open(path, "w") as archive:
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        for name, text in senteval_files().items():
            if name != member.name:
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/outside.txt", "STS/../../STSBenchmark/sts-train.csv"])
def test_members_outside_of_an_archive_are_refused(tmp_path, name):
    source = stand_in("stsb", tmp_path / "given")
    hostile(tmp_path / "given/senteval.tar", tarfile.TarInfo(name), b"x")
    with pytest.raises(SepNormError, match="a place outside of it, and is not read"):
        obtain(source, tmp_path / "data", str(tmp_path / "given"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_in_the_place_of_files_are_refused(tmp_path, kind):
    source = stand_in("stsb", tmp_path / "given")
    member = tarfile.TarInfo("./STS/STSBenchmark/sts-train.csv")
    member.type, member.linkname = kind, "/etc/passwd"
    hostile(tmp_path / "given/senteval.tar", member)
    with pytest.raises(SepNormError, match="where a file is wanted"):
        obtain(source, tmp_path / "data", str(tmp_path / "given"))


def test_an_archive_of_much_from_little_is_refused(tmp_path, monkeypatch):
    from sepnorm.sources import archives

    monkeypatch.setattr(archives, "LARGE", 2**20)
    source = stand_in("cifar10", tmp_path / "given")
    path = tmp_path / "given/cifar-10-binary.tar.gz"
    tarred(path, {"cifar-10-batches-bin/other.bin": bytes(2**24)})
    unchecked = replace(source, originals=(replace(source.originals[0], checksum=""),))
    with pytest.raises(SepNormError, match="unpacks to far more than it should"):
        obtain(unchecked, tmp_path / "data", str(path))


@pytest.mark.parametrize("name", ["cifar10", "flowers", "stsb", "snli", "fashion-mnist"])
def test_an_archive_that_is_cut_short_is_one_sentence(tmp_path, name):
    source = stand_in(name, tmp_path / "given")
    source = replace(source, originals=tuple(replace(each, checksum="") for each in source.originals))
    for original in source.originals:
        path = tmp_path / "given" / original.name
        path.write_bytes(path.read_bytes()[: max(2, path.stat().st_size // 10)])
    with pytest.raises(SepNormError):
        obtain(source, tmp_path / "data", str(tmp_path / "given"))
    assert not list((tmp_path / "data").rglob("*.gz"))


def test_another_file_under_the_name_is_one_sentence(tmp_path):
    for name in SOURCES:
        source = stand_in(name, tmp_path / name)
        source = replace(source, originals=tuple(replace(each, checksum="") for each in source.originals))
        for original in source.originals:
            (tmp_path / name / original.name).write_text("<html>Not here any more</html>\n")
        with pytest.raises(SepNormError):
            obtain(source, tmp_path / "data", str(tmp_path / name))


def test_every_source_says_what_it_is():
    for source in SOURCES.values():
        said = described(source)
        assert all(
            word in said for word in (source.origin, source.licence, source.check, source.used_for, *source.rows)
        )
        assert set(source.known) <= set(source.rows)
        assert all(original.address.startswith("https://") for original in source.originals)
        for original in source.originals:
            kind, _, digest = original.checksum.partition(":")
            assert len(digest) == {"": 0, "md5": 32, "sha256": 64}[kind]
