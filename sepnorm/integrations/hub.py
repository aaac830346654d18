"""Uploads converted models to the hub, with a card that says what was converted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from sepnorm.arguments import require_module
from sepnorm.errors import SepNormError, one_line
from sepnorm.layer import TokenNorm
from sepnorm.layer.kinds import short_name
from sepnorm.surgery.architectures import library_of
from sepnorm.surgery.opening.models import without_bars
from sepnorm.surgery.replacement import spec_of
from sepnorm.surgery.saving import save

_SENTENCES = "sentence-transformers"
_OPENED_BY = {
    "transformers": "from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained({name!r})",
    _SENTENCES: "from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer({name!r})",
}


def push_to_hub(model: nn.Module, name: str, *, private: bool = False) -> str:
    """Uploads a converted model to the hub, in the format of its own library.

    ``sepnorm.load(name)`` opens it, and so does the library if sepnorm is imported. If it is not, the library stops
    with a message that says so. Log in first (``hf auth login``).

    Args:
        model: a converted model. Models of libraries other than transformers and sentence-transformers are uploaded in
            the format of ``sepnorm.save``.
        name: name on the hub, such as ``"me/vit-bn-ln"``.
        private: whether a new repository is visible only to you.

    Returns:
        The address of the upload.

    Raises:
        SepNormError: if the model is not converted, or the upload fails.
    """
    require_module(model)
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise SepNormError("push_to_hub needs the package huggingface_hub: pip install huggingface_hub.") from None
    with tempfile.TemporaryDirectory() as scratch:
        write_for_hub(model, name, Path(scratch))
        try:
            hub = HfApi()
            hub.create_repo(name, private=private, exist_ok=True)
            return str(hub.upload_folder(folder_path=scratch, repo_id=name, commit_message="Upload by sepnorm"))
        except Exception as error:  # no network, no login, no permission: the client has an error class for each
            raise SepNormError(f"{name} cannot be uploaded to the hub: {one_line(error)}.") from error


def write_for_hub(model: Any, name: str, folder: Path) -> None:
    """Writes the files for the hub: the model as its library saves it, and a card."""
    library = library_of(model)
    card = model_card(model, name)  # raises if the model is not converted
    with without_bars():
        if library == _SENTENCES:
            model.save_pretrained(str(folder), create_model_card=False)
        elif library == "transformers":
            model.save_pretrained(folder)
        else:
            save(model, folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def model_card(model: nn.Module, name: str) -> str:
    """The model card in Markdown: the norms of [CLS] and tokens, and how to load the model."""
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, TokenNorm)]
    if not layers:
        raise SepNormError(
            f"{type(model).__name__} has no separate norms: convert it first, or upload it by its own library."
        )
    library = library_of(model)
    by_library = _OPENED_BY.get(library, "import sepnorm\n\nmodel = sepnorm.load({name!r})").format(name=name)
    rows = [
        f"| `{path}` | {'' if layer.origin is None else short_name(layer.origin.kind)} | {spec_of(layer)} |"
        for path, layer in layers
    ]
    return "\n".join(
        [
            "---",
            *([f"library_name: {library}"] if library in _OPENED_BY else []),
            "tags:",
            "- sepnorm",
            "---",
            "",
            f"# {name}",
            "",
            f"A {type(model).__name__} in which [CLS] has norms of its own. Written pairs name the norm of [CLS] first.",
            "",
            "| norm | before | now |",
            "|---|---|---|",
            *rows,
            "",
            "Install the package sepnorm and import it before the model is loaded:",
            "",
            "```python",
            *(["import sepnorm"] if library in _OPENED_BY else []),
            by_library,
            "```",
            "",
        ]
    )
