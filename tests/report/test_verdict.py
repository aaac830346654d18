from __future__ import annotations

import pytest
import torch
from models import bert, sentences

import sepnorm
from sepnorm.geometry import summary
from sepnorm.report.verdict import ILLNESSES, LEVELS, judge


def cloud(name: str, n: int = 600, dim: int = 32) -> torch.Tensor:
    x = torch.randn(n, dim)
    low = torch.randn(n, 3) @ torch.randn(3, dim)
    if name in ("loud spread", "loud and shifted"):
        x[:, 7] *= 60
    if name == "loud mean":
        x[:, 7] += 40
    return {
        "low rank": low + 0.01 * x,
        "on few axes": torch.cat([x[:, :3], torch.zeros(n, dim - 3)], 1),
        "shifted": x + 3,
        "shifted one way": x + 4 * torch.randn(dim),
        "narrow": 1 + 0.05 * x,
        "duplicates": x[torch.randint(n // 8, (n,))],
        "nearly duplicates": x[torch.randint(n // 8, (n,))] + 1e-7 * torch.randn(n, dim),
        "shifted and low rank": low + 6,
        "loud and shifted": x + 60,
        "line": torch.randn(n, 1) * torch.randn(1, dim),
        "constant": torch.ones(n, dim),
    }.get(name, x)


@pytest.mark.parametrize("dim", [32, 200])
@pytest.mark.parametrize(
    ("name", "illnesses"),
    [
        ("healthy", []),
        ("shifted", ["off-centre"]),
        ("shifted one way", ["off-centre"]),
        ("narrow", ["off-centre"]),
        ("low rank", ["few dimensions"]),
        ("on few axes", ["few dimensions"]),
        ("line", ["few dimensions"]),
        ("loud spread", ["loud dimensions"]),
        ("loud mean", ["loud dimensions"]),
        ("duplicates", ["duplicates"]),
        ("nearly duplicates", ["duplicates"]),
        ("shifted and low rank", ["off-centre", "few dimensions"]),
        ("loud and shifted", ["off-centre", "loud dimensions"]),
        ("constant", ["off-centre", "few dimensions", "duplicates"]),
    ],
)
def test_made_clouds_have_the_illnesses_they_were_made_with(name, illnesses, dim):
    verdict = judge(summary(cloud(name, dim=dim)), target="x.npy")
    assert verdict.illnesses == illnesses
    ill = [sign for sign in verdict.signs if sign.level != "healthy"]
    assert [sign.illness for sign in verdict.signs] == list(ILLNESSES)
    assert verdict.level == max((sign.level for sign in ill), key=LEVELS.index, default="healthy")
    assert verdict.title == (f"{verdict.level}: {', '.join(illnesses)}" if illnesses else "healthy")


def test_what_a_linear_map_undoes_is_no_collapse():
    for name in ("shifted", "narrow", "loud spread", "loud mean"):
        assert judge(summary(cloud(name)), target="x.npy").level == "partly collapsed"
    for name in ("line", "constant", "duplicates"):
        assert judge(summary(cloud(name)), target="x.npy").level == "collapsed"


def test_an_encoder_whose_mean_alone_is_off_is_not_called_collapsed():
    """As shared `ln` on digits: mean cosine above 0.9 with a centred rank that is no lower than that of `bn+bn`."""
    spread = torch.randn(500, 64) * torch.linspace(1, 0.1, 64)
    off, on = judge(summary(spread + 4), target="ln"), judge(summary(spread), target="bn+bn")
    assert off.illnesses == ["off-centre"] and on.illnesses == []
    assert off.signs[1].value == pytest.approx(on.signs[1].value, rel=1e-5)


def test_the_reason_has_the_figures():
    assert (
        "after centring they fill about 3 of 32 dimensions"
        in judge(summary(cloud("low rank")), target="x").reason.lower()
    )
    assert "cosine of 0.90 on average, because they share a mean" in judge(summary(cloud("shifted")), target="x").reason
    assert "Dimension 7 alone holds 9" in judge(summary(cloud("loud spread")), target="x").reason


def test_advice_fits_the_case_and_never_promises_a_score():
    assert "no collapse to repair" in judge(summary(cloud("healthy")), target="x.npy").advice[0]
    words = {
        "shifted": "Subtract the mean",
        "low rank": "Whitening",
        "loud mean": "Dimension 7 alone carries",
        "duplicates": "equal vectors",
    }
    for name, word in words.items():
        advice = judge(summary(cloud(name)), target="x.npy").advice
        assert word in advice[0]
        assert any("not a better score" in line for line in advice)
        assert any("sepnorm heal x.npy" in line for line in advice) == (name != "duplicates")


def test_few_dimensions_are_not_called_collapsed_for_being_few():
    x = torch.randn(500, 2)
    assert judge(summary(x), target="x.npy").level == "healthy"


def test_the_layer_where_it_begins_is_named_and_a_command_given():
    model = bert()
    layers = sepnorm.inspect(model, [sentences(32)])
    for site, cosine in zip(layers.sites, (1.0, 0.1, 0.2, 0.7, 0.8), strict=True):
        site.after.cls.cosine = cosine
    verdict = judge(summary(cloud("shifted")), target="my/model", data="lines.txt", layers=layers)
    assert "It begins at encoder.layer.1.attention.output.LayerNorm" in verdict.reason
    assert any(
        "sepnorm convert my/model --norm bn+ln --sites final --data lines.txt --out" in line for line in verdict.advice
    )
    layers.sites[1].after.cls.cosine = layers.sites[2].after.cls.cosine = 0.9
    verdict = judge(summary(cloud("shifted")), target="my/model", data="lines.txt", layers=layers)
    assert "this similar already at encoder.layer.0" in verdict.reason


def test_a_converted_model_is_told_of_its_statistics_and_not_to_convert_again():
    model = bert()
    data = [sentences(32)]
    sepnorm.convert(model, "bn+ln", calibrate=data, sites="all")
    final = model.get_submodule("encoder.layer.1.output.LayerNorm")
    final.cls_norm.running_mean += 5
    verdict = judge(summary(cloud("shifted")), target="m", data="d", layers=sepnorm.inspect(model, data))
    text = " ".join(verdict.advice)
    assert "encoder.layer.1.output.LayerNorm" in text and "sepnorm.calibrate" in text
    assert "sepnorm convert" not in text


def test_no_cosine_is_said_to_be_above_1():
    reason = judge(summary(1 + 0.001 * torch.randn(600, 32)), target="x.npy").reason
    assert "99 % of pairs are above 0.99" in reason


def test_tokens_that_are_far_longer_than_others_are_pointed_out():
    layers = sepnorm.inspect(bert(), [sentences(32)])
    assert all(site.tokens.high_norm == 0 for site in layers.sites)
    layers.sites[2].tokens.high_norm = 0.02
    advice = judge(summary(cloud("healthy")), target="m", data="d", layers=layers).advice
    assert "2.0% of the tokens are more than three times" in advice[0] and layers.sites[2].path in advice[0]
    assert "2.0%" in str(layers)
