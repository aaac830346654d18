"""Calls a model with a batch, in any of the forms that data loaders produce."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.errors import MisfitError, SepNormError, is_of_memory, one_line

Batch = Any
_GRAPHS = 64  # graphs of a data set per batch


def run(model: nn.Module, batch: Batch) -> Any:
    """Calls ``model`` with a batch, moved to the model's device.

    Args:
        model: any torch module.
        batch: a mapping is passed as keyword arguments, a tuple as positional arguments, a tensor or other object (such
            as a ``Batch`` of PyG) as the only argument. Of a list with tensors, which a ``DataLoader`` makes of (input,
            label) pairs, only the first item is passed; a list of other objects, such as graphs, is passed whole.
            Sentences go through the tokeniser of a ``SentenceTransformer``. NumPy arrays become tensors.

    Returns:
        The output of the model.

    Raises:
        SepNormError: if the model cannot be called with this batch.

    >>> run(torch.nn.Identity(), [torch.zeros(2, 3), torch.tensor([0, 1])]).shape
    torch.Size([2, 3])
    """
    try:
        return call(model, batch)
    except SepNormError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_of_memory(error):
            raise
        raise MisfitError(
            f"{type(model).__name__} could not be called with this batch ({_shape(batch)}): {one_line(error)}. A mapping is given "
            "as keyword arguments, a tuple as positional arguments, a tensor as the only one."
        ) from error


def call(model: nn.Module, batch: Batch) -> Any:
    """Like ``run``, for batches that sepnorm made: exceptions of the model are not wrapped."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(batch, str) or (isinstance(batch, list | tuple) and batch and isinstance(batch[0], str)):
        batch = (tokenised(model, [batch] if isinstance(batch, str) else list(batch)),)
    elif isinstance(batch, list):
        if not batch:
            raise SepNormError("an empty list is no batch: give a tensor, a tuple, or a mapping of arguments.")
        batch = batch[0] if any(map(_is_input, batch)) else (batch,)
    batch = as_tensors(batch, model)
    if not isinstance(batch, Mapping | tuple):
        batch = (batch,)
    if isinstance(batch, Mapping) and _takes_features(model):
        batch = (dict(batch),)
    batch = _to(batch, device)
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def batches(data: Iterable[Batch] | Batch) -> Iterator[Batch]:
    """The batches of ``data``: an iterable of batches, or a single one as a tensor, array, mapping or ``Batch`` of PyG.

    A data set of PyG is cut into batches.
    """
    if isinstance(data, Tensor | Mapping) or _is_array(data) or is_graph(data):
        yield data
    elif is_graph_set(data):
        graphs: Any = data
        yield from (graphs[start : start + _GRAPHS] for start in range(0, len(graphs), _GRAPHS))
    elif isinstance(data, Iterable) and not isinstance(data, str):
        yield from data
    else:
        raise SepNormError(f"data is an iterable of batches, found {type(data).__name__}.")


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and a protected random state within this context; modes of modules are restored after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def as_tensors(batch: Batch, model: nn.Module) -> Batch:
    """A batch with NumPy arrays and, in a mapping or tuple, lists of numbers turned into tensors.

    Floating-point numbers take the dtype of the model, since NumPy's default is double precision.
    """
    if isinstance(batch, Tensor):
        return batch
    if _is_array(batch):
        return _tensor(batch, model, "the batch")
    if isinstance(batch, Mapping):
        return {
            key: _tensor(value, model, key) if _is_array(value) or isinstance(value, list) else value
            for key, value in batch.items()
        }
    if isinstance(batch, tuple):
        return tuple(
            _tensor(value, model, f"item {i}") if _is_array(value) or isinstance(value, list) else value
            for i, value in enumerate(batch)
        )
    return batch


def is_graph_set(data: Any) -> bool:
    """Whether this is a data set of PyG. It has ``edge_index`` too: that of all its graphs, joined."""
    return all(callable(getattr(data, name, None)) for name in ("indices", "get"))


def is_graph(data: Any) -> bool:
    """Whether this is one graph of PyG, or a ``Batch``."""
    return not is_graph_set(data) and hasattr(data, "edge_index")


def holds_graphs(batch: Batch) -> bool:
    """Whether a batch is made of graphs, of PyG or of ours, which a model may collate itself."""
    first = batch[0] if isinstance(batch, list) and batch else batch
    return hasattr(first, "edge_index") or hasattr(first, "bond_features")


def _is_input(value: Any) -> bool:
    """Whether this may be what a model takes, among other items of a batch."""
    return isinstance(value, Tensor | Mapping | tuple | list) or _is_array(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, Tensor) and hasattr(value, "shape")


def _tensor(value: Any, model: nn.Module, name: str) -> Any:
    if isinstance(value, list) and (not value or not _is_numbers(value)):
        return value  # sentences, images or other objects for the model
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SepNormError(
            f"{name} of the batch cannot be made a tensor: {one_line(error)}. Rows of one batch are of one length; pad them, for "
            "instance by tokenizer(sentences, padding=True, return_tensors='pt')."
        ) from error
    if not found.is_floating_point():
        return found
    return found.to(next((p.dtype for p in model.parameters() if p.is_floating_point()), found.dtype))


def _is_numbers(value: Any) -> bool:
    """Whether a nested list holds numbers."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int | float)


def _takes_features(model: nn.Module) -> bool:
    """Whether ``forward`` takes one dictionary of features, like that of ``SentenceTransformer``."""
    return "input" in inspect.signature(model.forward).parameters and hasattr(model, "encode")


def tokenised(model: nn.Module, sentences: list[str]) -> Any:
    """Sentences tokenised by the model's own tokeniser."""
    for name in ("preprocess", "tokenize"):
        if callable(getattr(model, name, None)):
            return getattr(model, name)(sentences)
    raise SepNormError(
        f"{type(model).__name__} has no tokeniser of its own: give tokenised batches, "
        "for instance tokenizer(sentences, padding=True, return_tensors='pt')."
    )


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _to(item, device) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_to(item, device) for item in value)
    return value


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shape(item)}" for key, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(_shape(item) for item in value)
    return type(value).__name__
