"""Plain torch: states of an ``nn.TransformerEncoder``, averaged weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from client import Case, Out
from torch import Tensor, nn


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16))
    if "without" not in sys.argv:
        import sepnorm

        sepnorm.convert(model, "bn+ln")
    return model


def _inputs(seed: int) -> Tensor:
    return torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(seed))


def _out(model: Any) -> Out:
    def out(batch: Any) -> Tensor:
        with torch.no_grad():
            return model.eval()(_inputs(99))

    return out


def _train(model: nn.Module, after: Any = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model.train()
    for step in range(10):
        model(_inputs(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(model)


def state(folder: Path) -> Out:
    model = _encoder()
    _train(model)
    torch.save(model.state_dict(), folder / "state.pt")
    return _out(model)


def load(folder: Path, strict: bool = True) -> Out:
    model = _encoder()
    model.load_state_dict(torch.load(folder / "state.pt", weights_only=True), strict=strict)
    return _out(model)


def averaged(folder: Path) -> Out:
    """SWA: the mean of weights, with statistics measured anew by torch's own ``update_bn``."""
    model = _encoder()
    average = torch.optim.swa_utils.AveragedModel(model)
    _train(model, average.update_parameters)
    torch.optim.swa_utils.update_bn([_inputs(step) for step in range(20, 30)], average)
    torch.save(average.module.state_dict(), folder / "state.pt")
    return _out(average)


def moving(folder: Path) -> Out:
    """EMA of weights and buffers."""
    model = _encoder()
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean, use_buffers=True)
    _train(model, average.update_parameters)
    torch.save(average.module.state_dict(), folder / "state.pt")
    return _out(average)


CASES = {
    "state_dict": Case(state, load),
    "state_dict, strict=False": Case(state, lambda folder: load(folder, strict=False)),
    "SWA with update_bn": Case(averaged, load),
    "EMA with buffers": Case(moving, load),
}
