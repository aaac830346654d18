"""Validates settings of sentence-transformers models: only known modules, and no other instructions to the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sepnorm.errors import SepNormError
from sepnorm.surgery.opening.settings import is_below, is_dtype, is_number, shown, vet_size

_LIBRARY = "sentence_transformers"
_BASE, _MODULES = f"{_LIBRARY}.base.modules", f"{_LIBRARY}.sentence_transformer.modules"
#: File names of the first module's settings, in all versions of the library.
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json" for kind in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()
)


class Known(NamedTuple):
    """A module class that we open: its full name, its settings with their types, and whether it has weights."""

    name: str
    settings: dict[str, Any]
    weights: bool


_COUNT, _FLAG, _WORD = (int,), (bool,), (str,)
_NAMES: dict[str, Any] = {"module_input_name": _WORD, "module_output_name": _WORD}
_POOLINGS = "cls_token max_tokens mean_tokens mean_sqrt_len_tokens weightedmean_tokens lasttoken".split()
KNOWN = {
    "Transformer": Known(f"{_BASE}.transformer.Transformer", {}, True),
    "Pooling": Known(
        f"{_MODULES}.pooling.Pooling",
        {"embedding_dimension": _COUNT, "word_embedding_dimension": _COUNT, "include_prompt": _FLAG}
        | {"pooling_mode": (str, list), **{f"pooling_mode_{how}": _FLAG for how in _POOLINGS}},
        False,
    ),
    "Dense": Known(
        f"{_BASE}.dense.Dense",
        {
            "in_features": _COUNT,
            "out_features": _COUNT,
            "bias": _FLAG,
            "use_residual": _FLAG,
            "activation_function": _WORD,
        }
        | _NAMES,
        True,
    ),
    "Normalize": Known(f"{_BASE}.normalize.Normalize", _NAMES, False),
    "LayerNorm": Known(f"{_MODULES}.layer_norm.LayerNorm", {"dimension": _COUNT}, True),
    "Dropout": Known(f"{_MODULES}.dropout.Dropout", {"dropout": (int, float)}, False),
}
#: Full class names, as written by all versions of the library, to short names.
_SPELLINGS = {
    f"{place}.{name}": name
    for name, known in KNOWN.items()
    for file in [known.name.split(".")[-2]]
    for models in [f"{_LIBRARY}.models"]
    for place in (models, f"{models}.{name}", _BASE, _MODULES, f"{_BASE}.{file}", f"{_MODULES}.{file}")
}
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity",
    *(
        f"torch.nn.modules.activation.{name}"
        for name in "Tanh ReLU GELU SiLU Sigmoid ELU LeakyReLU Mish Softplus".split()
    ),
}


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values and isinstance(value, type(None) | bool | str)


#: Arguments that a folder may pass to the library: they change how the model is read, not what it is.
_MODEL = {
    "dtype": is_dtype,
    "torch_dtype": is_dtype,
    "attn_implementation": _one_of(None, "eager", "sdpa"),
    "add_pooling_layer": _one_of(True, False),
    "use_safetensors": _one_of(None, True),
    "weights_only": _one_of(True),
    "trust_remote_code": _one_of(None, False),
}
_TOKENISER = {
    "model_max_length": is_number,
    "max_length": is_number,
    "do_lower_case": is_number,
    "use_fast": is_number,
    "padding_side": _one_of("left", "right"),
    "truncation_side": _one_of("left", "right"),
    "padding": _one_of(True, False, "longest", "max_length"),
    "truncation": _one_of(True, False, "longest_first"),
    "trust_remote_code": _one_of(None, False),
}
_CONFIG = {"dtype": is_dtype, "torch_dtype": is_dtype, "trust_remote_code": _one_of(None, False)}
_ARGUMENTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("model_args", "model_kwargs"), _MODEL),
    **dict.fromkeys(("tokenizer_args", "tokenizer_kwargs", "processor_args", "processor_kwargs"), _TOKENISER),
    **dict.fromkeys(("config_args", "config_kwargs"), _CONFIG),
}
#: Arguments that only we pass: those of a folder are checked and dropped.
_OURS = frozenset("use_safetensors weights_only trust_remote_code use_fast".split())


def vet_modules(found: Any, where: Path) -> list[dict[str, Any]]:
    """Validates the modules of a sentence encoder: a transformer first, then others of known classes, each below."""
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        raise SepNormError(f"{where} is damaged: it is no list of modules.")
    kept = []
    for number, each in enumerate(found):
        spelling, path = each.get("type"), each.get("path", "")
        name = _SPELLINGS.get(spelling) if isinstance(spelling, str) else None
        if name is None:
            raise SepNormError(
                f"{where} asks for the module {shown(spelling)}: of a folder only {', '.join(KNOWN)} are opened, and no other code "
                "is run."
            )
        if (name == "Transformer") != (number == 0):
            raise SepNormError(
                f"{where} has a {name} as its module {number}: a Transformer comes first, and only there."
            )
        if not isinstance(path, str) or not is_below(path) or (number and not path.strip("./")):
            raise SepNormError(
                f"{where} names the folder {shown(path)} for a {name}, which is not below it: it is not opened."
            )
        kept.append({"idx": number, "name": str(number), "path": path, "type": KNOWN[name].name})
    return kept


def class_of(module: Mapping[str, Any]) -> str:
    """The short class name of a vetted module."""
    return _SPELLINGS[module["type"]]


def vet_module(found: Mapping[str, Any], name: str, where: Path, largest: int) -> dict[str, Any]:
    """Settings of a module after the transformer. Unknown keys are dropped, as the library does."""
    kept = {key: found[key] for key in KNOWN[name].settings if found.get(key) is not None}
    for key, value in kept.items():
        if not isinstance(value, KNOWN[name].settings[key]) or (
            isinstance(value, bool) and bool not in KNOWN[name].settings[key]
        ):
            raise SepNormError(f"{where} is damaged: {key} is {shown(value)}.")
        vet_size(key, value, where, largest)
    if kept.get("activation_function", "torch.nn.modules.linear.Identity") not in _ACTIVATIONS:
        raise SepNormError(
            f"{where} names the activation {shown(kept['activation_function'])}, and other code is not run."
        )
    return kept


def vet_transformer_settings(found: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Settings of the first module. Arguments for the library are refused unless known to be harmless."""
    fits: dict[str, Callable[[Any], bool]] = {
        "max_seq_length": is_number,
        "do_lower_case": is_number,
        "module_output_name": lambda value: isinstance(value, str),
        "transformer_task": lambda value: value == "feature-extraction",
        "modality_config": _is_plain_text,
    }
    kept: dict[str, Any] = {}
    for key, value in found.items():
        if key in _ARGUMENTS:
            kept[key] = _vet_arguments(key, value, where)
        elif key in fits and fits[key](value):
            kept[key] = value
        elif value:
            raise SepNormError(f"{where} has {key}={shown(value)}, which sepnorm does not open.")
    return kept


