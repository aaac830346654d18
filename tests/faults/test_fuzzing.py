"""Arguments, settings and files drawn at random: what is wrong is refused by an error of ours, and nothing else comes out."""

from __future__ import annotations

import inspect as python_inspect
import io
import json
import math
import os
import string
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaging import ODD
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from models import bert, sentences

import sepnorm
from sepnorm import SepNormError, geometry, losses, pooling
from sepnorm.data.records import read_texts
from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains import domain_names, open_domain
from sepnorm.domains.comparison import parse_arms
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.published.config import PublishedConfig
from sepnorm.domains.molecules.tables import read_table
from sepnorm.domains.text.data import load_sentences, load_triples
from sepnorm.experiment.launchers import run_jobs
from sepnorm.experiment.runs import finished
from sepnorm.files import read_json
from sepnorm.layer.kinds import NormSpec
from sepnorm.training.configs import parse_changes

EXAMPLES = int(os.environ.get("SEPNORM_FUZZ", "25"))  # make test-faults takes many more
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SLOW = settings(QUICK, max_examples=EXAMPLES // 4)
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))

numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**63, 10**12, -(10**30), 10**30, math.nan, math.inf, -math.inf]),
)
shapes = st.lists(st.integers(0, 4), max_size=4)
kinds = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.long, torch.bool, torch.complex64])
tensors = st.builds(
    lambda shape, kind, fill: torch.full(shape, fill).to(kind), shapes, kinds, st.sampled_from([0.0, 1.0, math.nan])
)
arrays = st.builds(
    lambda shape, kind: np.zeros(shape, kind), shapes, st.sampled_from([np.float64, np.int8, object, "U3"])
)
others = st.sampled_from(
    [
        None,
        True,
        b"x",
        (),
        {},
        {"a": 1},
        object(),
        int,
        print,
        torch.nn.Linear(3, 3),
        torch.nn.Identity(),
        [[1.0, 2.0], [3.0]],
    ]
)
junk = st.one_of(numbers, st.text(max_size=6), st.lists(numbers, max_size=3), tensors, arrays, others)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
words = st.one_of(st.text(string.printable, max_size=12), st.sampled_from([str(value) for value in ODD]))


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- public functions ---------------------------------------------------------------------------------------------------


def converted() -> torch.nn.Module:
    model = bert()
    sepnorm.convert(model, "bn+bn", sites="all")
    return model


def with_vectors() -> Any:
    model = bert()
    sepnorm.tune_special(model, "cls")
    return model


def run_layer(layer: torch.nn.Module) -> None:
    layer(TOKENS)


def graphormer() -> sepnorm.Graphormer:
    return sepnorm.Graphormer(PublishedConfig(embedding_dim=8, num_attention_heads=2, num_hidden_layers=1))


def from_a_file(**given: Any) -> None:
    torch.save({"model": graphormer().state_dict()}, "checkpoint.pt")
    sepnorm.Graphormer.from_published("checkpoint.pt", **given)


VECTORS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


