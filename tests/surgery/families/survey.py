"""Looks at every tiny model of the zoo: which norm ``convert`` takes for the last, and which one is, found without sepnorm.

    python tests/surgery/families/survey.py transformers
    python tests/surgery/families/survey.py timm FOLDER

Prints one JSON object a line. ``test_what_works.py`` judges them; ``docs/results/what_works.py`` makes a table of them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))


def last_norm(model: nn.Module, encoded: Callable[[], Tensor]) -> str | None:
    """The norm that [CLS] passes last beside other tokens before it leaves the encoder, by hooks and autograd alone.

    ``encoded`` runs the model and gives what leaves the encoder at [CLS], (batch, channels).
    """
    calls: list[tuple[str, Tensor]] = []
    hooks = []
    for path, module in model.named_modules():
        if type(module).__name__.endswith("Norm") and not list(module.children()):
            hooks.append(module.register_forward_hook(lambda m, args, out, path=path: calls.append((path, out))))
    with torch.enable_grad():
        cls = encoded()
        for hook in hooks:
            hook.remove()
        beside = [(path, out) for path, out in calls if out.dim() == 3 and len(out) == len(cls) and out.shape[1] > 1]
        total = (cls * torch.randn_like(cls)).sum()
        grads = torch.autograd.grad(total, [out for _, out in beside], allow_unused=True)
    passed = [path for (path, _), grad in zip(beside, grads, strict=True) if grad is not None and grad[:, 0].any()]
    return passed[-1] if passed else None


def moves(model: nn.Module, path: str, output: Callable[[], Tensor]) -> bool:
    """Whether the model's output is another one when what leaves a norm at [CLS] is another vector."""

    def spoil(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[:, 0] = torch.randn(out.shape[2], generator=torch.Generator().manual_seed(2))
        return out

    with torch.no_grad():
        torch.manual_seed(3)  # masked autoencoders draw a mask
        before = output()
        hook = model.get_submodule(path).register_forward_hook(spoil)
        torch.manual_seed(3)
        after = output()
        hook.remove()
    return not torch.equal(before, after)


def taken(model: nn.Module) -> dict[str, Any]:
    """What ``convert`` makes of the model."""
    import sepnorm

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = sepnorm.convert(model, "ln+ln")  # changes no output
        except Exception as error:
            return {"refused": str(error), "kind": type(error).__name__}
    said = [str(each.message) for each in caught if issubclass(each.category, sepnorm.SepNormWarning)]
    return {"final": [site.path for site in report.converted], "notes": report.notes, "warned": said}


# ---- transformers -------------------------------------------------------------------------------------------------------


def inputs_of(model: Any, batch: int = 4) -> dict[str, Tensor]:
    config, main = model.config, model.main_input_name
    generator = torch.Generator().manual_seed(1)
    if main == "input_ids":
        ids = torch.randint(5, config.vocab_size, (batch, 9), generator=generator)
        ids[:, 0] = 2
        return {main: ids}
    if main == "input_values":
        return {main: torch.randn(batch, config.max_length, config.num_mel_bins, generator=generator)}
    size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    frames = [config.num_frames] if hasattr(config, "num_frames") else []
    return {main: torch.randn(batch, *frames, 3, *size, generator=generator)}


def last_hidden_state(model: Any) -> Tensor:
    """[CLS] of what the last module that returns a ``last_hidden_state`` returns: that of the encoder, whatever is behind it."""
    states: list[Tensor] = []
    hooks = [
        module.register_forward_hook(
            lambda m, args, out: states.append(out.last_hidden_state) if hasattr(out, "last_hidden_state") else None
        )
        for module in model.modules()
    ]
    model(**inputs_of(model))
    for hook in hooks:
        hook.remove()
    return states[-1][:, 0]


def first_output(model: Any) -> Tensor:
    """The logits, or the last hidden state: the first tensor that a model returns for each sample."""
    found: Tensor = next(
        each for each in model(**inputs_of(model)).values() if isinstance(each, Tensor) and each.dim() > 1
    )
    return found


def of_transformers() -> Iterator[dict[str, Any]]:
    import transformers
    from zoo import ZOO

    transformers.utils.logging.set_verbosity_error()
    for name, build in ZOO.items():
        torch.manual_seed(0)
        model = build().eval()
        row = {"library": "transformers", "name": name, "class": type(model).__name__, **taken(build().eval())}
        if "final" in row or "is called in two ways" in row["refused"]:
            row["passed"] = last_norm(model, lambda model=model: last_hidden_state(model))
        if "final" in row:
            row["moved"] = moves(model, row["final"][0], lambda model=model: first_output(model))
        yield row


# ---- timm ---------------------------------------------------------------------------------------------------------------


def of_timm(folder: str) -> Iterator[dict[str, Any]]:
    from timm_folder import import_timm
    from zoo_timm import timm_zoo

    for name, build in timm_zoo(import_timm(folder)).items():
        torch.manual_seed(0)
        model = build().eval()
        row = {"library": "timm", "name": name, "class": type(model).__name__, **taken(build().eval())}
        if "final" in row:
            pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
            row["passed"] = last_norm(model, lambda model=model, pixels=pixels: model.forward_features(pixels)[:, 0])
            row["moved"] = moves(model, row["final"][0], lambda model=model, pixels=pixels: model(pixels))
        yield row


if __name__ == "__main__":
    torch.set_num_threads(1)
    for found in of_transformers() if sys.argv[1] == "transformers" else of_timm(sys.argv[2]):
        print(json.dumps(found), flush=True)
