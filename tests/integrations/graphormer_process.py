"""The Graphormer of transformers 4, from a folder of its own: makes checkpoints and their outputs, or reads what sepnorm wrote.

python tests/integrations/graphormer_process.py PACKAGES write|read FOLDER

FOLDER has ``cases.json`` (settings of each model and how it is saved) and ``graphs.json`` (batches of graphs). ``write`` saves
each model there, with ``NAME.pt``: the real collator's tensors and what the model makes of them. ``read`` opens the folders
``NAME-back``, and prints for each the largest difference in weights and in outputs; then ``microsoft``, and keeps what it makes
of the tensors for ``ogb`` in ``microsoft.pt``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import torch
import transformers
from transformers import GraphormerConfig, GraphormerForGraphClassification, GraphormerModel
from transformers.models.graphormer.collating_graphormer import GraphormerDataCollator

assert transformers.__version__.startswith("4."), transformers.__version__


def batch_of(graphs: list[dict]) -> dict[str, torch.Tensor]:
    """By the real collator. A salt makes it pad paths to 510 bonds: no model here looks at more than the first ten."""
    batch = GraphormerDataCollator(on_the_fly_processing=True)(graphs)
    return batch | {"input_edges": batch["input_edges"][:, :, :, :10].clone()}


def outputs(model: torch.nn.Module, batch: dict) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found = model(**{key: value for key, value in batch.items() if key != "labels"})
    last = model.encoder(**batch) if hasattr(model, "encoder") else found
    return {"hidden": last.last_hidden_state.detach()} | ({"logits": found.logits} if "logits" in found else {})


def write(folder: Path, name: str, case: dict, batches: list[dict]) -> None:
    torch.manual_seed(0)
    cls = GraphormerForGraphClassification if case["head"] else GraphormerModel
    model = cls(GraphormerConfig(**case["settings"])).eval()
    for module in model.modules():  # as far from their initial values as a trained model's, rows of padding too
        scale = module.in_features**-0.5 if isinstance(module, torch.nn.Linear) else 0.2
        for value in module.parameters(recurse=False):
            value.data += scale * torch.randn_like(value)
    model.save_pretrained(folder / name, safe_serialization=case["safetensors"])
    torch.save({"batches": batches, "outputs": [outputs(model, batch) for batch in batches]}, folder / f"{name}.pt")


def read(folder: Path, name: str, case: dict) -> dict[str, float]:
    cls = GraphormerForGraphClassification if case["head"] else GraphormerModel
    old, new = (cls.from_pretrained(folder / place).eval() for place in (name, f"{name}-back"))
    weights = new.state_dict()
    seen = {"weights": max(float((value - weights[key]).abs().max()) for key, value in old.state_dict().items())}
    kept = torch.load(folder / f"{name}.pt", weights_only=True)
    found = [outputs(new, batch) for batch in kept["batches"]]
    pairs = [(one[key], other[key]) for one, other in zip(found, kept["outputs"], strict=True) for key in other]
    return seen | {"outputs": max(float((one - other).abs().max()) for one, other in pairs)}


def read_microsofts(folder: Path, name: str) -> None:
    model = GraphormerForGraphClassification.from_pretrained(folder / "microsoft").eval()
    kept = torch.load(folder / f"{name}.pt", weights_only=True)
    torch.save([outputs(model, batch)["logits"] for batch in kept["batches"]], folder / "microsoft.pt")


def main(what: str, folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    if what == "read":
        read_microsofts(folder, next(name for name, case in cases.items() if case["graphs"] == "ogb"))
        print(json.dumps({name: read(folder, name, case) for name, case in cases.items()}))
        return
    kinds = {case["graphs"] for case in cases.values()}
    batches = {kind: [batch_of(each) for each in json.loads((folder / f"{kind}.json").read_text())] for kind in kinds}
    for name, case in cases.items():
        write(folder, name, case, batches[case["graphs"]])


if __name__ == "__main__":
    main(sys.argv[2], Path(sys.argv[3]))
