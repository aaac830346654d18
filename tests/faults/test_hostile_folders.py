"""Folders of models that are made to do harm: to open one runs no code, reads nothing beside it and asks nobody.

They are opened by a process of its own, each in a fork of it, with wires that tell of whatever is run, read or asked. Whether a
harmful setting is refused or left out is the same to many of these tests: but where such a folder opens, it gives the vectors
of the harmless one that it was made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several import peak_of_memory
from test_hostile_files import EVIL, torch_bomb
from whole_files import WORDS, command

import sepnorm

HERE = Path(__file__).parent
TIMM = Path(os.environ.get("SEPNORM_TIMM") or HERE.parents[1] / ".timm").absolute()
MEMORY = 3 * 2**29  # bytes that opening a folder may take at most, libraries included
PATIENCE = 20  # seconds, by far more than it takes
TEXTS = ["the cat sat on the mat", "a dog", "b and c and d", "number 7", "e"]
SMILES = ["C1CCC1O", "N1CCCCN1", "CCC1CCCC1OO"]
pytestmark = pytest.mark.timeout(900)  # each opening has a limit of its own


# ---- in the process that opens the folders ------------------------------------------------------------------------------


class Watch:
    """Tells which files are opened, by whatever means: of what compiled libraries open, Python hears nothing. On Linux."""

    OPENED = 0x20

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.file = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1

    def over(self, place: str) -> None:
        """From now on, over a file, or a folder with all that is in it."""
        for path in [place, *(str(path) for path in Path(place).rglob("*") if path.is_dir())] if self.file >= 0 else []:
            number = self.libc.inotify_add_watch(self.file, os.fsencode(path), ctypes.c_uint32(self.OPENED))
            assert number >= 0, (path, os.strerror(ctypes.get_errno()))
            self.places[number] = path

    def opened(self) -> list[str]:
        """What was, since it was last asked for."""
        found = []
        with suppress(BlockingIOError):
            while self.file >= 0:
                data = os.read(self.file, 65536)
                while data:
                    number, _, _, length = struct.unpack_from("iIII", data)
                    name, data = data[16 : 16 + length].rstrip(b"\0"), data[16 + length :]
                    found.append(str(Path(self.places.get(number, "?"), os.fsdecode(name))))
        return sorted(set(found))

    def nothing(self) -> None:
        for number in self.places:
            self.libc.inotify_rm_watch(self.file, number)
        self.opened()
        self.places = {}


class Asked(BaseException):
    """Somebody would have been, over the network or before the machine."""


class Wires:
    """While they are ``armed``: what is run out of a folder, is imported by an evil name, started, unpickled or asked for."""

    STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
    ASKS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")

    def __init__(self, ground: str) -> None:
        self.ground, self.armed = ground, False  # all that is hostile is below the ground
        self.told: set[str] = set()
        self.note = -1  # a file for what is told, since the process may be stopped
        self.watch = Watch()
        sys.addaudithook(self._hear)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, *others: object) -> None:
        self._imported(name)

    def _imported(self, name: str) -> None:
        if self.armed and any(part.startswith("evil") for part in name.split(".")):
            self._tell(f"imports {name}")

    def _tell(self, what: str) -> None:
        if what not in self.told:
            self.told.add(what)
            if self.note >= 0:
                os.write(self.note, f"{what!s}\n".encode())

    def _inside(self, path: object) -> bool:
        path = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        return path.startswith(self.ground) and not path.startswith(f"{self.ground}/packages/")

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "import":
            self._imported(str(words[0]))
        elif event == "exec" and self._inside(getattr(words[0], "co_filename", None)):
            self._tell(f"runs {words[0].co_filename}")
        elif event == "compile" and self._inside(words[1]):
            self._tell(f"compiles {words[1]}")
        elif event == "ctypes.dlopen" and self._inside(words[0]):
            self._tell(f"loads {words[0]}")
        elif event == "pickle.find_class":
            self._tell(f"unpickles {words[0]}.{words[1]}")
        elif event == "open" and self._inside(words[0]) and "/outside/" in os.fsdecode(words[0]):
            self._tell(f"opens {os.path.realpath(os.fsdecode(words[0]))}")
        elif event in self.STARTS:
            self._tell(f"starts a process by {event}: {words[0]!r}")
        elif event in self.ASKS:
            where = words[-1] if event in ("socket.connect", "socket.sendto", "socket.bind") else words[0]
            self._tell(f"asks {where!r} by {event}")
            raise Asked(where)  # or else it would be tried again and again
        elif event == "builtins.input":
            self._tell("asks who sits before the machine")
            raise Asked


def serve() -> None:
    """Takes what to open as JSON on stdin; gives what became of each on stdout, a line each."""
    task = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    wires = Wires(task["ground"])
    torch.set_num_threads(1)
    for job in task["warm"]:  # whatever is imported now need not be imported in each fork
        _carried_out(job, wires)
    for job in task["jobs"]:
        print(json.dumps(_forked(job, wires, Path(task["ground"]))), file=answer, flush=True)


def _forked(job: dict[str, Any], wires: Wires, ground: Path) -> dict[str, Any]:
    for place in job["watched"]:
        wires.watch.over(place)
    note, mark, told = ground / "note.json", ground / "mark", ground / "told.txt"
    note.unlink(missing_ok=True)
    stopped, begun = "", time.monotonic()
    wires.note = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        wires.armed = True
        note.write_text(json.dumps(_carried_out(job, wires)))
        os._exit(0)
    os.close(wires.note)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - begun > job.get("patience", PATIENCE):
            stopped = f"does not end within {PATIENCE} s"
        elif _memory(child) > MEMORY:
            stopped = f"takes more than {MEMORY / 2**30} GiB"
        if stopped:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    done = json.loads(note.read_text()) if note.is_file() else {"said": "", "peak": 0}
    found = {*told.read_text().splitlines(), *(f"opens {path}" for path in wires.watch.opened()), stopped} - {""}
    if not note.is_file() and not stopped:
        found.add("ends the process")
    if mark.exists():
        found.add("runs what it was given")
        mark.rmdir()
    wires.watch.nothing()
    return done | {"told": sorted(found), "seconds": time.monotonic() - begun}


def _memory(process: int) -> int:
    """What a process holds now, in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
    return 0


