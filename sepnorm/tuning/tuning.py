"""``tune_special``: trains only what belongs to the special tokens of a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sepnorm.arguments import number, require_module
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import SepNorm, TokenNorm
from sepnorm.surgery.conversion import refuse_wrapped
from sepnorm.surgery.families import is_sentence_module
from sepnorm.surgery.pass_context import models_around
from sepnorm.surgery.replacement import restore_fast_path, use_no_nested_tensor
from sepnorm.surgery.weights import require_weights, require_whole
from sepnorm.tuning.freezing import Frozen, frozen_of
from sepnorm.tuning.layers import find_layers
from sepnorm.tuning.positions import kinds_of
from sepnorm.tuning.reports import TuningReport
from sepnorm.tuning.sorted_sentences import allow_lists, refuse_lists
from sepnorm.tuning.special_tokens import SpecialTokens, require_name

#: Name of the child module that holds the vectors.
CHILD = "special_tokens"
TRAINED = ("vectors", "cls_norm")
_TOKENS = ("cls", "sep")


def tune_special(
    model: nn.Module,
    tokens: str | Sequence[str] | Mapping[str, int | None] = _TOKENS,
    *,
    train: str = "vectors",
    name: str = "default",
    dropout: float = 0.0,
    tokenizer: Any = None,
    example: Any = None,
) -> TuningReport:
    """Trains only what belongs to the special tokens of a model, and its head. Changes the model in place.

    ``train="vectors"`` is PASTA (Yang et al., Findings of EACL 2023, https://arxiv.org/abs/2210.04382). Before each
    layer a vector is added to the hidden state of each special token, h_p <- h_p + e_p. The layer takes the sum as its
    input, so its residual connection sees it too. The vectors (layers, kinds, width) start at zero and change no output
    at first. ``train="cls_norm"`` trains the weights and biases of the [CLS] norms of a converted model.

    All other parameters of the encoder are frozen, and batch norms among them use their running statistics and do not
    move them. Parameters outside of it, such as a classifier, are trained.

    Afterwards ``model.set_special`` selects a set of vectors: a name, None for the model without vectors, or a list
    with one name per sample of the next batches. Only selected sets are trained. A model that is called without ids,
    for instance with ``inputs_embeds``, takes ``special_mask=``: integers (batch, tokens), 0 for ordinary tokens and k
    for tokens of the k-th kind. ``sepnorm.tuning`` has ``save``, ``load``, ``merge`` and ``remove``.

    Args:
        model: any model that ``convert`` accepts, converted or not.
        tokens: kinds of special tokens. ``"cls"`` is the first token that is not padding. ``"register"`` are the other
            leading tokens of an image model, which share one vector per layer. ``"sep"`` and other names are found in
            the input ids, by the ``..._token_id`` of the tokeniser or the config. Or the ids: ``{"cls": 101, "sep":
            102}``.
        train: ``"vectors"`` or ``"cls_norm"``. The latter takes no ``tokens``, ``name`` and ``dropout``.
        name: name of the set of vectors. A new name on a model with vectors adds another set.
        dropout: probability of dropping an added number in training.
        tokenizer: tokeniser of the model, to look up the ids of special tokens. By default that of a
            ``SentenceTransformer``, or the config.
        example: a batch of at least two different samples, for models of unknown families, as for ``convert``.

    Returns:
        A report. ``print`` it to see what is trained and how much of the model that is.

    Raises:
        SepNormError: if the model lacks one of the ``tokens``, has no layers that can be found, has other vectors
            already, or is compiled, wrapped or sharded; if ``train="cls_norm"`` comes with options of vectors.

    >>> encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> tune_special(encoder, "cls").parameters  # 2 layers of 16 channels
    32
    """
    require_module(model)
    if not isinstance(train, str) or train not in TRAINED:
        raise SepNormError(f"train is {' or '.join(map(repr, TRAINED))}, found {train!r}.")
    refuse_wrapped(model, "tune")
    require_name(name)
    dropout = number(dropout, "dropout", 0)
    if dropout >= 1:
        raise SepNormError(f"dropout is a share below 1, found {dropout:g}.")
    require_whole(model)
    require_weights(model)
    special = special_of(model)
    if train == "cls_norm":
        if special is not None:
            raise SepNormError(
                "the model has special vectors: sepnorm.tuning.remove(model) them before its [CLS] norms are tuned."
            )
        ignored = [
            key
            for key, value, usual in (("tokens", tokens, _TOKENS), ("name", name, "default"), ("dropout", dropout, 0))
            if value != usual
        ]
        if ignored:
            raise SepNormError(
                f"train='cls_norm' trains no vectors, and {', '.join(f'{key}=' for key in ignored)} would be for vectors: leave "
                "this out."
            )
        return _tune_norms(model, example)
    layers = find_layers(model, example)
    kinds = kinds_of(model, tokens, tokenizer, layers)
    modules = [call.module for call in layers.calls]
    head = layers.head(model)
    new = special is None
    if special is None:
        _require_free(model)
        special = SpecialTokens(kinds, len(layers.calls), layers.width, layers.token_dim, dropout)
    elif special.kinds != kinds or special.dropout != dropout:
        raise SepNormError(
            f"the model has vectors for {', '.join(map(str, special.kinds))} with dropout {special.dropout:g}, and all "
            f"sets share these: found {', '.join(map(str, kinds))} with {dropout:g}. Call sepnorm.tuning.remove(model) first."
        )
    special.add(name, next(layers.calls[0].module.parameters()))
    if new:
        special.train(model.training)
        home = _home(model, modules)
        home.add_module(CHILD, special)
        if home is not model:  # which would run it as one of its children
            vars(model)[CHILD] = special
        model.set_special = special.use  # type: ignore[assignment]
        refuse_lists(model, special)
        special.attach(model, modules)
        _hand_on_padded(model)
    special.use(name)
    _note(model, modules)
    vectors = special.vectors(name)
    trained = [key for key, parameter in model.named_parameters() if parameter is vectors]
    what = f"vectors {name!r} at {', '.join(map(str, kinds))} before each of {special.layers} layers"
    return _freeze(model, trained, head, what, layers.sites.remarks)


def _home(model: nn.Module, layers: list[nn.Module]) -> nn.Module:
    """The module that gets the vectors as a child: the model, or its encoder if the model runs all children in turn."""
    around = models_around(model, layers)
    inner = [module for module in around if not isinstance(module, nn.Sequential) and not is_sentence_module(module)]
    if not inner:
        raise SepNormError(
            f"a {type(model).__name__} runs all its children in turn and would run the vectors too: wrap it in a module whose "
            "forward calls it."
        )
    return inner[0]


def _require_free(model: nn.Module) -> None:
    if hasattr(model, CHILD) or hasattr(model, "set_special"):
        raise SepNormError(
            f"{type(model).__name__} has something of its own called {CHILD} or set_special: put it into a module of your own."
        )


def _tune_norms(model: nn.Module, example: Any) -> TuningReport:
    norms = {path: layer.cls_norm for path, layer in model.named_modules() if isinstance(layer, SepNorm)}
    if not norms:
        raise SepNormError(
            f"{type(model).__name__} has no norm of [CLS] of its own: sepnorm.convert(model, 'ln+ln', sites='all') first, which "
            "changes no output."
        )
    trained = [f"{path}.cls_norm.{key}" for path, norm in norms.items() for key, _ in norm.named_parameters()]
    if not trained:
        raise SepNormError(
            f"the [CLS] norms of {type(model).__name__} have no weights or biases, so nothing can be trained."
        )
    _require_wide({name: parameter for name, parameter in model.named_parameters() if name in trained})
    layers = find_layers(model, example)
    _note(model, [call.module for call in layers.calls])
    what = f"weights and biases of {len(norms)} [CLS] norms"
    return _freeze(model, trained, layers.head(model), what, layers.sites.remarks)


def _require_wide(trained: dict[str, nn.Parameter]) -> None:
    """Raises if trained parameters are in float16, where Adam makes them NaN; warns of bfloat16."""
    narrow = {parameter.dtype: name for name, parameter in trained.items() if parameter.dtype.itemsize < 4}
    if torch.bfloat16 in narrow:
        warnings.warn(
            f"{narrow[torch.bfloat16]} is in bfloat16, whose step at 1 is 0.008: smaller changes of a weight are lost. Train the "
            "model in float32, under autocast to bfloat16.",
            SepNormWarning,
            stacklevel=4,
        )
    for dtype in narrow.keys() - {torch.bfloat16}:
        raise SepNormError(
            f"{narrow[dtype]} is in {str(dtype).removeprefix('torch.')} and Adam would make it NaN: call model.float() before "
            "tune_special(model, train='cls_norm'), and train under autocast."
        )


def _note(model: nn.Module, layers: list[nn.Module]) -> None:
    """Records what is trained before anything is frozen, unless a former call has."""
    if frozen_of(model) is None:
        Frozen(model).attach(model, layers)


def _freeze(model: nn.Module, trained: list[str], outside: list[str], what: str, notes: list[str]) -> TuningReport:
    """Keeps gradients for ``trained``, and for parameters ``outside`` the encoder that have one; freezes the rest."""
    tuned, head, frozen = {}, {}, 0
    for name, parameter in model.named_parameters():
        if name in trained:
            parameter.requires_grad_(True)
            tuned[name] = parameter.numel()
        elif name in outside and parameter.requires_grad:
            head[name] = parameter.numel()
        else:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return TuningReport(type(model).__name__, what, tuned, head, frozen, list(notes))


def remove(model: nn.Module) -> None:
    """Undoes ``tune_special``: removes all sets of vectors, and trains what was trained before it.

    Without vectors outputs are those from before. [CLS] norms keep what they have learnt.

    Args:
        model: a model after ``tune_special``. Changed in place.

    Raises:
        SepNormError: if nothing of the model is tuned.
    """
    require_module(model)
    special, frozen = special_of(model), frozen_of(model)
    if special is None and frozen is None:
        raise SepNormError(
            f"{type(model).__name__} has no special vectors or [CLS] norms that are tuned: sepnorm.tune_special(model) first."
        )
    if frozen is not None:
        frozen.release(model)
    if special is not None:
        _take_out(model, special)


def _take_out(model: nn.Module, special: SpecialTokens) -> None:
    special.detach(model)
    allow_lists(model, special)
    for module in list(model.modules()):
        if getattr(module, CHILD, None) is special:
            delattr(module, CHILD)
        if getattr(module, "set_special", None) == special.use:
            del module.set_special
    if not any(isinstance(module, TokenNorm) for module in model.modules()):
        restore_fast_path(model)


def special_of(model: nn.Module) -> SpecialTokens | None:
    """The special vectors of a model, or None."""
    return next((module for module in model.modules() if isinstance(module, SpecialTokens)), None)


def require_special(model: Any) -> SpecialTokens:
    """The special vectors of a model; raises if it has none."""
    require_module(model)
    found = special_of(model)
    if found is None:
        raise SepNormError(f"{type(model).__name__} has no special vectors: sepnorm.tune_special(model) puts them in.")
    return found


def _hand_on_padded(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            use_no_nested_tensor(module)
