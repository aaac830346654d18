"""Every kind of model of transformers that can be converted comes back by transformers' own means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import sepnorm

sys.path.insert(0, str(Path(__file__).parents[1] / "surgery/families"))
from survey import first_output, inputs_of
from zoo import ZOO


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sepnorm.SepNormWarning")
@pytest.mark.parametrize("name", ZOO)
def test_it_is_loaded_as_it_was_saved(name, tmp_path):
    torch.manual_seed(0)
    model = ZOO[name]()
    try:
        sepnorm.convert(model, "bn+ln", sites="all")
    except sepnorm.SepNormError:
        pytest.skip("it cannot be converted: see what-works.md")
    with torch.no_grad():
        model.train()(**inputs_of(model))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert loaded.config.quantization_config == model.config.quantization_config
    outputs = []
    for one in (loaded, model):
        torch.manual_seed(1)  # some leave patches out at random
        outputs.append(first_output(one.eval()))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
