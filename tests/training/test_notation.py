"""How norms and sites are written, read without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sepnorm import SepNormError
from sepnorm.layer import kinds
from sepnorm.surgery import choice
from sepnorm.training import notation
from sepnorm.training.notation import check_sites, norm_name


def test_the_names_are_those_of_the_layer_and_of_the_sites():
    assert {name: kind.short for name, kind in kinds.KINDS.items()} == notation.KINDS
    assert choice.NAMES == notation.SITES


@pytest.mark.parametrize("text", ["ln", "bn", "bn+ln", "Batch + Layer", "rms", "bn+rms", "layer+dyt", "BN+BN"])
def test_a_norm_is_named_as_the_layer_names_it(text):
    assert norm_name(text) == str(kinds.NormSpec.parse(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bn-ln", "Did you mean 'bn\\+ln'"),
        ("bn_ln", "Did you mean 'bn\\+ln'"),
        ("bn/bn", "Did you mean 'bn\\+bn'"),
        ("batch layer", "Did you mean 'bn\\+ln'"),
        ("bm", "Did you mean 'bn'"),
        ("bn+lm", "unknown norm 'lm'.*Did you mean 'ln'"),
        ("", "written like"),
        ("bn+", "written like"),
        ("bn+ln+ln", "written like"),
    ],
)
def test_a_norm_that_is_none_gets_the_nearest(text, said):
    with pytest.raises(SepNormError, match=said):
        norm_name(text)


@pytest.mark.parametrize(
    ("text", "meant"), [("last", "final"), ("Final", "final"), ("fnal", "final"), ("block", "blocks"), ("every", "all")]
)
def test_sites_that_are_nearly_a_name_are_refused(text, meant):
    with pytest.raises(SepNormError, match=f"Did you mean '{meant}'"):
        check_sites(text)


@pytest.mark.parametrize(
    "text", ["all", "final", "blocks", "degenerate", "layernorm", "norm", "*.layernorm", "a.b", "final_norm"]
)
def test_names_of_sites_and_paths_are_left_as_they_are(text):
    assert check_sites(text) == text


def test_no_sites_are_refused():
    with pytest.raises(SepNormError, match="no sites were named"):
        check_sites(" ")


def test_settings_and_arms_are_read_without_torch():
    code = """
import sys
from sepnorm.domains import open_domain
from sepnorm.domains.comparison import parse_arms, plan
for name in ("images", "text", "molecules"):
    domain = open_domain(name)
    plan(domain, parse_arms(domain.arms), domain.settings(None, {}))
print(sorted({"torch", "transformers"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