def _carried_out(job: dict[str, Any], wires: Wires) -> dict[str, Any]:
    """A command, ``sepnorm.load`` or ``open_encoder``: how it ended."""
    from sepnorm import SepNormError, load

    os.chdir(job["folder"])
    if job["offline"]:  # read once, when it was imported
        import huggingface_hub.constants

        huggingface_hub.constants.HF_HUB_OFFLINE = True
    kept, sys.stderr = sys.stderr, io.StringIO()
    done: dict[str, Any] = {}
    try:
        if job["call"] == "command":
            done["code"] = command(job["words"])
        elif job["call"] == "load":
            done["class"] = type(load(job["words"][0])).__name__
        elif job["call"] == "trip":
            TRIPS[job["words"][0]][0](Path(job["words"][1]))
        else:
            done["vectors"] = _vectors(job["words"][0])
    except SepNormError as error:
        done["refused"] = str(error)
    except BaseException as error:
        done["raised"] = f"{type(error).__name__}: {error}"[:2000]
    wires.armed = False
    done |= {"said": sys.stderr.getvalue(), "peak": peak_of_memory()}
    sys.stderr = kept
    return done


def _vectors(target: str) -> list[list[float]]:
    """What a folder gives for fixed texts, pixels or molecules."""
    from sepnorm.domains.encoders import open_encoder

    encoder = open_encoder(target)
    if encoder.kind == "text":
        batch = encoder.prepare(TEXTS)
    elif encoder.kind == "molecules":
        batch = encoder.prepare(_graphs(encoder.model.config.features))
    else:
        pixels = _pixels(len(encoder.prepare.mean), *encoder.prepare.size)
        batch = pixels if encoder.prepare.name is None else {encoder.prepare.name: pixels}
    with encoder.evaluating():
        return encoder.encode(batch).cls.tolist()


def _pixels(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * int(np.prod(shape))).sin().reshape(3, *shape)


def _graphs(features: str) -> list[Any]:
    from sepnorm.domains.molecules.features import featurise

    return featurise(SMILES, features, max_atoms=50)[0]


# ---- harmless folders, of which the others are made ---------------------------------------------------------------------


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def change(path: Path, changes: dict[str, Any] | list[Any]) -> None:
    """New values in a JSON file, or a whole new list; dictionaries in it keep what is not changed."""

    def merged(old: Any, new: Any) -> Any:
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return new
        return old | {key: merged(old.get(key), value) for key, value in new.items()}

    write(path, merged(json.loads(path.read_text()) if path.is_file() else {}, changes))


