"""Every key that the libraries take from a folder's JSON files, with values that would do harm: none of them does any.

The keys are read out of the libraries' own code, so that those of another version are tried too. Several are tried at once; where
such a folder is not opened, or does harm, it is tried again with half of them, down to the one key that it is about.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harmful_folders import REMOTE, SBERT, ST, TWO, Made, module_list
from harmless_folders import write
from hostile_ground import Ground
from wires import Wires, in_a_process

import sepnorm

TOGETHER = 64  # keys that are tried at once
EACH = 40  # one of so many is in the sample
INDEX = "model.safetensors.index.json"

#: OUTSIDE is a folder with a whole model, next to that which is opened.
VALUES: dict[str, Any] = {
    "a pickle elsewhere": "OUTSIDE/bomb.bin",
    "a pickle in the folder": "adapter_model.bin",
    "a class in the folder": "evil.Evil",
    "a class on the path": "evil_on_path.Evil",
    "a name of the hub": "evil/repo",
    "kernels": "kernels-community/evil",
    "an address": "http://evil.invalid/model.bin",
    "a folder elsewhere": "OUTSIDE",
    "a way out": "../outside",
    "a list of files elsewhere": ["../outside/tokenizer.4.0.0.json", "OUTSIDE/vocab.txt"],
    "yes": True,
    "no": False,
    "code": {"auto_map": REMOTE, "model_type": "evil", "trust_remote_code": True},
}

#: What is known to be an order to the libraries.
DANGEROUS = frozenset(
    "_attn_implementation _attn_implementation_internal _commit_hash _experts_implementation _name_or_path "
    "activation_fn activation_function adapter_kwargs adapter_name allow_all_kernels architecture architectures "
    "attn_implementation audio_tokenizer auto_map backbone backbone_config backbone_kwargs backend "
    "base_model_name_or_path cache_dir chat_template checkpoint_path class code_revision config config_args "
    "config_file config_kwargs configuration_files custom_generate custom_pipelines dataset device_map "
    "distributed_config dtype encoder experts_implementation extra_files fast_tokenizer_files "
    "feature_extractor_type file force_download fusion_config generation_config generator gguf_file hf_hub_id "
    "ignore_mismatched_sizes image_processor_type index_name index_path init_inputs is_local kernel_config "
    "key_mapping library local_files_only merges merges_file method modality_config model_args model_kwargs "
    "model_type modules name_or_path offload_folder passages_path path pretrained_cfg processor_args "
    "processor_class processor_kwargs processor_name proxies quantization_config question_encoder revision "
    "sbert_ce_default_activation_function sentence_transformers spm_file state_dict sub_configs_defaults subfolder "
    "text_config timm_model token tokenizer_args tokenizer_class tokenizer_file tokenizer_kwargs "
    "tokenizer_name_or_path torch_dtype tp_plan transformer_task transformers_weights trust_remote_code type types "
    "url use_auth_token use_kernels use_pretrained_backbone use_safetensors use_timm_backbone variant vision_config "
    "vocab vocab_file weight_map weights_only".split()
)
#: What the libraries take without naming it where the rest is named.
UNNAMED = (
    "_attn_implementation _fast_init allow_all_kernels attn_implementation auto_map configuration_files custom_pipelines "
    "from_flax from_tf fusion_config kernel_config low_cpu_mem_usage mirror offload_state_dict output_attentions "
    "pretrained_cfg processor_class quantization_config sbert_ce_default_activation_function sentence_transformers "
    "tokenizer_class torch_dtype transformers_weights trust_remote_code use_kernels use_pretrained_backbone"
).split()

# ---- the keys -----------------------------------------------------------------------------------------------------------

TAKES = ("__init__", "__post_init__", "from_pretrained", "_from_pretrained", "from_dict", "from_config", "load")
LISTS = ("attribute_map", "config_keys", "sub_configs_defaults", "VOCAB_FILES_NAMES", "vocab_files_names")


def names_in(files: Iterable[Path], only: str = "") -> set[str]:
    """Fields, arguments and keys that code asks for by name; of functions called ``only``, if that is given."""
    found: set[Any] = set()
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        if only:
            wanted = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.endswith(only)]
            nodes = [each for node in wanted for each in ast.walk(node)]
        for node in nodes:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
                case ast.FunctionDef(name=name, args=given) if name in TAKES:
                    found |= {each.arg for each in given.args + given.kwonlyargs}
                case ast.Call(
                    func=ast.Attribute(attr="pop" | "get" | "setdefault"), args=[ast.Constant(value=key), *_]
                ):
                    found.add(key)
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=key), *_]
                ):
                    found.add(key)
                case ast.Subscript(slice=ast.Constant(value=key)):
                    found.add(key)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in LISTS:
                    found |= {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
    return {name for name in found if isinstance(name, str) and name.isidentifier()} - {"self", "cls"}


def all_keys(bases: Path) -> dict[str, set[str]]:
    """What the files of transformers, sentence-transformers and sepnorm may hold, by kind of file."""
    import sentence_transformers
    import transformers
    from transformers.generation import GenerationConfig

    library, other = Path(transformers.__file__).parent, Path(sentence_transformers.__file__).parent
    models = library / "models"
    config = names_in(
        [*models.glob("*/configuration_*.py"), *models.glob("auto/*.py"), library / "configuration_utils.py"]
    )
    config |= (
        names_in([library / "modeling_utils.py"])
        | set(UNNAMED)
        | set(GenerationConfig._get_default_generation_params())
    )
    opening = [library / "modeling_utils.py", library / "configuration_utils.py", *models.glob("auto/auto_factory.py")]
    arguments = names_in(opening, only="from_pretrained") | set(UNNAMED)
    tokeniser = names_in([*models.glob("*/tokenization_*.py"), *library.glob("tokenization_*.py")])
    processing = [*models.glob("*/*processing_*.py"), *models.glob("*/feature_extraction_*.py")]
    pixels = names_in([*processing, *library.glob("*processing*.py"), *library.glob("feature_extraction*.py")])
    modules = names_in([*other.rglob("modules/**/*.py"), *other.glob("base/*.py"), *other.glob("*/model.py")])
    saved: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            saved.update(value)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(each)

    for base in ("saved", "saved_dense"):
        collect(json.loads((bases / base / "sepnorm.json").read_text()))
    found = {
        "config": config | arguments,
        "arguments": arguments,
        "orders": set(),
        "tokeniser": tokeniser,
        "pixels": pixels,
        "modules": modules,
        "saved": saved | {"architecture", "num_classes", "img_size", "in_chans", "outline"},
        "weights": set(json.loads((bases / "shards" / INDEX).read_text())["weight_map"]),
    }
    return found


# ---- where they are tried -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A dictionary in a JSON file of a folder."""

    made: Made
    file: str
    keys: str
    inside: tuple[str | int, ...] = ()


