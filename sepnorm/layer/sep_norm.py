"""``SepNorm``: one norm for [CLS], another for the other tokens; and ``SharedNorm``, the baseline, one for all."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sepnorm.arguments import flag, whole
from sepnorm.errors import SepNormError, SepNormWarning
from sepnorm.layer import fused as kernels
from sepnorm.layer import statistics
from sepnorm.layer.kinds import KINDS, Kind, NormSpec, build_norm
from sepnorm.layer.torch_internals import in_backward, is_watched, transforms_active


class Padding(Protocol):
    """Where a layer finds the mask of the forward pass that is running."""

    def current(self, batch: int, tokens: int) -> Tensor | None:
        """(batch, tokens), True where padded."""
        ...


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


_distributed = dist.is_available()


class TokenNorm(nn.Module):
    """What ``SepNorm`` and ``SharedNorm`` have in common: input checks, batch statistics, choice of the path."""

    #: Set by ``convert``: where the padding mask of a running model is found, and what stood here before.
    padding: Padding | None = None
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
        raise NotImplementedError

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalises (batch, tokens, dim), or (tokens, batch, dim) with ``token_dim=0``; same shape out.

        ``padding_mask``: (batch, tokens), boolean, True where padded, as torch's ``key_padding_mask``. In training padded
        tokens are taken for zeros and stay out of batch statistics over tokens, so that nothing depends on what lies there.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise SepNormError(self._complaint(x))
        shape = x.shape
        if len(shape) != 3 or shape[2] != self.dim or shape[self.token_dim] < self.num_cls:
            raise SepNormError(self._complaint(x))
        cls_norm, token_norm = self._places()
        of_batch = isinstance(token_norm, _BatchNorm) and (token_norm.training or token_norm.running_mean is None)
        if padding_mask is None and of_batch and self.padding is not None:
            padding_mask = self.padding.current(shape[1 - self.token_dim], shape[self.token_dim])
        if padding_mask is not None:
            self._check_padding(x, padding_mask)
            x = self._without_padding(x, padding_mask, whole=self.training or of_batch)
            padding_mask = padding_mask if of_batch else None
        if torch.compiler.is_compiling():
            return self._plain(x, padding_mask, track=True)
        # A recomputation for gradient checkpointing runs inside the backward pass: its statistics were counted before.
        track = not in_backward()
        kinds = None if cls_norm is None else _fused_kind(cls_norm), _fused_kind(token_norm)
        if not self._fusable(x, *kinds):
            return self._plain(x, padding_mask, track=track)
        if not x.is_cpu and torch.is_autocast_enabled(x.device.type):
            x = x.float()  # accelerators' autocast runs norms in float32, whatever comes in
        sync = self._synchronised(cls_norm, token_norm)
        if kinds[0] == "batch" and shape[1 - self.token_dim] < 2:
            self._warn_single(cls_norm, sync)
        norms, dims = (cls_norm, token_norm), (self.num_cls, self.token_dim)
        return kernels.fused(x.contiguous(), kinds, norms, *dims, padding_mask, track, sync)

    def _fusable(self, x: Tensor, cls_kind: str | None, token_kind: str | None) -> bool:
        """Whether the fused path serves this input and these norms."""
        cls_norm, token_norm = self._places()
        return (
            token_kind is not None
            and (cls_kind is not None or cls_norm is None)
            and x.shape[self.token_dim] > self.num_cls
            and (token_kind == "layer" or (x.is_cpu and _same_dtype(x, token_norm)))
            and not transforms_active()
            and type(x) in (Tensor, nn.Parameter)
        )

    # ---- the plain path -----------------------------------------------------------------------------------------

    def _plain(self, x: Tensor, padding: Tensor | None, *, track: bool) -> Tensor:
        cls_norm, token_norm = self._places()
        if cls_norm is None:
            return self._one(token_norm, x, padding, track, samples=x.shape[0] * x.shape[1])
        length, batch = x.shape[self.token_dim], x.shape[1 - self.token_dim]
        cls, tokens = x.split([self.num_cls, length - self.num_cls], self.token_dim)
        cls = self._one(cls_norm, cls, None, track, samples=batch)
        if length == self.num_cls:
            return cls
        if padding is not None:
            padding = padding[:, self.num_cls :]
        tokens = self._one(token_norm, tokens, padding, track, samples=batch * (length - self.num_cls))
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
        alone = training and samples < 2 and not sync
        if alone:
            if bn.running_mean is None:
                raise SepNormError(
                    "a batch norm without running statistics cannot normalise a single sample: use larger batches, or "
                    "track_running_stats=True."
                )
            if not torch.compiler.is_compiling():
                self._warn_single(bn, sync)
        simple = padding is None and not sync and not alone and dtype == getattr(bn.running_mean, "dtype", dtype)
        if simple and (track or not training) and type(bn) is nn.BatchNorm1d and samples > 0:
            return bn(rows)
        rows = rows.to(torch.promote_types(dtype, torch.float32))
        if not training or alone:
            stats = statistics.running_statistics(bn, rows.dtype)
        else:
            stats = _differentiable_statistics(bn, rows, padding, track, sync)
        out = (rows - stats.mean) * stats.invstd
        out = out if bn.weight is None else out * bn.weight
        return (out if bn.bias is None else out + bn.bias).to(dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves and casts as every module does, but statistics stay in float32 at least: a sum of small steps needs it."""
        wide = {
            (norm, name): buffer
            for norm in self.children()
            if isinstance(norm, _BatchNorm)
            for name, buffer in norm.named_buffers()
            if buffer.is_floating_point()
        }
        super()._apply(fn, recurse)
        for (norm, name), before in wide.items():
            after = norm.get_buffer(name)
            if after.dtype in kernels.HALF:
                setattr(norm, name, before.to(after.device, torch.promote_types(before.dtype, torch.float32)))
        return self

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

    def _without_padding(self, x: Tensor, mask: Tensor, whole: bool) -> Tensor:
        """Zeros in the place of padded tokens: whatever lies there reaches no statistics and no gradient.

        Unless ``whole`` only what is not finite goes, so that outputs in evaluation are those of the frozen layer too.
        """
        mask = torch.cat(
            [torch.zeros_like(mask[:, : self.num_cls]), mask[:, self.num_cls :]], 1
        )  # [CLS] is never padding
        mask = (mask if self.token_dim == 1 else mask.t()).unsqueeze(-1)
        return x.masked_fill(mask if whole else mask & ~x.isfinite(), 0.0)

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


