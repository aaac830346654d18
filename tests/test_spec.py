from __future__ import annotations

import pytest
from torch import nn

from sepnorm import SepNormError
from sepnorm.spec import KINDS, NormSpec, build_norm


@pytest.mark.parametrize("text", ["ln", "bn", "rms", "bn+ln", "bn+bn", "ln+bn", "ln+ln", "bn+rms", "rms+rms"])
def test_what_is_read_is_written(text):
    assert str(NormSpec.parse(text)) == text
    assert str(NormSpec.parse(f" {text.upper()} ")) == text


def test_long_names_and_places():
    spec = NormSpec.parse("batch+layer")
    assert (spec.cls, spec.tokens) == ("batch", "layer")
    assert NormSpec.parse(spec) is spec
    assert NormSpec.parse("ln").cls is None
    assert NormSpec.parse("ln+bn").uses_batch
    assert not NormSpec.parse("ln+ln").uses_batch


def test_every_kind_builds():
    for kind in KINDS:
        assert isinstance(build_norm(kind, 4, eps=1e-5, momentum=0.1, affine=True), nn.Module)


@pytest.mark.parametrize("text", ["xx", "bn+", "+ln", "bn++ln", "a+b+c", "", None, 7])
def test_nonsense_is_refused(text):
    with pytest.raises(SepNormError):
        NormSpec.parse(text)
