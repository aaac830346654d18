"""``SepNorm``: one norm for [CLS], another for the other tokens; and ``SharedNorm``, the baseline, one for all."""

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
from sepnorm.layer.kinds import BATCH_NORMS, MOST_CHANNELS, Kind, NormSpec, build_norm, wraps_batch_norm
from sepnorm.layer.padding import OF_THE_MODEL, check_padding, zero_padding
from sepnorm.layer.plain import plain
from sepnorm.layer.statistics import Call
from sepnorm.layer.torch_internals import WideStatistics, in_backward


class Padding(Protocol):
    """Where a layer finds the mask of the forward pass that is running."""

    def current(self, batch: int, tokens: int) -> Tensor | None:
        """(batch, tokens), True where padded."""
        ...


@dataclass(eq=False)
class Origin:
    """What stood where ``convert`` put a layer, and whether the layer has been trained since.

    ``module`` is None where the model came from a file without it, which other libraries write.
    """

    module: nn.Module | None
    kind: str
    trained_before: bool = False  #: up to when the state was last remembered
    state: dict[str, Tensor] = field(default_factory=dict)

    def remember(self, layer: nn.Module) -> None:
        """Takes the present state of ``layer`` for untrained, or for no more trained than it was."""
        self.state = {key: value.clone() for key, value in layer.state_dict().items()}

    def trained(self, layer: nn.Module) -> bool:
        now = layer.state_dict()
        return self.trained_before or any(not torch.equal(now[key], old) for key, old in self.state.items())


class TokenNorm(WideStatistics):
    """What ``SepNorm`` and ``SharedNorm`` have in common: input checks, padding, choice of the path."""

    #: Set by ``convert``: where the padding mask of a running model is found, and what stood here before.
    padding: Padding | None = None
    origin: Origin | None = None
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
        """The norm of [CLS] (none when shared) and that of the tokens."""
        raise NotImplementedError

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises (batch, tokens, dim), or (tokens, batch, dim) with ``token_dim=0``; same shape out.

        ``padding_mask``: (batch, tokens), boolean, True where padded, as torch's ``key_padding_mask``. In training padded
        tokens are taken for zeros and stay out of batch statistics over tokens, so that nothing depends on what lies there.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or not self._fits(x.shape):
            raise SepNormError(self._complaint(x))
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
            x = x.float()  # accelerators' autocast runs norms in float32, whatever comes in
        return fused_path.fused(x, cls_norm, token_norm, call)

    def _plain(self, x: Tensor, padding: Tensor | None, *, track: bool) -> Tensor:
        return plain(x, *self._places(), self._call(padding, track))

    def _call(self, padding: Tensor | None, track: bool) -> Call:
        """``track`` is False where gradient checkpointing runs a block again: its statistics were counted before."""
        return Call(self.num_cls, self.token_dim, padding, track, self.sync and many())

    def _without_padding(self, x: Tensor, token_norm: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input without what lies in padding, and the mask if the tokens' norm has to know of it."""
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
        # In evaluation outputs at padding are those of the frozen layer too.
        x = zero_padding(x, mask, self.num_cls, self.token_dim, whole=self.training or measures)
        return x, mask if measures else None

    def _warn_of_one_sample(self, cls_norm: nn.Module | None, call: Call) -> None:
        if isinstance(cls_norm, BATCH_NORMS) and cls_norm.training and not call.sync and not self._warned:
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
                f"torch.fx cannot look into a {type(self).__name__}, whose way depends on its input: name it a leaf "
                "(Tracer.is_leaf_module), or use torch.export."
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
    """Normalises [CLS] apart from the other tokens (Chen et al., NeurIPS 2023).

    Shapes: (batch, tokens, dim) in and out; with ``token_dim=0`` (tokens, batch, dim). [CLS] is the first
    ``num_cls`` positions; where that is more than one, they share ``cls_norm`` and its statistics.

    Args:
        dim: number of channels.
        cls: norm of [CLS]: ``"batch"``, ``"layer"``, ``"rms"``, ``"tanh"``, or a callable that builds a module from ``dim``.
        tokens: norm of the other tokens, likewise.
        num_cls: how many leading positions count as [CLS], for instance class token plus registers.
        token_dim: which dimension counts tokens, 1 or 0.
        eps, momentum, affine: as in ``nn.LayerNorm`` and ``nn.BatchNorm1d``.
        sync: batch statistics over all processes of the default process group, where there is one.

    State-dict keys: ``cls_norm.weight``, ``cls_norm.bias``, ``token_norm.weight``, ``token_norm.bias``, and for a batch
    norm ``running_mean``, ``running_var``, ``num_batches_tracked`` beside them.

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
        """The baseline: one norm for [CLS] and tokens alike, with the options of ``SepNorm``."""
        return SharedNorm(dim, kind, **options)

    @classmethod
    def from_spec(cls, spec: str | NormSpec, dim: int, **options: Any) -> TokenNorm:
        """A ``SepNorm`` from ``"bn+ln"`` and its like, a ``SharedNorm`` from ``"ln"`` or ``"bn"``."""
        spec = NormSpec.parse(spec)
        if spec.cls is None:
            options.pop("num_cls", None)
            return SharedNorm(dim, spec.tokens, **options)
        return cls(dim, spec.cls, spec.tokens, **options)


class SharedNorm(TokenNorm):
    """One norm over all tokens, [CLS] among them: the baseline. The child is called ``norm``.

    A shared batch norm pools its statistics over samples and tokens, without padding. Shapes as in ``SepNorm``.
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
