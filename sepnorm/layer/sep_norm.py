"""``SepNorm``: one norm for [CLS], another for the tokens. ``SharedNorm``, the baseline: one norm for all."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sepnorm.arguments import flag, whole
from sepnorm.distributed import many
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import fused as fused_path
from sepnorm.layer.kinds import BATCH_NORMS, Kind, NormSpec, build_norm, wraps_batch_norm
from sepnorm.layer.padding import OF_THE_MODEL, check_padding, refuse_left_padding, zero_padding
from sepnorm.layer.plain import plain
from sepnorm.layer.statistics import MOST_CHANNELS, Call, StepStatistics
from sepnorm.layer.torch_internals import WideStatistics, in_backward


class Padding(Protocol):
    """Where a layer gets the padding mask of the current forward pass from."""

    def current(self, batch: int, tokens: int) -> Tensor | None:
        """The mask (batch, tokens), True where padded."""
        ...


@dataclass(eq=False)
class Origin:
    """The module that ``convert`` replaced by a layer, and whether the layer has been trained since.

    ``module`` is None for a model from a file without it, as other libraries write them.
    """

    module: nn.Module | None
    kind: str
    trained_before: bool = False  #: before ``state`` was last recorded
    state: dict[str, Tensor] = field(default_factory=dict)

    def remember(self, layer: nn.Module) -> None:
        """Records the state of ``layer``. Until it changes, the layer counts as no further trained."""
        self.state = {key: value.clone() for key, value in layer.state_dict().items()}

    def trained(self, layer: nn.Module) -> bool:
        """Whether ``layer`` differs from the recorded state, or was trained before."""
        now = layer.state_dict()
        return self.trained_before or any(not torch.equal(now[key], old) for key, old in self.state.items())


class TokenNorm(WideStatistics):
    """Base of ``SepNorm`` and ``SharedNorm``: input checks, padding, choice of the path."""

    #: Set by ``convert``: the source of the running model's padding mask, and the replaced module.
    padding: Padding | None = None
    origin: Origin | None = None
    #: Shape (batch, tokens) of the running model's mask, set only if it has padding on the left.
    left_padded: tuple[int, ...] | None = None
    #: Set while the batches of one step share their statistics.
    step: StepStatistics | None = None
    _warned = False
    _warned_of_frozen = False

    def __init__(self, dim: int, num_cls: int, token_dim: int, sync: bool) -> None:
        super().__init__()
        if not isinstance(token_dim, Integral) or token_dim not in (0, 1):
            raise SepNormError(
                f"token_dim is 1 for (batch, tokens, channels) or 0 for (tokens, batch, channels), found {token_dim!r}."
            )
        self.dim: int = whole(dim, "dim", 1, MOST_CHANNELS)
        self.num_cls: int = num_cls
        self.token_dim: int = token_dim
        self.sync: bool = flag(sync, "sync")

    def _places(self) -> tuple[nn.Module | None, nn.Module]:
        """The norm of [CLS] (None if shared) and the norm of tokens."""
        raise NotImplementedError

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises a sequence.

        Args:
            x: (batch, tokens, dim), or (tokens, batch, dim) with ``token_dim=0``; floating-point.
            padding_mask: (batch, tokens), boolean, True where padded, as torch's ``key_padding_mask``. In training
                padded tokens count as zeros and stay out of batch statistics, so their content has no effect. By
                default a converted model supplies its own mask, and elsewhere no token is padding.

        Returns:
            A tensor of the same shape.

        Raises:
            SepNormError: if ``x`` or ``padding_mask`` has another shape or dtype.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or not self._fits(x.shape):
            raise SepNormError(self._complaint(x))
        if self.left_padded is not None:
            refuse_left_padding(self.left_padded, x.shape[1 - self.token_dim], x.shape[self.token_dim])
        cls_norm, token_norm = self._places()
        if padding_mask is not None or self.padding is not None:
            x, padding_mask = self._without_padding(x, token_norm, padding_mask)
        if torch.compiler.is_compiling():
            return self._plain(x, padding_mask, track=True)
        if self.training and self.origin is not None and not self._warned_of_frozen:
            self._warn_of_frozen(cls_norm, token_norm)
        call = self._call(padding_mask, track=not in_backward())
        if x.shape[1 - self.token_dim] < 2:
            self._warn_of_one_sample(cls_norm, call)
        if not fused_path.fusable(x, cls_norm, token_norm, call):
            return plain(x, cls_norm, token_norm, call)
        if not x.is_cpu and torch.is_autocast_enabled(x.device.type):
            x = x.float()  # autocast on accelerators runs norms in float32
        return fused_path.fused(x, cls_norm, token_norm, call)

    def _plain(self, x: Tensor, padding: Tensor | None, *, track: bool) -> Tensor:
        return plain(x, *self._places(), self._call(padding, track))

    def _call(self, padding: Tensor | None, track: bool) -> Call:
        """The settings of this call. ``track=False`` if a checkpointed block is run again: its batch counts already."""
        return Call(self.num_cls, self.token_dim, padding, track, self.sync and many(), self.step)

    def _without_padding(self, x: Tensor, token_norm: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input without the content of padding, and the mask if the tokens' norm measures batch statistics."""
        batch, tokens = x.shape[1 - self.token_dim], x.shape[self.token_dim]
        if self.training and wraps_batch_norm(token_norm):
            raise SepNormError(
                f"a {type(token_norm).__name__} around a batch norm over tokens does not leave padding out of its statistics: wrap "
                "the whole layer, not its token_norm."
            )
        measures = isinstance(token_norm, BATCH_NORMS) and (token_norm.training or token_norm.running_mean is None)
        name = "padding_mask"
        if mask is None and measures and self.padding is not None:
            mask, name = self.padding.current(batch, tokens), OF_THE_MODEL
        if mask is None:
            return x, None
        check_padding(mask, batch, tokens, name)
        # In evaluation keep outputs at padding, so that a layer and its frozen form agree.
        x = zero_padding(x, mask, self.num_cls, self.token_dim, whole=self.training or measures)
        return x, mask if measures else None

    def _warn_of_one_sample(self, cls_norm: nn.Module | None, call: Call) -> None:
        if isinstance(cls_norm, BATCH_NORMS) and cls_norm.training and not (call.sync or call.step or self._warned):
            self._warned = True
            warnings.warn(
                "a training batch with a single sample has no batch statistics: the running statistics are used for "
                "such steps. Drop the last incomplete batch (drop_last=True) or use larger batches.",
                SepNormWarning,
                stacklevel=4,
            )

    def _warn_of_frozen(self, *norms: nn.Module | None) -> None:
        for norm in norms:
            if (
                isinstance(norm, BATCH_NORMS)
                and norm.training
                and norm.running_mean is not None
                and norm.weight is not None
                and not norm.weight.requires_grad
                and torch.is_grad_enabled()
            ):
                self._warned_of_frozen = True
                warnings.warn(
                    "the weights of a batch norm of a converted model are frozen, but its running statistics move with every "
                    "training batch, and an adapter does not keep them. Train and save the norm too "
                    "(sepnorm.integrations.peft.keep_norms), or fold its statistics (sepnorm.freeze).",
                    SepNormWarning,
                    stacklevel=4,
                )

    def _fits(self, shape: torch.Size) -> bool:
        return len(shape) == 3 and shape[2] == self.dim and shape[self.token_dim] >= self.num_cls

    def _complaint(self, x: Any) -> str:
        layout = "(batch, tokens, channels)" if self.token_dim == 1 else "(tokens, batch, channels)"
        if isinstance(x, torch.fx.Proxy):
            return (
                f"torch.fx cannot trace a {type(self).__name__}, because its control flow depends on the input: mark it as "
                "a leaf (Tracer.is_leaf_module), or use torch.export."
            )
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = f"one of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            return f"{type(self).__name__} takes a tensor {layout} of floating-point numbers, found {kind}."
        found = f"found the shape {tuple(x.shape)}"
        if x.dim() != 3:
            return f"{type(self).__name__} takes a tensor {layout} of rank 3, {found}."
        if x.shape[-1] != self.dim:
            return f"this {type(self).__name__} was built for {self.dim} channels in the last dimension, {found}."
        return f"num_cls is {self.num_cls}, but there are only {x.shape[self.token_dim]} tokens: {found} as {layout}."

    def extra_repr(self) -> str:
        layout = "" if self.token_dim == 1 else ", token_dim=0"
        return f"{self.dim}, num_cls={self.num_cls}{layout}"


