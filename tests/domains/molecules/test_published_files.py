"""Files of published Graphormers, in both forms: bit by bit there and back, and what is refused."""

from __future__ import annotations

import argparse
import copy
import io
import json
import zipfile
from collections import Counter, OrderedDict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_models import model
from safetensors.torch import load_file, save_file
from torch import nn

import sepnorm
from sepnorm import Graphormer, SepNormError
from sepnorm.data.torch_files import stored
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.model import encode
from sepnorm.errors import SepNormWarning


def same(one: Graphormer, other: Graphormer) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "changes", [{}, {"num_classes": 0}, {"pre_layernorm": True, "num_classes": 4, "features": "zinc"}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_folders_come_back_bit_by_bit(tmp_path, changes, dtype):
    built = model(**changes).to(dtype)
    built.save_published(tmp_path / "one")
    again = Graphormer.from_published(tmp_path / "one")
    assert same(built, again) and again.dtype == dtype and not again.training
    again.save_published(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    config = json.loads((tmp_path / "one/config.json").read_text())
    headed = changes.get("num_classes") != 0
    assert config["architectures"] == ["GraphormerForGraphClassification" if headed else "GraphormerModel"]


def test_pickled_weights_are_read_where_there_are_no_others(tmp_path):
    built = model()
    built.save_published(tmp_path)
    torch.save(built.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert same(built, Graphormer.from_published(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "other.bin", "model.safetensors"])
@pytest.mark.parametrize("classes", [0, 2])
def test_a_file_of_transformers_is_not_taken_for_microsofts(tmp_path, name, classes):
    built = model(num_classes=classes)
    built.save_published(tmp_path)
    if name != "model.safetensors":
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / name)
    with pytest.raises(
        SepNormError, match=r"is a file of transformers, whose settings are beside it: give its folder, "
    ):
        Graphormer.from_published(tmp_path / name)


def microsoft(built: Graphormer, **more: object) -> dict:
    state = built.state_dict()
    for new, old in (("embed_out.weight", "classifier.weight"), ("lm_output_learned_bias", "lm_output_learned_bias")):
        state[f"encoder.{new}"] = state.pop(f"classifier.{old}")
    state["encoder.masked_lm_pooler.weight"] = torch.zeros(16, 16)
    state["encoder.masked_lm_pooler.bias"] = torch.zeros(16)
    return {"model": state, **more}


@pytest.mark.parametrize("kept", ["args", "cfg", "nothing"])
def test_microsofts_checkpoints_tell_their_sizes(tmp_path, kept):
    built = model(pre_layernorm=True, num_classes=3, multi_hop_max_dist=5 if kept == "nothing" else 8)
    said = argparse.Namespace(multi_hop_max_dist=8, act_dropout=0.25)
    more = {"args": {"args": said}, "cfg": {"cfg": {"model": said}}, "nothing": {}}[kept]
    torch.save(microsoft(built, **more), tmp_path / "checkpoint_best.pt")
    again = Graphormer.from_published(tmp_path / "checkpoint_best.pt")
    assert same(built, again)
    assert again.config.collator == "microsoft" and again.config.pre_layernorm
    assert again.config.multi_hop_max_dist == built.config.multi_hop_max_dist
    assert again.config.activation_dropout == (0.1 if kept == "nothing" else 0.25)


def with_numbers(name: bytes) -> bytes:
    """A checkpoint with a number of NumPy's, under the name that an old or a new NumPy has for it."""
    stored = io.BytesIO()
    torch.save(microsoft(model(), extra_state={"val_loss": np.float64(0.1), "steps": np.int64(3)}), stored)
    written = stored.getvalue()
    both = (b"numpy._core.multiarray", b"numpy.core.multiarray")
    here = both[0] if both[0] in written else both[1]
    assert here in written
    renamed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(written)) as source, zipfile.ZipFile(renamed, "w") as target:
        for entry in source.namelist():
            target.writestr(entry, source.read(entry).replace(here, name))
    return renamed.getvalue()


@pytest.mark.parametrize("name", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_numbers_of_numpy_beside_the_weights_do_not_matter(tmp_path, name):
    (tmp_path / "checkpoint.pt").write_bytes(with_numbers(name))
    assert same(model(), Graphormer.from_published(tmp_path / "checkpoint.pt"))


def test_weights_of_parallel_training_and_a_state_dict_by_name_are_read(tmp_path):
    state = {f"module.{name}": value for name, value in microsoft(model())["model"].items()}
    for number, kept in enumerate(({"model": state}, {"state_dict": state}, state)):
        torch.save(kept, tmp_path / f"{number}.pt")
        assert same(model(), Graphormer.from_published(tmp_path / f"{number}.pt"))


def test_microsofts_are_saved_for_the_collator_of_transformers(tmp_path):
    torch.save(microsoft(model()), tmp_path / "checkpoint.pt")
    first = Graphormer.from_published(tmp_path / "checkpoint.pt")
    with pytest.warns(SepNormWarning, match="19 or more bonds apart or not connected"):
        first.save_published(tmp_path / "one")
    again = Graphormer.from_published(tmp_path / "one")
    there = Graphormer.from_published(tmp_path / "one", collator="transformers")
    named = Graphormer.from_published(tmp_path / "one", collator="microsoft")
    short, far = (featurise(texts, "ogb")[0] for texts in (["CCO", "c1ccccc1CCN"], ["C" * 30, "CC.O"]))
    with torch.no_grad():
        for found in (again, named, there):
            assert torch.equal(found(**found.collate(short)).logits, first(**first.collate(short)).logits)
        for found in (again, named):
            assert torch.equal(found(**found.collate(far)).logits, first(**first.collate(far)).logits)
        assert not torch.equal(there(**there.collate(far)).logits, first(**first.collate(far)).logits)
    with pytest.warns(SepNormWarning):
        again.save_published(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_is_given_comes_before_what_a_checkpoint_says(tmp_path):
    built = model(features="zinc")
    built.save_published(tmp_path)
    found = Graphormer.from_published(tmp_path, features="ogb", collator="microsoft", multi_hop_max_dist=3)
    assert (found.config.features, found.config.collator, found.config.multi_hop_max_dist) == ("ogb", "microsoft", 3)


class Evil:
    """Something that would make a folder if it were unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple:
        return Path.mkdir, (self.place,)


REFUSED = {
    "another architecture": "holds a 'bert' model, and from_published opens 'graphormer' alone",
    "no config": "has no config.json",
    "no weights": "has neither model.safetensors nor pytorch_model.bin",
    "other weights": "are those of another model",
    "more weights": "are those of another model",
    "cut short": "cannot be read",
    "quantisation noise": "q_noise=0.1 cannot be built",
    "no numbers": "describes no Graphormer",
    "a larger model": "describes a larger model than its weights, which have",
    "an unknown activation": "unknown activation 'gello'",
    "nothing": "cannot be fetched from the hub",
}


@pytest.mark.parametrize("what", REFUSED)
def test_folders_that_are_refused(tmp_path, what, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model().save_published(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    said = json.loads(config.read_text())
    changes = {
        "another architecture": {"model_type": "bert"},
        "other weights": {"num_attention_heads": 4},
        "quantisation noise": {"q_noise": 0.1},
        "no numbers": {"embedding_dim": "wide"},
        "a larger model": {"num_hidden_layers": 10_000},
        "an unknown activation": {"activation_fn": "gello"},
    }
    config.write_text(json.dumps(said | changes.get(what, {})))
    if what == "no config":
        config.unlink()
    if what == "no weights":
        weights.unlink()
    if what == "more weights":
        save_file(load_file(weights) | {"other": torch.zeros(1)}, weights)
    if what == "cut short":
        weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SepNormError, match=REFUSED[what]):
        Graphormer.from_published("nobody/nothing-at-all" if what == "nothing" else tmp_path)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("code", "holds more than tensors and settings"),
        ("a whole model", r"unpickled: torch\.nn\.modules\.linear\.Linear\. If you trust it"),
        ("packed", "is packed"),
        ("text", "no checkpoint that torch.save wrote"),
        ("a list", "holds a list"),
        ("no tensors", "holds no weights by their names"),
        ("another model", "holds no weights of a Graphormer"),
        ("expanded", "names more weights than it holds"),
    ],
)
def test_checkpoints_that_are_refused(tmp_path, what, message):
    path, marker = tmp_path / "checkpoint.pt", tmp_path / "made"
    kept = {
        "code": microsoft(model(), extra=Evil(marker)),
        "a whole model": nn.Linear(3, 3),
        "a list": [1, 2],
        "no tensors": {"model": {"a": 1}},
        "another model": {"model": nn.Linear(3, 3).state_dict()},
        "expanded": {"model": {"a": torch.zeros(1).expand(10**9)}},
    }
    torch.save(kept.get(what, microsoft(model())), path)
    if what == "text":
        path.write_text("no archive")
    if what == "packed":
        with (
            zipfile.ZipFile(path) as stored,
            zipfile.ZipFile(tmp_path / "other.pt", "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for name in stored.namelist():
                packed.writestr(name, stored.read(name))
        path = tmp_path / "other.pt"
    with pytest.raises(SepNormError, match=message):
        Graphormer.from_published(path)
    assert not marker.exists()


class Call:
    """A pickle that calls a function."""

    def __init__(self, function: object, *given: object) -> None:
        self.call = function, given

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def tensor_of(size: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Call:
    """A tensor that says these sizes of a storage of four values."""
    values = torch.zeros(4).untyped_storage()
    storage = torch.storage.TypedStorage(wrap_storage=values, dtype=torch.float32, _internal=True)
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, size, strides, False, OrderedDict())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda: Call(bytearray, 2**20), r"unpickled: __builtin__\.bytearray\."),
        (lambda: Call(torch.Tensor, 2**20), r"unpickled: torch\._tensor\.Tensor|unpickled: torch\.Tensor"),
        (lambda: Call(Counter, "aa"), r"unpickled: collections\.Counter"),
        (lambda: "a" * (2**26 + 1), "has 64 MiB beside its tensors, and 64 MiB are the most"),
        (lambda: [None] * 2**20, "more than 1,048,576 values"),
    ],
    ids=["bytearray", "tensor", "counter", "text", "values"],
)
def test_pickles_that_would_take_memory_are_refused(tmp_path, more, message):
    torch.save({**microsoft(model()), "more": more()}, tmp_path / "checkpoint.pt")
    with pytest.raises(SepNormError, match=message):
        Graphormer.from_published(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize(
    "sizes", [((10**9,), (1,)), ((2, 2), (2, -1)), ((5,), (1,)), ((2,), (1,), 3), ((1,) * 9, (1,) * 9), ((2, 2), (1,))]
)
def test_tensors_outside_of_their_storage_are_refused(tmp_path, sizes):
    torch.save({"model": {"a": tensor_of(*sizes)}}, tmp_path / "checkpoint.pt")
    with pytest.raises(SepNormError, match=r"a tensor is (damaged|larger than what is stored of it)"):
        Graphormer.from_published(tmp_path / "checkpoint.pt")


def test_weights_that_are_named_twice_in_an_archive_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(microsoft(model()), path)
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(50):
            twin = copy.copy(max(archive.filelist, key=lambda entry: entry.file_size))
            twin.filename = f"archive/data/{1000 + number}"
            archive.filelist.append(twin)
        archive._didModify = True
    with pytest.raises(SepNormError, match="names more than it holds"):
        Graphormer.from_published(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_pickled_tensors_come_back_as_torch_loads_them(tmp_path, dtype):
    whole = torch.randn(4, 6).to(dtype)
    state = {"all": whole, "part": whole[1:, ::2].t(), "own": nn.Parameter(whole[0]), "none": whole[:0]}
    state |= {"steps": torch.tensor(3), "kept": torch.tensor([True, False])}
    torch.save(OrderedDict(state), tmp_path / "state.pt")
    with stored(tmp_path / "state.pt", []) as file:
        found = {name: file.tensor(made) for name, made in file.content.items()}
    kept = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, tensor in found.items():
        assert tensor.dtype == kept[name].dtype and torch.equal(tensor, kept[name])
    assert found.keys() == kept.keys()


def test_separate_norms_are_not_saved_as_published(tmp_path):
    built = model()
    sepnorm.convert(built, "bn+ln", example=built.dummy_inputs)
    with pytest.raises(SepNormError, match=r"sepnorm\.revert"):
        built.save_published(tmp_path)
    sepnorm.revert(built)
    built.save_published(tmp_path)
    assert same(built, Graphormer.from_published(tmp_path))


def test_the_verbs_and_commands_take_a_published_folder(tmp_path):
    built = model()
    built.save_published(tmp_path / "published")
    opened = open_encoder(str(tmp_path / "published"))
    records = opened.read("nci")
    part, batch = next(opened.batches(islice(records, 3)))
    assert torch.equal(opened.encode(batch).cls, encode(built, [record.content for record in part]))
    sepnorm.convert(built, "bn+ln")
    sepnorm.save(built, tmp_path / "converted")
    again = sepnorm.load(tmp_path / "converted").eval()
    assert type(again) is Graphormer
    assert torch.equal(again(**built.dummy_inputs).logits, built(**built.dummy_inputs).logits)


def test_a_published_folder_without_a_head_is_embedded_and_converted(run, tmp_path):
    built = model(num_classes=0)
    built.save_published(tmp_path / "published")
    smiles = ["CCO", "c1ccccc1CCN", "CC(=O)O", *("C" * size for size in range(1, 30))]
    (tmp_path / "some.csv").write_text("\n".join(["smiles", *smiles]))
    code, _, err = run("embed", "published", "some.csv", "--out", "v.npy")
    assert code == 0, err
    wanted = encode(built, featurise(smiles, "ogb")[0])
    assert np.allclose(np.load("v.npy"), wanted, atol=1e-5)
    code, _, err = run("convert", "published", "--data", "some.csv", "--out", "converted")
    assert code == 0, err
    assert sepnorm.load("converted").classifier is None