#: What is called, and arguments that are right: one of them at a time is replaced.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "SepNorm": (
        lambda **given: run_layer(sepnorm.SepNorm(**given)),
        dict(
            dim=8, cls="batch", tokens="layer", num_cls=1, token_dim=1, eps=1e-5, momentum=0.1, affine=True, sync=True
        ),
    ),
    "SepNorm, device": (lambda **given: sepnorm.SepNorm(8, **given), dict(device=None, dtype=None)),
    "SharedNorm": (
        lambda **given: run_layer(sepnorm.SharedNorm(**given)),
        dict(dim=8, kind="batch", token_dim=1, eps=1e-5, momentum=0.1, affine=True, sync=True, device=None),
    ),
    "MixtureNorm": (
        lambda **given: run_layer(sepnorm.MixtureNorm(**given)),
        dict(dim=8, components=2, eps=1e-5, momentum=0.1, affine=True),
    ),
    "forward, mix": (lambda **given: sepnorm.MixtureNorm(8)(**given), dict(x=TOKENS)),
    "from_spec": (sepnorm.SepNorm.from_spec, dict(spec="bn+ln", dim=8)),
    "forward": (lambda **given: sepnorm.SepNorm(8)(**given), dict(x=TOKENS, padding_mask=None)),
    "forward, bn+bn": (
        lambda **given: sepnorm.SepNorm.from_spec("bn+bn", 8)(**given),
        dict(x=TOKENS, padding_mask=torch.zeros(4, 6, dtype=torch.bool)),
    ),
    "convert": (
        lambda model=None, **given: sepnorm.convert(bert() if model is None else model, **given),
        dict(norm="bn+mix", sites="all", num_cls=1, components=2),
    ),
    "convert, model": (sepnorm.convert, dict(model=torch.nn.Identity())),
    "revert": (sepnorm.revert, dict(model=torch.nn.Identity())),
    "freeze": (sepnorm.freeze, dict(model=torch.nn.Identity())),
    "calibrate": (sepnorm.calibrate, dict(model=torch.nn.Identity(), data=[])),
    "inspect": (sepnorm.inspect, dict(model=torch.nn.Identity(), data=[])),
    "inspect, num_cls": (lambda num_cls: sepnorm.inspect(bert(), [sentences()], num_cls=num_cls), dict(num_cls=1)),
    "save": (sepnorm.save, dict(model=torch.nn.Identity(), folder="/nowhere/at/all")),
    "load": (sepnorm.load, dict(folder="nowhere", model=None)),
    "compare": (
        lambda **given: sepnorm.compare(out="out", **given),
        dict(
            run=lambda *_: {"a": 1.0}, arms=["ln", "bn"], seeds=1, metrics={"a": True}, margin=None, most=3, title=None
        ),
    ),
    "Metric": (sepnorm.Metric, dict(key="a", name="b", higher_is_better=True)),
    "info_nce": (losses.info_nce, dict(x=X, y=X, negatives=X, temperature=0.1)),
    "uniformity_loss": (losses.uniformity_loss, dict(x=X, form="squared", within="batch")),
    "MomentPool": (
        lambda **given: pooling.MomentPool(**given)(TOKENS),
        dict(dim=8, power=0.5, sketch=6, seed=0, root="auto"),
    ),
    "MomentPool, forward": (
        lambda **given: pooling.MomentPool(8)(**given),
        dict(tokens=TOKENS, mask=torch.ones(4, 6, dtype=torch.bool)),
    ),
    "moment_matrix": (pooling.moment_matrix, dict(tokens=TOKENS, mask=None)),
    "mean": (pooling.mean, dict(tokens=TOKENS, mask=None)),
    "cls_mean": (pooling.cls_mean, dict(cls=TOKENS[:, 0], tokens=TOKENS, mask=None)),
    "pool": (pooling.pool, dict(name="moments", cls=TOKENS[:, 0], tokens=TOKENS, mask=None)),
    **{
        name: (
            getattr(geometry, name),
            {
                key: X if key in ("x", "y") else 8 if key == "dim" else each.default
                for key, each in python_inspect.signature(getattr(geometry, name)).parameters.items()
            },
        )
        for name in geometry.__all__
        if not isinstance(getattr(geometry, name), type) and name != "summarise"
    },
    "summarise": (geometry.summarise, dict(cloud=None)),
    "heal": (
        sepnorm.heal,
        dict(
            target=VECTORS,
            data=None,
            test=None,
            labels=[number % 2 for number in range(40)],
            method=None,
            pooling=None,
            out=None,
            column=None,
            label=None,
            split="train",
            max_samples=None,
            device="auto",
            seed=0,
            progress=None,
        ),
    ),
    "Limits": (
        sepnorm.Limits,
        dict(cosine=0.99, rank=0.05, cosine_recovered=0.9, rank_recovered=0.1, patience=2, grace=5),
    ),
    "Monitor": (
        lambda **given: sepnorm.Monitor(**given).step(2),
        dict(
            model=bert(), batch=sentences(), every=2, on_collapse="warn", limits=None, embed=None, log=None, save=None
        ),
    ),
    "tune_special": (
        lambda model=None, **given: sepnorm.tune_special(bert() if model is None else model, **given),
        dict(tokens="cls", train="vectors", name="a", dropout=0.0, tokenizer=None, model=None),
    ),
    "tuning.save": (sepnorm.tuning.save, dict(model=torch.nn.Identity(), folder="/nowhere/at/all", name=None)),
    "tuning.load": (sepnorm.tuning.load, dict(model=torch.nn.Identity(), folder="nowhere", name=None)),
    "tuning.merge": (sepnorm.tuning.merge, dict(model=torch.nn.Identity())),
    "tuning.remove": (sepnorm.tuning.remove, dict(model=torch.nn.Identity())),
    "set_special": (lambda sets: with_vectors().set_special(sets), dict(sets="default")),
    "special_mask": (
        lambda special_mask: with_vectors()(**sentences(), special_mask=special_mask),
        dict(special_mask=torch.zeros(6, 9, dtype=torch.long)),
    ),
    "Graphormer": (
        sepnorm.Graphormer.from_published,
        dict(source="nowhere/at-all", features="ogb", collator="microsoft", multi_hop_max_dist=5),
    ),
    "Graphormer, published": (from_a_file, dict(features="ogb", collator="microsoft", multi_hop_max_dist=5)),
    "Graphormer, save": (lambda **given: graphormer().save_published(**given), dict(folder="out")),
    "Graphormer, forward": (
        lambda **given: graphormer()(**graphormer().dummy_inputs | given),
        dict(attn_bias=torch.zeros(3, 5, 5), labels=None, attention_mask=None, attn_edge_type=None),
    ),
    "Graphormer, batch": (lambda **given: graphormer()(**given), dict(input_nodes=None)),
    "push_to_hub": (sepnorm.push_to_hub, dict(model=torch.nn.Identity(), name="me/nothing", private=False)),
}


