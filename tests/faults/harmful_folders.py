"""Folders that do harm, and good ones beside them: how each is made of a harmless one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Made:
    """How a folder is made of a harmless one. In what is written, OUTSIDE is a folder that nothing should be read from."""

    base: str
    changes: dict[str, Any] = field(default_factory=dict)  #: new values in JSON files; of others the whole text
    pickles: tuple[str, ...] = ()  #: files that are to be pickles with code
    gone: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)  #: names to what they are links to
    pipes: tuple[str, ...] = ()  #: files that keep whoever reads them waiting
    calls: tuple[str, ...] = ("open",)
    target: str = "{}"  #: what is opened, for the folder


REMOTE = {
    "AutoConfig": "evil.Evil",
    "AutoModel": "evil.Evil",
    "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    "AutoProcessor": "evil.Evil",
    "AutoImageProcessor": "evil.Evil",
}
UNSAFE = {"use_safetensors": False, "weights_only": False, "dtype": "auto"}
KERNELS = {"attn_implementation": "evil/kernels", "allow_all_kernels": True, "use_kernels": True}
ATTENTION = ("attn_implementation", "_attn_implementation")
BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}
#: What transformers.RagRetriever wants, of which only the first is to be asked for.
RAG = {
    "config.json": {"index_name": "legacy", "index_path": "evil/repo"}
    | {key: {"model_type": "bert"} for key in ("question_encoder", "generator")},
    **{
        f"{part}_tokenizer/{file}": content
        for part in ("question_encoder", "generator")
        for file, content in (
            ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"),
            ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}),
        )
    },
}
TWO = {"model_type": "vision-text-dual-encoder", "vision_config": {"model_type": "vit"}, "projection_dim": 8}
ST = "sentence_transformers"
SBERT = "sentence_bert_config.json"
BOTH = ("open", "embed")
LOAD = ("open", "load")
ALL = ("open", "embed", "diagnose", "convert", "export", "evaluate")


def index(name: str) -> dict[str, Any]:
    """Of all the weights of the small BERT."""
    part = "attention.self.{}.weight attention.self.{}.bias".format
    layer = " ".join(part(name, name) for name in ("query", "key", "value")).split()
    for dense in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense"):
        layer += [f"{dense}.weight", f"{dense}.bias"]
    layer += ["output.LayerNorm.weight", "output.LayerNorm.bias"]
    names = [f"encoder.layer.{number}.{key}" for number in range(2) for key in layer]
    names += [f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    names += ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias", "pooler.dense.weight", "pooler.dense.bias"]
    return {"metadata": {}, "weight_map": dict.fromkeys(names, name)}


def module_list(**types: str) -> list[dict[str, Any]]:
    """A modules.json with the usual Transformer and Pooling, and the given types in folders by their names."""
    types = {"": f"{ST}.models.Transformer", "1_Pooling": f"{ST}.models.Pooling"} | types
    return [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(types.items())]


#: What holds no model that could be opened: it is refused, in a sentence.
REFUSED: dict[str, Made] = {
    "a link to a folder elsewhere": Made("sentences", links={"1_Pooling": "OUTSIDE/1_Pooling"}),
    "an index of weights that names a pickle": Made(
        "plain", {"model.safetensors.index.json": index("x.bin")}, ("x.bin",), ("model.safetensors",), calls=BOTH
    ),
    "an index that names a pickle, and weights_only false": Made(
        "sentences",
        {"model.safetensors.index.json": index("x.bin"), SBERT: {"model_args": {"weights_only": False}}}
        | {"config.json": {"dtype": None}},
        ("x.bin",),
        ("model.safetensors",),
        calls=ALL,
    ),
    "a config that names a pickle": Made(
        "plain",
        {"config.json": {"transformers_weights": "adapter_model.bin"}},
        ("adapter_model.bin",),
        ("model.safetensors",),
    ),
    "a config that names a pickle, and weights_only false": Made(
        "sentences",
        {"config.json": {"transformers_weights": "adapter_model.bin", "dtype": None}}
        | {SBERT: {"model_args": {"weights_only": False}}},
        ("adapter_model.bin",),
        ("model.safetensors",),
    ),
    "a pickle in place of weights, and use_safetensors false": Made(
        "sentences",
        {SBERT: {"model_args": UNSAFE, "config_args": {"dtype": None}}, "config.json": {"dtype": None}},
        ("pytorch_model.bin",),
        ("model.safetensors",),
    ),
    "a pickle as the weights of a Dense": Made(
        "sentences", {}, ("2_Dense/pytorch_model.bin",), ("2_Dense/model.safetensors",)
    ),
    "a SentenceTransformer inside": Made(
        "sentences",
        {
            "2/sentence_bert_config.json": {"trust_remote_code": True},
            "2_Dense/config.json": {"activation_function": "evil_on_path.Evil"},
            "modules.json": [
                {"idx": 0, "name": "0", "path": "2_Dense", "type": f"{ST}.models.Dense"},
                {"idx": 1, "name": "1", "path": "2", "type": f"{ST}.SentenceTransformer"},
            ],
        },
        calls=BOTH,
    ),
    "a SentenceTransformer inside a saved one": Made(
        "saved_dense",
        {
            "2/sentence_bert_config.json": {"trust_remote_code": True},
            "2_Dense/config.json": {"activation_function": "evil_on_path.Evil"},
            "modules.json": [
                {"idx": 0, "name": "0", "path": "2_Dense", "type": f"{ST}.models.Dense"},
                {"idx": 1, "name": "1", "path": "2", "type": f"{ST}.SentenceTransformer"},
            ],
        },
        calls=LOAD,
    ),
    "an index that leads out": Made(
        "plain",
        {"model.safetensors.index.json": index("../outside/model.safetensors")},
        gone=("model.safetensors",),
    ),
    "an index with a whole path": Made(
        "sentences", {"model.safetensors.index.json": index("OUTSIDE/model.safetensors")}, gone=("model.safetensors",)
    ),
    **{
        f"a Dense with {name}": Made("sentences", {"2_Dense/config.json": {"activation_function": name}})
        for name in ("evil.Evil", "evil_on_path.Evil", "torch.utils.collect_env.main", "torch.hub.load", "os.getcwd")
    },
    **{
        f"a saved Dense with {name}": Made(
            "saved_dense", {"2_Dense/config.json": {"activation_function": name}}, calls=LOAD
        )
        for name in ("evil_on_path.Evil", "torch.utils.collect_env.main")
    },
    **{
        f"a module that is {name}": Made("sentences", {"modules.json": module_list(**{"2_Dense": name})})
        for name in (
            "evil.Evil",
            "evil_on_path.Evil",
            f"{ST}.evil.Evil",
            f"{ST}.base.model.torch",
            f"{ST}.base.model.pickle",
            f"{ST}.base.modules.module.Module",
        )
    },
    "a module elsewhere": Made(
        "sentences", {"modules.json": module_list(**{"../outside/1_Pooling": f"{ST}.models.Pooling"})}
    ),
    **{
        f"a module that is {kind}, and code on the path": Made(
            "sentences",
            {
                "2_Router/router_config.json": {
                    "types": {"evil": "evil_on_path.Evil"},
                    "structure": {"query": ["evil"], "document": ["evil"]},
                    "parameters": {},
                },
                "modules.json": module_list(**{"2_Router": f"{ST}.models.{kind}"}),
            },
        )
        for kind in ("Router", "Asym")
    },
    "a Router with a SentenceTransformer inside": Made(
        "sentences",
        {
            "2_Router/router_config.json": {
                "types": {"2": f"{ST}.SentenceTransformer"},
                "structure": {"query": ["2"], "document": ["2"]},
                "parameters": {"default_route": "query"},
            },
            "2_Router/2/sentence_bert_config.json": {"trust_remote_code": True},
            "2_Dense/config.json": {"activation_function": "evil_on_path.Evil"},
            "modules.json": module_list(**{"2_Dense": f"{ST}.models.Dense", "2_Router": f"{ST}.models.Router"}),
        },
    ),
    **{
        f"words with the tokeniser {name.split('.')[-1]}": Made(
            "sentences",
            {
                "2_Words/wordembedding_config.json": {"tokenizer_class": name, "update_embeddings": False},
                "2_Words/tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "auto_map": REMOTE},
                "2_Words/config.json": {"auto_map": REMOTE, "model_type": "evil"},
                "modules.json": module_list(**{"2_Words": f"{ST}.models.WordEmbeddings"}),
            },
        )
        for name in ("evil_on_path.Evil", f"{ST}.sentence_transformer.modules.tokenizer.TransformersTokenizerWrapper")
    },
    "a CLIPModel with the processor of another": Made(
        "sentences",
        {"modules.json": module_list(**{"": f"{ST}.models.CLIPModel"}), SBERT: {"processor_name": "OUTSIDE"}},
    ),
    "a sparse embedding with weights elsewhere": Made(
        "sentences",
        {
            "2_Sparse/config.json": {"path": "OUTSIDE/idf.json", "frozen": True},
            "2_Sparse/tokenizer_config.json": {"tokenizer_class": "BertTokenizer"},
            "modules.json": module_list(**{"2_Sparse": f"{ST}.sparse_encoder.models.SparseStaticEmbedding"}),
        },
    ),
    "an adapter of a model elsewhere": Made(
        "sentences",
        {"adapter_config.json": {"base_model_name_or_path": "OUTSIDE", "peft_type": "LORA"}},
        gone=("config.json",),
    ),
    "an unknown kind of model with code": Made("plain", {"config.json": {"model_type": "evil", "auto_map": REMOTE}}),
    "an unknown kind of model with code, saved": Made(
        "saved", {"config.json": {"model_type": "evil", "auto_map": REMOTE}}, calls=("open", "load", "embed")
    ),
    "a class of transformers that is no model": Made("saved", {"sepnorm.json": {"class": "pipeline"}}, calls=("load",)),
    "an architecture of timm in another folder": Made(
        "plain",
        {"config.json": {"model_type": "timm_wrapper", "architecture": "local-dir:OUTSIDE", "num_classes": 0}},
    ),
    **{
        f"{'a model with ' * inside}a {kind}, which fetches compiled code": Made(
            "plain",
            {"config.json": TWO | {"text_config": {"model_type": kind}} if inside else {"model_type": kind}},
            gone=("config.json",),
        )
        for kind in ("yoso", "mra", "rwkv")
        for inside in (False, True)
    },
    "a backbone from the hub": Made(
        "plain",
        {"config.json": {"model_type": "detr", "backbone": "evil/repo", "use_timm_backbone": False}},
    ),
}

#: Links to files elsewhere, which people have as the hub's cache has them: each is the file that it leads to.
LINKS: dict[str, Made] = {
    **{
        f"a link in place of {name} of {base}": Made(base, links={name: f"OUTSIDE/{name}"})
        for base, name in (
            ("plain", "model.safetensors"),
            ("plain", "config.json"),
            ("words", "vocab.txt"),
            ("sentences", "modules.json"),
            ("saved", "sepnorm.safetensors"),
            ("saved", "config.json"),
        )
    },
    "a link that leads out on a detour": Made(
        "plain", links={"a.safetensors": "../outside/model.safetensors", "model.safetensors": "a.safetensors"}
    ),
}

#: What holds a model that could be opened, were it not for a setting: refused, or opened as if that were not there.
EITHER: dict[str, Made] = {
    "a pickle beside what was saved, asked for by model_args": Made(
        "saved_sentences",
        {SBERT: {"model_args": UNSAFE, "config_args": {"dtype": None}}},
        ("pytorch_model.bin",),
        calls=("load", "open", "embed", "diagnose", "export"),
    ),
    "a pickle beside what was saved, asked for by model_kwargs": Made(
        "saved_sentences",
        {SBERT: {"model_kwargs": UNSAFE, "config_kwargs": {"dtype": None}}},
        ("pytorch_model.bin",),
        calls=("load", "open"),
    ),
    "a pickle beside weights, asked for by model_args": Made(
        "sentences",
        {SBERT: {"model_args": UNSAFE, "config_args": {"dtype": None}}, "config.json": {"dtype": None}},
        ("pytorch_model.bin",),
    ),
    "another file of settings that asks for a pickle": Made(
        "saved_sentences",
        {
            "sentence_xlnet_config.json": {"model_args": UNSAFE, "config_args": {"dtype": None}},
            "config.json": {"dtype": None},
        },
        ("pytorch_model.bin",),
        (SBERT,),
        calls=("load", "open"),
    ),
    "another config that names a pickle": Made(
        "plain",
        {
            "config.json": {"configuration_files": ["config.4.0.0.json"]},
            "config.4.0.0.json": {"transformers_weights": "adapter_model.bin", "model_type": "bert", "hidden_size": 16},
        },
        ("adapter_model.bin",),
    ),
    "special tokens that name a vocabulary": Made(
        "words", {"special_tokens_map.json": {"vocab_file": "OUTSIDE/vocab.txt"}}
    ),
    "special tokens that name a vocabulary, of a sentence-transformer": Made(
        "sentences_words", {"special_tokens_map.json": {"vocab_file": "OUTSIDE/vocab.txt"}}
    ),
    "a tokeniser that names a vocabulary": Made("words", {"tokenizer_config.json": {"vocab": "OUTSIDE/vocab.txt"}}),
    "a tokeniser that names a vocabulary and merges": Made(
        "roberta_words",
        {"tokenizer_config.json": {"vocab": "OUTSIDE/vocab.json", "merges": "OUTSIDE/merges.txt"}},
    ),
    "a tokeniser with files elsewhere": Made(
        "words", {"tokenizer_config.json": {"fast_tokenizer_files": ["../outside/tokenizer.4.0.0.json"]}}
    ),
    "a tokeniser with arguments": Made("words", {"tokenizer_config.json": {"init_inputs": ["OUTSIDE/vocab.txt"]}}),
    "a tokeniser with a GGUF file": Made(
        "words",
        {"tokenizer_config.json": {"tokenizer_class": "TokenizersBackend", "gguf_file": "OUTSIDE/model.gguf"}},
    ),
    **{
        f"a tokeniser that is {name}": Made("words", {"tokenizer_config.json": {"tokenizer_class": name}} | RAG)
        for name in ("AutoModel", "RagRetriever", "pipeline")
    },
    **{
        f"RagRetriever as the {key}": Made("sentences_words", {"tokenizer_config.json": {key: "RagRetriever"}} | RAG)
        for key in ("tokenizer_class", "processor_class")
    },
    **{
        f"a tokeniser by {next(iter(args))} {json.dumps(next(iter(args.values())))}": Made(
            "sentences_words", {SBERT: args}
        )
        for args in (
            {"tokenizer_name_or_path": "OUTSIDE"},
            {"tokenizer_name_or_path": "evil/repo"},
            {"tokenizer_args": {"vocab_file": "OUTSIDE/vocab.txt"}},
            {"tokenizer_args": {"vocab": "OUTSIDE/vocab.txt"}},
            {"processor_kwargs": {"vocab_file": "OUTSIDE/vocab.txt"}},
            {"processor_kwargs": {"gguf_file": "OUTSIDE/model.gguf"}},
        )
    },
    **{
        f"an adapter beside {base}": Made(
            base, {"adapter_config.json": {"base_model_name_or_path": "OUTSIDE", "peft_type": "LORA"}}
        )
        for base in ("plain", "sentences", "saved", "saved_sentences")
    },
    **{
        f"kernels by {next(iter(args))}": Made("sentences", {SBERT: args})
        for args in ({"model_args": KERNELS}, {"model_kwargs": KERNELS}, {"config_args": KERNELS})
    },
    "kernels by model_args of a saved one": Made("saved_sentences", {SBERT: {"model_args": KERNELS}}, calls=("load",)),
    **{
        f"kernels of {maker} by {key} of {base}": Made(
            base, {"config.json": {key: f"{maker}/evil", "allow_all_kernels": True, "use_kernels": True}}
        )
        for base, key, maker in (
            ("plain", "attn_implementation", "evil"),
            ("plain", "attn_implementation", "kernels-community"),
            ("plain", "_attn_implementation", "kernels-community"),
            ("sentences", "_attn_implementation", "evil"),
            ("saved", "attn_implementation", "evil"),
            ("saved", "_attn_implementation", "kernels-community"),
            ("saved_sentences", "attn_implementation", "kernels-community"),
            ("saved_sentences", "_attn_implementation", "evil"),
        )
    },
    "kernels by a config inside": Made(
        "towers", {"config.json": {"text_config": dict.fromkeys(ATTENTION, "kernels-community/evil")}}
    ),
    "kernels for a config inside": Made(
        "towers", {"config.json": {"attn_implementation": {"text_config": "kernels-community/evil"}}}
    ),
    "kernels by what was saved": Made(
        "saved", {"sepnorm.json": {"build": {"attention": "kernels-community/evil"}}}, calls=LOAD
    ),
    **{
        f"quantisation of {base}": Made(base, {"config.json": {"quantization_config": BITS}})
        for base in ("plain", "saved")
    },
    "quantisation of a sentence-transformer": Made("sentences", {SBERT: {"model_args": {"quantization_config": BITS}}}),
    "quantisation by a config inside": Made("towers", {"config.json": {"text_config": {"quantization_config": BITS}}}),
    **{
        f"code named in {file} of {base}": Made(base, {file: {"auto_map": REMOTE}})
        for base, files in (
            ("plain", ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")),
            (
                "sentences",
                ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"),
            ),
            ("saved", ("config.json", "tokenizer_config.json")),
            ("saved_sentences", ("config.json", "tokenizer_config.json", "processor_config.json")),
            ("vit", ("config.json", "preprocessor_config.json")),
            ("saved_vit", ("config.json", "preprocessor_config.json")),
        )
        for file in files
    },
}

#: The same when the folder is one of the hub's cache, named as on the hub.
FROM_HUB = (
    "an index that names a pickle, and weights_only false",
    "a config that names a pickle, and weights_only false",
    "a SentenceTransformer inside",
    "an index with a whole path",
    "special tokens that name a vocabulary",
    'a tokeniser by tokenizer_name_or_path "OUTSIDE"',
    "kernels by model_args",
    "code named in config.json of plain",
    "code named in tokenizer_config.json of sentences",
)

HUGE = {
    "three million layers": {"num_hidden_layers": 3_000_000},
    "a vocabulary of 25 GB": {"vocab_size": 6_250_000, "hidden_size": 1000},
    "a vocabulary of 10 GB": {"vocab_size": 2_500_000, "hidden_size": 1000},
    "10**12 positions": {"max_position_embeddings": 10**12},
    "10**8 positions": {"max_position_embeddings": 10**8},
}
SWIN = dict(model_type="swin", image_size=16, patch_size=2, embed_dim=8)
DEEP_SWIN = SWIN | dict(depths=[2_000_000_000], num_heads=[1])
#: What would fill the memory, or never end.
SIZES: dict[str, Made] = {
    **{
        f"a {key} of {value}": Made("plain", {"config.json": {key: value}})
        for key, value in (("attention_window", [2_000_000]), ("block_size", 10**6), ("local_attn_chunk_length", 5000))
    },
    "a swin with a window of 80": Made(
        "swin",
        {"config.json": SWIN | dict(image_size=400, patch_size=4, window_size=80, depths=[1], num_heads=[1])},
        gone=("config.json",),
    ),
    "two million labels": Made("plain", {"config.json": {"num_labels": 2_000_000, "id2label": None}}),
    **{
        f"{base} with a Dense of 40,000 x 40,000": Made(
            base,
            {"2_Dense/config.json": {"in_features": 40_000, "out_features": 40_000}},
            calls=LOAD if base.startswith("saved") else ("open",),
        )
        for base in ("sentences", "saved_dense")
    },
    **{
        f"{base} with {what}": Made(base, {"config.json": sizes}, calls=LOAD if base.startswith("saved") else ("open",))
        for base in ("plain", "sentences", "saved", "saved_sentences")
        for what, sizes in HUGE.items()
    },
    **{
        f"{base} with a Dense of {size} outputs": Made(
            base,
            {"2_Dense/config.json": {"out_features": size}},
            calls=LOAD if base.startswith("saved") else ("open",),
        )
        for base in ("sentences", "saved_dense")
        for size in (10**8, 10**10)
    },
    **{
        f"{base} with two milliards of layers": Made(
            base,
            {"config.json": DEEP_SWIN},
            gone=("config.json",),
            calls=LOAD if base.startswith("saved") else ("open",),
        )
        for base in ("swin", "saved_swin")
    },
    **{
        f"{base} with images of {size} x {size}": Made(
            base,
            {"config.json": {"image_size": size}},
            calls=LOAD if base.startswith("saved") else ("open",),
        )
        for base in ("vit", "saved_vit")
        for size in (40_000, 10**6)
    },
    **{
        f"molecules with {key} {size}": Made("graphormer", {"config.json": {key: size}}, calls=LOAD)
        for key, size in (
            ("num_hidden_layers", 3_000_000),
            ("max_degree", 10**8),
            ("max_distance", 10**12),
            ("max_hops", 10**8),
        )
    },
}

USUAL = {
    "README.md": "---\nlicense: mit\n---\n# A model\n",
    ".gitattributes": "*.bin filter=lfs\n",
    "onnx/model.onnx": "no model",
    "tf_model.h5": "no model",
    "modeling_bert.py": "raise ImportError\n",
    "eval/results.csv": "epoch,steps\n",
}
#: As written for older versions of the libraries, which is what most folders are.
OLD_CONFIG = {
    "_name_or_path": "/home/someone/models/bert",
    "architectures": ["BertForMaskedLM"],
    "gradient_checkpointing": False,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "transformers_version": "4.8.2",
    "use_cache": True,
    "classifier_dropout": None,
}
OLD_TOKENISER = {
    "do_basic_tokenize": True,
    "do_lower_case": True,
    "model_max_length": 512,
    "name_or_path": "nreimers/MiniLM-L6-H384-uncased",
    "never_split": None,
    "special_tokens_map_file": "/home/someone/.cache/transformers/dd8bd9bfd3664b530ea4e645105f557769387b3da9f7",
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "tokenizer_class": "BertTokenizer",
}
SPECIAL = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("cls", "mask", "pad", "sep", "unk")}
OLD_POOLING = {
    "word_embedding_dimension": 16,
    "pooling_mode_cls_token": True,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}

#: What opens, and gives the same as before.
GOOD: dict[str, Made] = {
    **{
        f"{base} as it is": Made(base, calls=LOAD if base.startswith("saved") else ("open",))
        for base in (
            *("plain", "words", "shards", "roberta", "roberta_words", "vit", "sentences", "sentences_words"),
            *("saved", "saved_sentences", "saved_dense", "saved_vit", "graphormer"),
        )
    },
    **{
        f"{base} with usual files beside": Made(base, USUAL, ("pytorch_model.bin", "training_args.bin", "a/b.pt"))
        for base in ("plain", "sentences", "saved", "saved_sentences")
    },
    **{
        f"{base} with a pickle that is never read": Made(base, pipes=("pytorch_model.bin", "rust_model.ot"))
        for base in ("plain", "sentences", "saved", "saved_sentences")
    },
    "a folder of older versions": Made(
        "words",
        {
            "config.json": OLD_CONFIG,
            "tokenizer_config.json": OLD_TOKENISER | SPECIAL,
            "special_tokens_map.json": SPECIAL,
        },
    ),
    "a sentence-transformer of older versions": Made(
        "sentences_words",
        {
            "config.json": OLD_CONFIG,
            "tokenizer_config.json": OLD_TOKENISER | SPECIAL,
            "special_tokens_map.json": SPECIAL,
            "1_Pooling/config.json": OLD_POOLING,
            "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
            SBERT: {"max_seq_length": 32, "do_lower_case": False},
            "modules.json": module_list(),
        },
        gone=("1_Pooling/config.json", "config_sentence_transformers.json", SBERT),
    ),
    **{
        f"a sentence-transformer with {json.dumps(args)}": Made("sentences", {SBERT: {"model_args": args}})
        for args in ({"dtype": "float32"}, {"attn_implementation": "sdpa"}, {"attn_implementation": "eager"}, {})
    },
    **{
        f"{base} with attention by {name}": Made(base, {"config.json": {"_attn_implementation": name}})
        for base in ("plain", "saved")
        for name in ("eager", "sdpa")
    },
}
