"""``tune_special``: what it trains, where vectors are added, and what it leaves as it was, in every family."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers as T
from hypothesis import given, settings
from hypothesis import strategies as st
from models import BERT, bert, sentences
from torch import nn
from torch.utils.checkpoint import checkpoint

import sepnorm
from sepnorm import SepNormError, tuning
from sepnorm.tuning.layers import find_layers

sys.path.insert(0, str(Path(__file__).parents[1] / "surgery" / "families"))
from survey import first_output, inputs_of
from zoo import ZOO

SEP = 3


def with_sep(batch: int = 6, tokens: int = 9) -> dict[str, torch.Tensor]:
    """Padded sentences, each of which ends with [SEP]."""
    found = sentences(batch, tokens)
    last = found["attention_mask"].sum(1) - 1
    found["input_ids"][torch.arange(batch), last] = SEP
    return found


def tuned(model: nn.Module, tokens=("cls", "sep"), seed: int = 0, **options) -> tuning.SpecialTokens:
    """A model with random vectors; gives what holds them."""
    tokens = {"cls": None, "sep": SEP} if tokens == ("cls", "sep") else tokens
    sepnorm.tune_special(model, tokens, **options)
    special = model.special_tokens
    with torch.no_grad():
        special.vectors(special.in_use).normal_(generator=torch.Generator().manual_seed(seed))
    return special


def hidden(model: nn.Module, batch) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch).last_hidden_state


def by_hand(model: T.BertModel, batch, vectors, masks) -> torch.Tensor:
    """A BERT layer by layer, with ``vectors`` (layers, kinds, width) added where ``masks`` (kinds, batch, tokens) are true."""
    x = model.embeddings(input_ids=batch["input_ids"])
    bias = torch.zeros(len(x), 1, 1, x.shape[1]).masked_fill(batch["attention_mask"][:, None, None] == 0, float("-inf"))
    for layer, of_layer in zip(model.encoder.layer, vectors, strict=True):
        for vector, mask in zip(of_layer, masks, strict=True):
            x = x + vector * mask[..., None]
        x = layer(x, attention_mask=bias)
        x = x[0] if isinstance(x, tuple) else x
    return x


# ---- every family -------------------------------------------------------------------------------------------------------


def zoo_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return ZOO[name]().eval()


def tokens_of(model) -> object:
    return {"cls": None, "sep": 9} if model.main_input_name == "input_ids" else "cls"


def knows(name: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sepnorm.convert(zoo_model(name), "ln+ln")
    except SepNormError:
        return False
    return True


def output_of(model) -> torch.Tensor:
    torch.manual_seed(3)  # masked autoencoders draw a mask
    return first_output(model)


@pytest.mark.slow
def test_zero_vectors_change_no_output_of_any_family_and_removal_neither():
    """Of every tiny model that ``convert`` takes."""
    taken = 0
    for name in ZOO:
        model = zoo_model(name)
        trained = {key: p.requires_grad for key, p in model.named_parameters()}
        try:
            find_layers(model)
        except SepNormError:
            assert not knows(name), name
            continue
        taken += 1
        with torch.no_grad():
            before = output_of(model)
            report = sepnorm.tune_special(model, tokens_of(model))
            kinds = len(model.special_tokens.kinds)
            assert report.parameters == 2 * kinds * 32, name  # two layers of width 32
            assert torch.equal(output_of(model), before), name
            model.special_tokens.vectors("default").normal_()
            assert not torch.equal(output_of(model), before), name
            tuning.remove(model)
            assert torch.equal(output_of(model), before), name
        assert {key: p.requires_grad for key, p in model.named_parameters()} == trained, name
        assert not hasattr(model, "set_special"), name
    assert taken > 45


@pytest.mark.parametrize(
    "name", ["BERT, classifier", "ViT, classifier", "ViT-MAE, pretraining", "CLIP, images with projection"]
)
def test_only_the_vectors_and_the_head_have_a_gradient(name):
    model = zoo_model(name).train()
    report = sepnorm.tune_special(model, "cls")
    first_output(model).square().sum().backward()
    with_gradient = {key for key, p in model.named_parameters() if p.grad is not None}
    assert set(report.tuned) <= with_gradient <= set(report.tuned) | set(report.head)
    assert {key.split(".")[0] for key in report.head} == {name: {part} for name, part in [
        ("BERT, classifier", "classifier"), ("ViT, classifier", "classifier"), ("ViT-MAE, pretraining", "decoder"),
        ("CLIP, images with projection", "visual_projection"),
    ]}[name]  # fmt: skip
    assert report.total == sum(p.numel() for p in model.parameters())


# ---- what is added, and where -------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(4, 10), st.booleans(), st.integers(0, 99))
def test_vectors_are_added_to_the_input_of_each_layer_at_special_tokens_alone(batch, length, left, seed):
    torch.manual_seed(seed)
    model = bert().double()
    inputs = with_sep(batch, length)
    if left:
        turns = [int(count) for count in (inputs["attention_mask"] == 0).sum(1)]
        inputs = {
            key: torch.stack([row.roll(n) for row, n in zip(value, turns, strict=True)])
            for key, value in inputs.items()
        }
    plain = copy.deepcopy(model)
    special = tuned(model, seed=seed)
    ids = inputs["input_ids"]
    first = inputs["attention_mask"].argmax(1)
    masks = [torch.arange(length) == first[:, None], ids == SEP]
    assert bool((ids[masks[0]] == 2).all()) and bool(masks[1].any(1).all())
    expected = by_hand(plain, inputs, special.vectors("default"), masks)
    where = inputs["attention_mask"].bool()
    torch.testing.assert_close(hidden(model, inputs)[where], expected.detach()[where], rtol=1e-9, atol=1e-9)


def test_ids_as_positional_argument_and_by_id_of_cls():
    model, inputs = bert(), with_sep()
    tuned(model)
    found = hidden(model, inputs)
    with torch.no_grad():
        assert torch.equal(model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state, found)
    other = copy.deepcopy(model)
    tuning.remove(other)
    tuned(other, {"cls": 2, "sep": SEP})
    assert torch.equal(hidden(other, inputs), found)


def test_a_mask_is_handed_on_where_there_are_no_ids():
    model, inputs = bert(), with_sep()
    special = tuned(model)
    embedded = model.embeddings.word_embeddings(inputs["input_ids"])
    mask = special.positions.by_ids(inputs["input_ids"], inputs["attention_mask"])
    given_mask = dict(inputs_embeds=embedded, attention_mask=inputs["attention_mask"], special_mask=mask)
    assert torch.equal(hidden(model, given_mask), hidden(model, inputs))
    with pytest.raises(SepNormError, match="called without input_ids: call it with special_mask="):
        hidden(model, dict(inputs_embeds=embedded))
    with pytest.raises(SepNormError, match="found 0 to 7"):
        hidden(model, given_mask | {"special_mask": mask * 0 + torch.arange(9) % 8})
    with pytest.raises(SepNormError, match="whole numbers"):
        hidden(model, given_mask | {"special_mask": mask.float()})
    tuning.remove(model)
    tuned(model, "cls")
    hidden(model, dict(inputs_embeds=embedded))  # [CLS] is the first token, whatever is in it


def test_cls_behind_padding_is_found_without_ids():
    model, inputs = bert(), {key: value.flip(1) for key, value in with_sep().items()}
    assert not inputs["attention_mask"][:, 0].all()
    tuned(model, "cls")
    embedded = model.embeddings.word_embeddings(inputs["input_ids"])
    without = dict(inputs_embeds=embedded, attention_mask=inputs["attention_mask"])
    assert torch.equal(hidden(model, without), hidden(model, inputs))


def test_choices_are_samples():
    """Ids (batch, choices, tokens) reach the encoder as (batch x choices, tokens)."""
    torch.manual_seed(0)
    model, inputs = T.BertForMultipleChoice(T.BertConfig(**BERT)).eval(), with_sep()
    choices = {key: value.view(2, 3, -1) for key, value in inputs.items()}
    special = tuned(model)
    tuned(model, name="other", seed=1)
    found = {}
    for name in ("default", "other"):
        special.use(name)
        with torch.no_grad():
            found[name] = model(**choices).logits
    tuning.remove(model)
    with torch.no_grad():
        tuned(model.bert)
        expected = model.classifier(model.bert(**inputs).pooler_output).view(2, 3)
    assert torch.equal(found["default"], expected) and not torch.equal(found["other"], expected)


def test_models_that_add_tokens_are_told_what_to_do():
    model = T.LongformerModel(T.LongformerConfig(**BERT, attention_window=4)).eval()
    sepnorm.tune_special(model, {"cls": None, "sep": SEP}, example=with_sep(6, 8))
    hidden(model, with_sep(6, 8))
    with pytest.raises(SepNormError, match=r"handed \(6, 12\): .*pad_to_multiple_of= of the tokeniser"):
        hidden(model, with_sep(6, 9))


def test_two_sets_in_one_batch_are_each_alone():
    model, inputs = bert(), with_sep(4)
    tuned(model, name="a", seed=1)
    tuned(model, name="b", seed=2)
    alone = {}
    for name in ("a", "b", None):
        model.set_special(name)
        alone[name] = hidden(model, inputs)
    assert not torch.equal(alone["a"], alone["b"]) and not torch.equal(alone["a"], alone[None])
    names = ["b", None, "a", "b"]
    model.set_special(names)
    together = hidden(model, inputs)
    for row, name in enumerate(names):
        torch.testing.assert_close(together[row], alone[name][row], rtol=1e-6, atol=1e-6)
    with pytest.raises(SepNormError, match="for 4 samples, and this batch has 3"):
        hidden(model, {key: value[:3] for key, value in inputs.items()})
    model.set_special(["a", "b", "a", "a"])
    model(**inputs).last_hidden_state.sum().backward()
    assert model.special_tokens.vectors("a").grad.any() and model.special_tokens.vectors("b").grad.any()
    model.zero_grad()
    model.set_special("a")
    model(**inputs).last_hidden_state.sum().backward()
    assert model.special_tokens.vectors("b").grad is None  # a set that is not in use is not trained


def trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_only_sets_in_use_are_trained_and_reported():
    model, inputs = bert(), with_sep(4)
    tuned(model, name="a")
    report = sepnorm.tune_special(model, {"cls": None, "sep": SEP}, name="b")
    assert report.parameters == 64 and list(report.tuned) == trainable(model) == ["special_tokens.of_b"]
    assert report.total == sum(parameter.numel() for parameter in model.parameters())
    model.set_special("a")
    assert trainable(model) == ["special_tokens.of_a"]
    model.set_special(["a", None, "b", None])
    assert trainable(model) == ["special_tokens.of_a", "special_tokens.of_b"]
    model.set_special("a")
    out = model(**inputs).last_hidden_state.sum()
    model.set_special("b")
    with pytest.raises(SepNormError, match="the set 'a' was in use in the forward pass, and another one is selected"):
        out.backward()


def test_two_sets_under_distributed_data_parallel(tmp_path):
    """It waits for a gradient of every parameter that requires one."""
    model, inputs = bert().train(), with_sep(4)
    model.pooler.requires_grad_(False)
    tuned(model, name="a")
    tuned(model, name="b")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        for _ in range(3):
            parallel(**inputs).last_hidden_state.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert model.special_tokens.vectors("b").grad.any() and model.special_tokens.vectors("a").grad is None


def unfused(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """What torch's layers give when frozen and without their fused path: both change how they round, without us."""
    model.requires_grad_(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            return model(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoders_in_both_layouts(batch_first, norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first).eval()
    x = torch.randn(3, 5, 16)
    padding = torch.arange(5) >= torch.tensor([[5], [4], [3]])
    turned = x if batch_first else x.transpose(0, 1).contiguous()
    with torch.no_grad():
        fused = model(turned, src_key_padding_mask=padding)
        before = unfused(model, turned)
        sepnorm.tune_special(model, "cls")
        special = model.special_tokens
        assert torch.equal(unfused(model, turned), before)
        special.vectors("default").normal_()
        expected = turned
        for number, each in enumerate(model.layers):
            added = torch.zeros(3, 5, 16)
            added[:, 0] = special.vectors("default")[number, 0]
            expected = each.forward(expected + (added if batch_first else added.transpose(0, 1)))
        torch.testing.assert_close(model(turned), expected)
        model(turned, src_key_padding_mask=padding)  # no nested tensor reaches a layer
        tuning.remove(model)
        assert torch.equal(model(turned, src_key_padding_mask=padding), fused)


class Own(nn.Module):
    """A user's module without a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cls = nn.Linear(5, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.one, self.two = (nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.head(self.norm(self.two(self.one(tokens)))[:, 0])


def test_a_module_of_ones_own_by_an_example():
    torch.manual_seed(0)
    model, x = Own().eval(), torch.randn(3, 4, 5)
    before = unfused(model, x)
    model.requires_grad_(True)
    report = sepnorm.tune_special(model, "cls", example=x)
    assert [call.path for call in find_layers(model, x).calls] == ["one", "two"]
    assert set(report.head) == {"head.weight", "head.bias"} and report.parameters == 2 * 16
    assert torch.equal(unfused(model, x), before)


def test_registers_are_a_kind_of_their_own():
    model = zoo_model("DINOv2, registers")
    special = tuned(model, ("cls", "register"))
    assert [(kind.first, kind.last) for kind in special.kinds] == [(0, 1), (1, 4)]
    assert special.positions.by_place(2, 6, torch.device("cpu")).tolist() == [[1, 2, 2, 2, 0, 0]] * 2
    with pytest.raises(SepNormError, match="ViTModel has no registers"):
        sepnorm.tune_special(zoo_model("ViT"), "register")


def test_layers_that_share_their_weights_have_vectors_of_their_own():
    model = zoo_model("ALBERT")
    inputs = inputs_of(model)
    special = tuned(model, "cls")
    with torch.no_grad():
        found = model(**inputs).last_hidden_state
        assert torch.equal(model(**inputs).last_hidden_state, found)
        special.vectors("default").copy_(special.vectors("default").flip(0))
        assert not torch.allclose(model(**inputs).last_hidden_state, found)


def test_molecules():
    graphormer = pytest.importorskip("sepnorm.domains.molecules.graphormer")
    config = graphormer.GraphormerConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    model = graphormer.GraphormerModel(config).eval()
    before = hidden(model, model.dummy_inputs)
    report = sepnorm.tune_special(model, "cls")
    assert report.parameters == 32 and torch.equal(hidden(model, model.dummy_inputs), before)
    model.train()  # molecules of similar size go through the layers together
    model(**model.dummy_inputs).last_hidden_state[:, 0, 0].sum().backward()
    assert model.special_tokens.vectors("default").grad.any()


def test_molecules_with_a_mixture_norm_as_pretraining_leaves_them():
    """The responsibilities of a mixture are a softmax, which is not attention."""
    graphormer = pytest.importorskip("sepnorm.domains.molecules.graphormer")
    config = graphormer.GraphormerConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    model = graphormer.GraphormerModel(config)
    sepnorm.convert(model, "bn+mix", sites="final")
    for _ in range(2):
        model.train()(**model.dummy_inputs)  # now the mixture has more than one component
    before = hidden(model.eval(), model.dummy_inputs)
    assert sepnorm.tune_special(model, "cls").parameters == 32
    assert torch.equal(hidden(model, model.dummy_inputs), before)


# ---- beside other surgery, and other libraries --------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["ln+ln", "bn+bn", "bn+mix", "mix+ln"])
def test_before_and_after_a_conversion(norm):
    torch.manual_seed(0)
    inputs, first, second = with_sep(), bert(), None
    second = copy.deepcopy(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sepnorm.convert(first, norm, sites="all")
        tuned(first)
        tuned(second)
        sepnorm.convert(second, norm, sites="all")
    assert torch.equal(hidden(first, inputs), hidden(second, inputs))
    assert {n for n, p in first.named_parameters() if p.requires_grad} == {
        n for n, p in second.named_parameters() if p.requires_grad
    }
    sepnorm.revert(second)
    tuning.remove(second)
    tuned(second)
    sepnorm.revert(first)
    torch.testing.assert_close(hidden(first, inputs), hidden(second, inputs))


def test_the_norms_of_cls_alone():
    model, inputs = bert(), with_sep()
    sepnorm.convert(model, "ln+ln", sites="all")
    before = hidden(model, inputs)
    report = sepnorm.tune_special(model, train="cls_norm")
    assert report.parameters == 4 * 2 * 16  # four norms behind the first attention, weight and bias
    assert torch.equal(hidden(model, inputs), before)
    model.train()
    model(**inputs).last_hidden_state[:, 0].sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(report.tuned)
    assert all(".cls_norm." in name for name in report.tuned)
    with pytest.raises(SepNormError, match="has no norm of \\[CLS\\] of its own"):
        sepnorm.tune_special(bert(), train="cls_norm")


def test_norms_of_cls_take_no_options_of_vectors():
    model = bert()
    sepnorm.convert(model, "ln+ln", sites="all")
    for options in (dict(tokens="cls"), dict(name="sst2"), dict(dropout=0.5)):
        with pytest.raises(SepNormError, match=f"trains no vectors, and {next(iter(options))}= would be for vectors"):
            sepnorm.tune_special(model, train="cls_norm", **options)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Checkpointed(Own):
    """Layers that are run again in the backward pass, hooks and all."""

    again = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)
        for layer in (self.one, self.two):
            tokens = checkpoint(layer, tokens, use_reentrant=False) if self.again else layer(tokens)
        return self.head(self.norm(tokens)[:, 0])


def test_gradients_are_those_without_checkpointing():
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(3, 4, 5)
    special = tuned(model, "cls", example=x, name="a")
    tuned(model, "cls", example=x, name="b", seed=1)
    found = []
    for again in (True, False):
        model.again = again
        special.zero_grad()
        model.set_special(["a", "b", "a"])
        out = model(x).square().sum()
        model.set_special(None)  # what was in use in the forward pass counts
        out.backward()
        found.append([special.vectors(name).grad.clone() for name in ("a", "b")])
    torch.testing.assert_close(found[0], found[1])
    model.again, lost = True, []
    for name in ("a", "b"):
        model.set_special(name)
        lost.append(model(x).sum())
    with pytest.raises(SepNormError, match="which special tokens belong to the layer"):
        sum(lost).backward()


def test_a_trainer_of_transformers_can_checkpoint():
    torch.manual_seed(0)
    model, inputs = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train(), with_sep()
    special = tuned(model)
    found = []
    for way in ("", "checkpointed"):
        special.zero_grad()
        if way:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(**inputs).last_hidden_state.square().sum().backward()
        found.append(special.vectors("default").grad.clone())
    torch.testing.assert_close(found[0], found[1])


PEFT = Path(__file__).parents[2] / ".peft"


@pytest.mark.slow
@pytest.mark.skipif(not (PEFT / "peft").is_dir(), reason="peft is tested from a folder of its own: see the Makefile")
def test_beside_an_adapter_of_peft(monkeypatch):
    monkeypatch.syspath_prepend(str(PEFT))
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model, inputs = bert(), with_sep()
    tuned(model)
    expected = hidden(model, inputs)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"])).eval()
    torch.testing.assert_close(hidden(adapted, inputs), expected)
    model.set_special(None)
    assert not torch.allclose(hidden(adapted, inputs), expected)


def test_copies_states_casts_and_pickles(tmp_path):
    model, inputs = bert(), with_sep()
    special = tuned(model)
    found = hidden(model, inputs)
    twin = copy.deepcopy(model)
    twin.set_special(None)
    assert torch.equal(hidden(model, inputs), found) and not torch.equal(hidden(twin, inputs), found)
    other = bert()
    sepnorm.tune_special(other, {"cls": None, "sep": SEP})
    other.load_state_dict(model.state_dict())
    assert torch.equal(hidden(other, inputs), found)
    assert special.vectors("default").dtype == torch.float32
    assert model.bfloat16()(**inputs).last_hidden_state.dtype == torch.bfloat16
    torch.save(twin, tmp_path / "whole.pt")
    back = torch.load(tmp_path / "whole.pt", weights_only=False)
    back.set_special("default")
    assert torch.equal(hidden(back, inputs), found)


def test_dropout_is_of_the_added_vectors_and_in_training_alone():
    model, inputs = bert(), with_sep()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    special = tuned(model, dropout=0.5)
    assert torch.equal(hidden(model, inputs), hidden(model, inputs))
    model.train()
    first, second = hidden(model, inputs), hidden(model, inputs)
    assert not torch.equal(first, second)
    layer = torch.zeros(3, 5, 16)
    special.positions.enter(None)
    model.set_special(None)
    assert special.added(layer, 0) is None


def test_compiled():
    model, inputs = bert(), with_sep()
    tuned(model)
    expected = hidden(model, inputs)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(hidden(compiled, inputs), expected)


def test_published_settings():
    model = bert()
    with pytest.raises(SepNormError, match="nothing of Linear is trained"):
        tuning.PRESETS["conll"].optimizer(nn.Linear(2, 2).requires_grad_(False))
    tuned(model)
    optimizer = tuning.PRESETS["conll"].optimizer(model)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], tuning.PRESETS["conll"].batch_size) == (3e-3, 0.0, 16)
    assert [id(p) for p in group["params"]] == [id(model.special_tokens.vectors("default"))]
    assert (tuning.PRESETS["mrpc"].learning_rate, tuning.PRESETS["mrpc"].batch_size) == (2.5e-4, 32)


def test_the_report_says_what_is_trained():
    report = sepnorm.tune_special(T.BertForSequenceClassification(T.BertConfig(**BERT)), {"cls": None, "sep": SEP})
    assert "before each of 2 layers" in str(report) and "classifier" in str(report)
    assert "64" in str(report).splitlines()[2] and "TuningReport" in repr(report)


# ---- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tokens=("cls", "sep")), "the id of 'sep' is unknown to the config of BertModel: pass tokenizer="),
        (dict(tokens={"sep": 10**6}), "the id of 'sep' in tokens is a whole number, at least 0 and at most 59"),
        (dict(tokens=()), "tokens names kinds of special tokens"),
        (dict(tokens=3), "tokens names kinds of special tokens"),
        (dict(tokens=["cls", "cls"]), "twice"),
        (dict(tokens="register"), "has no registers"),
        (dict(tokens="cls", train="norms"), "train is 'vectors' or 'cls_norm', found 'norms'"),
        (dict(tokens="cls", train=1), "train is 'vectors' or 'cls_norm'"),
        (dict(tokens="cls", name="a.b"), "letters, digits, - and _"),
        (dict(tokens="cls", dropout=1), "dropout is a share below 1"),
        (dict(tokens="cls", dropout=-1), "dropout is a finite number of at least 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(options, message):
    model = bert()
    with pytest.raises(SepNormError, match=message.replace("(", "\\(")):
        sepnorm.tune_special(model, **options)
    assert not hasattr(model, "special_tokens") and all(p.requires_grad for p in model.parameters())


def test_images_have_no_words():
    with pytest.raises(SepNormError, match="ViTModel has no 'sep': its input has no words"):
        sepnorm.tune_special(zoo_model("ViT"))


def test_a_special_token_that_never_comes_is_said():
    model = bert().train()
    sepnorm.tune_special(model, {"cls": None, "sep": 59})
    inputs = with_sep()
    inputs["input_ids"][inputs["input_ids"] == 59] = 5
    with pytest.raises(
        SepNormError, match="none of the 6 samples of this batch has the special token sep \\(token 59\\)"
    ):
        model(**inputs)


def test_sets_that_are_not_there_or_differ():
    model = bert()
    with pytest.raises(SepNormError, match="BertModel has no special vectors or"):
        tuning.remove(model)
    tuned(model, name="sst2")
    with pytest.raises(SepNormError, match="unknown set 'sst': choose from sst2"):
        model.set_special("sst")
    with pytest.raises(SepNormError, match="a list of names"):
        model.set_special(3)
    with pytest.raises(SepNormError, match="there is a set 'sst2' already"):
        tuned(model, name="sst2")
    with pytest.raises(SepNormError, match="all sets share these"):
        tuned(model, "cls", name="other")
    with pytest.raises(SepNormError, match="before its \\[CLS\\] norms are tuned"):
        sepnorm.tune_special(model, train="cls_norm")
    assert model.special_tokens.names == ["sst2"]


def test_functional_call_takes_plain_tensors_for_vectors():
    model, inputs = bert(), with_sep()
    tuned(model)
    expected = hidden(model, inputs)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = torch.func.functional_call(model, tensors, (), inputs).last_hidden_state
    torch.testing.assert_close(found, expected)
    changed = tensors | {name: 2 * tensor for name, tensor in tensors.items() if "special" in name}
    assert not torch.func.functional_call(model, changed, (), inputs).last_hidden_state.allclose(expected)