def _differentiable_statistics(
    bn: Any, rows: Tensor, padding: Tensor | None, track: bool, sync: bool
) -> statistics.Statistics:
    """Batch statistics of (count, channels), or running ones where fewer than two count, and their tracking."""
    mean, var, total = statistics.differentiable_moments(rows, padding, sync)
    mean, var, enough = statistics.or_running(bn, mean, var, total)
    if track and bn.running_mean is not None:
        statistics.track_statistics(bn, mean.detach(), statistics.unbiased(var.detach(), total), enough)
    return statistics.Statistics(mean, (var + bn.eps).rsqrt(), 0.0)


def _fused_kind(norm: nn.Module) -> str | None:
    """The kind of a child as the fused path has it; none where that does not, or where somebody watches the child by hooks."""
    if is_watched(norm) or (isinstance(norm, _BatchNorm) and norm.running_mean is None):
        return None
    if type(norm) is ScaleShift:
        return "scale"
    return next((name for name, kind in KINDS.items() if kind.fused and type(norm) in kind.types), None)


def _same_dtype(x: Tensor, norm: Any) -> bool:
    """Whether input, parameters and statistics of a token norm have one dtype, which its fused path needs."""
    return all(t is None or t.dtype == x.dtype for t in (norm.weight, getattr(norm, "running_mean", None)))
