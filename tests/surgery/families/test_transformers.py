"""Every family of transformers that is supported by name: convert, train a step, evaluate, save, load, revert."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as T

import sepnorm
from sepnorm.surgery.sites import find_sites

TEXT = dict(
    vocab_size=120,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
    pad_token_id=0,
)
IMAGE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4
)


def text(model: str, config: str, **changes):
    options = {key: value for key, value in (TEXT | changes).items() if value is not None}
    return lambda: getattr(T, model)(getattr(T, config)(**options))


def image(model: str, config: str, **changes):
    return lambda: getattr(T, model)(getattr(T, config)(**(IMAGE | changes)))


FAMILIES = {
    "BERT": text("BertModel", "BertConfig"),
    "BERT classifier": text("BertForSequenceClassification", "BertConfig"),
    "BERT masked": text("BertForMaskedLM", "BertConfig"),
    "RoBERTa": text("RobertaModel", "RobertaConfig"),
    "XLM-R": text("XLMRobertaModel", "XLMRobertaConfig"),
    "DistilBERT": lambda: T.DistilBertModel(
        T.DistilBertConfig(vocab_size=120, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64)
    ),
    "ELECTRA": text("ElectraModel", "ElectraConfig", embedding_size=16),
    "MPNet": text("MPNetModel", "MPNetConfig"),
    "DeBERTa-v2": text(
        "DebertaV2Model", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True,
    ),
    "ALBERT": text("AlbertModel", "AlbertConfig", embedding_size=16),
    "ModernBERT": text("ModernBertModel", "ModernBertConfig", attn_implementation="sdpa"),
    "ViT": image("ViTModel", "ViTConfig"),
    "ViT classifier": image("ViTForImageClassification", "ViTConfig"),
    "DeiT": image("DeiTModel", "DeiTConfig"),
    "BEiT": image("BeitModel", "BeitConfig", use_mean_pooling=False),
    "DINOv2": image("Dinov2Model", "Dinov2Config"),
    "DINOv2 with registers": image("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", num_register_tokens=3),
    "DINOv3": image("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=2),
    "ESM-C": text("EsmcModel", "EsmcConfig", max_position_embeddings=None),
    "GTE": text("GteModel", "GteConfig"),
    "Jina embeddings v3": text("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config"),
    "ViTMAE": image("ViTMAEModel", "ViTMAEConfig"),
    "ViTMAE pretraining": image(
        "ViTMAEForPreTraining", "ViTMAEConfig", decoder_hidden_size=16, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2, decoder_intermediate_size=24,
    ),
    "CLIP vision": image("CLIPVisionModel", "CLIPVisionConfig"),
}  # fmt: skip

#: How many norms there are that see [CLS] and have something to normalise, and how the last of them is called.
EXPECTED = {
    "BERT": (4, "encoder.layer.1.output.LayerNorm"),
    "BERT classifier": (4, "bert.encoder.layer.1.output.LayerNorm"),
    "BERT masked": (4, "bert.encoder.layer.1.output.LayerNorm"),
    "RoBERTa": (4, "encoder.layer.1.output.LayerNorm"),
    "XLM-R": (4, "encoder.layer.1.output.LayerNorm"),
    "DistilBERT": (4, "transformer.layer.1.output_layer_norm"),
    "ELECTRA": (4, "encoder.layer.1.output.LayerNorm"),
    "MPNet": (4, "encoder.layer.1.output.LayerNorm"),
    "DeBERTa-v2": (4, "encoder.layer.1.output.LayerNorm"),
    "ALBERT": (2, "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"),
    "ModernBERT": (4, "final_norm"),
    "ViT": (4, "layernorm"),
    "ViT classifier": (4, "vit.layernorm"),
    "DeiT": (4, "layernorm"),
    "BEiT": (4, "layernorm"),
    "DINOv2": (4, "layernorm"),
    "DINOv2 with registers": (4, "layernorm"),
    "DINOv3": (4, "norm"),
    "ESM-C": (4, "norm"),
    "GTE": (4, "layers.1.post_mlp_layernorm"),
    "Jina embeddings v3": (4, "layers.1.post_mlp_layernorm"),
    "ViTMAE": (4, "layernorm"),
    "ViTMAE pretraining": (4, "vit.layernorm"),
    "CLIP vision": (3, "encoder.layers.1.layer_norm2"),
}


def inputs(model, batch: int = 4):
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(batch, 3, 16, 16)}
    ids = torch.randint(5, 120, (batch, 9))
    ids[:, 0] = 2
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def output(model, batch) -> torch.Tensor:
    torch.manual_seed(7)  # ViTMAE draws its mask
    result = model(**batch)
    for name in ("logits", "last_hidden_state", "pooler_output"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    raise AssertionError(result.keys())


def randomised(name: str):
    """A model whose norms are not at their defaults."""
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_sites(name):
    model = FAMILIES[name]()
    report = sepnorm.convert(model, "bn+ln", sites="all")
    converted = [site.path for site in report.converted]
    count, last = EXPECTED[name]
    assert len(converted) == count, str(report)
    assert converted[-1] == last
    degenerate = [site.path for site in report.sites if site.reason.startswith("degenerate")]
    assert degenerate, str(report)
    assert not set(degenerate) & set(converted)
    assert not any("decoder" in path or "pooler" in path or "cls." in path for path in converted)
    fresh = FAMILIES[name]()
    assert [site.path for site in sepnorm.convert(fresh, "bn+ln", sites="final").converted] == [last]


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
@pytest.mark.parametrize("name", FAMILIES)
def test_trains_a_step_and_evaluates_through_the_new_norms(name, norm):
    model = FAMILIES[name]().train()
    report = sepnorm.convert(model, norm, sites="all")
    layers = [model.get_submodule(site.path) for site in report.converted]
    before = [copy.deepcopy(layer.state_dict()) for layer in layers]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = inputs(model)
    loss = output(model, batch).square().mean()
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for layer, old in zip(layers, before, strict=True):
        assert layer.cls_norm.weight.grad.isfinite().all()
        assert not torch.equal(layer.cls_norm.running_mean, old["cls_norm.running_mean"])
    # the gradient may be too small to show at one site, but some weight of [CLS] has moved
    assert any(
        not torch.equal(m.cls_norm.weight, old["cls_norm.weight"]) for m, old in zip(layers, before, strict=True)
    )
    calls = []
    for layer in layers:
        layer.register_forward_hook(lambda module, args, out: calls.append(id(module)))
    with torch.no_grad():
        assert output(model.eval(), batch).isfinite().all()
    assert set(calls) == {id(layer) for layer in layers}


@pytest.mark.parametrize("name", FAMILIES)
def test_ln_ln_and_revert_change_no_bit(name):
    model = randomised(name)
    batch = inputs(model)
    with torch.no_grad():
        before = output(model, batch)
        keys = list(model.state_dict())
        sepnorm.convert(model, "ln+ln", sites="all")
        assert torch.equal(output(model, batch), before)
        sepnorm.revert(model)
        assert torch.equal(output(model, batch), before)
        assert list(model.state_dict()) == keys
        sepnorm.convert(model, "bn+bn", calibrate=[inputs(model, 8) for _ in range(2)], sites="all")
        assert not torch.equal(output(model, batch), before)
        sepnorm.revert(model)
        assert torch.equal(output(model, batch), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_save_load_and_freeze(name, tmp_path):
    model = randomised(name)
    sepnorm.convert(model, "bn+bn", calibrate=[inputs(model, 8) for _ in range(2)], sites="all")
    batch = inputs(model)
    with torch.no_grad():
        before = output(model, batch)
        sepnorm.save(model, tmp_path / "model")
        loaded = sepnorm.load(tmp_path / "model")
        assert type(loaded) is type(model)
        assert torch.equal(output(loaded, batch), before)
        sepnorm.freeze(loaded)
        torch.testing.assert_close(output(loaded, batch), before, rtol=1e-6, atol=1e-6)
        assert not any("running" in key for key in loaded.state_dict())


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "DistilBERT", "ModernBERT", "DeBERTa-v2"])
def test_padding_stays_out_of_token_statistics(name):
    """The same sentences with more padding give the same running statistics and the same outputs, in training mode."""
    model = FAMILIES[name]().double()  # [CLS] varies little in a random model, and batch norm magnifies rounding
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    sepnorm.convert(model, "bn+bn", sites="all")
    model.train()
    for module in model.modules():
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    twin = copy.deepcopy(model)
    batch = inputs(model)
    longer = {key: torch.cat([value, torch.zeros(4, 6, dtype=torch.long)], 1) for key, value in batch.items()}
    keep = batch["attention_mask"].bool()
    out, padded = output(model, batch), output(twin, longer)[:, :9]
    torch.testing.assert_close(out[keep], padded[keep], rtol=1e-6, atol=1e-8)
    for (key, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        if "running" in key:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8, msg=key)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_in_a_model(reentrant):
    torch.manual_seed(0)
    model = text("BertModel", "BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)()
    sepnorm.convert(model, "bn+bn", sites="all")
    twin = copy.deepcopy(model)
    batch = inputs(model)
    output(model.train(), batch).square().mean().backward()
    twin.gradient_checkpointing_enable({"use_reentrant": reentrant})
    output(twin.train(), batch).square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(theirs.grad, ours.grad, msg=name)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_checkpointing_after_two_forward_passes_with_different_masks_is_refused():
    model = text("BertModel", "BertConfig")()
    sepnorm.convert(model, "bn+bn", sites="all")
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    first, second = inputs(model), inputs(model)
    second["attention_mask"][1, 3:] = 0
    loss = output(model, first).sum() + output(model, second).sum()
    with pytest.raises(sepnorm.SepNormError, match="gradient checkpointing with batch norm over tokens"):
        loss.backward()


def test_a_registers_and_cls_group():
    model = FAMILIES["DINOv2 with registers"]()
    report = sepnorm.convert(model, "bn+ln", num_cls=4, sites="all")
    assert {model.get_submodule(site.path).num_cls for site in report.converted} == {4}
    output(model.train(), inputs(model)).sum().backward()


def test_decoder_norms_can_be_chosen():
    model = FAMILIES["ViTMAE pretraining"]()
    report = sepnorm.convert(model, "bn+ln", sites=["decoder.*", "vit.layernorm"])
    assert [site.path for site in report.converted] == [
        "vit.layernorm", "decoder.decoder_layers.0.layernorm_before", "decoder.decoder_layers.0.layernorm_after",
        "decoder.decoder_norm",
    ]  # fmt: skip
    output(model.train(), inputs(model)).sum().backward()


@pytest.mark.parametrize("norm", ["bn+ln", pytest.param("bn+bn", marks=pytest.mark.slow)])
def test_a_converted_model_compiles(norm):
    torch._dynamo.reset()
    model = text("BertModel", "BertConfig")().eval()
    sepnorm.convert(model, norm, calibrate=[inputs(model, 8)], sites="all")
    batch = inputs(model)
    with torch.no_grad():
        expected = output(model, batch)
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(output(compiled, batch), expected, rtol=1e-4, atol=1e-5)
    model.train()
    assert output(compiled, batch).isfinite().all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: T.T5EncoderModel(T.T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=50)),
            "T5 has no",
        ),
        (lambda: T.GPT2Model(T.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)), "causal decoder"),
        (lambda: T.BertLMHeadModel(T.BertConfig(**TEXT, is_decoder=True)), "causal decoder"),
        (
            lambda: T.SwinModel(
                T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=4)
            ),
            "no \\[CLS\\] that could be found",
        ),
        (
            lambda: T.SiglipVisionModel(T.SiglipVisionConfig(**IMAGE)),
            "no \\[CLS\\] that could be found",
        ),
        (
            lambda: T.BartModel(T.BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=50)),
            "encoder-decoder model",
        ),
        (
            lambda: T.CLIPModel(T.CLIPConfig()),
            "two towers",
        ),
        (
            lambda: T.LongformerModel(T.LongformerConfig(**TEXT, attention_window=4)),
            "pass example=",
        ),
    ],
)
def test_models_without_cls_are_refused_with_the_reason(build, message):
    with pytest.raises(sepnorm.SepNormError, match=message):
        sepnorm.convert(build(), sites="all")


def test_a_causal_decoder_is_refused_by_example_too():
    model = T.GPT2Model(T.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50))
    with pytest.raises(sepnorm.SepNormError, match="causal decoder"):
        sepnorm.convert(model, example={"input_ids": torch.tensor([[1, 2, 3], [1, 5, 6]])}, sites="all")


def test_another_text_encoder_by_example():
    model = T.LongformerModel(T.LongformerConfig(**TEXT, attention_window=4))
    ids = torch.randint(5, 120, (3, 8))
    ids[:, 0] = 2
    report = sepnorm.convert(model, example={"input_ids": ids, "attention_mask": torch.ones_like(ids)}, sites="all")
    assert len(report.converted) == 4


def test_layer_scale_does_not_pass_for_degenerate():
    """With a layer scale of 1e-6 [CLS] hardly differs between samples, but it does depend on them."""
    model = image("Dinov2Model", "Dinov2Config", layerscale_value=1e-6)()
    sites = {site.path: site for site in find_sites(model)}
    assert [path for path, site in sites.items() if site.degenerate] == ["encoder.layer.0.norm1"]


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "bn"])
def test_the_trainer_does_not_decay_the_new_norms(norm, tmp_path):
    model = FAMILIES["ViT"]()  # whose own norms are called layernorm_before, layernorm_after, layernorm
    sepnorm.convert(model, norm, sites="all")
    trainer = T.Trainer(model=model, args=T.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True))
    decayed = trainer.get_decay_parameter_names(model)
    assert decayed
    assert not [name for name in decayed if "norm" in name]