def make_bases(folder: Path) -> dict[str, np.ndarray]:
    """Every kind of folder that can be opened, small, and the vectors that its model gave before it was saved."""
    import transformers as T
    from models import BERT, bert
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    from sepnorm.domains.molecules.batches import collate
    from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel

    T.utils.logging.disable_progress_bar()
    T.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    expected: dict[str, Any] = {}

    @torch.no_grad()
    def first(model: Any, **batch: Any) -> Any:
        return model.eval()(**batch).last_hidden_state[:, 0]

    # BERT, its words in vocab.txt or in tokenizer.json
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"0123456789"]
    write(folder / "words/vocab.txt", "\n".join(vocabulary) + "\n")
    write(folder / "words/tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    model = bert()
    model.save_pretrained(folder / "words")
    tokenizer = T.BertTokenizer(vocab=str(folder / "words/vocab.txt"))
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    expected["words"] = expected["plain"] = first(model, **batch)
    model.save_pretrained(folder / "shards", max_shard_size="6KB")
    tokenizer.save_pretrained(folder / "shards")
    assert (folder / "shards/model.safetensors.index.json").is_file()
    expected["shards"] = expected["plain"]

    # sentence-transformers, with all the modules that are usual
    modules = [Transformer(str(folder / "words")), Pooling(16, "cls"), Dense(16, 12), Normalize()]
    sentences = SentenceTransformer(modules=modules, device="cpu").eval()
    sentences.save_pretrained(str(folder / "sentences"), create_model_card=False)
    expected["sentences"] = expected["plain"]

    shutil.copytree(folder / "sentences", folder / "sentences_words")
    (folder / "sentences_words/tokenizer.json").unlink()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / "words" / name, folder / "sentences_words")
    expected["sentences_words"] = expected["plain"]

    # what sepnorm.save wrote
    few = SentenceTransformer(modules=[Transformer(str(folder / "words")), Pooling(16, "cls")], device="cpu").eval()
    for name, each in (("saved_sentences", few), ("saved_dense", sentences)):
        sepnorm.convert(each, "bn+ln", example=TEXTS, sites="all")
        with torch.no_grad():
            expected[name] = each(dict(each.preprocess(TEXTS)))["token_embeddings"][:, 0]
        sepnorm.save(each, folder / name)
    sepnorm.convert(model, "bn+ln", sites="all")
    expected["saved"] = first(model, **batch)
    sepnorm.save(model, folder / "saved")
    tokenizer.save_pretrained(folder / "saved")
    graphormer = GraphormerModel(GraphormerConfig("ogb", 16, 2, 2, 16))
    sepnorm.convert(graphormer, "bn+ln", sites="final")
    expected["graphormer"] = first(graphormer, **collate(_graphs("ogb"), graphormer.config.max_hops))
    sepnorm.save(graphormer, folder / "graphormer")

    # images
    size = {key: BERT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    vit = T.ViTModel(T.ViTConfig(image_size=8, patch_size=4, **size))
    vit.save_pretrained(folder / "vit")
    write(folder / "vit/preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    expected["vit"] = first(vit, pixel_values=_pixels(3, 8, 8))
    sepnorm.convert(vit, "bn+ln", sites="all")
    expected["saved_vit"] = first(vit, pixel_values=_pixels(3, 8, 8))
    sepnorm.save(vit, folder / "saved_vit")
    shutil.copy(folder / "vit/preprocessor_config.json", folder / "saved_vit")
    swin = T.SwinModel(T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 1]))
    swin.save_pretrained(folder / "swin")
    shutil.copytree(folder / "swin", folder / "saved_swin")
    os.rename(folder / "saved_swin/model.safetensors", folder / "saved_swin/sepnorm.safetensors")
    description = {
        "format": 1,
        "library": "transformers",
        "class": "SwinModel",
        "build": {},
        "sites": [],
        "aliases": {},
    }
    write(folder / "saved_swin/sepnorm.json", description)

    # RoBERTa, its words in vocab.json and merges.txt, or in tokenizer.json
    from tokenizers.pre_tokenizers import ByteLevel

    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet()), "th", "the", "at"]
    write(folder / "roberta_words/vocab.json", {letter: number for number, letter in enumerate(letters)})
    write(folder / "roberta_words/merges.txt", "#version: 0.2\nt h\nth e\na t\n")
    write(folder / "roberta_words/tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    tokenizer = T.AutoTokenizer.from_pretrained(folder / "roberta_words")
    config = T.RobertaConfig(**(BERT | dict(vocab_size=len(letters), max_position_embeddings=60)))
    roberta = T.RobertaModel(config)
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert batch["input_ids"].shape[1] > 10
    expected["roberta_words"] = expected["roberta"] = first(roberta, **batch)
    roberta.save_pretrained(folder / "roberta_words")
    roberta.save_pretrained(folder / "roberta")
    tokenizer.save_pretrained(folder / "roberta")

    # two towers, each with a config inside the config
    tower = dict(size, projection_dim=8)
    text = T.CLIPTextConfig(vocab_size=60, max_position_embeddings=32, **tower).to_dict()
    vision = T.CLIPVisionConfig(image_size=8, patch_size=4, **tower).to_dict()
    T.CLIPModel(T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(
        folder / "towers"
    )
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / "words" / name, folder / "towers")
    return {name: vectors.numpy() for name, vectors in expected.items()}


# ---- folders that do harm -----------------------------------------------------------------------------------------------


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

# ---- how they come to be opened -----------------------------------------------------------------------------------------

#: Packages that transformers uses where they are installed, and that harmful settings lead to.
PACKAGES = {
    "kernels/__init__.py": """
import os
class Any:
    def __init__(self, *words, **options): ...
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Any
def get_kernel(*words, **options): os.makedirs("MARK", exist_ok=True)
def use_kernel_forward_from_hub(*words, **options): return lambda thing: thing
use_kernelized_func = use_kernel_func_from_hub = replace_kernel_forward_from_hub = use_kernel_forward_from_hub
get_local_kernel = load_kernel = get_locked_kernel = has_kernel = kernelize = get_kernel
""",
    "kernels-0.18.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n",
    "peft/__init__.py": """
import os
class PeftModel:
    @classmethod
    def from_pretrained(cls, *words, **options): os.makedirs("MARK", exist_ok=True)
class PeftConfig(PeftModel): ...
def get_peft_model(*words, **options): os.makedirs("MARK", exist_ok=True)
inject_adapter_in_model = get_peft_model
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return type(name, (), {})
""",
    "peft-0.19.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: peft\nVersion: 0.19.0\n",
    "faiss/__init__.py": "",
    "faiss-1.12.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: faiss\nVersion: 1.12.0\n",
    "evil_on_path.py": EVIL,
}

#: What the wires are tried with: what is done, and what is to be told.
TRIPS: dict[str, tuple[Callable[[Path], object], str]] = {
    "unpickling": (lambda place: torch.load(place / "bomb.bin", weights_only=False), "unpickles posix.mkdir"),
    "unpickled code": (lambda place: torch.load(place / "bomb.bin", weights_only=False), "runs what it was given"),
    "an import": (lambda place: __import__("importlib").import_module("evil_on_path"), "imports evil_on_path"),
    "a file that is run": (lambda place: __import__("runpy").run_path(str(place / "evil.py")), "runs "),
    "a connection": (lambda place: __import__("socket").create_connection(("evil.invalid", 80)), "asks 'evil.invalid'"),
    "a process": (lambda place: subprocess.run(["true"], check=True), "starts a process by subprocess.Popen"),
    "a shell": (lambda place: os.system("true"), "starts a process by os.system"),
    "a question": (lambda place: input(), "asks who sits before the machine"),
    "a file elsewhere": (lambda place: (place / "vocab.txt").read_text(), "opens "),
    "memory": (lambda place: torch.ones(2**29), "takes more than 1.5 GiB"),
    "waiting": (lambda place: time.sleep(60), "does not end"),
}
if sys.platform == "linux":
    from safetensors.torch import load_file

    TRIPS["weights elsewhere"] = (lambda place: load_file(place / "model.safetensors"), "opens ")


class Ground:
    """Where all folders of these tests are: harmless ones, those that are made of them, and one outside of all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark, self.outside = folder, folder / "mark", folder / "cases/outside"
        self.expected = self._bases(folder / "bases")
        for name, text in PACKAGES.items():
            write(folder / "packages" / name, text.replace("MARK", str(self.mark)))
        for name in ("scratch", "home"):
            (folder / name).mkdir(exist_ok=True)
        write(
            folder / "lines.txt", "\n".join(f"{a} {b} {c}" for a in WORDS[:3] for b in WORDS[3:6] for c in WORDS[6:9])
        )
        rows = [
            f"{n * 7 % 11}\t{' '.join(WORDS[: n % 6 + 1])}\t{' '.join(WORDS[n % 5 : n % 5 + 3])}" for n in range(20)
        ]
        write(folder / "sets/stsb.tsv", "\n".join(["score\tsentence1\tsentence2", *rows]))
        self._furnish(folder / "bases")
        (self.outside / "bomb.bin").write_bytes(torch_bomb(self.mark))
        self.made: list[tuple[str, str, Made]] = []
        self.jobs: list[dict[str, Any]] = []

    def _bases(self, folder: Path) -> dict[str, np.ndarray]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # norms are not calibrated here
            return make_bases(folder)

    def _furnish(self, bases: Path) -> None:
        """Outside is whatever a setting could lead to, whole, but with other words."""
        shutil.copytree(bases / "plain", self.outside)
        for name in ("roberta_words/vocab.json", "roberta_words/merges.txt", "sentences/modules.json"):
            shutil.copy(bases / name, self.outside)
        shutil.copy(bases / "saved/sepnorm.safetensors", self.outside)
        shutil.copytree(bases / "sentences/1_Pooling", self.outside / "1_Pooling")
        words = (bases / "words/vocab.txt").read_text().split()
        write(self.outside / "vocab.txt", "\n".join(words[:5] + words[:4:-1]) + "\n")
        shutil.copy(self.outside / "tokenizer.json", self.outside / "tokenizer.4.0.0.json")
        write(self.outside / "idf.json", dict.fromkeys(words, 1.0))
        write(self.outside / "model.gguf", "GGUF")
        write(self.outside / "evil.py", EVIL.replace("MARK", str(self.mark)))

    def make(self, made: Made, name: str) -> Path:
        """A folder as described, next to the one outside."""
        place = self.outside.parent / name
        shutil.copytree(self.folder / "bases" / made.base, place)
        write(place / "evil.py", EVIL.replace("MARK", str(self.mark)))
        for file in made.gone:
            (place / file).unlink()
        for file in made.pickles:
            (place / file).parent.mkdir(exist_ok=True)
            (place / file).write_bytes(torch_bomb(self.mark))
        for file, content in made.changes.items():
            text = json.loads(json.dumps(content).replace("OUTSIDE", str(self.outside)))
            (write if isinstance(content, str) else change)(place / file, text)
        for file, target in made.links.items():
            if (place / file).is_dir():
                shutil.rmtree(place / file)
            (place / file).unlink(missing_ok=True)
            (place / file).symlink_to(target.replace("OUTSIDE", str(self.outside)))
        for file in made.pipes:
            (place / file).unlink(missing_ok=True)
            os.mkfifo(place / file)
        return place

    def _as_on_the_hub(self, place: Path, name: str) -> Path:
        """The folder as the hub's cache has it: links to files that are named by their contents."""
        top = self.folder / "home/hub" / f"models--{name.replace('/', '--')}"
        commit = hashlib.sha1(name.encode()).hexdigest()
        write(top / "refs/main", commit)
        (top / "blobs").mkdir()
        for file in [path for path in place.rglob("*") if path.is_symlink() or not path.is_dir()]:
            link = top / "snapshots" / commit / file.relative_to(place)
            link.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                link.symlink_to(file.readlink())
                continue
            blob = top / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.move(file, blob)
            link.symlink_to(os.path.relpath(blob, link.parent))
        shutil.rmtree(place)
        return top / "snapshots" / commit

    def ask(self, kind: str, title: str, made: Made, name: str = "", by_name: bool = True) -> None:
        """All calls on a folder, as jobs."""
        place = self.make(made, f"{len(self.jobs)}-{made.base}")
        if name:
            place = self._as_on_the_hub(place, name)
        target = name if name and by_name else made.target.format(place)
        watched = [path for path in place.rglob("*") if path.suffix in (".bin", ".pt", ".pth") and path.is_file()]
        for call in made.calls:
            out = str(self.folder / "out" / str(len(self.jobs)))
            lines = str(self.folder / "lines.txt")
            words = {
                "embed": [target, lines, "--out", f"{out}/e.npy", "--quiet"],
                "diagnose": [target, "--data", lines, "--out", out, "--quiet"],
                "convert": [target, "--data", lines, "--out", f"{out}/new", "--quiet"],
                "export": [target, "--out", f"{out}/m.onnx"],
                "evaluate": [target, "--data", str(self.folder / "sets"), "--on", "stsb", "--out", out],
            }
            self.made.append((kind, title, made))
            self.jobs.append(
                {
                    "folder": str(self.outside.parent),
                    "call": "command" if call in words else call,
                    "words": [call, *words[call]] if call in words else [target],
                    "watched": [str(self.outside), *(str(path.resolve()) for path in watched)],
                    "offline": bool(name),
                    "patience": 3 * PATIENCE if call == "export" else PATIENCE,
                }
            )

    def trip(self, title: str) -> None:
        self.made.append(("trip", title, Made("plain")))
        watched = [str(self.outside)]
        patience = 1 if title == "waiting" else PATIENCE
        job = {"folder": str(self.outside.parent), "call": "trip", "words": [title, str(self.outside)]}
        self.jobs.append(job | {"watched": watched, "offline": False, "patience": patience})

    def _warm(self) -> list[dict[str, Any]]:
        """Harmless folders, opened first so that whatever is imported for them is there."""
        common = {"folder": str(self.folder), "offline": False}
        out = ["--out", str(self.folder / "out/warm.npy"), "--quiet"]
        places = {base: str(self.folder / "bases" / base) for base in ("plain", "sentences", "saved", "vit", "swin")}
        embed = [["embed", places[base], str(self.folder / "lines.txt"), *out] for base in ("plain", "sentences")]
        opened = [{"call": "open", "words": [places[base]]} for base in ("saved", "vit", "swin")]
        return [common | job for job in [*({"call": "command", "words": words} for words in embed), *opened]]

    def outcomes(self) -> Outcomes:
        """What became of every job, by kind and title; one process does them all, since to start one takes the longest."""
        task = {"ground": str(self.folder), "warm": self._warm(), "jobs": self.jobs}
        said = in_a_process(self.folder, "serve()", json.dumps(task))
        found: Outcomes = {}
        for (kind, title, _), job, line in zip(self.made, self.jobs, said.splitlines(), strict=True):
            found.setdefault((kind, title), []).append((job, json.loads(line)))
        return found


Outcomes = dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]]