def places(base: str, keys: str, *files: str, inside: tuple[str | int, ...] = ()) -> list[Place]:
    return [Place(Made(base), file, keys, inside) for file in files]


def module_places() -> list[Place]:
    """Every module that sentence-transformers has, in a folder of its own."""
    names = (
        "Asym BoW CLIPModel CNN Dense Dropout LSTM LayerNorm Normalize Pooling Router StaticEmbedding Transformer "
        "WeightedLayerPooling WordEmbeddings WordWeights"
    ).split()
    types = {name: f"{ST}.models.{name}" for name in names}
    types |= {
        name: f"{ST}.sparse_encoder.models.{name}"
        for name in ("SparseStaticEmbedding", "SpladePooling", "SparseAutoEncoder")
    }
    files = dict.fromkeys(types, "config.json") | {
        "Asym": "router_config.json",
        "Router": "router_config.json",
        "CNN": "cnn_config.json",
        "LSTM": "lstm_config.json",
        "WordEmbeddings": "wordembedding_config.json",
        "CLIPModel": SBERT,
        "Transformer": SBERT,
    }
    found = []
    for name, kind in types.items():
        changes = {"modules.json": module_list(**{f"9_{name}": kind}), f"9_{name}/config.json": {}}
        found.append(Place(Made("sentences", changes), f"9_{name}/{files[name]}", "modules"))
    return found


