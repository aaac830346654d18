from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers as T
from models import BERT, bert, text_model
from PIL import Image
from safetensors.torch import load_file, save_file

import sepnorm
from sepnorm import SepNorm, SepNormError
from sepnorm.data.pixels import SETTINGS, Picture
from sepnorm.data.records import Record
from sepnorm.domains.encoders import convert_copy, open_encoder
from sepnorm.domains.images import encoder as images

sentence_transformers = pytest.importorskip("sentence_transformers")

WORDS = "a the cat dog sat on mat red blue green runs jumps over lazy quick brown fox and then it".split()
SENTENCES = ["the cat sat on the mat", "a dog runs", "the quick brown fox jumps over the lazy dog", "it"]
IMAGE = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4
)
FINAL = "encoder.layer.1.output.LayerNorm"


def tokenizer() -> T.BertTokenizer:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return T.BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=20)


def sentence(number: int) -> str:
    """Different sentences of different lengths."""
    return " ".join(WORDS[(number * 7 + i * (i + number)) % len(WORDS)] for i in range(2 + number % 5))


def noise(count: int, size: tuple[int, int] = (20, 16)) -> list[Image.Image]:
    generator = torch.Generator().manual_seed(0)
    pixels = [torch.randint(0, 256, (*size, 3), generator=generator, dtype=torch.uint8) for _ in range(count)]
    return [Image.fromarray(one.numpy()) for one in pixels]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Small models as their libraries save them; tests that change one copy it first."""
    torch.manual_seed(0)
    T.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("models")
    bert().save_pretrained(root / "bert")
    tokenizer().save_pretrained(root / "bert")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    modules = [Transformer(str(root / "bert")), Pooling(16, "mean")]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(root / "sentence"))
    T.ViTModel(T.ViTConfig(**IMAGE)).save_pretrained(root / "vit")
    decoder = {f"decoder_{key}": IMAGE[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size")}
    mae = T.ViTMAEForPreTraining(T.ViTMAEConfig(**IMAGE, **decoder, decoder_num_hidden_layers=1))
    mae.save_pretrained(root / "mae")
    for name in ("vit", "mae"):
        (root / name / SETTINGS).write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}))
    (root / "texts.txt").write_text("\n".join(map(sentence, range(80))))
    return root


@pytest.fixture
def copied(folders, tmp_path):
    def copy(name: str) -> Path:
        return Path(shutil.copytree(folders / name, tmp_path / "copy"))

    return copy


# ---- opening and encoding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "sentence"])
def test_texts_are_encoded_as_the_library_does(folders, name):
    encoder = open_encoder(str(folders / name))
    assert encoder.kind == "text"
    with encoder.evaluating():
        found = encoder.encode(encoder.prepare(SENTENCES))
    model = T.BertModel.from_pretrained(folders / "bert").eval()
    for i, text in enumerate(SENTENCES):  # by themselves, so without padding
        with torch.no_grad():
            hidden = model(**tokenizer()([text], return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(found.cls[i], hidden[0], atol=1e-5, rtol=1e-4)
        assert found.keep[i].sum() == len(hidden) - 1
        torch.testing.assert_close(found.tokens[i][found.keep[i]], hidden[1:], atol=1e-5, rtol=1e-4)
    assert found.keep.dtype == torch.bool
    assert found.tokens.shape[:2] == found.keep.shape == (4, 10)
    assert not found.cls.requires_grad


def test_a_head_is_left_aside(folders, tmp_path):
    model = T.BertForMaskedLM(T.BertConfig(**BERT)).eval()
    sepnorm.convert(model, "ln+ln", sites="all")
    sepnorm.save(model, tmp_path)
    tokenizer().save_pretrained(tmp_path)
    encoder = open_encoder(str(tmp_path))
    assert isinstance(encoder.model, T.BertForMaskedLM)
    batch = encoder.prepare(SENTENCES)
    with torch.no_grad():
        hidden = model.bert(**batch).last_hidden_state
    torch.testing.assert_close(encoder.encode(batch).cls, hidden[:, 0])


def test_long_texts_are_cut_to_what_the_model_takes(folders, copied):
    long = ["the cat " * 200, "a dog"]
    assert open_encoder(str(folders / "bert")).prepare(long)["input_ids"].shape == (2, 20)
    folder = copied("bert")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 10**30}))
    encoder = open_encoder(str(folder))
    assert encoder.prepare(long)["input_ids"].shape == (2, BERT["max_position_embeddings"])
    assert encoder.encode(encoder.prepare(long)).cls.isfinite().all()


@pytest.mark.parametrize(("name", "model"), [("vit", T.ViTModel), ("mae", T.ViTMAEModel)])
def test_images_are_encoded_as_the_library_does(folders, name, model):
    encoder = open_encoder(str(folders / name))
    assert encoder.kind == "images"
    images = noise(3)
    with encoder.evaluating():
        found = encoder.encode(encoder.prepare(images))
    pixels = Picture((16, 16), [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])(images)
    options = {"mask_ratio": 0.0} if name == "mae" else {}
    with torch.no_grad():
        hidden = model.from_pretrained(folders / name, **options).eval()(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found.cls, hidden[:, 0], atol=1e-5, rtol=1e-4)
    assert found.tokens.shape == (3, 16, 16)
    assert found.keep.shape == (3, 16) and found.keep.all()
    # a masked autoencoder shuffles its tokens, also where it drops none
    torch.testing.assert_close(found.tokens.sum(1), hidden[:, 1:].sum(1), atol=1e-4, rtol=1e-4)


def test_without_settings_the_usual_figures_are_taken(copied):
    folder = copied("vit")
    (folder / SETTINGS).unlink()
    picture = open_encoder(str(folder)).prepare
    assert picture.size == (16, 16)
    assert picture.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert picture.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


@pytest.mark.parametrize("converted", [False, True])
def test_a_masked_autoencoder_has_no_mask_while_evaluating(folders, tmp_path, converted):
    folder = folders / "mae"
    if converted:  # then with its decoder
        model = T.ViTMAEForPreTraining.from_pretrained(folder)
        sepnorm.convert(model, "ln+ln", sites="all")
        folder = sepnorm.save(model, tmp_path / "model")
    encoder = open_encoder(str(folder))
    batch = encoder.prepare(noise(2))
    assert encoder.encode(batch).tokens.shape[1] == 4
    with encoder.evaluating():
        assert encoder.encode(batch).tokens.shape[1] == 16
    assert encoder.model.config.mask_ratio == 0.75
    assert encoder.encode(batch).tokens.shape[1] == 4
    with pytest.raises(ZeroDivisionError), encoder.evaluating():
        raise ZeroDivisionError
    assert encoder.model.config.mask_ratio == 0.75


def test_modes_and_random_numbers_are_as_before_after_evaluating(folders):
    encoder = open_encoder(str(folders / "bert"))
    encoder.model.encoder.train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with encoder.evaluating():
        assert not any(module.training for module in encoder.model.modules())
        torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    assert encoder.model.encoder.training and not encoder.model.training


# ---- batches ------------------------------------------------------------------------------------------------------------


def test_batches_of_texts_are_sorted_by_length_and_keep_their_records(folders):
    encoder = open_encoder(str(folders / "bert"))
    records = [Record(sentence(i), None, f"line {i}") for i in range(30)]
    found = list(encoder.batches(iter(records), size=8))
    assert [len(part) for part, _ in found] == [8, 8, 8, 6]
    lengths = [len(record.content) for part, _ in found for record in part]
    assert lengths == sorted(lengths) != [len(record.content) for record in records]
    assert sorted(record.name for part, _ in found for record in part) == sorted(record.name for record in records)
    for part, batch in found:
        cls = encoder.encode(batch).cls
        for record, row in zip(part, cls, strict=True):
            alone = encoder.encode(encoder.prepare([record.content])).cls[0]
            torch.testing.assert_close(row, alone, atol=1e-5, rtol=1e-4)


def test_batches_take_only_a_window_of_records_at_a_time(folders):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield Record(sentence(len(taken)), None, "")

    encoder = open_encoder(str(folders / "bert"))
    batches = encoder.batches(endless(), size=2)
    for _ in range(64):
        next(batches)
    assert len(taken) == 128
    next(batches)
    assert len(taken) == 256


def test_batches_of_images_keep_their_order(folders):
    encoder = open_encoder(str(folders / "vit"))
    records = [Record(image, None, str(i)) for i, image in enumerate(noise(5))]
    found = list(encoder.batches(iter(records), size=2))
    assert [[record.name for record in part] for part, _ in found] == [["0", "1"], ["2", "3"], ["4"]]
    assert torch.equal(found[2][1]["pixel_values"], encoder.prepare([records[4].content])["pixel_values"])
    assert list(encoder.batches(iter([]))) == []


def test_read_takes_texts_or_images_as_the_model_does(folders, tmp_path):
    (tmp_path / "table.csv").write_text("remark,text\nleft,right\n")
    encoder = open_encoder(str(folders / "bert"))
    assert [record.content for record in encoder.read(str(tmp_path / "table.csv"))] == ["right"]
    assert [record.content for record in encoder.read(str(tmp_path / "table.csv"), "remark")] == ["left"]
    noise(1)[0].save(tmp_path / "image.png")
    (record,) = open_encoder(str(folders / "vit")).read(str(tmp_path))
    assert record.content.size == (16, 20)


# ---- what is refused ----------------------------------------------------------------------------------------------------


class Harmful:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["bert", "sentence"])
def test_pickled_weights_are_refused_and_never_opened(copied, tmp_path, name):
    folder = copied(name)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Harmful(tmp_path / "trace")}, folder / "pytorch_model.bin")
    with pytest.raises(SepNormError, match=r"copy has no safetensors weights, and other files are not opened"):
        open_encoder(str(folder))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("kind", ["harmful", "bert"])
def test_code_in_a_folder_is_not_run(copied, tmp_path, kind):
    folder, trace = copied("bert"), tmp_path / "trace"
    (folder / "harmful.py").write_text(f"import os\nos.mkdir({str(trace)!r})\nfrom transformers import *\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": kind, "auto_map": {"AutoConfig": "harmful.BertConfig", "AutoModel": "harmful.BertModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["harmful.BertTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if kind == "bert":  # the library's own class is there, and taken
        assert type(open_encoder(str(folder)).model) is T.BertModel
    else:
        with pytest.raises(SepNormError, match=r"its own code is not run"):
            open_encoder(str(folder))
    assert not trace.exists()


def test_code_for_a_module_of_sentence_transformers_is_not_run(copied, tmp_path):
    folder, trace = copied("sentence"), tmp_path / "trace"
    (folder / "harmful.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "harmful.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SepNormError, match=r"asks for the module .*harmful.Pooling.*no other code is run"):
        open_encoder(str(folder))
    assert not trace.exists()


def test_a_folder_or_file_that_holds_no_model_is_refused(folders, tmp_path):
    with pytest.raises(
        SepNormError, match=r"holds no model: it has neither config.json nor modules.json nor sepnorm.json"
    ):
        open_encoder(str(tmp_path))
    with pytest.raises(SepNormError, match=r"texts.txt is neither a model's folder nor a file of embeddings"):
        open_encoder(str(folders / "texts.txt"))


def test_damaged_folders_are_refused(copied):
    folder = copied("bert")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(SepNormError, match=r"copy.*is no complete safetensors file: Error while des"):
        open_encoder(str(folder))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"model_type": "be')
    with pytest.raises(SepNormError, match=r"copy/config.json is damaged: Unterminated string"):
        open_encoder(str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(SepNormError, match=r"copy/config.json names no model_type"):
        open_encoder(str(folder))


def test_damaged_settings_of_images_are_refused(folders, tmp_path):
    model = T.ViTModel.from_pretrained(folders / "vit")
    sepnorm.convert(model, "ln+ln", sites="all")
    sepnorm.save(model, tmp_path)
    (tmp_path / SETTINGS).write_text('{"image_mean": [')
    with pytest.raises(SepNormError, match=r"preprocessor_config.json is damaged: Expecting value"):
        open_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"image_mean": [0.5, 0.5]}', r"image_mean=\[0.5, 0.5\], and one finite number is needed for each channel"),
        ('{"image_mean": [0.5, NaN, 0.5]}', "one finite number is needed"),
        ('{"image_mean": [0.5, 1e400, 0.5]}', "one finite number is needed"),
        ('{"image_mean": "abc"}', "one finite number is needed"),
        ('{"image_mean": {"a": 1}}', "one finite number is needed"),
        ('{"image_std": [0.5, 0, 0.5]}', r"one number above 0 is needed for each channel, of which the model has 3"),
        ('{"image_std": [1, 1, "1"]}', "one number above 0 is needed"),
        ('{"image_std": 0.5}', "one number above 0 is needed"),
    ],
)
def test_figures_that_are_none_for_each_channel_are_refused(copied, settings, message):
    folder = copied("vit")
    (folder / SETTINGS).write_text(settings)
    with pytest.raises(SepNormError, match=message):
        open_encoder(str(folder))


def test_a_grey_model_takes_one_figure(tmp_path):
    T.ViTModel(T.ViTConfig(**IMAGE | {"num_channels": 1})).save_pretrained(tmp_path)
    assert open_encoder(str(tmp_path)).prepare.mean.flatten().tolist() == [0.5]
    (tmp_path / SETTINGS).write_text('{"image_mean": [0.2], "image_std": [0.1]}')
    assert open_encoder(str(tmp_path)).prepare.mean.flatten().tolist() == pytest.approx([0.2])


def test_batches_of_large_images_are_small(folders, monkeypatch):
    encoder = open_encoder(str(folders / "vit"))
    monkeypatch.setattr(images, "_MOST_VALUES", 2 * 3 * 16 * 16 + 1)
    records = [Record(image, None, str(i)) for i, image in enumerate(noise(5))]
    assert [len(part) for part, _ in encoder.batches(iter(records))] == [2, 2, 1]


def test_a_model_for_neither_text_nor_images_is_refused(tmp_path):
    options = dict(
        conv_dim=[8], conv_stride=[5], conv_kernel=[10], num_feat_extract_layers=1, num_conv_pos_embeddings=4
    )
    sizes = {key: IMAGE[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size")}
    config = T.Wav2Vec2Config(**sizes, **options, num_hidden_layers=1, num_conv_pos_embedding_groups=2)
    T.Wav2Vec2Model(config).save_pretrained(tmp_path)
    with pytest.raises(
        SepNormError, match=r"is a Wav2Vec2Model, which no installed domain \(images, molecules, text\) can run"
    ):
        open_encoder(str(tmp_path))


@pytest.mark.parametrize("name", ["no-such-model", "nobody/no-such-model"])
def test_a_name_that_cannot_be_reached_is_one_plain_message(name):
    with pytest.raises(
        SepNormError,
        match=rf"^{name} cannot be opened as a model: there is no file or folder .* here\. It was looked up on.*\.$",
    ) as e:
        open_encoder(name)
    assert "\n" not in str(e.value)
    assert "Error:" not in str(e.value)


def test_a_model_without_a_tokeniser_is_refused(folders, copied, tmp_path):
    folder = copied("bert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(SepNormError, match=r"copy has no tokeniser: put one beside the model, by tokenizer.save_pretr"):
        open_encoder(str(folder))
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[tokenizer()(SENTENCES, padding=True, return_tensors="pt")], sites="all")
    sepnorm.save(model, tmp_path / "saved")
    with pytest.raises(SepNormError, match=r"saved has no tokeniser"):
        open_encoder(str(tmp_path / "saved"))
    tokenizer().save_pretrained(tmp_path / "saved")
    encoder = open_encoder(str(tmp_path / "saved"))
    batch = encoder.prepare(SENTENCES)
    assert encoder.kind == "text"
    torch.testing.assert_close(encoder.encode(batch).cls, model(**batch).last_hidden_state[:, 0])


# ---- converting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "prefix"), [("bert", ""), ("sentence", "0.model.")])
def test_a_converted_copy_of_a_text_encoder(folders, tmp_path, name, prefix):
    out, texts = tmp_path / "out", str(folders / "texts.txt")
    report = convert_copy(str(folders / name), texts, out, "bn+ln", "final")
    assert [site.path for site in report.converted] == [prefix + FINAL]
    before, after = open_encoder(str(folders / name)), open_encoder(str(out))
    assert [path for path, m in after.model.named_modules() if isinstance(m, SepNorm)] == [prefix + FINAL]
    assert after.kind == "text"
    batch = before.prepare([sentence(i) for i in range(80)])
    assert torch.equal(after.prepare([sentence(i) for i in range(80)])["input_ids"], batch["input_ids"])
    old, new = before.encode(batch), after.encode(batch)
    assert not torch.equal(new.cls, old.cls)
    torch.testing.assert_close(new.cls.mean(0), old.cls.mean(0), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(new.cls.std(0), old.cls.std(0), atol=1e-3, rtol=1e-3)
    assert torch.cosine_similarity(new.cls, old.cls).mean() > 0.95
    torch.testing.assert_close(new.tokens[new.keep], old.tokens[old.keep])


@pytest.mark.parametrize("name", ["vit", "mae"])
def test_a_converted_copy_of_an_image_encoder(folders, tmp_path, name):
    images = tmp_path / "images"
    images.mkdir()
    for i, image in enumerate(noise(40)):
        image.save(images / f"{i}.png")
    report = convert_copy(str(folders / name), str(images), tmp_path / "out", "bn+ln", "all")
    before, after = open_encoder(str(folders / name)), open_encoder(str(tmp_path / "out"))
    assert sum(isinstance(m, SepNorm) for m in after.model.modules()) == len(report.converted) > 0
    assert torch.equal(after.prepare.mean, before.prepare.mean) and torch.equal(after.prepare.std, before.prepare.std)
    assert getattr(after.model.config, "mask_ratio", None) == getattr(before.model.config, "mask_ratio", None)
    with before.evaluating(), after.evaluating():
        old, new = (encoder.encode(encoder.prepare(noise(40))).cls for encoder in (before, after))
    assert torch.cosine_similarity(new, old).mean() > 0.9


def test_a_masked_autoencoder_is_calibrated_without_a_mask(folders, tmp_path):
    (tmp_path / "images").mkdir()
    for i, image in enumerate(noise(40)):
        image.save(tmp_path / "images" / f"{i}.png")
    convert_copy(str(folders / "mae"), str(tmp_path / "images"), tmp_path / "out", "bn+ln", "final")
    before, after = open_encoder(str(folders / "mae")), open_encoder(str(tmp_path / "out"))
    with before.evaluating(), after.evaluating():
        old, new = (encoder.encode(encoder.prepare(noise(40))).cls for encoder in (before, after))
    torch.testing.assert_close(new.mean(0), old.mean(0), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(new.std(0), old.std(0), atol=1e-4, rtol=1e-3)


def test_no_more_samples_are_read_than_asked_for(folders, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(map(sentence, range(40))))
    seen = []
    options = dict(norm="bn+ln", sites="all")
    convert_copy(
        str(folders / "bert"), str(folders / "texts.txt"), tmp_path / "a", **options, max_samples=40,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    convert_copy(str(folders / "bert"), str(few), tmp_path / "b", **options)
    convert_copy(str(folders / "bert"), str(folders / "texts.txt"), tmp_path / "c", **options)
    limited, same, more = (sepnorm.load(tmp_path / name).state_dict() for name in "abc")
    assert seen == [(32, 40), (40, 40)]
    assert all(torch.equal(limited[key], same[key]) for key in limited)
    assert any(not torch.equal(limited[key], more[key]) for key in limited)


def test_nothing_that_is_there_is_overwritten(folders, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "out" / "mine.txt"):
        with pytest.raises(SepNormError, match=r"already exists and is not empty: choose a new folder with --out"):
            convert_copy(str(folders / "bert"), str(folders / "texts.txt"), out, "bn+ln", "all")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    convert_copy(str(folders / "bert"), str(folders / "texts.txt"), tmp_path / "empty", "bn+ln", "all")
    assert open_encoder(str(tmp_path / "empty")).kind == "text"


def test_a_wrong_norm_is_refused_before_the_model_is_opened(tmp_path):
    with pytest.raises(SepNormError, match=r"unknown norm 'bm'.*Did you mean 'bn'"):
        convert_copy("no-such-model", "no-such-data", tmp_path / "out", "bm+ln", "all")
    assert not (tmp_path / "out").exists()


def test_nothing_is_left_behind_where_the_data_cannot_be_read(folders, tmp_path):
    for data, message in [("none.txt", "there is no file"), ("one.txt", "at least two")]:
        (tmp_path / "one.txt").write_text("a single line\n")
        with pytest.raises(SepNormError, match=message):
            convert_copy(str(folders / "bert"), str(tmp_path / data), tmp_path / "out", "bn+ln", "all")
        assert not (tmp_path / "out").exists()


def test_weights_that_lack_tensors_are_refused(tmp_path):
    text_model(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights = {key: value for key, value in weights.items() if "layer.1.output" not in key}
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        SepNormError, match=r"do not fit its config: \d+ tensors are missing, such as encoder\.layer\.1\.output"
    ):
        open_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize("name", ["../weights.safetensors", "/weights.safetensors", "below/weights.safetensors"])
def test_weights_outside_of_a_models_folder_are_refused(tmp_path, name):
    text_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "weights.safetensors")
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": name}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SepNormError, match="which are no safetensors in its folder"):
        open_encoder(str(tmp_path / "model"))


def test_a_tokeniser_with_more_words_than_the_model_is_one_sentence(tmp_path):
    text_model(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["cat"] = 5000
    path.write_text(json.dumps(words))
    (tmp_path / "lines.txt").write_text("the cat\na dog\n")
    with pytest.raises(SepNormError, match=r"cannot be run on this data: IndexError: index out of range"):
        convert_copy(str(tmp_path / "model"), str(tmp_path / "lines.txt"), tmp_path / "new", "bn+ln", "all")
    assert not (tmp_path / "new").exists()


def test_a_model_that_cannot_be_saved_whole_leaves_nothing(tmp_path, monkeypatch):
    text_model(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("the cat\na dog\nthe mat\n")

    def full(*args, **options):
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(SepNormError, match="perhaps for want of room on the disk"):
        convert_copy(str(tmp_path / "model"), str(tmp_path / "lines.txt"), tmp_path / "new", "bn+ln", "all")
    assert not (tmp_path / "new").exists()


def test_a_panic_of_a_library_in_rust_is_one_sentence(tmp_path):
    """Its error is no Exception."""
    text_model(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    words = json.loads(path.read_text())
    words["post_processor"]["special_tokens"] = {}  # what the template asks for
    path.write_text(json.dumps(words))
    (tmp_path / "lines.txt").write_text("the cat\na dog\n")
    with pytest.raises(SepNormError, match="cannot be run on this data: PanicException"):
        convert_copy(str(tmp_path / "model"), str(tmp_path / "lines.txt"), tmp_path / "new", "bn+ln", "all")


def test_a_tokeniser_that_takes_no_tokens_is_refused(copied):
    folder = copied("bert")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": -1}))
    with pytest.raises(SepNormError, match="says that a text has at most -1 tokens"):
        open_encoder(str(folder))
