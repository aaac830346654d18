"""Trial runs of a model: which part is run, and with which batch, synthetic or given as an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError, one_line
from sepnorm.surgery import model_call
from sepnorm.surgery.families import (
    doubt_of,
    is_timm,
    is_torch_encoder,
    is_transformers,
    learns_cls,
    refuse_without_cls,
)
from sepnorm.surgery.opening.own_models import is_own


@dataclass(eq=False)
class Trial:
    """A part of a model that can be run alone, and a batch for it."""

    prefix: str  # dotted path of the part; empty for the whole model
    module: nn.Module
    inputs: Any
    samples: int = 3
    token_dim: int | None = None  # if known
    fallback: list[str] = field(default_factory=list)  # parts to try if this one does not run
    doubt: str = ""  # why the model is refused, unless the run gives a better reason
    assumed: bool = False  # [CLS] at the first position is an assumption: the synthetic batch made it constant

    @property
    def learnt(self) -> bool:
        """Whether [CLS] must come from a parameter with a known name."""
        return learns_cls(self.module)


def find_trial(model: nn.Module) -> Trial:
    """The only encoder of a known family in ``model``, with a batch for it; raises if there is none or several."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") or outer == "" for outer in found)
        if not inside and (is_transformers(module) or is_timm(module) or is_torch_encoder(module)):
            found[path] = module
    name = type(model).__name__
    if not found:
        raise SepNormError(
            f"{name} is of no family that sepnorm knows (transformers, timm, nn.TransformerEncoder): pass "
            "example=, a batch of at least two different samples, so that its [CLS] can be found by running it."
        )
    if len(found) > 1:
        raise SepNormError(
            f"{name} holds {len(found)} encoders ({', '.join(found)}): convert them one at a time, "
            f"as in convert(model.{next(iter(found))}, ...)."
        )
    path, module = next(iter(found.items()))
    if is_torch_encoder(module):
        if path:
            raise SepNormError(
                f"{name} holds an nn.TransformerEncoder ({path}), and only its own code knows where it puts a [CLS]: pass "
                "example=, a batch of at least two different samples in the form that the model takes."
            )
        return _torch_trial(module)
    refuse_without_cls(module)
    try:
        return _timm_trial(path, module) if is_timm(module) else _transformers_trial(path, module)
    except SepNormError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise SepNormError(
            f"no input could be made up for {type(module).__name__}, to find its [CLS] by running it ({one_line(error)}): pass "
            "example=, a batch of at least two different samples in the form that the model takes."
        ) from error


def _torch_trial(module: Any) -> Trial:
    layer = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    batch_first = bool(layer.self_attn.batch_first)
    weight = layer.linear1.weight
    x = torch.randn(3, 5, layer.self_attn.embed_dim, device=weight.device, dtype=weight.dtype)
    x[:, 0] = x[0, 0]
    return Trial("", module, (x if batch_first else x.transpose(0, 1),), token_dim=int(batch_first), assumed=True)


def _timm_trial(path: str, module: Any) -> Trial:
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    size = tuple(config.get("input_size", (3, 224, 224)))  # models built from their class have no config
    built = next((found for each in module.modules() if (found := getattr(each, "img_size", None)) is not None), None)
    if built is not None:
        size = (size[0], *(built if isinstance(built, tuple | list) else (built, built)))
    first = next((each for each in module.modules() if isinstance(each, nn.Conv2d)), None)
    if first is not None:
        size = (first.in_channels, *size[1:])
    return Trial(path, module, (_noise(module, *size),), token_dim=1)


def _transformers_trial(path: str, module: Any) -> Trial:
    parts = [inner for inner, each in module.named_modules() if inner and is_transformers(each)]
    config, main = module.config, module.main_input_name
    doubt = ""
    if is_own(module):
        inputs = module.dummy_inputs
    elif main == "pixel_values":
        size = config.image_size
        size = tuple(size) if isinstance(size, list | tuple) else (size, size)
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        inputs = {main: _noise(module, *frames, getattr(config, "num_channels", 3), *size)}
    elif main == "input_values" and hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        inputs = {main: _noise(module, config.max_length, config.num_mel_bins)}
    elif main == "input_ids":
        doubt = doubt_of(module)
        inputs = {main: _tokens(config, next(module.parameters()).device)}
    else:
        raise ValueError(f"its input is called {main}")
    return Trial(path, module, inputs, token_dim=1, fallback=parts, doubt=doubt)


def _noise(module: nn.Module, *shape: int) -> Tensor:
    weight = next(module.parameters())
    return torch.randn(3, *shape, device=weight.device, dtype=weight.dtype)


def _tokens(config: Any, device: torch.device) -> Tensor:
    """Three sequences of eight tokens without padding. The first token is the same in all and stands for [CLS]."""
    first = getattr(config, "cls_token_id", None) or getattr(config, "bos_token_id", None) or 1
    barred = {first, getattr(config, "pad_token_id", None)}
    usable = torch.tensor(
        [token for token in range(min(config.vocab_size, 1000)) if token not in barred], device=device
    )
    tokens = usable[torch.randint(len(usable), (3, 8), device=device)]
    tokens[:, 0] = min(first, config.vocab_size - 1)
    return tokens


def trial_of_example(model: nn.Module, example: Any) -> Trial:
    """A trial of the whole model with the user's example."""
    refuse_without_cls(model)
    if isinstance(example, list) and example and isinstance(example[0], Tensor):
        example = example[0]
    if isinstance(example, str) or (isinstance(example, list) and example and isinstance(example[0], str)):
        example = model_call.tokenised(model, [example] if isinstance(example, str) else example)
    if model_call.holds_graphs(example) and callable(collate := getattr(model, "collate", None)):
        example = collate(example)
    example = model_call.as_tensors(example, model)
    tensor = _first_tensor(example)
    if tensor is None:
        raise SepNormError(
            f"example is a batch as the model takes it, found {type(example).__name__} without a tensor."
        )
    layout = next((m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer)), None)
    token_dim = None
    samples = tensor.shape[0] if tensor.dim() else 0
    if tensor.dim() == 3 and tensor.is_floating_point() and layout is not None and not layout.self_attn.batch_first:
        token_dim, samples = 0, tensor.shape[1]
    batch = tensor if token_dim is None else tensor.transpose(0, 1)
    if samples < 2 or bool((batch == batch[:1]).all()):
        raise SepNormError(
            f"example needs at least two different samples to tell [CLS] from other tokens, found {samples}"
            + (" equal ones." if samples > 1 else ".")
        )
    return Trial("", model, _noisy(example), samples=samples, token_dim=token_dim)


def _noisy(example: Any) -> Any:
    """Adds a little noise to images: in many data sets the first patch is black in every sample."""
    if isinstance(example, Mapping):
        return {key: _noisy(value) for key, value in example.items()}
    if isinstance(example, tuple):
        return tuple(_noisy(value) for value in example)
    if isinstance(example, Tensor) and example.is_floating_point() and example.dim() >= 4:
        return example + torch.randn_like(example) * example.std().clamp(min=0.1)
    return example


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for found in map(_first_tensor, items) if found is not None), None)
