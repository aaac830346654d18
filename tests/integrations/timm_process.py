"""Opens weights of a user's own in an architecture of timm, and prints what was seen as one JSON object.

python tests/integrations/timm_process.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from client_timm import TIMM
from safetensors.torch import save_file

import sepnorm
from sepnorm.surgery.opening.models import open_timm

NAME = "vit_tiny_patch16_224"


def refusal(target: str) -> str:
    try:
        open_timm(target)
    except sepnorm.SepNormError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model = TIMM.create_model(NAME, num_classes=7).eval()
    save_file(model.state_dict(), folder / "plain.safetensors")
    torch.save(model.state_dict(), folder / "state.pt")
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        wanted = model.forward_features(images)
        found = open_timm(f"{NAME}:{folder / 'plain.safetensors'}").eval().forward_features(images)
    sepnorm.convert(model, "bn+ln")
    save_file(model.state_dict(), folder / "converted.safetensors")
    seen = {"distance": float((wanted - found).abs().max())}
    for name, target in {
        "converted": f"{NAME}:{folder / 'converted.safetensors'}",
        "pickle": f"{NAME}:{folder / 'state.pt'}",
        "nothing": f"{NAME}:{folder / 'nothing.safetensors'}",
        "unknown": f"vit_tiniest:{folder / 'plain.safetensors'}",
    }.items():
        seen[name] = refusal(target)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
