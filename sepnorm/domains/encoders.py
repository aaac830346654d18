"""Models by name or folder, what they want as input, and the [CLS] and token vectors that they give."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.records import Record, read_images, read_texts
from sepnorm.errors import MisfitError, SepNormError, one_line
from sepnorm.layer.kinds import NormSpec
from sepnorm.surgery import model_call as feed
from sepnorm.surgery.conversion import ConversionReport, convert
from sepnorm.surgery.families import is_timm, is_transformers
from sepnorm.surgery.opening.models import open_model, open_timm, open_tokeniser
from sepnorm.surgery.opening.settings import read_named
from sepnorm.surgery.saving import load, save

_WINDOW = 64  # batches of texts or molecules that are sorted by length together, so that little is padded
_LONGEST = 256  # tokens of a text


# What parts of a model that do not belong together raise.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _is_panic(error: BaseException) -> bool:
    """Whether it comes from a library in Rust, such as a tokeniser: these are no ``Exception``."""
    return type(error).__name__ == "PanicException"


@dataclass(eq=False)
class Encoded:
    """Last hidden states: ``cls`` (batch, dim), ``tokens`` (batch, tokens, dim), and which of these are no padding."""

    cls: Tensor
    tokens: Tensor
    keep: Tensor


@dataclass(eq=False)
class Encoder:
    """A model with the way from texts, images or molecules to its input."""

    name: str
    model: Any
    kind: str  # "text", "images" or "molecules"
    prepare: Any  # a list of contents -> a batch

    def read(self, data: str, column: str | None = None, split: str = "train") -> Iterator[Record]:
        if self.kind == "molecules":
            return iter(self.prepare.read(data, column, split))
        return (read_texts if self.kind == "text" else read_images)(data, column, split)

    @property
    def window(self) -> int:
        """How many batches are sorted together by the length of what is in them: of images, which are alike, one."""
        return 1 if self.kind == "images" else _WINDOW

    def batches(self, records: Iterator[Record], size: int = 32) -> Iterator[tuple[list[Record], Any]]:
        """Records and the batch made of them; texts or molecules of similar length come together."""
        while window := list(islice(records, size * self.window)):
            if self.window > 1:
                window.sort(key=lambda record: len(record.content))
            for start in range(0, len(window), size):
                part = window[start : start + size]
                with self._working():
                    batch = self.prepare([record.content for record in part])
                yield part, batch

    @torch.no_grad()
    def encode(self, batch: Any) -> Encoded:
        """The model is to be in evaluation mode."""
        with self._working():
            return self._encoded(batch)

    def _encoded(self, batch: Any) -> Encoded:
        model = self.model
        if is_timm(model):
            hidden = model.forward_features(batch.to(next(model.parameters()).device))
            prefix = int(getattr(model, "num_prefix_tokens", 1))
            return Encoded(hidden[:, 0], hidden[:, prefix:], torch.ones(hidden[:, prefix:].shape[:2], dtype=torch.bool))
        if getattr(getattr(model, "config", None), "mask_ratio", None) == 0 and "noise" not in batch:
            batch = batch | {"noise": in_order(model.base_model, len(batch["pixel_values"]))}
        output = feed.call(model.base_model if is_transformers(model) else model, batch)
        hidden = output["token_embeddings"] if "token_embeddings" in output else output["last_hidden_state"]
        mask = batch.get("attention_mask")
        keep = torch.ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask.bool().cpu()
        first = 1 + int(getattr(getattr(model, "config", None), "num_register_tokens", 0) or 0)
        return Encoded(hidden[:, 0], hidden[:, first:], keep[:, first:])

    @contextmanager
    def _working(self) -> Iterator[None]:
        """A model that opened, but whose parts do not fit each other or the data, is told by whatever its library raises."""
        try:
            yield
        except BaseException as raised:
            error = raised.__cause__ or raised if isinstance(raised, MisfitError) else raised
            if isinstance(error, SepNormError) or not (isinstance(error, _MISFITS) or _is_panic(error)):
                raise
            raise SepNormError(
                f"{self.name} cannot be run on this data: {type(error).__name__}: {one_line(error)}. Its files do not fit each "
                "other, or the data are of another kind."
            ) from error

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for the time being, and for masked autoencoders no mask."""
        config: Any = getattr(self.model, "config", None)
        ratio = getattr(config, "mask_ratio", None)
        if ratio is not None:
            config.mask_ratio = 0.0
        try:
            with feed.quiet(self.model):
                yield
        finally:
            if ratio is not None:
                config.mask_ratio = ratio


def in_order(encoder: Any, count: int) -> Tensor:
    """Noise (count, patches) by which a masked autoencoder's encoder leaves its tokens in their order."""
    return torch.arange(encoder.embeddings.patch_embeddings.num_patches).float().expand(count, -1)


