"""Vectors of [CLS] as biases of its norms: where this is exact, and where it is refused."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import transformers as T
from models import BERT, bert
from torch import nn

import sepnorm
from sepnorm import SepNormError, tuning

sys.path.insert(0, str(Path(__file__).parent))
from test_tuning import hidden, tuned, with_sep, zoo_model


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "MPNet", "DeBERTa", "Nomic BERT"])
def test_a_vector_at_cls_is_the_bias_of_its_norm(name, converted):
    """With the norm of the embeddings for the first layer; in double precision they are alike to 1e-12."""
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        torch.manual_seed(0)
        model = zoo_model(name).to(dtype)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.LayerNorm):
                    module.weight.uniform_(0.5, 1.5), module.bias.uniform_(-0.5, 0.5)
        if converted:
            sepnorm.convert(model, "ln+ln", sites="degenerate")
        inputs = with_sep()
        tuned(model, "cls")
        expected = hidden(model, inputs)
        report = tuning.merge(model)
        assert (report is None) == converted and not hasattr(model, "special_tokens")
        found = hidden(model, inputs)
        kept = inputs["attention_mask"].bool()
        assert float((found - expected)[kept].abs().max()) <= tolerance * max(1, float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT", "layers.0 of ViTModel is not handed the output of a norm as it is"),
        ("RoBERTa, norm first", "encoder.layer.1 of RobertaPreLayerNormModel is not handed"),
        ("ELECTRA", "encoder.layer.0 of ElectraModel is not handed"),
    ],
)
def test_merging_is_refused_where_it_is_not_the_same(name, message):
    model = zoo_model(name)
    tuned(model, "cls")
    with pytest.raises(SepNormError, match=message):
        tuning.merge(model)
    assert model.special_tokens.in_use == "default"


def test_merging_is_refused_where_a_norm_has_other_readers():
    """A convolution of DeBERTa-v2 reads the embeddings beside the first layer."""
    from zoo import TEXT

    model = T.DebertaV2Model(T.DebertaV2Config(**TEXT, conv_kernel_size=3)).eval()
    special = tuned(model, "cls")
    with torch.no_grad():
        special.vectors("default").mul_(0.003)  # an effect within rounding of the outputs, almost
    before = special.vectors("default").clone()
    with pytest.raises(SepNormError, match="is also used elsewhere in the model"):
        tuning.merge(model)
    assert torch.equal(special.vectors("default"), before) and special.in_use == "default"


def test_merging_is_of_cls_alone_and_of_one_set():
    model = bert()
    tuned(model)
    with pytest.raises(SepNormError, match="'default' has some of sep"):
        tuning.merge(model)
    model.set_special(None)
    with pytest.raises(SepNormError, match="in use is None"):
        tuning.merge(model)
    for norm in ("rms+ln", "bn"):  # a norm without a bias, and one that [CLS] shares
        converted = bert()
        sepnorm.convert(converted, norm, sites="degenerate")
        tuned(converted, "cls")
        with pytest.raises(
            SepNormError, match=r"no bias for .CLS. alone. LayerNorms can be merged, and separate norms"
        ):
            tuning.merge(converted)


@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
@pytest.mark.parametrize("sites", ["all", "final"])
@pytest.mark.parametrize("norm", ["ln+ln", "bn+ln", "bn+bn"])
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "DistilBERT"])
def test_models_of_which_some_norms_are_converted_are_merged(name, norm, sites, tmp_path):
    """A conversion leaves the norm of the embeddings, which is degenerate; that of the first layer is one of these."""
    model, inputs = zoo_model(name).double(), with_sep()
    plain = copy.deepcopy(model)
    sepnorm.convert(model, norm, sites=sites, calibrate=[inputs])
    before = {key for key, module in model.named_modules() if isinstance(module, sepnorm.SepNorm)}
    tuned(model, "cls")
    expected = hidden(model, inputs)
    assert tuning.merge(model) is None
    found, kept = hidden(model, inputs), inputs["attention_mask"].bool()
    assert float((found - expected)[kept].abs().max()) <= 1e-12 * max(1, float(expected.abs().max()))
    norms = {key: module for key, module in model.named_modules() if isinstance(module, sepnorm.SepNorm)}
    assert before < set(norms)
    sepnorm.save(model, tmp_path)
    torch.testing.assert_close(hidden(sepnorm.load(tmp_path), inputs), found)
    sepnorm.revert(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]


class Averaged(nn.Module):
    """A user's head on BERT that reads the last hidden state, or the mean of all."""

    def __init__(self, all_states: bool) -> None:
        super().__init__()
        self.bert = T.BertModel(T.BertConfig(**BERT), add_pooling_layer=False)
        self.head, self.all_states = nn.Linear(16, 2), all_states

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        states = self.bert(input_ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states
        return self.head(torch.stack(states if self.all_states else states[-1:])[:, :, 0].mean(0))


def test_all_that_a_model_returns_stays_as_it_was():
    torch.manual_seed(0)
    inputs = with_sep()
    model = Averaged(all_states=False).eval()
    tuned(model, "cls")
    with pytest.raises(SepNormError, match="only bert was run, and the rest of Averaged may read other hidden states"):
        tuning.merge(model)
    with torch.no_grad():
        expected = model(**inputs)
        tuning.merge(model, example=inputs)
        torch.testing.assert_close(model(**inputs), expected)
    model = Averaged(all_states=True).eval()
    tuned(model, "cls")
    with pytest.raises(SepNormError, match="is also used elsewhere in the model"):
        tuning.merge(model, example=inputs)


def test_a_hidden_state_between_layers_holds_the_vector_after_merging():
    model, inputs = bert(), with_sep() | {"output_hidden_states": True}
    vectors = tuned(model, "cls").vectors("default")[:, 0].detach()
    expected = copy.deepcopy(model)(**inputs)
    tuning.merge(model)
    found = model(**inputs)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output)
    torch.testing.assert_close(found.hidden_states[2], expected.hidden_states[2])
    between = expected.hidden_states[1].clone()
    between[:, 0] += vectors[1]
    torch.testing.assert_close(found.hidden_states[1], between)


def test_torchs_encoder_is_merged_and_comes_back():
    """Its fused path, which bypasses norms, is off in layers of which a norm was converted, and on after revert."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(self.norm(x))

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(4, 6, 16)
    x[:, 0] = 1
    sepnorm.convert(model, "ln+ln", sites=["encoder.layers.[12].norm2"], example=x)
    tuned(model, "cls", example=x)
    with torch.no_grad():
        expected = model(x)
        tuning.merge(model, example=x)
        torch.testing.assert_close(model(x), expected)
    sepnorm.revert(model)
    assert [layer.activation_relu_or_gelu for layer in model.encoder.layers] == [1, 1, 1]
