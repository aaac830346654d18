"""What a config says of a conversion: written, kept right, and read from folders of strangers."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers as T
from models import BERT, bert, embeddings, sentences, text_model

import sepnorm
from sepnorm import SepNormError
from sepnorm.surgery.config_trace import LOCK, LOCKS, without_trace

LAST = "encoder.layer.1.output.LayerNorm"


@pytest.fixture
def model():
    found = bert()
    sepnorm.convert(found, "bn+ln", calibrate=[sentences(), sentences()])
    return found


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


def sites(model):
    return [(site["path"], site["norm"]) for site in model.config.quantization_config["sites"]]


def test_the_config_says_what_was_converted_and_follows_what_is_done_since(model):
    assert sites(model) == [(LAST, "bn+ln")]
    sepnorm.calibrate(model, [sentences()])
    assert sites(model) == [(LAST, "bn+ln")]
    sepnorm.freeze(model)
    assert sites(model) == [(LAST, "frozen+ln")]
    sepnorm.revert(model)
    assert model.config.to_dict() == bert().config.to_dict()


def test_only_the_converted_model_has_the_config(model):
    config = T.BertConfig(**BERT)
    one, other = T.BertModel(config), T.BertModel(config)
    sepnorm.convert(one, "bn+ln")
    assert not hasattr(other.config, "quantization_config") and not hasattr(config, "fusion_config")
    assert one.encoder.config is one.config is one.encoder.layer[0].attention.self.config
    assert copy.deepcopy(one).config.quantization_config == one.config.quantization_config


def test_a_model_inside_of_another_has_paths_of_its_own(tmp_path):
    whole = torch.nn.ModuleDict({"text": bert(), "head": torch.nn.Linear(16, 2)})
    sepnorm.convert(whole["text"], "bn+ln", calibrate=[sentences()])
    assert sites(whole["text"]) == [(LAST, "bn+ln")]
    sepnorm.revert(whole)
    assert not hasattr(whole["text"].config, "quantization_config")


def test_a_quantised_model_keeps_its_own_settings():
    model = bert()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()])
    assert model.config.quantization_config == {"quant_method": "bitsandbytes"}
    assert not hasattr(model.config, "fusion_config")


@pytest.mark.filterwarnings("ignore:.*have trained weights and become")
@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "bn", "ln+bn", "rms+ln", "dyt+ln"])
def test_a_folder_of_the_library_is_opened(norm, tmp_path):
    model = bert()
    sepnorm.convert(model, norm, sites="all", calibrate=[sentences(), sentences()])
    model.train()(**sentences())
    model.save_pretrained(tmp_path)
    batch = sentences()
    for loaded in (sepnorm.load(tmp_path), T.AutoModel.from_pretrained(tmp_path)):
        assert torch.equal(embeddings(loaded, batch), embeddings(model, batch))
        assert loaded.config.quantization_config == model.config.quantization_config
        assert not loaded.training and not getattr(loaded, "is_quantized", False)
        assert not hasattr(loaded, "hf_quantizer")


def test_a_sentence_encoder_is_opened(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    text_model(tmp_path / "words")
    words = modules.Transformer(str(tmp_path / "words"))
    model = SentenceTransformer(modules=[words, modules.Pooling(16, "cls")], device="cpu")
    texts = ["the cat sat", "a dog and a cat", "number 1 2 3"]
    sepnorm.convert(model, "bn+ln", calibrate=[texts])
    model.save(str(tmp_path / "saved"))
    for loaded in (sepnorm.load(tmp_path / "saved"), SentenceTransformer(str(tmp_path / "saved"), device="cpu")):
        assert (loaded.encode(texts) == model.encode(texts)).all()


def test_a_loaded_model_can_be_trained_cast_saved_and_reverted(folder, tmp_path):
    model = T.AutoModel.from_pretrained(folder)
    model.train()(**sentences()).last_hidden_state.sum().backward()
    model.double().float().half().float()
    model.save_pretrained(tmp_path / "again")
    batch = sentences()
    assert torch.equal(embeddings(sepnorm.load(tmp_path / "again"), batch), embeddings(model, batch))
    reasons = {site.reason for site in sepnorm.revert(model).sites}
    assert not any("bit for bit" in reason for reason in reasons)  # the library did not keep whether it was trained


def test_statistics_stay_wide_in_half_precision(folder):
    for dtype in (torch.bfloat16, torch.float16):
        norm = T.AutoModel.from_pretrained(folder, dtype=dtype).get_submodule(LAST)
        assert norm.cls_norm.running_mean.dtype == norm.cls_norm.running_var.dtype == torch.float32
        assert norm.cls_norm.weight.dtype == norm.token_norm.weight.dtype == dtype


def test_heads_come_and_go(folder, tmp_path):
    batch = sentences()
    expected = embeddings(sepnorm.load(folder), batch)
    headed = T.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert sites(headed) == [(f"bert.{LAST}", "bn+ln")]
    headed.save_pretrained(tmp_path / "headed")
    assert torch.equal(embeddings(T.AutoModel.from_pretrained(tmp_path / "headed"), batch), expected)
    assert torch.equal(embeddings(sepnorm.load(tmp_path / "headed").bert, batch), expected)


def test_sites_of_a_part_that_is_left_out_are_left_out(tmp_path):
    shape = dict(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4
    )
    decoder = dict(decoder_hidden_size=12, decoder_num_hidden_layers=1, decoder_num_attention_heads=2)
    model = T.ViTMAEForPreTraining(T.ViTMAEConfig(**shape, **decoder, decoder_intermediate_size=24))
    with pytest.warns(sepnorm.SepNormWarning):
        sepnorm.convert(model, "bn+ln", sites=["decoder.decoder_norm", "vit.layernorm"])
    model.save_pretrained(tmp_path)
    assert sites(T.AutoModel.from_pretrained(tmp_path)) == [("layernorm", "bn+ln")]


def test_what_only_our_own_files_keep_is_missed_when_it_is_asked_for(tmp_path):
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()])
    model.save_pretrained(tmp_path)
    loaded = T.AutoModel.from_pretrained(tmp_path)
    with pytest.raises(SepNormError, match=r"only sepnorm.save keeps replaced norms"):
        sepnorm.revert(loaded)
    sepnorm.save(loaded, tmp_path / "ours")
    again = sepnorm.load(tmp_path / "ours")
    assert torch.equal(embeddings(again, batch := sentences()), embeddings(loaded, batch))
    with pytest.raises(SepNormError, match=r"only sepnorm.save keeps"):
        sepnorm.revert(again)


# ---- what others write --------------------------------------------------------------------------------------------------


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"], config["quantization_config"]["sites"][0])
    (folder / "config.json").write_text(json.dumps(config))


def both(folder, match):
    """Refused by ``load``, and by the library with us in it."""
    with pytest.raises(SepNormError, match=match):
        sepnorm.load(folder)
    with pytest.raises(SepNormError, match=match):
        T.AutoModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", 3), ("path", "x" * 2000), ("path", "encoder.layer.7.output.LayerNorm"), ("path", "encoder"), ("path", ""),
        ("dim", 0), ("dim", -16), ("dim", True), ("dim", "16"), ("dim", 2**40), ("dim", 8),
        ("num_cls", -1), ("num_cls", 1.5), ("num_cls", None), ("token_dim", 2), ("sync", "yes"), ("original", "batchy"),
        ("original", ["layer"]), ("original", None), ("original", "rms"), ("children", []), ("children", {}),
        ("children", {"cls_norm": {"kind": "scale"}}), ("children", {"norm": {"kind": "os.system"}}),
        ("children", {"norm": 5}), ("children", {"norm": {"kind": ["layer"]}}),
        ("children", {"norm": {"kind": "custom"}}),
    ],
)  # fmt: skip
def test_a_site_that_no_conversion_writes_is_refused(folder, key, value):
    edit(folder, lambda trace, site: site.update({key: value}))
    both(folder, r"is damaged|another architecture|cannot be built from a file")


@pytest.mark.parametrize(
    ("key", "value"),
    [("eps", -1), ("eps", "1e-5"), ("eps", 1e400), ("momentum", 2), ("momentum", [1]), ("affine", 1), ("affine", None)],
)
def test_a_norm_that_no_conversion_writes_is_refused(folder, key, value):
    edit(folder, lambda trace, site: site["children"]["cls_norm"].update({key: value}))
    both(folder, r"is damaged")


@pytest.mark.parametrize("sites", [None, [], "all", [3], {"path": LAST}])
def test_sites_that_are_no_list_of_sites_are_refused(folder, sites):
    edit(folder, lambda trace, site: trace.update(sites=sites))
    both(folder, r"is damaged")


def test_a_site_named_twice_is_refused(folder):
    edit(folder, lambda trace, site: trace["sites"].append(site))
    both(folder, r"names a site twice")


@pytest.mark.parametrize("number", [0, 2, True, "1", None])
def test_another_format_is_refused(folder, number):
    edit(folder, lambda trace, site: trace.update(format=number))
    both(folder, r"this version reads 1: upgrade sepnorm")


def test_other_quantisation_and_other_fusions_are_refused_still(folder):
    edit(folder, lambda trace, site: trace.update(quant_method="gptq"))
    with pytest.raises(SepNormError, match=r"not written by sepnorm.save"):
        sepnorm.load(folder)
    edit(folder, lambda trace, site: trace.update(quant_method="sepnorm"))
    config = json.loads((folder / "config.json").read_text())
    config["fusion_config"]["patch_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SepNormError, match=r"fused by other code"):
        sepnorm.load(folder)


def test_weights_of_a_plain_model_under_the_config_of_a_converted_one_are_refused(folder, tmp_path):
    plain = bert()
    plain.save_pretrained(tmp_path / "plain")
    (tmp_path / "plain/config.json").write_bytes((folder / "config.json").read_bytes())
    both(tmp_path / "plain", r"the weights have none for it")


def test_a_larger_model_than_the_weights_is_not_built_for_separate_norms_either(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 100_000}))
    with pytest.raises(SepNormError, match=r"larger model than its weights"):
        sepnorm.load(folder)


def test_the_state_of_a_converted_model_fits_no_plain_one(model):
    plain = bert()
    before = plain.state_dict()[f"{LAST}.weight"].clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=rf"size mismatch for {LAST}.weight"):
            plain.load_state_dict(model.state_dict(), strict=strict)
    assert torch.equal(plain.state_dict()[f"{LAST}.weight"], before)


def test_a_state_from_before_there_were_guards_is_loaded(model):
    state = {key: value for key, value in model.state_dict().items() if key != f"{LAST}.weight"}
    other = copy.deepcopy(model)
    assert not any(other.load_state_dict(state))
    del state[f"{LAST}.cls_norm.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*cls_norm.bias"):
        other.load_state_dict(state)


def test_the_lock_is_a_sentence_that_says_what_to_do(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["fusion_config"] == {LOCK: False}
    assert "install the package sepnorm" in LOCK and "import sepnorm" in LOCK


@pytest.mark.parametrize("lock", LOCKS)
def test_a_folder_with_the_sentence_of_an_earlier_lock_opens(folder, lock):
    config = json.loads((folder / "config.json").read_text()) | {"fusion_config": {lock: False}}
    (folder / "config.json").write_text(json.dumps(config))
    opened = [sepnorm.load(folder), T.AutoModel.from_pretrained(folder)]
    for model in opened:
        assert sites(model) == [(LAST, "bn+ln")]
        assert not hasattr(without_trace(model.config), "fusion_config")


def test_a_name_that_is_no_folder_may_be_one_on_the_hub():
    with pytest.raises(SepNormError, match=r"nobody/no-such-model does not exist, and cannot be fetched from the hub"):
        sepnorm.load("nobody/no-such-model")


def test_a_config_for_a_plain_model_says_nothing_of_separate_norms(model):
    plain = without_trace(model.config)
    assert plain.to_dict() == bert().config.to_dict()
    assert sites(model) == [(LAST, "bn+ln")]  # the model's own is as it was
    model.config.fusion_config["another"] = True
    assert without_trace(model.config).fusion_config == {"another": True}
