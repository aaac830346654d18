"""What the clients have in common: a converted, calibrated model, ten steps of training, and a batch to compare outputs on.

A client is a file ``client_LIBRARY.py`` with ``CASES``: by name, how a converted model is saved by the library's own means, and how
it is loaded. Loading imports sepnorm as a user would, unless the process was told to do without. Each process runs all cases:

    python tests/integrations/client.py LIBRARY write|read|without FOLDER
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
Out = Callable[[dict[str, Tensor]], Tensor]


class Case(NamedTuple):
    """``write`` saves below a folder and returns what the trained model gives; ``read`` does so for the model that it loads."""

    write: Callable[[Path], Out]
    read: Callable[[Path], Out]


def probe() -> dict[str, Tensor]:
    """The batch that outputs are compared on."""
    from models import sentences

    torch.manual_seed(7)
    return sentences()


def converted(norm: str = "bn+ln", sites: str = "final") -> nn.Module:
    """A small BERT, converted and calibrated."""
    from models import bert, sentences

    import sepnorm

    torch.manual_seed(0)
    model = bert()
    sepnorm.convert(model, norm, sites=sites, calibrate=[sentences() for _ in range(3)])
    return model


def train(model: nn.Module, steps: int = 10) -> None:
    """Ten steps towards smaller outputs, of [CLS] and of tokens."""
    from models import sentences

    torch.manual_seed(3)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    model.train()
    for _ in range(steps):
        model(**sentences()).last_hidden_state[:, :3].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def hidden(model: Any) -> Out:
    """The last hidden states that a model gives."""

    def out(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return model.eval()(**batch).last_hidden_state

    return out


class _Absent:
    """Makes sepnorm a package that is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "sepnorm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def observe(name: str, case: Case, what: str, folder: Path) -> dict[str, Any]:
    """One case in one of three ways: written, read, or read where there is no sepnorm."""
    place = folder / name.replace(" ", "-")
    if what == "write":
        place.mkdir(parents=True)
        torch.save(case.write(place)(probe()), place / "expected.pt")
        return {"done": True}
    try:
        found = case.read(place)(probe())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
    return {"distance": float((found - torch.load(place / "expected.pt")).abs().max())}


def main(library: str, what: str, folder: str) -> None:
    torch.set_num_threads(1)
    if what == "without":
        sys.meta_path.insert(0, _Absent())  # type: ignore[arg-type]
    elif what == "read":
        import sepnorm  # noqa: F401
    sys.path.insert(0, str(Path(__file__).parent))
    for name, case in importlib.import_module(f"client_{library}").CASES.items():
        print(json.dumps({"case": name, **observe(name, case, what, Path(folder))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
