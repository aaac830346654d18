"""Exports encoders to ONNX: [CLS] and last hidden states for any batch size, and for text any length."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sepnorm.domains.encoders import Encoded, Encoder, open_encoder
from sepnorm.domains.healing.maps import FILE, healed_vectors, load_map
from sepnorm.domains.healing.models import HealedImageBody, HealedTextBody
from sepnorm.domains.requests import check_export
from sepnorm.domains.targets import find_model
from sepnorm.errors import SepNormError, is_of_memory, one_line
from sepnorm.files import make_folder
from sepnorm.geometry.linear_maps import LinearMap
from sepnorm.surgery.calibration import freeze, has_batch_statistics
from sepnorm.surgery.families import is_timm

OUTPUTS = ("cls", "last_hidden_state")
_TOLERANCE = 1e-3  # relative to the largest value; runtimes sum in another order
_LARGEST = 1_900_000_000  # bytes of weights that fit into one ONNX file


@dataclass(eq=False)
class Exported:
    """Result of ``export_onnx``.

    Args:
        inputs: names of the inputs.
        difference: largest difference to torch's outputs; None if ONNX Runtime is not installed.
        outputs: names of the outputs.
    """

    inputs: list[str]
    difference: float | None
    outputs: list[str]


def export_onnx(target: str, out: Path, healing: Path | None = None) -> Exported:
    """Exports an encoder to ONNX, with its batch statistics folded into the weights.

    If ONNX Runtime is installed, the file is compared with the original first, and not written if it differs.

    Args:
        target: folder of a model or run, Hub name, or ``timm:NAME``.
        out: the ``.onnx`` file to write.
        healing: a folder that ``heal`` wrote; default ``target``, if it is one. The file then has a third output,
            ``healed``: the pooled vector after the linear map.

    Returns:
        Names of inputs and outputs, and the largest difference.

    Raises:
        SepNormError: if the model cannot be opened or exported, or the exported model differs.
    """
    check_export(target, out)
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise SepNormError("export needs onnx and onnxscript: pip install 'sepnorm[export]'.") from error
    encoder = open_encoder(target)
    encoder.require_cls()
    found = encoder.exportable()
    make_folder(out.parent)
    body: nn.Module = found.body.eval()
    place = healing or Path(find_model(target))
    healed = load_map(place) if healing is not None or (place / FILE).is_file() else None
    if has_batch_statistics(body):
        freeze(body)
    names = list(OUTPUTS)
    if healed is not None:
        body, names = _healed(encoder, body, healed, found.example), [*OUTPUTS, "healed"]
    large = sum(tensor.nbytes for tensor in body.state_dict().values()) > _LARGEST
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        with _hushed(), _exporting(target):
            program = torch.onnx.export(
                body,
                (),
                kwargs=found.example,
                dynamo=True,
                verbose=False,
                output_names=names,
                dynamic_shapes=dict.fromkeys(found.example, found.dynamic),
            )
            assert program is not None
            program.save(str(Path(folder) / out.name), external_data=large)
        difference = _difference(encoder, Path(folder) / out.name, found.other, healed)
        for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == out.name):  # the model itself last
            os.replace(file, out.parent / file.name)
    return Exported(list(found.example), difference, names)


def _healed(encoder: Encoder, body: nn.Module, healed: tuple[LinearMap, str], example: dict[str, Tensor]) -> nn.Module:
    """The body followed by pooling and the linear map."""
    found, pooling = healed
    with encoder.evaluating(), torch.no_grad():
        cls, hidden = body(**example)
        leading = hidden.shape[1] - _encoded(encoder, example).tokens.shape[1]
    if cls.shape[1] != found.weight.shape[1]:
        raise SepNormError(
            f"the healing is for vectors of {found.weight.shape[1]} dimensions, and {encoder.name} has {cls.shape[1]}: use a "
            "healing of this model."
        )
    kind = HealedTextBody if "input_ids" in example else HealedImageBody
    return kind(body, found, pooling, encoder.cls_in_mean, leading).eval()


def _encoded(encoder: Encoder, inputs: dict[str, Tensor]) -> Encoded:
    return encoder.encode(inputs["pixel_values"] if is_timm(encoder.model) else inputs)


def _difference(
    encoder: Encoder, path: Path, inputs: dict[str, Tensor], healed: tuple[LinearMap, str] | None = None
) -> float | None:
    """Largest difference to the original model, on inputs of another size than the example's."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(str(path))
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with encoder.evaluating():
        encoded = _encoded(encoder, inputs)
    assert encoded.cls is not None  # require_cls was called before
    gap = float((torch.from_numpy(found[0]) - encoded.cls).abs().max())
    tokens = torch.from_numpy(found[1])[:, -encoded.tokens.shape[1] :]
    gap = max(gap, float((tokens - encoded.tokens)[encoded.keep].abs().max()))
    if healed is not None:
        gap = max(gap, float((torch.from_numpy(found[2]) - healed_vectors(encoded, *healed)).abs().max()))
    if not gap <= _TOLERANCE * max(1.0, float(encoded.cls.abs().max())):
        raise SepNormError(
            f"the outputs of the exported model differ from those of {encoder.name} by {gap:.2g}, so it was not written: try "
            "other versions of torch, onnxscript or onnxruntime."
        )
    return gap


@contextmanager
def _exporting(target: str) -> Iterator[None]:
    """Turns errors of the exporter into one sentence."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        if isinstance(error, SepNormError) or is_of_memory(error):
            raise
        cause = error.__cause__ or error
        raise SepNormError(
            f"{target} cannot be exported: {type(cause).__name__}: {one_line(cause)}. Its config may not fit its weights."
        ) from error


@contextmanager
def _hushed() -> Iterator[None]:
    """Silences the exporter's log and warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