PARTS: dict[str, list[Place]] = {
    "the config of a model": places("plain", "config", "config.json"),
    "the config of a model that was saved": places("saved", "config", "config.json"),
    "the config of a sentence-transformer": places("sentences", "config", "config.json"),
    "the config of a sentence-transformer that was saved": places("saved_sentences", "config", "config.json"),
    "the config of images": places("vit", "config", "config.json"),
    "the config of molecules": places("graphormer", "config", "config.json"),
    "a config inside a config": [
        *places("towers", "config", "config.json", inside=("text_config",)),
        *places("plain", "config", "config.json", inside=("text_config",)),
    ],
    "arguments for the libraries": [
        *places("sentences_words", "arguments", SBERT, inside=("model_args",)),
        *places("sentences_words", "orders", SBERT, inside=("model_kwargs",)),
        *places("saved_sentences", "orders", SBERT, inside=("model_args",)),
        *places("sentences_words", "arguments", SBERT, inside=("config_args",)),
        *places("sentences_words", "orders", SBERT, inside=("config_kwargs",)),
    ],
    "arguments for tokenisers": [
        *places("sentences_words", "tokeniser", SBERT, inside=("tokenizer_args",)),
        *places("sentences_words", "orders", SBERT, inside=("processor_kwargs",)),
    ],
    "a tokeniser": [
        place
        for base in ("words", "plain", "roberta_words", "sentences_words", "saved", "saved_sentences")
        for place in places(base, "tokeniser", "tokenizer_config.json", "special_tokens_map.json")
    ],
    "pixels and other input": [
        *places("vit", "pixels", "preprocessor_config.json", "processor_config.json"),
        *places("saved_vit", "pixels", "preprocessor_config.json"),
        *places("sentences_words", "pixels", "preprocessor_config.json", "processor_config.json"),
        *places("sentences_words", "pixels", "video_preprocessor_config.json", "audio_tokenizer_config.json"),
    ],
    "settings of a sentence-transformer": [
        *places("sentences", "modules", SBERT, "config_sentence_transformers.json"),
        *places("sentences", "modules", "1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"),
        *places("saved_dense", "modules", "1_Pooling/config.json", "2_Dense/config.json"),
        *(place for number in range(4) for place in places("sentences", "modules", "modules.json", inside=(number,))),
        *places("saved_sentences", "modules", "modules.json", inside=(1,)),
        Place(Made("sentences", gone=(SBERT,)), "sentence_xlnet_config.json", "orders"),
    ],
    "modules of sentence-transformers": module_places(),
    "an index of weights": [
        *places("shards", "config", INDEX),
        *places("shards", "config", INDEX, inside=("metadata",)),
        *places("shards", "weights", INDEX, inside=("weight_map",)),
    ],
    "what sepnorm.save writes": [
        *places("saved", "saved", "sepnorm.json"),
        *places("saved", "saved", "sepnorm.json", inside=("build",)),
        *places("saved", "saved", "sepnorm.json", inside=("sites", 0)),
        *places("saved", "saved", "sepnorm.json", inside=("sites", 0, "children", "cls_norm")),
        *places("saved", "saved", "sepnorm.json", inside=("aliases",)),
        *places("saved_sentences", "saved", "sepnorm.json"),
    ],
    "files that need not be there": [
        place
        for base in ("plain", "sentences_words", "saved_sentences")
        for place in places(base, "arguments", "adapter_config.json", "generation_config.json")
    ],
}


#: Where the sample is taken: one place of each kind.
SAMPLE: list[Place] = [
    *places("plain", "config", "config.json"),
    *places("sentences_words", "arguments", SBERT, inside=("model_args",)),
    *places("words", "tokeniser", "tokenizer_config.json", "special_tokens_map.json"),
    *places("sentences_words", "pixels", "processor_config.json"),
    *places("sentences", "modules", SBERT),
    *places("sentences", "modules", "modules.json", inside=(2,)),
    *places("shards", "weights", INDEX, inside=("weight_map",)),
    *places("saved", "saved", "sepnorm.json", inside=("build",)),
]
FEW = (
    "a pickle elsewhere",
    "a pickle in the folder",
    "a name of the hub",
    "a folder elsewhere",
    "code",
)


def prepared(ground: Ground, chosen: Iterable[Place], sample: bool) -> list[dict[str, Any]]:
    """Places with their folders and keys, as the process takes them."""
    found = all_keys(ground.folder / "bases")
    folders: dict[str, Path] = {}
    jobs = []
    for place in chosen:
        name = json.dumps([place.made.base, place.made.changes, place.made.gone])
        if name not in folders:
            folders[name] = ground.make(place.made, f"keys-{len(list(ground.outside.parent.iterdir()))}")
            for file in ("adapter_model.bin", "pytorch_model.bin"):
                (folders[name] / file).write_bytes((ground.outside / "bomb.bin").read_bytes())
        keys = sorted(found[place.keys] if sample else found[place.keys] | DANGEROUS)
        if sample:
            keys = [key for key in keys if key in DANGEROUS] + [key for key in keys if key not in DANGEROUS][::EACH]
        jobs.append({"folder": str(folders[name]), "file": place.file, "inside": place.inside, "keys": keys})
    return jobs


