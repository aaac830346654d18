from __future__ import annotations

import copy
import pickle
import re
import warnings

import pytest
import torch
from models import bert, embeddings, sentences
from torch import nn

import sepnorm
from sepnorm import SepNorm, SepNormError, SepNormWarning
from sepnorm.surgery.sites import find_sites

FINAL = "encoder.layer.1.output.LayerNorm"


def test_report_shows_every_norm_with_its_reason():
    report = sepnorm.convert(bert(trained=False), "bn+ln", sites="all")
    assert repr(report) == "<ConversionReport BertModel to bn+ln: 4 of 5 norms, +128 parameters>"
    lines = str(report).splitlines()
    assert len(lines) == 2 + 5
    assert re.match(r"embeddings.LayerNorm +ln +ln +degenerate", lines[2])
    assert re.match(rf"{re.escape(FINAL)} +ln +bn\+ln +sees \[CLS\]", lines[-1])
    assert report.parameters_added == 4 * 2 * 16


def test_sites_by_glob_list_and_predicate():
    assert len(sepnorm.convert(bert(trained=False), sites="encoder.layer.0.*").converted) == 2
    globs = ["encoder.layer.0.output.*", FINAL]
    report = sepnorm.convert(bert(trained=False), sites=globs)
    assert [site.path for site in report.converted] == ["encoder.layer.0.output.LayerNorm", FINAL]
    assert {site.reason for site in report.kept} >= {"not chosen by sites"}
    everything = sepnorm.convert(bert(trained=False), sites=lambda site: True)
    assert "embeddings.LayerNorm" in [site.path for site in everything.converted]  # a predicate has the last word


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(norm="bn+lm"), "unknown norm 'lm'.*Did you mean 'ln'"),
        (dict(norm="bn+ln+bn"), "written like 'bn\\+ln'"),
        (dict(norm=""), "written like"),
        (dict(norm=3), "written like"),
        (dict(sites="encoder.layers.*"), "matches no norm.*The sites are: encoder.layer.0.attention"),
        (dict(sites="finall"), "Did you mean 'final'"),
        (dict(sites="embeddings*"), "matches only norms that are left alone.*degenerate"),
        (dict(sites=lambda site: False), "chose none of the sites"),
        (dict(sites=None), "sites is 'final', 'all', .* found None"),
        (dict(sites=3), "sites is 'final', 'all', .* found 3"),
        (dict(sites=[-1]), "a list of sites holds patterns of paths.* found -1"),
        (dict(sites=[]), "an empty list, so no norm was chosen"),
        (
            dict(calibrate=[{"input_ids": [[2, 7, 9], [2, 8]]}]),
            "input_ids of the batch cannot be made a tensor.*pad them",
        ),
        (dict(calibrate=[{"input_ids": "a sentence"}]), "could not be called with this batch"),
        (dict(num_cls=0), "at least 1, found 0"),
        (dict(num_cls=20), "has no .CLS. that could be found.*are the first 20 tokens"),
        (dict(example=sentences(1)), "at least two different samples.*found 1"),
        (dict(example={"input_ids": torch.ones(3, 4, dtype=torch.long)}), "found 3 equal ones"),
        (dict(example={"text": "no tensor"}), "without a tensor"),
        (dict(example={"nonsense": torch.randn(2, 3, 4)}), "could not be run to find"),
        (dict(calibrate=[]), "at least two samples, but the data gave 0"),
        (dict(calibrate=[sentences(1)]), "at least two samples, but the data gave 1"),
        (dict(calibrate=5), "iterable of batches, found int"),
    ],
)
def test_bad_input_is_refused_and_the_model_untouched(options, message):
    model = bert()
    before = copy.deepcopy(model)
    with pytest.raises(SepNormError, match=message):
        sepnorm.convert(model, **options)
    assert not any(isinstance(module, SepNorm) for module in model.modules())
    batch = sentences()
    assert torch.equal(embeddings(model, batch), embeddings(before, batch))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_converting_twice_is_refused():
    model = bert(trained=False)
    sepnorm.convert(model, sites="all")
    with pytest.raises(SepNormError, match=r"already converted.*revert"):
        sepnorm.convert(model, "bn+bn", sites="all")


def test_wrapped_models_are_refused():
    with pytest.raises(SepNormError, match=r"before wrapping"):
        sepnorm.convert(nn.DataParallel(bert(trained=False)), sites="all")


