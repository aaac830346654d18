"""Lightning: checkpoints of a module that converts its encoder where it builds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from client import ROOT, Case, Out, converted, hidden
from torch.utils.data import DataLoader

sys.path.append(str(ROOT / ".lightning"))
import lightning


class Plain(lightning.LightningModule):
    """What a process without sepnorm can build: the same encoder, with the norms that it has."""

    def __init__(self) -> None:
        super().__init__()
        from models import bert

        self.encoder: Any = bert()


class Encoder(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = converted()

    def training_step(self, batch: Any, index: int) -> Any:
        return self.encoder(**batch).last_hidden_state[:, :3].square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(folder: Path, **options: Any) -> Out:
    from models import sentences

    rows = [{key: value[0] for key, value in sentences(1, padded=False).items()} for _ in range(40)]
    quiet = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = lightning.Trainer(max_steps=10, default_root_dir=str(folder), **quiet, **options)
    model = Encoder()
    trainer.fit(model.train(), DataLoader(rows, batch_size=4))
    trainer.save_checkpoint(folder / "model.ckpt")
    return hidden(model.encoder)


def load(folder: Path) -> Out:
    return hidden(Encoder.load_from_checkpoint(folder / "model.ckpt", weights_only=True).encoder)


def load_loosely(folder: Path) -> Out:
    """Where there is no sepnorm, a module without it takes what it knows of the checkpoint."""
    kind = Encoder if "sepnorm" in sys.modules else Plain
    return hidden(kind.load_from_checkpoint(folder / "model.ckpt", weights_only=True, strict=False).encoder)


CASES = {
    "checkpoint": Case(fit, load),
    "checkpoint, strict=False": Case(fit, load_loosely),
    "sync_batchnorm": Case(lambda folder: fit(folder, sync_batchnorm=True), load),
}