def in_a_process(
    folder: Path, call: str, given: str = "", before: str = "", module: str = "test_hostile_folders"
) -> str:
    """What a function of these tests prints, called where it may read nothing but what is below a folder."""
    before_ours = filter(None, [os.environ.get("PYTHONPATH")])
    paths = [str(folder / "packages"), *before_ours, str(Path(sepnorm.__file__).parents[1])]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",  # or else nobody would be asked
        "HTTPS_PROXY": "http://evil.invalid",  # so that it is not tried whether the hub answers
        "TMPDIR": str(folder / "scratch"),
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    code = (
        f"import sys; sys.path[:] = {[str(HERE), str(HERE.parent)]} + [path for path in sys.path if path]\n{before}\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", f"{code}import {module} as tests; tests.{call}"],
        input=given,
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground").resolve())


@pytest.fixture(scope="module")
def done(ground) -> dict:
    """Every folder is opened once, for all the tests below."""
    for title in TRIPS:
        ground.trip(title)
    kinds = {"refused": REFUSED, "links": LINKS, "either": EITHER, "sizes": SIZES, "good": GOOD}
    for kind, folders in kinds.items():
        for title, made in folders.items():
            ground.ask(kind, title, made)
    ground.ask(
        "links", "a link out of the hub's cache", LINKS["a link in place of model.safetensors of plain"], "evil/link"
    )
    for number, title in enumerate(FROM_HUB):
        kind, made = ("refused", REFUSED[title]) if title in REFUSED else ("either", EITHER[title])
        ground.ask(f"{kind} of the hub", title, replace(made, calls=("open",)), f"evil/model{number}")
    for base in ("plain", "sentences", "words"):
        ground.ask("good of the hub", base, Made(base), f"good/{base}")
        ground.ask("good of the hub", f"{base} by its path", Made(base), f"good/{base}-by-path", by_name=False)
    return ground.outcomes()


