"""Fine-tunes an encoder with a linear head on [CLS]."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.data.choices import evenly
from sepnorm.domains.images.encoder import ImageBody
from sepnorm.domains.probes import choosing
from sepnorm.surgery.calibration import calibrate, has_batch_statistics

#: Learning rates of the head to try; the body's rate is a tenth.
RATES = (1e-3, 3e-3, 1e-2)
EPOCHS = 10  # largest number of epochs; the best is chosen
_BODY_SHARE, _DECAY, _BATCH = 0.1, 0.05, 64
_MEASURED = 2048  # training images on which batch statistics are measured


Part = tuple[Tensor, Tensor]  # images as bytes (count, channels, side, side), and labels (count,)


class Classifier(nn.Module):
    """An encoder with a linear head on [CLS]."""

    def __init__(self, body: ImageBody, dim: int, classes: int) -> None:
        super().__init__()
        self.body = copy.deepcopy(body)
        self.head = nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels)[0])


def finetune(
    body: ImageBody,
    dim: int,
    classes: int,
    train: Part,
    test: Part,
    pixels: Callable[[Tensor], Tensor],
    seed: int = 0,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, float]:
    """Test accuracy ``top1`` after fine-tuning, and the chosen ``epochs`` and ``rate``.

    Args:
        body: the encoder, whose [CLS] is (batch, ``dim``); a copy is trained.
        dim: dimensions of [CLS].
        classes: number of classes.
        train: training images and labels. One image in five of each class is first held out to choose rate and epochs.
        test: test images and labels, used once, at the end.
        pixels: function from images to the encoder's input.
        seed: of the head's weights and the order of images.
        progress: called with the epochs done and their largest number.
    """
    images, labels = train
    held_out = choosing(labels)
    done = 0

    def run(rate: float, epochs: int, part: Part, judge: Part | None = None) -> tuple[Classifier, list[float]]:
        """Trains on ``part``; returns the model and its accuracy on ``judge`` after each epoch."""
        nonlocal done
        torch.manual_seed(seed)
        model = Classifier(body, dim, classes).to(next(body.parameters()).device)
        optimiser = _optimiser(model, rate)
        scores = []
        for _ in range(epochs):
            _epoch(model, optimiser, part, pixels)
            if judge is not None:
                scores.append(_accuracy(model, part, judge, pixels))
            done += 1
            if progress is not None:
                progress(done, (len(RATES) + 1) * EPOCHS)
        return model, scores

    with torch.random.fork_rng():
        fit, judge = (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])
        tried = {rate: run(rate, EPOCHS, fit, judge)[1] for rate in RATES}
        best = max(tried, key=lambda rate: max(tried[rate]))
        epochs = tried[best].index(max(tried[best])) + 1
        model = run(best, epochs, train)[0]
        return {"top1": _accuracy(model, train, test, pixels), "epochs": epochs, "rate": best}


def _optimiser(model: Classifier, rate: float) -> torch.optim.Optimizer:
    """AdamW without weight decay on norms and biases, which have one dimension."""
    groups = []
    for part, share in ((model.body, _BODY_SHARE), (model.head, 1.0)):
        for decay in (True, False):
            chosen = [p for p in part.parameters() if p.requires_grad and (p.dim() > 1) == decay]
            groups.append({"params": chosen, "lr": rate * share, "weight_decay": _DECAY if decay else 0.0})
    return torch.optim.AdamW([group for group in groups if group["params"]])


def _epoch(model: Classifier, optimiser: torch.optim.Optimizer, part: Part, pixels: Callable[[Tensor], Tensor]) -> None:
    images, labels = part
    device = model.head.weight.device
    model.train()
    for chosen in torch.randperm(len(labels)).split(_BATCH):
        if len(chosen) == 1 and len(labels) > 1:
            continue  # a single sample has no batch statistics
        loss = F.cross_entropy(model(pixels(images[chosen]).to(device)), labels[chosen].to(device))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@torch.no_grad()
def _accuracy(model: Classifier, train: Part, judge: Part, pixels: Callable[[Tensor], Tensor]) -> float:
    """Accuracy on ``judge``, with batch statistics measured on ``train``: running ones lag behind a changing body."""
    device = model.head.weight.device
    if has_batch_statistics(model.body):
        some = train[0][evenly(len(train[0]), _MEASURED)]
        calibrate(model.body, [pixels(part).to(device) for part in some.split(256) if len(part) > 1])
    model.eval()
    right = 0
    for images, labels in zip(judge[0].split(256), judge[1].split(256), strict=True):
        right += int((model(pixels(images).to(device)).argmax(1).cpu() == labels).sum())
    return right / len(judge[1])