# ---- in the process that opens the folders ------------------------------------------------------------------------------


def obedient(folder: str) -> None:
    """An opener that does what a file says: to see that harm is found, and found to be that of the right key."""
    config = json.loads(Path(folder, "config.json").read_text())
    match config.get("backbone"):
        case str(path) if path.endswith(".bin"):
            torch.load(path, weights_only=False)
        case "evil/repo":
            socket.create_connection(("evil.invalid", 80))
        case str(path):
            Path(path, "config.json").read_text()
        case dict():
            runpy.run_path("evil.py")
    if "revision" in config:
        raise TypeError("revision")


class Trial:
    """A folder that is opened again and again, each time with other values in one of its files."""

    def __init__(self, wires: Wires, job: dict[str, Any], mark: Path) -> None:
        from sepnorm.domains.encoders import open_encoder

        self.wires, self.mark, self.inside = wires, mark, job["inside"]
        self.open = obedient if job.get("obedient") else open_encoder
        self.folder, self.file = job["folder"], Path(job["folder"], job["file"])
        self.text = self.file.read_text() if self.file.is_file() else None
        self.count, self.said = 0, ""
        self.refused: Counter[str] = Counter()  # how often, with whatever value
        os.chdir(self.folder)

    def outcome(self, changes: dict[str, Any]) -> str:
        """``opened``, ``refused``, or what harm was done."""
        content = json.loads(self.text) if self.text else {}
        part = content
        for step in self.inside:
            part = part.setdefault(step, {}) if isinstance(part, dict) else part[step]
        part.update(changes)
        write(self.file, content)
        try:
            return self._opened()
        finally:
            self.file.unlink() if self.text is None else self.file.write_text(self.text)

    def _opened(self) -> str:
        self.count += 1
        self.wires.told.clear()
        self.wires.watch.opened()
        self.wires.armed = True
        ended = "opened"
        try:
            self.open(self.folder)
        except sepnorm.SepNormError as error:
            ended, self.said = "refused", str(error)
        except BaseException as error:
            ended = f"raises {type(error).__name__}: {error}"[:300]
        self.wires.armed = False
        told = {*self.wires.told, *(f"opens {path}" for path in self.wires.watch.opened())}
        if self.mark.exists():
            told.add("runs what it was given")
            self.mark.rmdir()
        for name in [name for name in sys.modules if name.split(".")[-1].startswith("evil")]:
            del sys.modules[name]
        return "; ".join(sorted(told)) or ended

    def all_at_once(self, keys: Sequence[str], value: Any) -> Iterator[tuple[list[str], str]]:
        outcome = self.outcome(dict.fromkeys(keys, value))
        if outcome not in ("opened", "refused"):
            yield list(keys), outcome

    def blamed(self, keys: Sequence[str]) -> list[str]:
        """Those that the refusal names, before ``=`` or anywhere."""
        words = re.findall(r"\w+", self.said)
        return [key for key in keys if f" {key}=" in self.said] or [key for key in keys if key in words]

    def search(self, keys: Sequence[str], value: Any) -> Iterator[tuple[list[str], str]]:
        """Keys that do harm, alone or, where none does alone, together, and which."""
        while keys:
            outcome = self.outcome(dict.fromkeys(keys, value))
            if outcome == "opened":
                return
            blamed = self.blamed(keys) if outcome == "refused" else []
            if len(keys) == 1 or len(blamed) == 1:
                self.refused.update(blamed or keys)
                if outcome != "refused":
                    yield list(keys), outcome
                    return
                keys = [key for key in keys if key not in (blamed or keys)]
                continue
            parts = [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
            found = [each for part in parts for each in self.search(part, value)]
            yield from found or ([(list(keys), outcome)] if outcome != "refused" else [])
            return


def sweep() -> None:
    """Takes places and values as JSON on stdin; gives what did harm, a line each, and how much was tried."""
    task = json.load(sys.stdin)
    ground = Path(task["ground"])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    wires = Wires(str(ground))
    wires.watch.over(str(ground / "cases/outside"))
    count = 0
    for job in task["places"]:
        begun, trial = time.process_time(), Trial(wires, job, ground / "mark")
        for path in Path(job["folder"]).rglob("*.bin"):
            wires.watch.over(str(path))
        trial.outcome({})  # for what is imported
        harmless = trial.outcome({})
        together = TOGETHER if harmless == "opened" else len(job["keys"])  # what is refused anyway is tried once
        if harmless not in ("opened", "refused"):
            print(json.dumps([job["folder"], job["file"], job["inside"], [], "nothing", harmless]), file=answer)
            continue
        for name, value in task["values"].items():
            # what was refused again and again is not tried with yet another word, unless it is an order
            spared = {key for key, times in trial.refused.items() if times >= task["patience"]} - DANGEROUS
            keys = [key for key in job["keys"] if not isinstance(value, str) or key not in spared]
            for some in (keys[start : start + together] for start in range(0, len(keys), together)):
                found = trial.search(some, value) if harmless == "opened" else trial.all_at_once(some, value)
                for culprits, harm in found:
                    told = [job["folder"], job["file"], job["inside"], culprits, name, harm]
                    print(json.dumps(told), file=answer, flush=True)
        count += trial.count
        took = time.process_time() - begun
        sys.stderr.write(
            f"{job['file']} {job['inside']} of {job['folder']}: {harmless}, {trial.count} in {took:.1f} s\n"
        )
    print(json.dumps({"count": count}), file=answer)


def kinds() -> None:
    """The same for every kind of model that transformers has: by itself, and inside of another."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    task = json.load(sys.stdin)
    ground = Path(task["ground"])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    wires = Wires(str(ground))
    wires.watch.over(str(ground / "cases/outside"))
    trial = Trial(wires, {"folder": task["folder"], "file": "config.json", "inside": []}, ground / "mark")
    for kind in CONFIG_MAPPING_NAMES:
        for inside in (False, True):
            part = {"model_type": kind}
            trial.text = json.dumps(TWO | {"text_config": part} if inside else part)
            harm = trial.outcome({})
            if harm not in ("opened", "refused"):
                print(
                    json.dumps([task["folder"], "config.json", [], ["model_type"], kind, harm]), file=answer, flush=True
                )
    print(json.dumps({"count": trial.count}), file=answer)


# ---- the tests ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground(tmp_path_factory.mktemp("keys").resolve())


def harm_done(ground: Ground, jobs: list[dict[str, Any]], values: Iterable[str], patience: int = 3) -> list[str]:
    """A line for each key that did some, of so many places with so many values."""
    given = json.loads(json.dumps({name: VALUES[name] for name in values}).replace("OUTSIDE", str(ground.outside)))
    task = {"ground": str(ground.folder), "places": jobs, "values": given, "patience": patience}
    return told(in_a_process(ground.folder, "sweep()", json.dumps(task), module="test_hostile_keys"))


def told(said: str) -> list[str]:
    *lines, last = map(json.loads, said.splitlines())
    assert last["count"] > 1, last
    return [
        f"{Path(folder).name}: {'/'.join(map(str, [file, *inside]))}: {', '.join(keys)} = {value}: {harm}"
        for folder, file, inside, keys, value, harm in lines
    ]


@pytest.fixture(scope="module")
def sampled(ground) -> list[str]:
    jobs = prepared(ground, SAMPLE, sample=True)
    open_by_us = {
        "folder": str(ground.make(Made("plain", {}, ("adapter_model.bin",)), "obedient")),
        "file": "config.json",
    }
    jobs.append(open_by_us | {"inside": [], "keys": jobs[0]["keys"], "obedient": True})
    return harm_done(ground, jobs, FEW, patience=1)


def test_harm_is_found_and_blamed_on_the_right_key(sampled):
    found = [line.removeprefix("obedient: config.json: ") for line in sampled if line.startswith("obedient")]
    for value in FEW:
        harm, raised = (
            next(line for line in found if line.startswith(f"{key} = {value}: ")) for key in ("backbone", "revision")
        )
        told = ("unpickles", "asks 'evil.invalid'", "outside/config.json", "evil.py", "runs what it was given")
        assert any(word in harm for word in told), harm
        assert "raises TypeError" in raised
    assert len(found) == 2 * len(FEW), found


def test_keys_that_are_orders_and_some_others_do_no_harm(sampled):
    found = [line for line in sampled if not line.startswith("obedient")]
    assert not found, "\n".join(found)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS)
def test_no_key_does_harm_whatever_its_value(ground, part):
    found = harm_done(ground, prepared(ground, PARTS[part], sample=False), VALUES)
    assert not found, "\n".join(found)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_no_kind_of_model_does_harm_by_itself_or_inside_another(ground):
    folder = ground.make(Made("plain"), "kinds")
    task = {"ground": str(ground.folder), "folder": str(folder)}
    found = told(in_a_process(ground.folder, "kinds()", json.dumps(task), module="test_hostile_keys"))
    assert not found, "\n".join(found)
