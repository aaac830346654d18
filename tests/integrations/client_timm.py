"""timm: checkpoints as its own functions write and read them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from client import ROOT, Case, Out

sys.path.insert(0, str(ROOT / "tests/surgery/families"))
IMAGES = (6, 3, 32, 32)


def _timm() -> Any:
    """timm, imported as ``timm_folder`` does, which needs sepnorm; without it, by the same steps."""
    sys.path.append(os.environ.get("SEPNORM_TIMM") or str(ROOT / ".timm"))
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    import timm

    return timm


_kept: list[Any] = []
TIMM = _timm()


def _model() -> Any:
    torch.manual_seed(0)
    model = TIMM.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, num_classes=5
    )
    if "without" not in sys.argv:
        import sepnorm

        sepnorm.convert(model, "bn+ln", calibrate=[_images(50)])
    return model


def _images(seed: int) -> torch.Tensor:
    return torch.randn(*IMAGES, generator=torch.Generator().manual_seed(seed))


def _out(model: Any) -> Out:
    def out(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(_images(99))

    return out


def saved(folder: Path) -> Out:
    from timm.utils import CheckpointSaver

    model = _model()
    optimizer = torch.optim.AdamW(model.train().parameters(), 1e-3)
    for step in range(10):
        torch.nn.functional.cross_entropy(model(_images(step)), torch.arange(6) % 5).backward()
        optimizer.step()
        optimizer.zero_grad()
    saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(folder), recovery_dir=str(folder))
    saver.save_checkpoint(0, metric=1.0)
    return _out(model)


def load(folder: Path, strict: bool = True) -> Out:
    from timm.models import load_checkpoint

    model = _model()
    load_checkpoint(model, str(folder / "last.pth.tar"), strict=strict, weights_only=False)
    return _out(model)


CASES = {
    "CheckpointSaver, load_checkpoint": Case(saved, load),
    "load_checkpoint, strict=False": Case(saved, lambda folder: load(folder, strict=False)),
}