def is_refused(job: dict, result: dict) -> bool:
    """In one sentence: by our error in the library, by a line and the code 1 on the command line."""
    if job["call"] != "command":
        return "\n" not in result.get("refused", "\n")
    last = result["said"].strip().split("\n")[-1]
    return result.get("code") == 1 and last.startswith("Error: ") and "Traceback" not in result["said"]


def did_no_harm(job: dict, result: dict) -> None:
    assert result["told"] == [], (job["words"], result)
    assert "raised" not in result, (job["words"], result)
    assert result["peak"] < MEMORY, (job["words"], result)


def gave(result: dict, expected: np.ndarray) -> bool:
    found = np.array(result["vectors"])
    return found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("title", TRIPS)
def test_the_wires_tell(done, title):
    ((_, result),) = done["trip", title]
    assert any(what.startswith(TRIPS[title][1]) for what in result["told"]), result


def refused_without_harm(found: list[tuple[dict, dict]]) -> None:
    for job, result in found:
        did_no_harm(job, result)
        assert is_refused(job, result), (job["words"], result)


@pytest.mark.parametrize("title", REFUSED)
def test_a_harmful_folder_is_refused_and_does_nothing(done, title):
    refused_without_harm(done["refused", title])


@pytest.mark.parametrize("title", [*LINKS, "a link out of the hub's cache"])
def test_a_link_to_a_file_is_that_file_and_does_nothing_else(done, title):
    for job, result in done["links", title]:
        did_no_harm(job, result | {"told": [event for event in result["told"] if not is_of_a_link(event)]})


