"""Evaluation sets by name, and where to find each: a table, SentEval's folder, the Hub, or an installed package."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sepnorm.data.records import rows_of
from sepnorm.data.tables import TABLES, suffix_of
from sepnorm.domains.text.classification import (
    Classification,
    read_mrpc,
    read_polarity,
    read_sst,
    read_trec,
    task_of,
)
from sepnorm.domains.text.lee import lee_pairs
from sepnorm.domains.text.sts import YEARS, Pairs, pairs_of, read_benchmark, read_sick, read_year
from sepnorm.errors import GuessWarning, SepNormError, nearest

Loaded = Pairs | Classification

GROUPS = ("sts", "transfer")
_PAIRS = ("sentence1", "sentence2", "score")
_SET_COLUMNS = ("task", "dataset", "set")  # columns that name the set of a row
_DEPTHS = ("data/downstream", "downstream", ".")  # where SentEval's sets are below the user's folder


@dataclass(frozen=True)
class Hub:
    """A Hugging Face dataset: the splits of each part, and the columns of texts and of scores or labels."""

    name: str
    parts: Mapping[str, tuple[str, ...]]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationSet:
    """One set: its group, its file or folder in SentEval's layout with a reader, and its copy on the Hub."""

    group: str
    place: str
    read: Callable[[Path], Loaded]
    hub: Hub
    aliases: tuple[str, ...] = ()


def _sts(place: str, read: Callable[[Path], Loaded], hub: str, *aliases: str) -> EvaluationSet:
    return EvaluationSet("sts", place, read, Hub(hub, {"test": ("test",)}, _PAIRS), aliases)


def _polarity(place: str, positive: str, negative: str, hub: Hub) -> EvaluationSet:
    return EvaluationSet("transfer", place, lambda folder: read_polarity(folder / positive, folder / negative), hub)


_IN_TWO = {"all": ("train", "test")}  # splits of the Hub's copies of sets without a split
_GIVEN = {"train": ("train",), "test": ("test",)}
SETS: dict[str, EvaluationSet] = {
    **{name: _sts(f"STS/{name.upper()}-en-test", partial(read_year, name=name), f"mteb/{name}-sts") for name in YEARS},
    "stsb": _sts("STS/STSBenchmark/sts-test.csv", read_benchmark, "mteb/stsbenchmark-sts", "stsbenchmark"),
    # the Hub's copy has all 9,927 pairs in its test split; SimCSE's protocol uses 4,927 of them
    "sick-r": _sts("SICK/SICK_test_annotated.txt", read_sick, "mteb/sickr-sts", "sick", "sickrelatedness"),
    "mr": _polarity(
        "MR",
        "rt-polarity.pos",
        "rt-polarity.neg",
        Hub("cornell-movie-review-data/rotten_tomatoes", {"all": ("train", "validation", "test")}, ("text", "label")),
    ),
    "cr": _polarity("CR", "custrev.pos", "custrev.neg", Hub("SetFit/CR", _IN_TWO, ("text", "label"))),
    "subj": _polarity("SUBJ", "subj.objective", "subj.subjective", Hub("SetFit/subj", _IN_TWO, ("text", "label"))),
    "mpqa": _polarity("MPQA", "mpqa.pos", "mpqa.neg", Hub("jxm/mpqa", _IN_TWO, ("sentence", "label"))),
    # the Hub's copy has the 6,920 training sentences, SentEval's their 67,349 phrases
    "sst2": EvaluationSet(
        "transfer",
        "SST/binary",
        read_sst,
        Hub("SetFit/sst2", _GIVEN | {"validation": ("validation",)}, ("text", "label")),
        ("sst",),
    ),
    "trec": EvaluationSet(
        "transfer", "TREC", read_trec, Hub("SetFit/TREC-QC", _GIVEN, ("text", "label_coarse_original"))
    ),
    "mrpc": EvaluationSet(
        "transfer",
        "MRPC",
        read_mrpc,
        Hub(
            "nyu-mll/glue:mrpc",
            {"train": ("train", "validation"), "test": ("test",)},
            ("sentence1", "sentence2", "label"),
        ),
    ),
}


def _plain(name: str) -> str:
    """A name in lower case without signs: ``STS-B`` and ``stsb`` are the same set."""
    return re.sub(r"[\W_]", "", name.lower())


_NAMES = {_plain(alias): name for name, known in SETS.items() for alias in (name, *known.aliases)}


