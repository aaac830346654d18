"""``SepNorm``: one norm for [CLS], another for the other tokens; and ``SharedNorm``, the baseline, one for all."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm

from sepnorm import kernels, statistics
from sepnorm.arguments import flag, whole
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.processes import AllReduce
from sepnorm.spec import Kind, NormSpec, build_norm

if TYPE_CHECKING:
    from sepnorm.padding import PaddingContext


@dataclass(eq=False)
class Origin:
    """What stood where ``convert`` put a layer, and whether the layer has been trained since."""

    module: nn.Module
    kind: str
    trained_before: bool = False  #: up to when the state was last remembered
    state: dict[str, Tensor] = field(default_factory=dict)

    def remember(self, layer: nn.Module) -> None:
        """Takes the present state of ``layer`` for untrained, or for no more trained than it was."""
        self.state = {key: value.clone() for key, value in layer.state_dict().items()}

    def trained(self, layer: nn.Module) -> bool:
        now = layer.state_dict()
        return self.trained_before or any(not torch.equal(now[key], old) for key, old in self.state.items())


class ScaleShift(nn.Module):
    """``x * weight + bias`` per channel: what a batch norm is once its statistics are fixed (see ``freeze``)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        return str(self.weight.numel())


# Bound once: on small inputs the look-ups of every call would show.
_backward_task = torch._C._current_graph_task_id
_tracing = torch._C._get_tracing_state
_transforms_active = torch._C._are_functorch_transforms_active
_distributed = dist.is_available()

_FUSED_KINDS: dict[type, str] = {
    nn.LayerNorm: "layer",
    nn.BatchNorm1d: "batch",
    nn.SyncBatchNorm: "batch",
    ScaleShift: "scale",
}


class TokenNorm(nn.Module):
    """What ``SepNorm`` and ``SharedNorm`` have in common: input checks, batch statistics, choice of the path."""

    #: Set by ``convert``: where the padding mask of a running model is found, and what stood here before.
    padding: PaddingContext | None = None
    origin: Origin | None = None
    _warned = False

    def __init__(self, dim: int, num_cls: int, token_dim: int, sync: bool) -> None:
        super().__init__()
        if not isinstance(token_dim, Integral) or token_dim not in (0, 1):
            raise SepNormError(
                f"token_dim is 1 for (batch, tokens, channels) or 0 for (tokens, batch, channels), found {token_dim!r}."
            )
        self.dim: int = whole(dim, "dim", 1)
        self.num_cls: int = num_cls
        self.token_dim: int = token_dim
        self.sync: bool = flag(sync, "sync")

    def _places(self) -> tuple[nn.Module | None, nn.Module]:
        """The norm of [CLS] (none when shared) and that of the tokens."""
        modules: Any = self._modules
        return modules.get("cls_norm"), modules.get("token_norm") or modules["norm"]

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises (batch, tokens, dim), or (tokens, batch, dim) with ``token_dim=0``; same shape out.

        ``padding_mask``: (batch, tokens), boolean, True where padded, as torch's ``key_padding_mask``. Padding stays
        out of batch statistics over tokens; norms that look at one token at a time ignore it.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise SepNormError(self._complaint(x))
        shape = x.shape
        if len(shape) != 3 or shape[2] != self.dim or shape[self.token_dim] < self.num_cls:
            raise SepNormError(self._complaint(x))
        cls_norm, token_norm = self._places()
        if padding_mask is not None:
            self._check_padding(x, padding_mask)
        token_kind = _fused_kind(token_norm)
        if isinstance(token_norm, _BatchNorm) and token_norm.training:
            if padding_mask is None and self.padding is not None:
                padding_mask = self.padding.current(shape[1 - self.token_dim], shape[self.token_dim])
        else:
            padding_mask = None
        if torch.compiler.is_compiling():
            return self._plain(x, padding_mask, track=True)
        # A recomputation for gradient checkpointing runs inside the backward pass: its statistics were counted before.
        track = _backward_task() == -1
        cls_kind = None if cls_norm is None else _fused_kind(cls_norm)
        if (
            token_kind is None
            or (cls_kind is None and cls_norm is not None)
            or shape[self.token_dim] == self.num_cls
            or not (token_kind == "layer" or (x.is_cpu and _same_dtype(x, token_norm)))
            or _tracing() is not None  # the older ONNX export
            or _transforms_active()  # functorch, forward-mode AD and subclasses: a custom backward cannot serve them
            or forward_ad._current_level >= 0
            or type(x) not in (Tensor, nn.Parameter)
        ):
            return self._plain(x, padding_mask, track=track)
        if not x.is_cpu and torch.is_autocast_enabled(x.device.type):
            x = x.float()  # accelerators' autocast runs norms in float32, whatever comes in
        x = x.contiguous()
        sync = _distributed and dist.is_initialized() and self._synchronised(cls_norm, token_norm)
        if cls_kind == "batch" and shape[1 - self.token_dim] < 2:
            self._warn_single(cls_norm, sync)
        call = kernels.Call(
            cls_kind, cls_norm, token_kind, token_norm, self.num_cls, self.token_dim, padding_mask, track, sync,
            self._plain,
        )  # fmt: skip
        return kernels.fused(x, call)

    # ---- the plain path -----------------------------------------------------------------------------------------

    def _plain(self, x: Tensor, padding: Tensor | None, *, track: bool) -> Tensor:
        cls_norm, token_norm = self._places()
        if cls_norm is None:
            return self._one(token_norm, x, padding, track, samples=x.numel())
        length = x.shape[self.token_dim]
        cls, tokens = x.split([self.num_cls, length - self.num_cls], self.token_dim)
        cls = self._one(cls_norm, cls, None, track, samples=x.shape[1 - self.token_dim])
        if length == self.num_cls:
            return cls
        if padding is not None:
            padding = padding[:, self.num_cls :]
        tokens = self._one(token_norm, tokens, padding, track, samples=tokens.numel())
        return torch.cat([cls.to(tokens.dtype), tokens], self.token_dim)

    def _one(self, norm: nn.Module, x: Tensor, padding: Tensor | None, track: bool, samples: int) -> Tensor:
        """One norm over a part of the sequence, by differentiable operations."""
        if not isinstance(norm, _BatchNorm):
            return norm(x)
        rows = x.reshape(-1, x.shape[-1])
        if padding is not None:
            padding = (padding if self.token_dim == 1 else padding.t()).reshape(-1, 1)
        return self._batch_norm(norm, rows, padding, track, samples).view(x.shape)

    def _batch_norm(self, bn: Any, rows: Tensor, padding: Tensor | None, track: bool, samples: int) -> Tensor:
        """Batch norm of (count, channels), in float32 at least, leaving rows with ``padding`` out of the statistics."""
        dtype = rows.dtype
        training = bn.training or bn.running_mean is None
        sync = training and self._synchronised(bn)
        simple = padding is None and not sync and dtype == getattr(bn.running_mean, "dtype", dtype)
        if simple and (not training or (track and samples > 1)) and type(bn) is nn.BatchNorm1d:
            return bn(rows)
        rows = rows.to(torch.promote_types(dtype, torch.float32))
        weight, bias = statistics.affine(bn, rows.dtype)
        if training and samples < 2 and not torch.compiler.is_compiling():
            self._warn_single(bn, sync)
        if not training or (samples < 2 and not sync):
            stats = statistics.running_statistics(bn, rows.dtype)
        else:
            stats = _differentiable_statistics(bn, rows, padding, track, sync)
        out = (rows - stats.mean) * stats.invstd
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(dtype)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def _synchronised(self, *norms: nn.Module | None) -> bool:
        training = any(isinstance(norm, _BatchNorm) and norm.training for norm in norms)
        return training and self.sync and _distributed and dist.is_initialized() and dist.get_world_size() > 1

    def _warn_single(self, bn: nn.Module | None, sync: bool) -> None:
        if bn is not None and bn.training and not sync and not self._warned:
            self._warned = True
            warnings.warn(
                "a training batch with a single sample has no batch statistics: the running statistics are used for "
                "such steps. Drop the last incomplete batch (drop_last=True) or use larger batches.",
                SepNormWarning,
                stacklevel=4,
            )

    def _check_padding(self, x: Tensor, mask: Tensor) -> None:
        wanted = (x.shape[1 - self.token_dim], x.shape[self.token_dim])
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = getattr(mask, "dtype", type(mask).__name__)
            raise SepNormError(
                f"padding_mask is boolean, True where padded, found {found}. From a transformers attention_mask: "
                "padding_mask = attention_mask == 0."
            )
        if tuple(mask.shape) != wanted:
            raise SepNormError(
                f"padding_mask has the shape (batch, tokens) = {wanted} for this input, found {tuple(mask.shape)}."
            )

    def _complaint(self, x: Any) -> str:
        layout = "(batch, tokens, channels)" if self.token_dim == 1 else "(tokens, batch, channels)"
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
        cls: norm of [CLS]: ``"batch"``, ``"layer"``, ``"rms"``, or a callable that builds a module from ``dim``.
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
        self.cls_norm = build_norm(cls, dim, **options)
        self.token_norm = build_norm(tokens, dim, **options)

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
        self.norm = build_norm(kind, dim, eps=eps, momentum=momentum, affine=affine, device=device, dtype=dtype)