def test_reverting_what_was_never_converted_is_refused():
    with pytest.raises(SepNormError, match=r"nothing to revert"):
        sepnorm.revert(bert())


def test_trained_weights_without_calibration_give_a_warning():
    with pytest.warns(SepNormWarning, match=r"pass calibrate="):
        sepnorm.convert(bert(), "bn+ln", sites="all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sepnorm.convert(bert(trained=False), "bn+ln", sites="all")
        sepnorm.convert(bert(), "ln+ln", sites="all")
        sepnorm.convert(bert(), "bn+ln", calibrate=[sentences()], sites="all")


def test_what_the_old_norm_had_is_kept():
    model = bert(layer_norm_eps=1e-7).to(torch.bfloat16).train()
    old = model.get_submodule(FINAL)
    old.weight.requires_grad_(False)
    weight = old.weight.clone()
    with pytest.warns(SepNormWarning):
        sepnorm.convert(model, "bn+bn", sites="final")
    new = model.get_submodule(FINAL)
    for child in (new.cls_norm, new.token_norm):
        assert torch.equal(child.weight, weight)
        assert child.weight.dtype == torch.bfloat16
        assert child.running_mean.dtype == torch.float32
        assert child.eps == 1e-7
        assert child.training
        assert not child.weight.requires_grad
        assert child.bias.requires_grad


def test_shared_norms():
    model = bert(trained=False)
    batch = sentences()
    before = embeddings(model, batch)
    assert sepnorm.convert(model, "ln", sites="all").converted == []
    assert torch.equal(embeddings(model, batch), before)
    report = sepnorm.convert(model, "bn", sites="all")
    assert {site.after for site in report.converted} == {"bn"}
    assert report.parameters_added == 0
    model.train()(**batch)
    shared = model.get_submodule(FINAL)
    assert shared.norm.num_batches_tracked == 1


def test_rms_in_either_place():
    model = bert(trained=False)
    report = sepnorm.convert(model, "bn+rms", sites="all")
    assert {site.after for site in report.converted} == {"bn+rms"}
    assert isinstance(model.get_submodule(FINAL).token_norm, nn.RMSNorm)


def test_the_random_state_and_the_mode_are_not_disturbed():
    model = bert(trained=False).train()
    model.pooler.eval()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sepnorm.convert(model, "bn+ln", sites="all")
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not model.pooler.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn", "bn", "ln+bn"])
def test_moment_matching_reproduces_mean_and_variance_of_the_old_norm(norm):
    model = bert()
    data = [sentences(32) for _ in range(4)]
    seen: dict[str, list[torch.Tensor]] = {"before": [], "after": []}

    def collect(name):
        hook = model.get_submodule(FINAL).register_forward_hook(lambda module, args, out: seen[name].append(out))
        with torch.no_grad():
            for batch in data:
                model(**batch)
        hook.remove()

    collect("before")
    sepnorm.convert(model, norm, sites="final", calibrate=data)
    collect("after")
    keep = torch.cat([batch["attention_mask"] for batch in data]).bool()
    parts = [torch.cat(seen[name]) for name in ("before", "after")]
    groups = {"all": (keep,)} if norm == "bn" else {"cls": (slice(None), 0), "tokens": None}
    for group, index in groups.items():
        rows = [part[:, 1:][keep[:, 1:]] if group == "tokens" else part[index] for part in parts]
        torch.testing.assert_close(rows[1].mean(0), rows[0].mean(0), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(rows[1].std(0), rows[0].std(0), rtol=1e-3, atol=1e-4)


def test_revert_folds_what_was_trained_and_says_what_is_lost():
    model = bert()
    sepnorm.convert(model, "bn+ln", sites="final", calibrate=[sentences()])
    layer = model.get_submodule(FINAL)
    with torch.no_grad():
        layer.token_norm.weight += 1
    trained = layer.token_norm.weight.clone()
    report = sepnorm.revert(model)
    assert "what [CLS] had learnt at this site is dropped" in str(report)
    assert torch.equal(model.get_submodule(FINAL).weight, trained)

    untouched = model.get_submodule(FINAL).weight.clone()
    sepnorm.convert(model, "bn+bn", sites="final", calibrate=[sentences()])
    with torch.no_grad():
        model.get_submodule(FINAL).token_norm.weight += 1
    assert "cannot be folded" in str(sepnorm.revert(model))
    assert torch.equal(model.get_submodule(FINAL).weight, untouched)


def test_revert_says_bit_for_bit_only_where_nothing_was_trained():
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()], sites="all")
    sepnorm.freeze(model)
    assert all(site.reason == "as it was, bit for bit" for site in sepnorm.revert(model).sites)
    sepnorm.convert(model, "bn+ln", calibrate=[sentences()], sites="all")
    model.train()(**sentences())
    sepnorm.freeze(model)
    assert not any("bit for bit" in site.reason for site in sepnorm.revert(model).sites)


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_a_converted_model_works_and_can_be_reverted(copier):
    model = bert()
    batch = sentences()
    before = embeddings(model, batch)
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()], sites="all")
    twin = copier(model)
    assert torch.equal(embeddings(twin, batch), embeddings(model, batch))
    model.train()(**sentences())
    assert not torch.equal(
        model.get_submodule(FINAL).token_norm.running_mean, twin.get_submodule(FINAL).token_norm.running_mean
    )
    sepnorm.revert(twin)
    assert torch.equal(embeddings(twin, batch), before)


