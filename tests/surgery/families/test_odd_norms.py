"""Models of transformers in which a norm is not what it seems, or [CLS] is not read: what is left alone, refused or said."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import transformers as T
from surgery.families.zoo import IMAGE, ZOO, image

import sepnorm


def test_norms_of_queries_and_keys_are_left_alone():
    """ESM-C's are as wide as the model and see what a block's norm sees: they are known by what they reach."""
    model = ZOO["ESM-C"]()
    report = sepnorm.convert(model, "bn+ln", sites="all")
    reasons = {site.path: site.reason for site in report.kept}
    paths = [f"layers.{i}.self_attn.{name}_norm" for i in range(2) for name in "qk"]
    assert [reasons[path] for path in paths] == ["acts through attention scores alone: a norm of queries or keys"] * 4
    with pytest.raises(sepnorm.SepNormError, match=r"left alone \(layers.0.self_attn.q_norm: acts through attention"):
        sepnorm.convert(ZOO["ESM-C"](), sites="*q_norm")


@pytest.mark.parametrize("name", ["Blip", "Blip2"])
def test_a_norm_that_is_called_in_two_ways_is_left_alone(name):
    """With all tokens, and with the pooled vector, which a norm for [CLS] beside tokens cannot take."""
    build = image(f"{name}VisionModel", f"{name}VisionConfig")
    with pytest.raises(
        sepnorm.SepNormError, match=r"the last norm that \[CLS\] passes is post_layernorm, which is called in two"
    ):
        sepnorm.convert(build(), "bn+ln")
    model = build()
    report = sepnorm.convert(model, "bn+ln", sites="all")
    assert [site.path for site in report.converted][-1] == "encoder.layers.1.layer_norm2"
    assert "is called in two ways" in {site.path: site.reason for site in report.kept}["post_layernorm"]
    assert model.eval()(torch.randn(3, 3, 16, 16)).pooler_output.isfinite().all()


def test_what_final_means_where_the_last_norm_sees_the_pooled_vector_alone():
    model = ZOO["CLIP, images"]()
    with pytest.warns(
        sepnorm.SepNormWarning, match=r"bypasses encoder.layers.1.layer_norm2.*only post_layernorm \(after pool"
    ):
        report = sepnorm.convert(model, "bn+ln")
    assert "Note: [CLS] bypasses encoder.layers.1.layer_norm2" in str(report)


def test_logits_that_do_not_read_cls_are_told_to_stay_as_they_are():
    model = ZOO["BEiT, classifier of the mean"]().eval()
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        before = model(pixels).logits
        with pytest.warns(sepnorm.SepNormWarning, match=r"BeitForImageClassification does not read \[CLS\] after"):
            report = sepnorm.convert(model, "bn+ln")
        assert torch.equal(model(pixels).logits, before)
    assert "does not read [CLS] after" in str(report)


@pytest.mark.parametrize("model", ["T5", "Siglip2"])
def test_an_example_does_not_give_a_family_a_cls(model):
    """Sentences that all begin with the same word look as if they had one."""
    if model == "T5":
        model = T.T5EncoderModel(T.T5Config(d_model=16, d_ff=16, num_layers=2, num_heads=2, vocab_size=50))
    else:
        model = T.Siglip2VisionModel(T.Siglip2VisionConfig(**{k: v for k, v in IMAGE.items() if k != "image_size"}))
    with pytest.raises(sepnorm.SepNormError, match=r"has no \[CLS\] token"):
        sepnorm.convert(model, example={"input_ids": torch.tensor([[7, 2, 3], [7, 5, 6]])})


def test_tokenisers_that_are_known_to_put_cls_first_do():
    """Of families whose tokeniser can be built without files; EuroBERT pools by its first token, ``bos``."""
    for tokenizer in (T.EsmcTokenizer(), T.XLMRobertaTokenizer(), T.BertTokenizer()):
        assert tokenizer("AC").input_ids[0] == tokenizer.cls_token_id
    names = T.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    assert {names[kind] for kind in ("gte", "jina_embeddings_v3")} == {"XLMRobertaTokenizer"}
    assert names["esmc"] == "EsmcTokenizer"


def test_frozen_parameters_stay_frozen():
    model = ZOO["ViT"]()
    model.requires_grad_(False)
    report = sepnorm.convert(model, "bn+ln")
    assert [site.path for site in report.converted] == ["layernorm"]
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_norms_are_found_where_gradients_are_off(mode):
    model = ZOO["ViT"]()
    with mode():
        report = sepnorm.convert(model, "bn+ln")
    assert [site.path for site in report.converted] == ["layernorm"]


def test_rms_norms_of_tokens_that_become_layer_norms_are_told():
    """Calibration matches what has batch statistics; the tokens' norm is another one, and the tokens move."""
    build = ZOO["EuroBERT"]
    ids = torch.randint(5, 120, (8, 9))
    ids[:, 0] = 2
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for norm, moved in (("bn+ln", True), ("bn+rms", False)):
        torch.manual_seed(0)
        model = build().eval()
        with torch.no_grad():
            model.norm.weight.add_(torch.randn(32) * 0.1)
            before = model(**batch).last_hidden_state[:, 1:]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                sepnorm.convert(model, norm, calibrate=[batch])
            after = model(**batch).last_hidden_state[:, 1:]
        said = [str(each.message) for each in caught if issubclass(each.category, sepnorm.SepNormWarning)]
        assert [bool(re.search(r"change from rms to ln.*Use 'bn\+rms'", each)) for each in said] == [True] * moved
        assert torch.equal(before, after) is not moved


def test_a_norm_of_another_dimension_is_none():
    """SqueezeBERT's is a LayerNorm by class, and takes (batch, channels, tokens)."""
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, embedding_size=16)
    model = T.SqueezeBertModel(T.SqueezeBertConfig(vocab_size=50, **sizes))
    tokens = torch.cat([torch.ones(4, 1).long(), torch.randint(2, 50, (4, 15))], 1)  # as many tokens as channels
    with pytest.raises(sepnorm.SepNormError, match="at no norm of a known kind"):
        sepnorm.convert(model, "ln+ln", sites="all", example={"input_ids": tokens})


def test_the_encoder_of_a_pair_is_converted_with_an_example():
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    encoder = T.BartModel(T.BartConfig(vocab_size=50, **sizes)).get_encoder().eval()
    tokens = torch.cat([torch.zeros(4, 1).long(), torch.randint(3, 50, (4, 6))], 1)
    with torch.no_grad():
        before = encoder(tokens)[0]
        with pytest.raises(sepnorm.SepNormError, match="pass example="):
            sepnorm.convert(encoder, "ln+ln")
        report = sepnorm.convert(encoder, "ln+ln", example={"input_ids": tokens})
        assert [site.path for site in report.converted] == ["layers.0.final_layer_norm"]
        assert torch.equal(encoder(tokens)[0], before)
