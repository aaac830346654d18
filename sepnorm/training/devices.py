"""The device and precision of a run. By default the fastest device; one that is not here is refused."""

from __future__ import annotations

import torch

from sepnorm.errors import SepNormError


def available() -> list[str]:
    """Device types on this machine, fastest first."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu"] if kind is None else [kind.type, "cpu"]


def device_of(asked: str = "auto") -> torch.device:
    """The device for ``auto`` (the fastest), ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or another name of torch's."""
    found = available()
    if asked == "auto":
        return torch.device(found[0])
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise SepNormError(f"there is no device {asked!r}: choose from auto, {', '.join(found)}.") from None
    count = 1 if device.type == "cpu" or device.type not in found else torch.accelerator.device_count()
    if device.type not in found or (device.index or 0) >= count:
        raise SepNormError(f"there is no device {asked!r} here: choose from auto, {', '.join(found)}.")
    return device


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether to train in bfloat16. ``auto`` means yes on NVIDIA GPUs that support it."""
    if precision == "fp32":
        return False
    able = _able(device)
    if precision == "bf16" and not able:
        raise SepNormError(
            f"{device.type} does not support precision=bf16 here: use precision=fp32 or another --device."
        )
    return able and (precision == "bf16" or device.type == "cuda")


def check_device(device: str, precision: str = "auto") -> None:
    """Refuses a device that is not here, or a precision that the device does not support."""
    uses_bfloat16(precision, device_of(device))


def _able(device: torch.device) -> bool:
    """Whether a device computes in bfloat16, found by trying it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    try:
        x = torch.ones(2, 2, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return (x @ x).dtype == torch.bfloat16
    except (RuntimeError, TypeError, ValueError):
        return False
