"""Validates configs and tokeniser settings of transformers.

The library follows instructions in these files: classes to import, files and URLs to open, compiled code to fetch. We
refuse settings that would change the model if they were left out, and drop the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepnorm.errors import SepNormError
from sepnorm.surgery.config_trace import LOCK, LOCKS, is_ours, vet_trace
from sepnorm.surgery.opening.own_models import load_own
from sepnorm.surgery.opening.settings import DTYPES, is_dtype, is_number, vet_size

#: Keys that do not describe the model, at any depth: code, paths, and implementations of the same computation.
_DROPPED = frozenset(
    "auto_map custom_pipelines trust_remote_code _commit_hash _name_or_path name_or_path configuration_files attn_implementation "
    "_attn_implementation _attn_implementation_internal experts_implementation _experts_implementation "
    "_experts_implementation_internal use_kernels kernel_config allow_all_kernels tokenizer_class processor_class "
    "sentence_transformers sbert_ce_default_activation_function extra_files".split()
)
#: Keys that require other weights than the folder's safetensors, or other code than the library's classes.
_OTHER_MODEL = {
    "quantization_config": "its weights are quantised",
    "fusion_config": "its layers are to be fused by other code",
    "transformers_weights": "its weights are in a file of another name",
    "backbone": "a part of it is another model, which is to be fetched",
    "use_timm_backbone": "a part of it is a model of timm",
    "use_pretrained_backbone": "a part of it is another model, which is to be fetched",
    "pretrained_cfg": "a part of it is a model of timm",
}
#: Model types that open other models by name, or fetch compiled code.
_OTHER_KINDS = frozenset("timm_wrapper timm_backbone rag yoso mra rwkv bark falcon gpt_neo gptj".split())

#: Vocabulary files: tokenisers read them as data.
VOCABULARIES = (
    "tokenizer.json added_tokens.json vocab.txt vocab.json merges.txt spiece.model spm.model sentencepiece.bpe.model "
    "sentencepiece.model tokenizer.model bpe.codes dict.txt entity_vocab.json emoji.json spm_char.model"
).split()
_TOKENS = frozenset(f"{name}_token" for name in "bos eos unk sep pad cls mask".split())
_SPECIAL = _TOKENS | {"additional_special_tokens", "extra_special_tokens"}
#: Tokeniser settings that are not numbers.
_WORDS = _SPECIAL | frozenset(
    "added_tokens_decoder padding_side truncation_side model_input_names never_split errors tokenizer_class backend language "
    "word_tokenizer_type subword_tokenizer_type src_lang tgt_lang".split()
)
_ORDERS = frozenset("trust_remote_code local_files_only is_local".split())


def vet_config(found: Mapping[str, Any], where: Path, largest: int, converted: bool = True) -> dict[str, Any]:
    """A config without keys that do not describe the model. ``largest`` is the longest side of its weights.

    ``converted`` keeps the record of separate norms; otherwise the config is as before the conversion.
    """
    kind = found.get("model_type")
    if not isinstance(kind, str):
        raise SepNormError(f"{where} names no model_type: it is no config of transformers.")
    if not _is_known(kind):
        code = ", and its own code is not run" if found.get("auto_map") else ""
        raise SepNormError(f"{where} is of a {kind} model, which this version of transformers does not have{code}.")
    trace: Any = found.get("quantization_config")
    if not is_ours(trace):
        return _vet_settings(found, where, largest)
    vetted = vet_trace(trace, where)
    fusions = found.get("fusion_config")
    plain = {key: value for key, value in found.items() if key != "quantization_config"}
    if isinstance(fusions, Mapping):
        plain["fusion_config"] = {name: options for name, options in fusions.items() if name not in LOCKS}
    kept = _vet_settings(plain, where, largest)
    return kept | {"quantization_config": vetted, "fusion_config": {LOCK: False}} if converted else kept


def _is_known(kind: str) -> bool:
    from transformers import CONFIG_MAPPING

    load_own(kind)  # registers its config with transformers
    return kind in CONFIG_MAPPING


def _vet_settings(found: Mapping[str, Any], where: Path, largest: int) -> dict[str, Any]:
    kind = found.get("model_type")
    if isinstance(kind, str) and kind in _OTHER_KINDS:
        raise SepNormError(f"{where} is of a {kind} model, which opens other models or code: it is not opened.")
    kept: dict[str, Any] = {}
    for key, value in found.items():
        if key in _DROPPED or key.startswith("__"):
            continue
        if key in _OTHER_MODEL and value:
            raise SepNormError(
                f"{where} is not opened: {_OTHER_MODEL[key]} ({key}). Save the model whole, as safetensors."
            )
        if key in ("dtype", "torch_dtype") and not is_dtype(value):
            raise SepNormError(f"{where} has the {key} {value!r}: sepnorm opens {', '.join(DTYPES[:-1])}.")
        kept[key] = _vet_value(key, value, where, largest)
    return kept


def _vet_value(key: str, value: Any, where: Path, largest: int) -> Any:
    if isinstance(value, dict):
        return _vet_settings(value, where, largest)
    if isinstance(value, list):
        return [_vet_value(key, each, where, largest) for each in value]
    return vet_size(key, value, where, largest)


def vet_tokeniser(found: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Tokeniser settings: special tokens, numbers, and a class of transformers' own tokenisers."""
    kept = {key: value for key, value in found.items() if key in _WORDS or (is_number(value) and key not in _ORDERS)}
    if kept.get("tokenizer_class") is not None:
        _require_tokeniser(kept["tokenizer_class"], where)
    return kept


def vet_special_tokens(found: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Only the special tokens. The library would accept any argument of a tokeniser from this file."""
    return {key: value for key, value in found.items() if key in _SPECIAL}


def _require_tokeniser(name: Any, where: Path) -> None:
    import transformers

    known = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not isinstance(known, type) or not issubclass(known, transformers.PreTrainedTokenizerBase):
        raise SepNormError(
            f"{where} names the tokeniser {name!r}, which is none of transformers': code from a folder or the hub is not run."
        )