def is_of_a_link(event: str) -> bool:
    """Whether it is told that the file was opened that a link leads to."""
    return event.startswith("opens ") and Path(event).suffix in (".safetensors", ".json", ".txt")


@pytest.mark.parametrize("title", SIZES)
def test_a_folder_that_wants_too_much_is_refused_before_it_takes_it(done, title):
    refused_without_harm(done["sizes", title])


def harmless(found: list[tuple[dict, dict]], expected: np.ndarray | None) -> None:
    for job, result in found:
        did_no_harm(job, result)
        if is_refused(job, result):
            continue
        assert job["call"] != "command" or result["code"] == 0, (job["words"], result)
        if job["call"] == "open":
            assert expected is not None and gave(result, expected), (job["words"], result)


@pytest.mark.parametrize("title", EITHER)
def test_a_harmful_setting_is_refused_or_left_out(ground, done, title):
    harmless(done["either", title], ground.expected.get(EITHER[title].base))


@pytest.mark.parametrize("title", FROM_HUB)
def test_a_harmful_folder_of_the_hub_does_nothing_either(ground, done, title):
    if title in REFUSED:
        refused_without_harm(done["refused of the hub", title])
    else:
        harmless(done["either of the hub", title], ground.expected.get(EITHER[title].base))


def opens(found: list[tuple[dict, dict]], expected: np.ndarray) -> None:
    for job, result in found:
        did_no_harm(job, result)
        assert not is_refused(job, result), (job["words"], result)
        assert job["call"] != "command" or result["code"] == 0, (job["words"], result)
        assert job["call"] != "open" or gave(result, expected), (job["words"], result)