def load_sets(on: Sequence[str], data: str | None = None) -> dict[str, Loaded]:
    """Loads the sets that ``on`` names, by group (``sts``, ``transfer``) or one by one, in the order of the registry.

    ``data``: a table, or a folder of tables or in SentEval's layout. Without it the sets come from the Hub, and ``lee``
    from gensim. A group stands for those of its sets that the data holds; a set named by itself must be there.
    """
    groups, names = _asked(on)
    if data is None:
        wanted = [name for name, known in SETS.items() if name in names or known.group in groups]
        found = {name: _from_hub(name) for name in wanted}
    elif Path(data).is_dir():
        found = _from_folder(Path(data), groups, names)
    elif Path(data).is_file() and suffix_of(Path(data)) not in TABLES:
        raise SepNormError(
            f"{data} is no table: models of text are scored on rated pairs (sentence1, sentence2, score) or labelled sentences "
            f"(text, label), in one of {', '.join(TABLES)} (also .gz, .xz)."
        )
    elif Path(data).is_file():
        found = {name: one for name, one in _from_table(data, names).items() if _group(one) in groups or name in names}
    else:
        raise SepNormError(f"there is no file or folder {data}.")
    missing = [name for name in names if name not in found and name != "lee"]
    missing += [group for group in groups if not any(_group(one) == group for one in found.values())]
    if missing:
        raise SepNormError(
            f"{data} holds nothing for {', '.join(missing)}: give a table named after the set, such as stsb.tsv, or the "
            "folder of SentEval's data."
        )
    if "lee" in names:
        found["lee"] = lee_pairs()
    order = [*SETS, *found]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _asked(on: Sequence[str]) -> tuple[list[str], list[str]]:
    """Groups and names of sets, each once."""
    if not on:
        raise SepNormError(f"nothing to evaluate on was named: there are {', '.join([*GROUPS, 'lee', *SETS])}.")
    groups: list[str] = []
    names: list[str] = []
    for asked in on:
        plain = _plain(asked)
        if plain in GROUPS:
            groups.append(plain)
        elif plain == "lee" or plain in _NAMES:
            names.append(_NAMES.get(plain, plain))
        else:
            known = [*GROUPS, "lee", *SETS]
            raise SepNormError(
                f"unknown evaluation set {asked!r}: choose from {', '.join(known)}.{nearest(asked, known)}"
            )
    return list(dict.fromkeys(groups)), list(dict.fromkeys(names))


def _group(loaded: Loaded) -> str:
    return "sts" if isinstance(loaded, Pairs) else "transfer"


def _from_table(source: str, names: Sequence[str] = ()) -> dict[str, Loaded]:
    """The sets of one table: those that a column such as ``task`` names, else one named after the file.

    If the file's name matches no set, the table holds the one set that was asked for.
    """
    rows = list(rows_of(source))
    if (column := _set_column(rows[0])) is not None:
        lots: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            task = str(row[column])
            lots.setdefault(_NAMES.get(_plain(task), task), []).append(row)
        return {name: _from_rows(lot, f"{name} in {source}") for name, lot in lots.items()}
    name = _told(Path(source)) or (names[0] if len(names) == 1 else Path(source).name.split(".")[0])
    return {name: _from_rows(rows, source)}


def _set_column(row: dict[str, Any]) -> str | None:
    """The column that names the set of a row."""
    return next((name for name in _SET_COLUMNS if name in row), None)


def _told(path: Path) -> str | None:
    """Like ``_named``, with a warning if only part of the file's name matches."""
    name = _named(path)
    if name is not None and _plain(path.name.split(".")[0]) not in _NAMES:
        warnings.warn(
            f"{path} is taken for one set, {name}, by the beginning of its name: a column {' or '.join(_SET_COLUMNS)} can name "
            "several, and another file name another.",
            GuessWarning,
            stacklevel=2,
        )
    return name


def _named(path: Path) -> str | None:
    """The set that a file name begins with: ``stsb-test.csv`` is ``stsb``."""
    words = re.split(r"[\W_]+", path.name.lower())
    return next((_NAMES[word] for word in ("".join(words[:2]), words[0]) if word in _NAMES), None)


def _from_rows(rows: list[dict[str, Any]], source: str) -> Loaded:
    """Pairs if there is a score, else a classification. Of pairs with a split only the test rows are used."""
    columns = [name for name in rows[0] if name is not None]
    if set(_PAIRS) <= set(columns):
        test = [row for row in rows if row.get("split") == "test"]
        return pairs_of(test or rows, source, _PAIRS)
    if "label" in columns and {"sentence1", "sentence2"} <= set(columns):
        return task_of(rows, source, ("sentence1", "sentence2"), "label")
    text = next((name for name in ("text", "sentence") if name in columns), None)
    if "label" in columns and text is not None:
        return task_of(rows, source, (text,), "label")
    raise SepNormError(
        f"{source} has the columns {', '.join(columns)}: a set needs sentence1, sentence2 and score, or text and label, or "
        "sentence1, sentence2 and label."
    )


def _from_folder(folder: Path, groups: Sequence[str], names: Sequence[str]) -> dict[str, Loaded]:
    """Tables named after a set, then SentEval's layout, then tables that name the set of each row.

    Tables may be in the folder or one below.
    """
    wanted = [name for name, known in SETS.items() if name in names or known.group in groups]
    tables = [path for path in _files(folder) if suffix_of(path) in TABLES]
    found: dict[str, Loaded] = {}
    for path in tables:
        if (name := _named(path)) in wanted and name not in found:
            found = {key: one for key, one in _from_table(str(path)).items() if key in wanted} | found
    for name in wanted:
        place = next((p for deep in _DEPTHS if (p := folder / deep / SETS[name].place).exists()), None)
        if name not in found and place is not None:
            found[name] = SETS[name].read(place)
    for path in tables:
        if any(name not in found for name in wanted) and _names_sets(path):
            found = {key: one for key, one in _from_table(str(path)).items() if key in wanted} | found
    return found


def _names_sets(path: Path) -> bool:
    """Whether a table has a column that names the set of each row. Nobody asked for this file, so it may be unreadable."""
    try:
        return _set_column(next(rows_of(str(path)))) is not None
    except SepNormError:
        return False


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())


def _from_hub(name: str) -> Loaded:
    hub = SETS[name].hub
    rows = [
        dict(row, split=part)
        for part, splits in hub.parts.items()
        for split in splits
        for row in rows_of(hub.name, split)
    ]
    if SETS[name].group == "sts":
        return pairs_of(rows, hub.name, _PAIRS)
    return task_of(rows, hub.name, hub.columns[:-1], hub.columns[-1])
