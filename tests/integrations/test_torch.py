"""What torch itself does to a model: traced, exported, compiled, quantised, with weights that are functions of others."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as T
from models import bert, sentences, text_model
from torch import nn
from torch.nn.utils import parametrize

import sepnorm
from sepnorm import SepNorm, SepNormError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), SepNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block()


def test_fx_takes_the_layer_as_a_leaf_and_says_so(block):
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, SepNorm) or super().is_leaf_module(module, name)

    with pytest.raises(SepNormError, match=r"torch.fx cannot trace a SepNorm.*is_leaf_module"):
        torch.fx.symbolic_trace(block)
    traced, x = torch.fx.GraphModule(block, Tracer().trace(block)), torch.randn(4, 3, 8)
    assert torch.equal(traced.eval()(x), block.eval()(x))


def test_an_exported_model_gives_the_same(block):
    x = torch.randn(4, 3, 8)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(block.eval(), (x,), dynamic_shapes=({0: batch},))
    other = torch.randn(7, 3, 8)
    torch.testing.assert_close(program.module()(other), block(other), rtol=0, atol=1e-6)


def test_int8_weights_leave_the_norms_as_they_are():
    model = bert()
    sepnorm.convert(model, "bn+ln", calibrate=[sentences(), sentences()])
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    batch = sentences()
    wanted, found = (each(**batch).last_hidden_state for each in (model, small))
    assert isinstance(small.encoder.layer[1].output.LayerNorm, SepNorm)
    assert 0 < (wanted - found).abs().max() < 0.05


@pytest.mark.slow
def test_int8_weights_of_an_exported_model_leave_the_norms_as_they_are(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnxruntime.quantization import quantize_dynamic

    text_model(tmp_path / "model")
    model = T.AutoModel.from_pretrained(tmp_path / "model")
    sepnorm.convert(model, "bn+ln", calibrate=[sentences(), sentences()])
    model.save_pretrained(tmp_path / "model")
    code, _, problem = run("export", "model", "--out", "whole.onnx")
    assert code == 0, problem
    quantize_dynamic("whole.onnx", "int8.onnx")
    ids = torch.randint(5, 18, (4, 7)).numpy()
    batch = {"input_ids": ids, "attention_mask": ids * 0 + 1}
    wanted, found = (onnxruntime.InferenceSession(f"{name}.onnx").run(None, batch)[0] for name in ("whole", "int8"))
    assert 0 < abs(wanted - found).max() < 0.1


def test_weights_that_are_functions_of_others_are_trained(block):
    class Positive(nn.Module):
        def forward(self, raw: torch.Tensor) -> torch.Tensor:
            return raw.exp()

    for norm in (block.norm.cls_norm, block.norm.token_norm):
        parametrize.register_parametrization(norm, "weight", Positive())
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    block.double().train()(x).square().sum().backward()
    for norm in (block.norm.cls_norm, block.norm.token_norm):
        raw = norm.parametrizations.weight.original
        assert raw.grad is not None and raw.grad.abs().max() > 0
    h = block.linear(x)
    cls = (h[:, 0] - h[:, 0].mean(0)) / (h[:, 0].var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(block(x)[:, 0], cls * torch.e, rtol=0, atol=1e-9)


def test_update_bn_measures_statistics_anew(block):
    data = [torch.randn(16, 3, 8) + 3 for _ in range(4)]
    torch.optim.swa_utils.update_bn(data, block)
    rows = block.linear(torch.cat(data))[:, 0]
    torch.testing.assert_close(block.norm.cls_norm.running_mean, rows.mean(0), rtol=0, atol=1e-5)


def test_statistics_that_torch_synchronises_are_saved_and_loaded(tmp_path):
    model = bert()
    sepnorm.convert(model, "bn+bn", calibrate=[sentences(), sentences()])
    other = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    batch = sentences()
    sepnorm.save(other, tmp_path)
    wanted = model.eval()(**batch).last_hidden_state
    for each in (other.eval(), sepnorm.load(tmp_path)):
        assert torch.equal(each(**batch).last_hidden_state, wanted)