@pytest.mark.parametrize("title", GOOD)
def test_a_good_folder_opens_and_gives_what_it_gave_before(ground, done, title):
    opens(done["good", title], ground.expected[GOOD[title].base])


@pytest.mark.parametrize("base", ["plain", "sentences", "words"])
@pytest.mark.parametrize("way", ["{}", "{} by its path"])
def test_a_good_folder_of_the_hub_opens(ground, done, base, way):
    opens(done["good of the hub", way.format(base)], ground.expected[base])


# ---- timm, in a process of its own: timm_folder.py says why ---------------------------------------------

HUB = "timm:local-dir:{}"
ELSEWHERE = ("local-dir:OUTSIDE", "hf-hub:evil/repo", "../outside", "OUTSIDE")
WRAPPER = {"model_type": "timm_wrapper", "label_names": ["a"], "num_classes": 0}
BACKBONE = {"model_type": "timm_backbone", "use_pretrained_backbone": False, "num_channels": 3}
TIMM_REFUSED: dict[str, Made] = {
    **{f"a wrapper of {name}": Made("wrapper", {"config.json": {"architecture": name}}) for name in ELSEWHERE},
    **{
        f"a model with a wrapper of {name}": Made(
            "wrapper",
            {
                "config.json": TWO
                | {"vision_config": WRAPPER | {"architecture": name}, "text_config": {"model_type": "bert"}}
            },
            gone=("config.json",),
        )
        for name in ELSEWHERE[:2]
    },
    "a model with a wrapper with weights elsewhere": Made(
        "wrapper",
        {
            "config.json": TWO
            | {
                "vision_config": WRAPPER
                | {"architecture": "vit_tiny_patch16_224", "model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}},
                "text_config": {"model_type": "bert"},
            }
        },
        gone=("config.json",),
    ),
    "a model with a backbone of timm": Made(
        "wrapper",
        {"config.json": {"model_type": "detr", "backbone_config": BACKBONE | {"backbone": "local-dir:OUTSIDE"}}},
        gone=("config.json",),
    ),
    "a wrapper with weights elsewhere": Made(
        "wrapper", {"config.json": {"model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}}}
    ),
    **{
        f"a saved {name}": Made("saved", {"sepnorm.json": {"build": {"architecture": name}}}, calls=LOAD)
        for name in ELSEWHERE
    },
    **{f"a folder of {name}": Made("hub", {"config.json": {"architecture": name}}, target=HUB) for name in ELSEWHERE},
    "a pickle in place of weights": Made("hub", {}, ("pytorch_model.bin",), ("model.safetensors",), target=HUB),
    "a pickle by another name": Made("hub", {}, ("anything.pth",), ("model.safetensors",), target=HUB),
    "weights elsewhere by an argument": Made(
        "hub", {"config.json": {"model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}}}, target=HUB
    ),
    "ten million layers": Made("hub", {"config.json": {"model_args": {"depth": 10**7}}}, target=HUB),
    "a width of a million": Made("hub", {"config.json": {"model_args": {"embed_dim": 10**6}}}, target=HUB),
    "a milliard of classes, saved": Made("saved", {"sepnorm.json": {"build": {"num_classes": 10**9}}}, calls=LOAD),
    "large images, saved": Made("saved", {"sepnorm.json": {"build": {"img_size": [40_000, 40_000]}}}, calls=LOAD),
}
TIMM_LINKS: dict[str, Made] = {
    "a link in place of weights": Made("hub", links={"model.safetensors": "OUTSIDE/model.safetensors"}, target=HUB),
    "a link in place of the config": Made("hub", links={"config.json": "OUTSIDE/config.json"}, target=HUB),
}
TIMM_EITHER: dict[str, Made] = {
    "weights from the network": Made(
        "hub",
        {
            "config.json": {
                "pretrained_cfg": {"url": "http://evil.invalid/x.pth", "hf_hub_id": "evil/repo", "custom_load": True}
            }
        },
        target=HUB,
    ),
    "weights from a file": Made(
        "hub", {"config.json": {"pretrained_cfg": {"file": "OUTSIDE/bomb.bin", "source": "file"}}}, target=HUB
    ),
}
TIMM_GOOD: dict[str, Made] = {
    "a folder for the hub": Made("hub", target=HUB),
    "a folder for the hub, with a pickle beside": Made("hub", {}, ("pytorch_model.bin",), target=HUB),
    "a saved one": Made("saved", calls=LOAD),
}
needs_timm = pytest.mark.skipif(not (TIMM / "timm").is_dir(), reason=f"timm is tested from {TIMM}, which has none")


class TimmGround(Ground):
    def _bases(self, folder: Path) -> dict[str, np.ndarray]:
        import timm
        from safetensors.torch import save_file
        from timm.models import save_for_hf
        from timm_folder import SMALL

        torch.manual_seed(0)
        small = timm.create_model("vit_tiny_patch16_224", **SMALL).eval()
        save_for_hf(small, str(folder / "hub"), model_args=SMALL, safe_serialization=True)
        config = {"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224", "label_names": ["a"]}
        given = {key: value for key, value in SMALL.items() if key != "num_classes"}
        write(folder / "wrapper/config.json", config | {"num_classes": 0, "model_args": given})
        tensors = {f"timm_model.{key}": tensor for key, tensor in small.state_dict().items() if "head." not in key}
        save_file(tensors, folder / "wrapper/model.safetensors", metadata={"format": "pt"})
        whole = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5).eval()
        sepnorm.convert(whole, "bn+ln", sites="all")
        sepnorm.save(whole, folder / "saved")
        with torch.no_grad():
            found = {
                "hub": small.forward_features(_pixels(3, 32, 32)),
                "saved": whole.forward_features(_pixels(3, 32, 32)),
            }
        return {name: hidden[:, 0].numpy() for name, hidden in found.items()}

    def _furnish(self, bases: Path) -> None:
        shutil.copytree(bases / "hub", self.outside)


def report_on_timm(folder: str) -> None:
    """Makes the folders too, since that takes timm."""
    ground = TimmGround(Path(folder))
    kinds = {"refused": TIMM_REFUSED, "links": TIMM_LINKS, "either": TIMM_EITHER, "good": TIMM_GOOD}
    for kind, folders in kinds.items():
        for title, made in folders.items():
            ground.ask(kind, title, made)
    print(json.dumps({name: vectors.tolist() for name, vectors in ground.expected.items()}))
    wires = Wires(folder)
    warm = {"call": "open", "words": [f"{folder}/bases/wrapper"], "folder": folder, "offline": False}
    _carried_out(warm, wires)  # for what is imported
    for (kind, title, _), job in zip(ground.made, ground.jobs, strict=True):
        print(json.dumps([kind, title, job, _forked(job, wires, ground.folder)]), flush=True)


@pytest.fixture(scope="module")
def done_timm(tmp_path_factory) -> tuple[dict[str, np.ndarray], Outcomes]:
    folder = tmp_path_factory.mktemp("timm").resolve()
    for name in ("scratch", "home"):
        (folder / name).mkdir()
    before = f"sys.path.append({str(HERE.parent / 'surgery/families')!r})\n"
    before += f"import timm_folder; timm_folder.import_timm({str(TIMM)!r})"
    first, *lines = in_a_process(folder, f"report_on_timm({str(folder)!r})", before=before).splitlines()
    found: Outcomes = {}
    for kind, title, job, result in map(json.loads, lines):
        found.setdefault((kind, title), []).append((job, result))
    return {name: np.array(vectors, dtype=np.float32) for name, vectors in json.loads(first).items()}, found


@needs_timm
@pytest.mark.parametrize("title", TIMM_REFUSED)
def test_a_harmful_folder_of_timm_is_refused_and_does_nothing(done_timm, title):
    refused_without_harm(done_timm[1]["refused", title])


@needs_timm
@pytest.mark.parametrize("title", TIMM_LINKS)
def test_a_link_to_a_file_of_timm_is_that_file_and_does_nothing_else(done_timm, title):
    for job, result in done_timm[1]["links", title]:
        did_no_harm(job, result | {"told": [event for event in result["told"] if not is_of_a_link(event)]})


@needs_timm
@pytest.mark.parametrize("title", TIMM_EITHER)
def test_a_harmful_setting_of_timm_is_refused_or_left_out(done_timm, title):
    harmless(done_timm[1]["either", title], done_timm[0][TIMM_EITHER[title].base])


@needs_timm
@pytest.mark.parametrize("title", TIMM_GOOD)
def test_a_good_folder_of_timm_opens_and_gives_what_it_gave_before(done_timm, title):
    opens(done_timm[1]["good", title], done_timm[0][TIMM_GOOD[title].base])
