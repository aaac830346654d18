from __future__ import annotations

import pytest
import torch
from models import bert, sentences

import sepnorm
from sepnorm.geometry import summary
from sepnorm.report.verdict import judge


def cloud(name: str, n: int = 600, dim: int = 32) -> torch.Tensor:
    x = torch.randn(n, dim)
    if name == "rank":
        return torch.randn(n, 3) @ torch.randn(3, dim)
    if name == "cone":
        return 1 + 0.1 * x
    if name == "wide cone":
        return 1 + 0.8 * x
    if name == "line":
        return torch.randn(n, 1) * torch.randn(1, dim)
    if name == "rogue":
        x[:, 7] += 20
    return x


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("isotropic", "healthy"),
        ("rank", "partly collapsed"),
        ("wide cone", "partly collapsed"),
        ("cone", "collapsed"),
        ("line", "collapsed"),
        ("rogue", "collapsed"),
    ],
)
def test_levels(name, level):
    verdict = judge(summary(cloud(name)), target="x.npy")
    assert verdict.level == level
    assert max(["healthy", "partly collapsed", "collapsed"].index(sign.level) for sign in verdict.signs) == [
        "healthy",
        "partly collapsed",
        "collapsed",
    ].index(level)


def test_every_sign_decides_by_itself():
    rank = judge(summary(cloud("rank")), target="x.npy")
    assert [sign.level for sign in rank.signs] == ["healthy", "healthy", "partly collapsed"]
    assert "fill about 3 of 32 dimensions" in rank.reason
    cone = judge(summary(cloud("wide cone")), target="x.npy")
    assert [sign.level for sign in cone.signs] == ["partly collapsed", "partly collapsed", "healthy"]
    assert "cosine of 0.61 on average" in cone.reason


def test_advice_fits_the_case():
    assert "no collapse to repair" in judge(summary(cloud("isotropic")), target="x.npy").advice[0]
    offset = " ".join(judge(summary(cloud("cone")), target="x.npy").advice)
    assert "subtract the mean" in offset and "sepnorm diagnose MODEL" in offset
    rogue = judge(summary(cloud("rogue")), target="x.npy").advice[0]
    assert rogue.startswith("Dimension 7 alone carries 100%") and "standardise" in rogue


def test_few_dimensions_are_not_called_collapsed_for_being_few():
    x = torch.randn(500, 2)
    assert judge(summary(x), target="x.npy").level == "healthy"


def test_the_layer_where_it_begins_is_named_and_a_command_given():
    model = bert()
    layers = sepnorm.inspect(model, [sentences(32)])
    for site, cosine in zip(layers.sites, (1.0, 0.1, 0.2, 0.7, 0.8), strict=True):
        site.after.cls.cosine = cosine
    verdict = judge(summary(cloud("cone")), target="my/model", data="lines.txt", layers=layers)
    assert "It begins at encoder.layer.1.attention.output.LayerNorm" in verdict.reason
    assert any(
        "sepnorm convert my/model --norm bn+ln --sites final --data lines.txt --out" in line for line in verdict.advice
    )
    layers.sites[1].after.cls.cosine = layers.sites[2].after.cls.cosine = 0.9
    verdict = judge(summary(cloud("cone")), target="my/model", data="lines.txt", layers=layers)
    assert "from the first norm that sees different [CLS], encoder.layer.0" in verdict.reason


def test_a_converted_model_is_told_of_its_statistics_and_not_to_convert_again():
    model = bert()
    data = [sentences(32)]
    sepnorm.convert(model, "bn+ln", calibrate=data, sites="all")
    final = model.get_submodule("encoder.layer.1.output.LayerNorm")
    final.cls_norm.running_mean += 5
    verdict = judge(summary(cloud("cone")), target="m", data="d", layers=sepnorm.inspect(model, data))
    text = " ".join(verdict.advice)
    assert "encoder.layer.1.output.LayerNorm" in text and "sepnorm.calibrate" in text
    assert "sepnorm convert" not in text
