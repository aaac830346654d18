"""``merge``: turns trained vectors of [CLS] into biases of its norms, where this is exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import SepNormError
from sepnorm.layer import SepNorm, TokenNorm
from sepnorm.layer.kinds import NormSpec
from sepnorm.surgery.config_trace import write_trace
from sepnorm.surgery.conversion import convert
from sepnorm.surgery.replacement import build_layer, replace_modules, settle
from sepnorm.surgery.reports import ConversionReport
from sepnorm.surgery.sites import Site
from sepnorm.tuning.layers import Layers, find_layers
from sepnorm.tuning.special_tokens import SpecialTokens
from sepnorm.tuning.tuning import remove, require_special


def merge(model: nn.Module, example: Any = None) -> ConversionReport | None:
    """Merges the vectors of the set in use into the norms, and removes all sets. Changes the model in place.

    In a post-norm encoder the input of a layer is the output of a norm. There, a vector added at [CLS] equals a bias of
    the [CLS] norm of an ``ln+ln`` conversion; for the first layer this is the norm of the embeddings. What the model
    returns in evaluation does not change, for batches with [CLS] first; padding on the left raises. ``hidden_states``,
    if you ask for them, can: the output of one layer now holds the vector at [CLS] that the next layer added before,
    because the norm adds it. The last is as it was. A model that computes its output from the others is refused.

    Args:
        model: a model with special vectors. If it is already converted, its [CLS] norms take the vectors, and plain
            LayerNorms among them become ``ln+ln`` first.
        example: a batch of at least two different samples, as for ``tune_special``. Needed also for modules around an
            encoder of a known family, to see that they read its last hidden state alone.

    Returns:
        The report of the conversion; None if the model was already converted.

    Raises:
        SepNormError: if merging would not be exact, as in pre-norm encoders or with vectors of [SEP]. The model is
            unchanged then.
    """
    special = require_special(model)
    vectors, kind = _of_cls(special)
    name, special.in_use = str(special.in_use), None
    try:
        layers = find_layers(model, example)
        _require_whole_run(model, layers)
        sites = _norms(model, layers)
        probe = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0)).to(vectors)
        with _moved(sites, probe):
            found = find_layers(model, example)
        special.in_use = name
        with _replaced(special.vectors(name), probe, kind):
            expected = find_layers(model, example)
    finally:
        special.in_use = name
    _require_alike(found, expected)
    remove(model)
    report = None
    plain = {site.path: site for site in sites if not isinstance(site.module, SepNorm)}
    if not any(isinstance(module, TokenNorm) for module in model.modules()):
        report = convert(model, "ln+ln", sites=lambda site: site.path in plain, example=example)
    elif plain:  # a conversion leaves degenerate norms, and those that it was not asked for
        replace_modules(
            model, {id(s.module): build_layer(NormSpec("layer", "layer"), s, 1, {}) for s in plain.values()}
        )
        settle(model)
        write_trace(model)
    with torch.no_grad():
        for site, vector in zip(sites, vectors, strict=True):
            norm: Any = model.get_submodule(site.path).get_submodule("cls_norm")
            norm.bias.add_(vector)
    return report


@contextmanager
def _moved(sites: list[Site], vectors: Tensor) -> Iterator[None]:
    """Adds vectors to the outputs of norms at [CLS], within this context."""

    def add(token_dim: int, vector: Tensor, output: Tensor) -> Tensor:
        added = torch.zeros_like(output)
        added.select(token_dim, 0).copy_(vector.expand_as(added.select(token_dim, 0)))
        return output + added

    handles = [
        site.module.register_forward_hook(lambda module, args, output, s=site, v=vector: add(s.token_dim, v, output))
        for site, vector in zip(sites, vectors, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _replaced(parameter: nn.Parameter, probe: Tensor, kind: int) -> Iterator[None]:
    """Uses other vectors for one kind of token, within this context."""
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter[:, kind] = probe
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(before)


def _require_whole_run(model: nn.Module, layers: Layers) -> None:
    """Raises if only an encoder in the model was run: what is around it may read other hidden states than the last."""
    if layers.run.path:
        raise SepNormError(
            f"the vectors cannot be merged: only {layers.run.path} was run, and the rest of {type(model).__name__} may read other "
            "hidden states than the last. Pass example=, a batch of at least two different samples, as the model takes it."
        )


def _require_alike(found: Layers, expected: Layers) -> None:
    """Raises if a bias in a norm has another effect than a vector before a layer: its output is also used elsewhere.

    The vectors are random and of the size of a norm's output. Those of training can be small enough to hide it.
    """
    pairs = [
        *zip(found.run.returned, expected.run.returned, strict=True),
        *zip(found.calls[-1].outputs, expected.calls[-1].outputs, strict=True),
    ]
    if not all(_alike(one, other) for one, other in pairs):
        raise SepNormError(
            "the vectors cannot be merged: what a norm before a layer gives is also used elsewhere in the model, so that a bias "
            "there changes more. Keep the vectors."
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    size = float(other.detach().nan_to_num(0, 0, 0).abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=max(1e-5, 4 * torch.finfo(other.dtype).eps) * size, equal_nan=True)


def _of_cls(special: SpecialTokens) -> tuple[Tensor, int]:
    """The vectors of [CLS] (layers, width), and the number of this kind; raises if other tokens have nonzero vectors."""
    if not isinstance(special.in_use, str):
        raise SepNormError(
            f"one set can be merged, and in use is {special.in_use}: choose it by model.set_special(NAME)."
        )
    vectors = special.vectors(special.in_use).detach()
    cls = next((number for number, kind in enumerate(special.kinds) if kind.name == "cls"), None)
    others = [
        kind.name for number, kind in enumerate(special.kinds) if number != cls and bool(vectors[:, number].any())
    ]
    if cls is None or others:
        raise SepNormError(
            f"only vectors of [CLS] can be merged, and {special.in_use!r} has some of {', '.join(others) or 'other tokens'}, which "
            "have no norm of their own. Train with tokens='cls'."
        )
    return vectors[:, cls].clone(), cls


def _norms(model: nn.Module, layers: Layers) -> list[Site]:
    """The norm before each layer; raises if one is missing or has no bias for [CLS] alone."""
    found = []
    for call, site in zip(layers.calls, layers.norms_before(), strict=True):
        if site is None:
            raise SepNormError(
                f"the vectors cannot be merged: {call.path} of {type(model).__name__} is not handed the output of a norm as it "
                "is, as in a pre-norm encoder, so that no bias has the same effect. Keep the vectors."
            )
        found.append(site)
    twice = next((site for site in found if found.count(site) > 1), None)
    if twice is not None:
        raise SepNormError(
            f"the vectors cannot be merged: {twice.path} comes before several layers, which have one bias each."
        )
    for site in found:
        separate = isinstance(site.module, SepNorm) and site.module.num_cls == 1
        norm: Any = site.module.cls_norm if separate else site.module
        if not (separate or site.kind == "layer") or getattr(norm, "bias", None) is None:
            raise SepNormError(
                f"the vectors cannot be merged: {site.path} has no bias for [CLS] alone. LayerNorms can be merged, and separate "
                "norms of one [CLS], if they have a bias."
            )
    return found