class SepNorm(TokenNorm):
    """Normalises [CLS] and the other tokens with separate norms (Chen et al., NeurIPS 2023).

    Shapes: (batch, tokens, dim) in and out; with ``token_dim=0`` (tokens, batch, dim). [CLS] is the first ``num_cls``
    positions. If there are several, they share ``cls_norm`` and its statistics.

    State-dict keys: ``cls_norm.weight``, ``cls_norm.bias``, ``token_norm.weight``, ``token_norm.bias``, and for a batch
    norm also ``running_mean``, ``running_var`` and ``num_batches_tracked``.

    Args:
        dim: number of channels.
        cls: norm of [CLS]: ``"batch"``, ``"layer"``, ``"rms"``, ``"tanh"``, ``"mixture"``, or a callable that builds a
            module from ``dim``. Short names (``"bn"``, ``"ln"``, ``"rms"``, ``"dyt"``, ``"mix"``) work too.
        tokens: norm of the other tokens, with the same choices.
        num_cls: number of leading positions that count as [CLS], for instance a class token and its registers.
        token_dim: dimension of the tokens: 1 for (batch, tokens, dim), 0 for (tokens, batch, dim).
        eps: added to variances before the root is taken.
        momentum: weight of a new batch in the running statistics, from 0 to 1. None averages over all batches.
        affine: whether the norms have a trainable weight and bias.
        sync: whether batch statistics are those of all processes of the default process group, if there is one.
        device: device of parameters and buffers. By default that of torch.
        dtype: dtype of parameters. By default that of torch. Batch statistics are in float32 at least.

    Raises:
        SepNormError: if an argument is out of range, or a kind of norm is unknown.

    >>> norm = SepNorm(8)                      # "bn+ln": BatchNorm for [CLS], LayerNorm for the rest
    >>> norm(torch.randn(4, 10, 8)).shape
    torch.Size([4, 10, 8])
    """

    def __init__(
        self,
        dim: int,
        cls: Kind = "batch",
        tokens: Kind = "layer",
        *,
        num_cls: int = 1,
        token_dim: int = 1,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        sync: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, num_cls, token_dim, sync)
        if not isinstance(num_cls, Integral) or num_cls < 1:
            raise SepNormError(
                f"num_cls counts the [CLS] positions and is at least 1, found {num_cls!r}. "
                "For one norm over all tokens use SepNorm.shared."
            )
        options: dict[str, Any] = dict(eps=eps, momentum=momentum, affine=affine, device=device, dtype=dtype)
        self.cls_norm: nn.Module = build_norm(cls, dim, **options)
        self.token_norm: nn.Module = build_norm(tokens, dim, **options)

    def _places(self) -> tuple[nn.Module | None, nn.Module]:
        return self.cls_norm, self.token_norm

    @staticmethod
    def shared(dim: int, kind: Kind = "layer", **options: Any) -> SharedNorm:
        """Builds the baseline: one norm for [CLS] and tokens alike.

        Args:
            dim: number of channels.
            kind: norm of all tokens, with the choices of ``cls`` in ``SepNorm``.
            **options: keyword arguments of ``SharedNorm``.

        Returns:
            A ``SharedNorm``.
        """
        return SharedNorm(dim, kind, **options)

    @classmethod
    def from_spec(cls, spec: str | NormSpec, dim: int, **options: Any) -> TokenNorm:
        """Builds the layer from a norm as the paper writes it.

        Args:
            spec: ``"bn+ln"`` ([CLS] first) for a ``SepNorm``, ``"ln"`` for a ``SharedNorm``, or a parsed ``NormSpec``.
            dim: number of channels.
            **options: keyword arguments of ``SepNorm``. A shared norm ignores ``num_cls``.

        Returns:
            A ``SepNorm`` or a ``SharedNorm``.

        >>> type(SepNorm.from_spec("ln", 8)).__name__
        'SharedNorm'
        """
        spec = NormSpec.parse(spec)
        if spec.cls is None:
            options.pop("num_cls", None)
            return SharedNorm(dim, spec.tokens, **options)
        return cls(dim, spec.cls, spec.tokens, **options)


