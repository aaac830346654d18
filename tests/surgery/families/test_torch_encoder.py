"""``nn.TransformerEncoder``, by itself and inside a user's own module, in both layouts, pre-norm and post-norm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import sepnorm


def encoder(batch_first=True, norm_first=False, final=False, dropout=0.0) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=dropout, batch_first=batch_first, norm_first=norm_first)
    norm = nn.LayerNorm(16) if final else None
    return nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=not norm_first and batch_first)


class Classifier(nn.Module):
    """A user's module: patches in, a learnt [CLS] in front, logits out."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 16)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.encoder = encoder(**options)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.head(self.encoder(tokens)[:, 0])


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "ln+bn", "bn"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_new_norms_are_called_in_evaluation(batch_first, norm_first, norm):
    """torch's fused path would read the norms' weights and never call them, in evaluation and with nested tensors."""
    model = encoder(batch_first, norm_first, final=True).eval()
    report = sepnorm.convert(model, norm, sites="all")
    degenerate = [site.path for site in report.sites if "degenerate" in site.reason]
    assert degenerate == (["layers.0.norm1"] if norm_first else [])
    assert len(report.converted) == (4 if norm_first else 5)
    layers = [model.get_submodule(site.path) for site in report.converted]
    assert {layer.token_dim for layer in layers} == {int(batch_first)}
    calls = []
    for layer in layers:
        layer.register_forward_hook(lambda module, args, out: calls.append(id(module)))
    x = torch.randn(4, 6, 16)
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 4:] = True
    x = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        model(x)
        model(x, src_key_padding_mask=padding)
    assert len(calls) == 2 * len(layers)


@pytest.mark.parametrize("batch_first", [False, True])
def test_training_statistics_are_per_sample_not_per_position(batch_first):
    model = encoder(batch_first).train()
    sepnorm.convert(model, "bn+bn", sites="layers.0.norm1")
    layer = model.layers[0].norm1
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    x = torch.randn(5, 7, 16)
    padding = torch.zeros(5, 7, dtype=torch.bool)
    padding[2, 3:] = True
    model(x if batch_first else x.transpose(0, 1), src_key_padding_mask=padding)
    rows = seen[0] if batch_first else seen[0].transpose(0, 1)
    torch.testing.assert_close(layer.cls_norm.running_mean, 0.1 * rows[:, 0].mean(0))
    tokens = rows[:, 1:][~padding[:, 1:]]
    torch.testing.assert_close(layer.token_norm.running_mean, 0.1 * tokens.mean(0))


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32])
def test_bits_stay_after_ln_ln_and_revert_also_in_the_fused_path(mask_dtype):
    model = encoder().eval()
    x = torch.randn(4, 6, 16)
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 4:] = True
    if mask_dtype != torch.bool:
        padding = torch.zeros(4, 6).masked_fill(padding, -torch.inf)
    with torch.no_grad():
        fused = model(x, src_key_padding_mask=padding)
        sepnorm.convert(model, "bn+bn", sites="all")
        model(x, src_key_padding_mask=padding)
        sepnorm.revert(model)
        assert torch.equal(model(x, src_key_padding_mask=padding), fused)
    assert model.use_nested_tensor
    assert all(layer.activation_relu_or_gelu for layer in model.layers)
    y = x.clone().requires_grad_()  # with gradients torch takes the ordinary path, where ln+ln must change no bit
    before = model(y)
    sepnorm.convert(model, "ln+ln", sites="all")
    assert torch.equal(model(y), before)


class MeanPooled(nn.Module):
    """A user's module without a [CLS]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Linear(5, 16), encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embed(x)).mean(1)


class ClsLast(Classifier):
    """A user's module with a [CLS] behind the other tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.embed(x), self.cls.expand(len(x), -1, -1)], 1)
        return self.head(self.encoder(tokens)[:, -1])