def _vet_arguments(key: str, value: Any, where: Path) -> dict[str, Any]:
    harmless = _ARGUMENTS[key]
    if not isinstance(value, dict):
        raise SepNormError(f"{where} has {key}={shown(value)}, expected a JSON object of arguments.")
    for name, given in value.items():
        if name not in harmless or not harmless[name](given):
            raise SepNormError(
                f"{where} sets {name}={shown(given)} ({key}), which sepnorm does not allow: remove it from the file if you trust "
                f"the rest. Allowed are {', '.join(harmless)}."
            )
    return {name: given for name, given in value.items() if name not in _OURS}


def _is_plain_text(value: Any) -> bool:
    """Whether it says that texts go through the model's own forward, as for every text encoder."""
    plain = {"method": "forward", "method_output_name": "last_hidden_state"}
    return isinstance(value, dict) and all(key == "text" and each == plain for key, each in value.items())


def vet_sentence_settings(found: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Settings of the whole model: prompts, the similarity, and the dimension that vectors are truncated to."""
    kind = found.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise SepNormError(f"{where} is of a {shown(kind)}: sepnorm opens models of SentenceTransformer.")
    kept = {key: found[key] for key in ("default_prompt_name", "similarity_fn_name", "truncate_dim") if key in found}
    prompts = found.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [None]
    if not all(isinstance(value, type(None) | str | int) for value in kept.values()) or not all(
        isinstance(text, str) for text in texts
    ):
        raise SepNormError(f"{where} is damaged: prompts are texts by name, the rest names and numbers.")
    return {"model_type": kind, "prompts": prompts} | kept