def test_revert_after_a_move_to_another_dtype():
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences()], sites="all")
    model.double()
    sepnorm.revert(model)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert embeddings(model, sentences()).isfinite().all()


def test_inputs_that_hide_padding_are_refused_where_it_matters():
    model = bert(trained=False)
    sepnorm.convert(model, "bn+bn", sites="all")
    batch = sentences()
    mask = batch["attention_mask"][:, None, None, :].expand(-1, 1, 9, -1).bool()
    with pytest.raises(SepNormError, match=r"attention_mask as \(batch, tokens\)"):
        model.train()(input_ids=batch["input_ids"], attention_mask=mask)
    model(**batch)  # and after an error the next call works


def test_a_norm_used_in_two_places_is_replaced_in_both():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.encoder.layers[1].norm2 = self.encoder.layers[0].norm2

        def forward(self, x):
            return self.encoder(x)

    model = Tied()
    example = torch.randn(3, 4, 16)
    example[:, 0] = 1
    sepnorm.convert(model, "bn+ln", sites="all", example=example)
    assert model.encoder.layers[0].norm2 is model.encoder.layers[1].norm2
    assert isinstance(model.encoder.layers[0].norm2, SepNorm)
    model(torch.randn(3, 4, 16))
    sepnorm.revert(model)
    assert isinstance(model.encoder.layers[1].norm2, nn.LayerNorm)


def test_tokens_first_layout_by_example():
    class TokensFirst(nn.Module):
        """(tokens, batch, channels) inside, as in fairseq."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.attention = nn.MultiheadAttention(8, 2)
            self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)

        def forward(self, ids):
            x = self.embed(ids).transpose(0, 1)
            y = self.first(x)
            return self.second(x + self.attention(y, y, y)[0]).transpose(0, 1)

    ids = torch.tensor([[1, 2, 3, 4, 5], [1, 6, 7, 8, 9], [1, 3, 5, 7, 9]])
    model = TokensFirst()
    sites = {site.path: site for site in find_sites(model, ids)}
    assert sites["first"].degenerate
    sepnorm.convert(model, "bn+ln", example=ids, sites="all")
    assert model.second.token_dim == 0
    model(ids)
    assert model.second.cls_norm.num_batches_tracked == 1
    with pytest.raises(SepNormError, match=r"cannot be told apart"):
        sepnorm.convert(TokensFirst(), example=ids[:, :3], sites="all")


def test_black_corners_are_not_taken_for_cls():
    """Without a [CLS], the first patch of images with black borders is the same in every sample all the same."""

    class MeanPooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 8, 2, 2)
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True), 1, enable_nested_tensor=False
            )

        def forward(self, x):
            return self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1)

    images = torch.rand(4, 1, 8, 8)
    images[:, :, :2, :2] = 0
    with pytest.raises(SepNormError, match=r"no .CLS. that could be found"):
        sepnorm.convert(MeanPooled(), example=images, sites="all")


def test_the_last_norm_is_the_default():
    assert [site.path for site in sepnorm.convert(bert(trained=False)).converted] == [FINAL]
