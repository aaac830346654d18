"""``sepnorm export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sepnorm.commands.options import Model, Quiet
from sepnorm.report.terminal import say


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="A .onnx file.")],
    quiet: Quiet = False,
) -> None:
    """A model as ONNX, from its inputs to [CLS] and last hidden states, compared with the original."""
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
