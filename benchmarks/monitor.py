"""Cost of ``sepnorm.Monitor``: time of a reading relative to the steps between two readings, at the default interval.

    python benchmarks/monitor.py [--rounds 5]

A BERT of 6 layers and width 192 on 50 tokens, batch size 64; the monitor's batch has 256 samples. Steps and readings
alternate, and the median of each counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import transformers

import sepnorm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768
    )
    model = transformers.BertModel(config).train()
    sepnorm.convert(model, "bn+ln")
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = sepnorm.Monitor(model, {"input_ids": torch.randint(5, 1000, (256, 50))}, on_collapse="nothing")
    batch = {"input_ids": torch.randint(5, 1000, (64, 50))}
    steps, readings = [], []
    for number in range(options.rounds + 1):
        for _ in range(4):
            start = time.perf_counter()
            optimizer.zero_grad()
            model(**batch).last_hidden_state[:, 0].square().mean().backward()
            optimizer.step()
            steps.append(time.perf_counter() - start)
        start = time.perf_counter()
        monitor.read(number)
        readings.append(time.perf_counter() - start)
    step, reading = statistics.median(steps[4:]), statistics.median(readings[1:])  # the first of each are slower
    share = reading / (monitor.every * step)
    print(
        f"step {1000 * step:.0f} ms, reading {1000 * reading:.0f} ms, every {monitor.every} steps: {share:.2%} of the time"
    )


if __name__ == "__main__":
    main()
