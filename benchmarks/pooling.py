"""Cost of moment pooling relative to a transformer block, and accuracy of its sketch.

    python benchmarks/pooling.py [--shape 64,197,384] [--rounds 5] [--threads N]
    python benchmarks/pooling.py --model RUN/model --data IMAGES [--sketches 256,512,1024,4096]

The first times forward and backward of ``MomentPool`` with both roots, as the full matrix and as a sketch of 4,096
numbers, and of one pre-norm transformer block of the same width on the same tokens. They alternate. Printed are the
shortest times over the rounds and their ratios to the block's.

The second encodes labelled images by a saved model, and probes [CLS], the mean of tokens, the full moment matrix and
sketches of it. The linear probe is scikit-learn's logistic regression on features of mean square 1, with its strength
chosen on a fifth of the training images, the same for all: the package's own probe is made for fewer dimensions than a
full matrix has.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.images.data import load_images
from sepnorm.domains.probes import Split, choosing, knn_probe
from sepnorm.pooling import MomentPool, mean

_STRENGTHS = (0.1, 1.0, 10.0)
_HEADS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="64,197,384", help="batch, tokens, dim")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--sketches", default="512,1024,4096")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.model:
        probes(options.model, options.data, [int(size) for size in options.sketches.split(",")])
    else:
        times([int(size) for size in options.shape.split(",")], options.rounds)


def times(shape: list[int], rounds: int) -> None:
    """The shortest times over the rounds in seconds, and relative to the block's."""
    tokens = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    dim = shape[2]
    block = nn.TransformerEncoderLayer(
        dim, _HEADS, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    calls: dict[str, nn.Module] = {"block": block}
    for sketch in (None, 4096):
        calls |= {f"{root}, sketch {sketch}": MomentPool(dim, sketch=sketch, root=root) for root in ("eigen", "newton")}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(_seconds(lambda call=call: call(tokens).square().mean().backward()))
    least = {name: min(each) for name, each in found.items()}
    print(f"{tuple(shape)}, {torch.get_num_threads()} threads, forward and backward, least of {rounds}")
    for name, seconds in least.items():
        print(f"{name:22s} {seconds:7.3f} s   {seconds / least['block']:.2f} of a block")


def probes(model: str, data: str, sketches: list[int]) -> None:
    """Accuracy on the test images by each kind of vector."""
    encoder = open_encoder(model)
    images = load_images(data, encoder.prepare.size[0], len(encoder.prepare.mean))
    rows: dict[str, list[Tensor]] = {}
    with encoder.evaluating():
        for part in (images.train, images.test):
            parts: dict[str, list[Tensor]] = {}
            for batch in part.images.split(256):
                encoded = encoder.encode(encoder.pixels(batch))
                dim = encoded.tokens.shape[2]
                vectors = {"mean": mean(encoded.tokens)} | ({} if encoded.cls is None else {"cls": encoded.cls})
                vectors |= {f"moments, {size}": MomentPool(dim, sketch=size)(encoded.tokens) for size in sketches}
                vectors["moments, all"] = MomentPool(dim)(encoded.tokens)
                for name, each in vectors.items():
                    parts.setdefault(name, []).append(each)
            for name, some in parts.items():
                rows.setdefault(name, []).append(torch.cat(some))
    for name, (train, test) in rows.items():
        split = Split(train, images.train.labels, test, images.test.labels)
        seconds = time.process_time()
        accuracy = _linear(split)
        print(
            f"{name:16s} {train.shape[1]:6d} numbers   linear {accuracy:.4f}   kNN {knn_probe(split):.4f}   "
            f"{time.process_time() - seconds:.0f} s of a processor",
            flush=True,
        )


def _linear(split: Split) -> float:
    from sklearn.linear_model import LogisticRegression

    middle = split.train.mean(0)
    size = (split.train - middle).square().mean().sqrt()
    train, test = ((rows - middle) / size for rows in (split.train, split.test))
    held = choosing(split.train_labels)

    def fit(strength: float, kept: Tensor) -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # after 200 steps it is near enough
            return LogisticRegression(C=strength, max_iter=200, tol=1e-3).fit(
                train[kept].numpy(), split.train_labels[kept].numpy()
            )

    scores = {c: fit(c, ~held).score(train[held].numpy(), split.train_labels[held].numpy()) for c in _STRENGTHS}
    best = max(scores, key=lambda c: (scores[c], -c))
    return float(fit(best, torch.ones_like(held)).score(test.numpy(), split.test_labels.numpy()))


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
