"""The verb ``sepnorm export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Model, Quiet
from sepnorm.report.terminal import say


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="The .onnx file to write.")],
    quiet: Quiet = False,
) -> None:
    """Export an encoder to ONNX.

    The file takes the model's inputs and returns [CLS] and the last hidden states, for any batch size. If onnxruntime
    is installed, the outputs are first compared with the original's.

    Example: sepnorm export runs/my-run --out model.onnx
    """
    from sepnorm.domains.requests import check_export

    check_export(model, out)
    from sepnorm.domains.export import export_onnx

    found = export_onnx(model, out)
    if not quiet:
        say(f"Inputs: {', '.join(found.inputs)}. Outputs: {', '.join(found.outputs)}.")
        if found.difference is None:
            say("Not compared with the original, since onnxruntime is not installed.")
        else:
            say(f"Largest difference to the original in ONNX Runtime: {found.difference:.1e}")
    say(f"Saved: {out}")