def _differentiable_statistics(
    bn: Any, rows: Tensor, padding: Tensor | None, track: bool, sync: bool
) -> statistics.Statistics:
    """Batch statistics of (count, channels) by differentiable operations and without data-dependent shapes."""
    keep = rows.new_ones(rows.shape[0], 1) if padding is None else (~padding).to(rows.dtype)
    count = keep.sum()
    packed = torch.cat([count.view(1), (rows * keep).sum(0)])
    packed = AllReduce.apply(packed) if sync else packed
    total, mean = packed[0], packed[1:] / packed[0].clamp(min=1)
    squares = ((rows - mean).square() * keep).sum(0)
    var = (AllReduce.apply(squares) if sync else squares) / total.clamp(min=1)
    enough = total > 1
    if bn.running_mean is not None:
        mean = torch.where(enough, mean, bn.running_mean.to(mean.dtype))
        var = torch.where(enough, var, bn.running_var.to(var.dtype))
    if track:
        unbiased = var * torch.where(enough, total / (total - 1).clamp(min=1), 1.0)
        statistics.track_statistics(bn, mean.detach(), unbiased.detach())
    return statistics.Statistics(mean, (var + bn.eps).rsqrt(), 0.0)


def _fused_kind(norm: nn.Module) -> str | None:
    """The fused kind of a child, or none where it is something else or somebody watches it by hooks."""
    kind = _FUSED_KINDS.get(type(norm))
    if kind is None or norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        return None
    if kind == "batch" and norm._buffers["running_mean"] is None:
        return None
    return kind


def _same_dtype(x: Tensor, norm: Any) -> bool:
    """Whether input, parameters and statistics of a token norm have one dtype, which its fused path needs."""
    return all(t is None or t.dtype == x.dtype for t in (norm.weight, getattr(norm, "running_mean", None)))