def test_every_public_function_is_called():
    names = {name.split(",")[0] for name in CALLS} | {"from_spec", "forward"}
    functions = {name for name in sepnorm.__all__ if callable(getattr(sepnorm, name)) and "Error" not in name}
    functions -= {
        "ConversionReport",
        "Healing",
        "Inspection",
        "Reading",
        "SepNormWarning",
        "TuningReport",
    }  # what functions give
    assert functions | set(losses.__all__) | set(pooling.__all__) <= names
    assert {name for name in geometry.__all__ if not isinstance(getattr(geometry, name), type)} <= names


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_value_or_type_errors(name):
    function, right = CALLS[name]

    @QUICK
    @given(st.sampled_from(sorted(right)), junk)
    def call(key: str, value: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            old = Path.cwd()
            os.chdir(folder)
            try:
                function(**(right | {key: value}))
            except (ValueError, TypeError):  # ours is a ValueError
                pass
            except OSError:
                assert name in ("save", "load")  # of paths
            finally:
                os.chdir(old)

    call()


@pytest.mark.parametrize("batch", [torch.randn(4, 5), {"input_ids": torch.full((4, 5), 999)}])
def test_a_batch_that_a_model_cannot_take_is_named(batch):
    with pytest.raises(SepNormError):
        sepnorm.calibrate(converted(), [batch, batch])


# ---- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", domain_names())
def test_settings_are_taken_or_refused_in_a_sentence(domain):
    presets = open_domain(domain).presets
    known = sorted(type(presets["demo"]).model_fields)

    @QUICK
    @given(
        st.lists(st.tuples(st.sampled_from(known) | words, words), max_size=3),
        st.dictionaries(st.sampled_from(known), json_values),
    )
    def change(pairs: list[tuple[str, str]], values: dict[str, Any]) -> None:
        for given_values in ([f"{key}={value}" for key, value in pairs], [value for _, value in pairs]):
            with quiet_refusal():
                presets["demo"].changed(parse_changes(given_values))
        with quiet_refusal():
            presets["demo"].changed(values)

    change()


@QUICK
@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
def test_configs_of_a_run_are_read_or_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "metrics.json"):
            (Path(folder) / name).write_bytes(content)
            with quiet_refusal():
                finished(open_domain("images").presets["demo"], Path(folder))
            with quiet_refusal():
                read_json(Path(folder) / name)
            (Path(folder) / name).unlink()


@QUICK
@given(words, words, words)
def test_arms_norms_and_launchers_are_taken_or_refused(first, second, third):
    for call in (
        lambda: parse_arms(f"{first},{second}", second, third),
        lambda: NormSpec.parse(first),
        lambda: run_jobs([], f"{first} {second}"),
        lambda: parse_changes([first, second]),
    ):
        with quiet_refusal():
            call()


# ---- files --------------------------------------------------------------------------------------------------------------

cells = st.one_of(
    st.text(max_size=6), st.sampled_from(["1.5", "-2", "nan", "", '"', "1e999", "\0", "C1CC1", "\ufeff", "\u2028"])
)
tables = st.lists(st.lists(cells, max_size=4), max_size=6)


def written(rows: list[list[str]], mark: str = ",") -> bytes:
    return "\n".join(mark.join(row) for row in rows).encode("utf-8", "surrogatepass")


def consume(path: Path) -> None:
    for part in EmbeddingFile(path).parts():
        geometry.summary(part.rows)


