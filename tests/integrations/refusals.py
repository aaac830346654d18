"""What does not work, and the sentence that says so: by library, what is tried, and how."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn


class Refusal(NamedTuple):
    """``sentence`` is a part of the error that ``attempt`` ends with, in a folder that it may use.

    ``why`` is what the page says, if the part does not stand by itself.
    """

    library: str
    what: str
    sentence: str
    attempt: Callable[[Path], Any]
    why: str = ""


def _converted(norm: str = "bn+ln") -> Any:
    from models import bert, sentences

    import sepnorm

    model = bert()
    sepnorm.convert(model, norm, calibrate=[sentences(), sentences()])
    return model


def _revert(folder: Path) -> None:
    from transformers import AutoModel

    import sepnorm

    _converted("bn+bn").save_pretrained(folder)
    sepnorm.revert(AutoModel.from_pretrained(folder))


def _other_weights(folder: Path) -> None:
    from models import bert
    from transformers import AutoModel

    _converted().save_pretrained(folder / "converted")
    bert().save_pretrained(folder)
    (folder / "config.json").write_bytes((folder / "converted/config.json").read_bytes())
    AutoModel.from_pretrained(folder)


def _twice(folder: Path) -> None:
    from transformers import AutoModel

    import sepnorm

    _converted().save_pretrained(folder)
    sepnorm.convert(AutoModel.from_pretrained(folder))


def _prompts(folder: Path) -> None:
    from sepnorm.integrations.peft import keep_norms

    keep_norms(_converted(), SimpleNamespace(is_prompt_learning=True, modules_to_save=None))


def _wrapped_tokens(folder: Path) -> None:
    from models import sentences

    model = _converted("bn+bn")
    norm = model.encoder.layer[1].output.LayerNorm
    norm.token_norm = nn.Sequential(norm.token_norm)
    model.train()(**sentences())


def _compiled(folder: Path) -> None:
    from models import bert

    import sepnorm

    model = bert()
    model.compile()
    sepnorm.convert(model)


def _meta(folder: Path) -> None:
    from models import bert

    import sepnorm

    sepnorm.convert(bert().to("meta"))


def _holds_data_parallel(folder: Path) -> None:
    from models import bert

    import sepnorm

    sepnorm.convert(nn.ModuleDict({"text": nn.DataParallel(bert())}))


def _symbolic(folder: Path) -> None:
    import sepnorm

    torch.fx.symbolic_trace(nn.Sequential(sepnorm.SepNorm(8)))


def _plain(folder: Path) -> None:
    from models import bert

    bert().load_state_dict(copy.deepcopy(_converted().state_dict()), strict=False)


def _codes(folder: Path) -> None:
    from sepnorm.domains.molecules.features import from_pyg

    bond = torch.tensor([[0, 1], [1, 0]])
    from_pyg([SimpleNamespace(x=torch.tensor([[1], [2]]), edge_index=bond, edge_attr=torch.ones(2), smiles="CO")])


REFUSALS = [
    Refusal(
        "transformers", "`revert` of `bn+bn` that the library saved", "only sepnorm.save keeps replaced norms", _revert
    ),
    Refusal(
        "transformers",
        "weights and config of different models",
        "use the weights and config of the same model",
        _other_weights,
    ),
    Refusal("transformers", "`convert` of a model that was loaded converted", "the model is already converted", _twice),
    Refusal("peft", "prompt tuning", "puts learnt tokens in front of [CLS]", _prompts, "it puts tokens before [CLS]"),
    Refusal("peft", "a wrapped batch norm over padded tokens", "wrap the whole layer", _wrapped_tokens),
    Refusal("torch", "`convert` after `compile()`", "convert the model before compile()", _compiled),
    Refusal(
        "torch",
        "`convert` of what holds a DDP, FSDP or DataParallel",
        "before wrapping",
        _holds_data_parallel,
        "convert before you wrap the model",
    ),
    Refusal("torch", "`convert` on the device `meta`", "are not there yet", _meta, "the weights have no values yet"),
    Refusal("torch", "a converted state in a plain model, `strict=False`", "size mismatch", _plain, "the sizes differ"),
    Refusal("torch", "`torch.fx` without the layer as a leaf", "torch.fx cannot trace a SepNorm", _symbolic),
    Refusal(
        "PyG",
        "`from_smiles` in `from_pyg`",
        "from_smiles of PyG counts others",
        _codes,
        "PyG's `from_smiles` numbers features differently",
    ),
]