def open_encoder(target: str) -> Encoder:
    """A folder of ``sepnorm.save``, transformers or sentence-transformers, a hub name, or ``timm:NAME``."""
    folder = Path(target)
    if target.startswith("timm:"):
        return _wrap(target, open_timm(target.removeprefix("timm:")), folder)
    if folder.exists() and not folder.is_dir():
        raise SepNormError(
            f"{target} is neither a model's folder nor a file of embeddings (.npy, .npz, .parquet, .csv)."
        )
    if folder.is_dir() and not any(
        (folder / name).is_file() for name in ("config.json", "modules.json", "sepnorm.json")
    ):
        raise SepNormError(f"{target} holds no model: it has neither config.json nor modules.json nor sepnorm.json.")
    try:
        return _wrap(target, load(folder), folder) if (folder / "sepnorm.json").is_file() else _opened(target)
    except SepNormError:
        raise
    except (
        BaseException
    ) as error:  # whatever a damaged folder or a name that cannot be reached makes the libraries raise
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        where = "" if folder.is_dir() else " It is no folder here, so it was taken for a name of the hub."
        raise SepNormError(f"{target} cannot be opened as a model: {reason}.{where}") from error


def _opened(target: str) -> Encoder:
    """By transformers or sentence-transformers, from a folder or the hub."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    opened = open_model(target)
    return _wrap(target, opened.model, opened.source)


def _wrap(target: str, model: Any, source: Path) -> Encoder:
    """``source``: the folder with the tokeniser, or with the settings for pixels."""
    model.eval()
    if hasattr(model, "encode"):
        prepare = model.preprocess if hasattr(model, "preprocess") else model.tokenize
        model.max_seq_length = min(model.max_seq_length or _LONGEST, _LONGEST)
        return Encoder(target, model, "text", prepare)
    if is_timm(model):
        from sepnorm.data.pixels import Picture

        config = model.pretrained_cfg
        size = getattr(model.patch_embed, "img_size", None) or config["input_size"][1:]
        return Encoder(target, model, "images", Picture(tuple(size), config["mean"], config["std"]))
    if is_transformers(model) and model.main_input_name == "pixel_values":
        return Encoder(target, model, "images", _picture(source, model))
    if is_transformers(model) and model.main_input_name == "input_ids":
        return Encoder(target, model, "text", _tokeniser(target, model, source))
    if is_transformers(model) and model.main_input_name == "nodes":
        from sepnorm.domains.molecules.reading import Molecules

        return Encoder(target, model, "molecules", Molecules(model.config))
    raise SepNormError(f"{target} is a {type(model).__name__}, which takes neither text nor images nor molecules.")


def _tokeniser(target: str, model: Any, folder: Path) -> Tokenised:
    missing = f"{target} has no tokeniser: put one beside the model, by tokenizer.save_pretrained({target!r})."
    try:
        tokenizer = open_tokeniser(folder)
    except SepNormError:
        raise
    except Exception as error:
        raise SepNormError(missing) from error
    # where there are no files, transformers makes up a tokeniser to which every word is unknown
    if len(tokenizer) < len(tokenizer.all_special_tokens) + 3:
        raise SepNormError(missing)
    longest = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", _LONGEST), _LONGEST)
    if longest < 1:
        raise SepNormError(
            f"{target} is damaged: its tokeniser or config says that a text has at most {longest} tokens."
        )
    return Tokenised(tokenizer, longest)


def _picture(folder: Path, model: Any) -> Any:
    """Size, mean and deviation of pixels as the model's image processor has them, else the usual ones."""
    from sepnorm.data.pixels import SETTINGS, Picture

    settings = read_named(folder / SETTINGS) or {}
    size = model.config.image_size
    size = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(model.config, "num_channels", 3)
    usual = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if channels == 3 else ([0.5] * channels, [0.5] * channels)
    mean, std = settings.get("image_mean") or usual[0], settings.get("image_std") or usual[1]
    return Picture(size, mean, std, name="pixel_values")


class Tokenised:
    """From texts to the batch that a text encoder of transformers takes."""

    def __init__(self, tokenizer: Any, longest: int) -> None:
        self.tokenizer, self.longest = tokenizer, longest

    def __call__(self, texts: list[str]) -> dict[str, Tensor]:
        return dict(self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt"))

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def convert_copy(
    target: str,
    data: str,
    out: Path,
    norm: str,
    sites: str,
    column: str | None = None,
    split: str = "train",
    max_samples: int = 2000,
    progress: Any = None,
) -> ConversionReport:
    """Opens a model, converts it, calibrated on data, and saves it with what its input needs."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SepNormError(f"{out} is there already and not empty: name a new folder by --out.")
    NormSpec.parse(norm)  # before anything heavy
    encoder = open_encoder(target)
    done = 0

    def batches() -> Iterator[Any]:
        nonlocal done
        for part, batch in encoder.batches(islice(encoder.read(data, column, split), max_samples)):
            yield batch
            done += len(part)
            if progress is not None:
                progress(done, max_samples)

    with encoder.evaluating(), encoder._working():
        report = convert(encoder.model, norm, sites=sites, calibrate=batches())
    try:
        save(encoder.model, out)
        if hasattr(encoder.prepare, "save"):
            encoder.prepare.save(out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)  # a part of a model would only be in the way
        raise
    return report