@QUICK
@given(
    tables | st.lists(st.lists(numbers.map(str), min_size=2, max_size=3), min_size=2, max_size=5),
    st.binary(max_size=30),
)
def test_tables_of_embeddings_are_read_or_refused(rows, noise):
    with in_folder() as folder:
        for name, content in (
            ("e.csv", written(rows)),
            ("n.csv", noise),
            ("e.parquet", noise),
            ("e.npy", noise),
            ("e.npz", noise),
        ):
            (folder / name).write_bytes(content)
            with quiet_refusal():
                consume(folder / name)


@QUICK
@given(
    st.lists(st.one_of(numbers, st.integers(0, 5)), max_size=3),
    st.sampled_from(["<f4", "<f8", ">f4", "|O", "<U3", "|b1", "<c8", "<i8", "V4", "M8[s]", "", "x", "(2,)f4"])
    | st.text(max_size=4),
    st.booleans() | st.none(),
    st.integers(0, 60),
    st.sampled_from([b"\x01\0", b"\x02\0", b"\x03\0", b"\x09\0"]),
)
def test_headers_of_arrays_are_read_or_refused(shape, kind, order, size, version):
    head = repr({"descr": kind, "fortran_order": order, "shape": tuple(shape)}).encode("utf-8", "replace")
    length = len(head).to_bytes(2 if version == b"\x01\0" else 4, "little")
    content = b"\x93NUMPY" + version + length + head + bytes(size)
    archive = io.BytesIO()
    np.savez(archive, x=np.ones((3, 2)))
    with in_folder() as folder:
        (folder / "e.npy").write_bytes(content)
        with quiet_refusal():
            consume(folder / "e.npy")
        import zipfile

        with zipfile.ZipFile(folder / "e.npz", "w") as file:
            file.writestr("cls.npy", content)
        with quiet_refusal():
            consume(folder / "e.npz")


@QUICK
@given(
    st.lists(
        st.text("CNOcn1()=#[]+-@/\\.%*Hx \0", max_size=25) | st.text(max_size=8) | st.none() | st.integers(), max_size=5
    )
)
@example(["C" * 3000, "(" * 5000, "[" * 500, "C1" * 200, "C%99CC%99", "[999C]", "[C+999999]"])
def test_smiles_are_molecules_or_rejected_with_a_reason(texts):
    for kind in ("zinc", "ogb"):
        graphs, rejected = featurise(texts, kind)
        assert len(graphs) + len(rejected) == len(texts)
        assert all(each.reason for each in rejected)


@QUICK
@given(tables, st.sampled_from([",", "\t"]))
def test_tables_of_texts_and_molecules_are_read_or_refused(rows, mark):
    suffix = "csv" if mark == "," else "tsv"
    rows = [["smiles", "y", "text", "sent0"], *rows]
    with in_folder() as folder:
        path = folder / f"t.{suffix}"
        path.write_bytes(written(rows, mark))
        for read in (lambda: read_table(str(path)), lambda: load_sentences(str(path)), lambda: load_triples(str(path))):
            with quiet_refusal():
                read()


@SLOW
@given(
    st.lists(json_values, max_size=4),
    st.binary(max_size=20),
)
def test_json_is_read_or_refused(values, noise):
    rows = "\n".join(json.dumps(value) for value in values).encode("utf-8", "surrogatepass")
    with in_folder() as folder:
        for name, content in (("t.jsonl", rows), ("t.json", json.dumps(values).encode()), ("n.jsonl", noise)):
            (folder / name).write_bytes(content)
            with quiet_refusal():
                list(read_texts(str(folder / name)))


@pytest.mark.parametrize(
    "content", ['null\n{"text": "a"}', pytest.param('[null, {"text": "a"}]', marks=pytest.mark.faults)]
)
def test_json_without_objects_does_not_end_the_process(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(content)
    code = "import sys\nfrom sepnorm.data.records import read_texts\nlist(read_texts(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.jsonl")], capture_output=True, text=True)
    assert done.returncode == 1 and "SepNormError" in done.stderr


# ---- helpers ------------------------------------------------------------------------------------------------------------


class quiet_refusal:  # noqa: N801
    """Lets errors of ours pass: anything else is a failure."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is not None and issubclass(kind, SepNormError)


class in_folder(tempfile.TemporaryDirectory):  # noqa: N801
    def __enter__(self) -> Path:
        return Path(super().__enter__())