class SharedNorm(TokenNorm):
    """One norm for all tokens, [CLS] included: the baseline. The norm is the child ``norm``.

    A shared batch norm pools its statistics over samples and tokens, without padding. Shapes as in ``SepNorm``.

    Args:
        dim: number of channels.
        kind: norm of all tokens, with the choices of ``cls`` in ``SepNorm``.
        token_dim: dimension of the tokens: 1 for (batch, tokens, dim), 0 for (tokens, batch, dim).
        eps: added to variances before the root is taken.
        momentum: weight of a new batch in the running statistics, from 0 to 1. None averages over all batches.
        affine: whether the norm has a trainable weight and bias.
        sync: whether batch statistics are those of all processes of the default process group, if there is one.
        device: device of parameters and buffers. By default that of torch.
        dtype: dtype of parameters. By default that of torch. Batch statistics are in float32 at least.
    """

    def __init__(
        self,
        dim: int,
        kind: Kind = "layer",
        *,
        token_dim: int = 1,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        sync: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, 0, token_dim, sync)
        self.norm: nn.Module = build_norm(
            kind, dim, eps=eps, momentum=momentum, affine=affine, device=device, dtype=dtype
        )

    def _places(self) -> tuple[nn.Module | None, nn.Module]:
        return None, self.norm