@pytest.mark.parametrize("build", [Classifier, MeanPooled, ClsLast])
def test_inside_a_users_module_an_example_is_asked_for(build):
    """Where it puts a [CLS], if it has one, is in its code: a batch with a constant first token would only seem to tell."""
    model = build()
    with pytest.raises(sepnorm.SepNormError, match=r"holds an nn.TransformerEncoder \(encoder\).*pass example="):
        sepnorm.convert(model, "bn+ln")
    assert not any(isinstance(module, sepnorm.SepNorm) for module in model.modules())


@pytest.mark.parametrize("build", [MeanPooled, ClsLast])
def test_a_users_module_without_a_cls_first_is_refused_by_example(build):
    with pytest.raises(sepnorm.SepNormError, match=r"has no \[CLS\] that could be found"):
        sepnorm.convert(build(), "bn+ln", example=torch.randn(4, 6, 5))


@pytest.mark.parametrize("batch_first", [False, True])
def test_an_encoder_alone_is_taken_at_its_word_and_the_report_says_so(batch_first):
    report = sepnorm.convert(encoder(batch_first), "bn+ln")
    assert [site.path for site in report.converted] == ["layers.1.norm2"]
    assert "Note: nothing in a TransformerEncoder says where [CLS] is" in str(report)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_cls_put_first_is_found_by_example(norm_first):
    """In a post-norm encoder, which is torch's default, no norm and no layer's output ever has the [CLS] of the start."""
    model = Classifier(norm_first=norm_first)
    report = sepnorm.convert(model, "bn+ln", sites="all", example=torch.randn(4, 6, 5))
    assert len(report.converted) == (3 if norm_first else 4)
    layer = model.encoder.layers[1].norm2
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    model.train()(torch.randn(7, 6, 5))
    torch.testing.assert_close(layer.cls_norm.running_mean, 0.1 * seen[0][:, 0].mean(0))


def test_a_head_that_does_not_read_cls_is_told():
    class Averaging(Classifier):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)
            return self.head(self.encoder(tokens)[:, 1:].mean(1))

    model = Averaging()
    with pytest.warns(sepnorm.SepNormWarning, match=r"Averaging does not read \[CLS\] after .*norm2"):
        report = sepnorm.convert(model, "bn+ln", example=torch.randn(4, 6, 5))
    assert "does not read [CLS] after" in str(report)


def test_inside_a_users_module_by_example():
    model = Classifier(norm_first=True)
    report = sepnorm.convert(model, "bn+ln", example=torch.randn(4, 6, 5), sites="all")
    reasons = {site.path: site.reason for site in report.sites}
    assert reasons["encoder.layers.0.norm1"].startswith("degenerate")
    assert reasons["head.0"].startswith("after pooling")
    assert len(report.converted) == 3


def test_copies_of_a_converted_model_are_independent():
    model = Classifier()
    sepnorm.convert(model, "bn+bn", sites="all", example=torch.randn(4, 6, 5))
    twin = copy.deepcopy(model)
    sepnorm.revert(model)
    assert model(torch.randn(4, 6, 5)).shape == twin(torch.randn(4, 6, 5)).shape
    report = sepnorm.revert(twin)
    assert len(report.converted) == 4
    assert not any(hooks for module in twin.modules() for hooks in (module._forward_pre_hooks, module._forward_hooks))


def test_save_and_load_into_a_module_of_the_user(tmp_path):
    model = Classifier()
    sepnorm.convert(model, "bn+ln", sites="all", example=torch.randn(4, 6, 5))
    for _ in range(3):
        model.train()(torch.randn(8, 6, 5))
    sepnorm.save(model, tmp_path)
    x = torch.randn(4, 6, 5)
    loaded = sepnorm.load(tmp_path, Classifier())
    with torch.no_grad():
        assert torch.equal(loaded(x), model.eval()(x))
    with pytest.raises(sepnorm.SepNormError, match="build it yourself"):
        sepnorm.load(tmp_path)


def test_two_encoders_are_refused():
    model = nn.ModuleDict({"left": encoder(), "right": encoder()})
    with pytest.raises(sepnorm.SepNormError, match="2 encoders"):
        sepnorm.convert(model, sites="all")


def test_unknown_module_asks_for_an_example():
    with pytest.raises(sepnorm.SepNormError, match="pass example="):
        sepnorm.convert(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), sites="all")
