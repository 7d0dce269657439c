"""Intercepts all dropout of a network: in modules, functions, attention and between recurrent layers."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whence.engine.options import Option
from whence.engine.randomness import derived_seed, example_uniform
from whence.errors import UnsupportedLayer
from whence.recording.attention import attention


class Function(Option):
    """The torch functions that drop something, by name."""

    DROPOUT = "dropout"
    NATIVE = "native_dropout"
    DROPOUT1D = "dropout1d"
    DROPOUT2D = "dropout2d"
    DROPOUT3D = "dropout3d"
    FEATURE = "feature_dropout"
    ALPHA = "alpha_dropout"
    FEATURE_ALPHA = "feature_alpha_dropout"
    ATTENTION = "scaled_dot_product_attention"
    LSTM = "lstm"
    GRU = "gru"
    RNN_TANH = "rnn_tanh"
    RNN_RELU = "rnn_relu"


FEATURES = (Function.DROPOUT1D, Function.DROPOUT2D, Function.DROPOUT3D, Function.FEATURE)
ALPHA = (Function.ALPHA, Function.FEATURE_ALPHA)
RECURRENT = (Function.LSTM, Function.GRU, Function.RNN_TANH, Function.RNN_RELU)
CALLED = {f.value: f for f in (Function.DROPOUT, Function.NATIVE, *FEATURES, *ALPHA)}  # on their own
# Numbers of dimensions for which torch reads the first as features.
UNBATCHED = {(Function.DROPOUT1D, 2), (Function.DROPOUT3D, 4)}


@dataclass(frozen=True)
class Call:
    """One dropout: the function, and its rate."""

    kind: Function
    rate: float

    @property
    def features(self) -> bool:
        """Whether whole features are dropped: one decision for all dimensions after the second."""
        return self.kind in FEATURES or self.kind is Function.FEATURE_ALPHA


class DropoutMode(TorchFunctionMode):
    """Intercepts dropout calls in training and evaluation mode; subclasses choose what is dropped.

    ``p`` replaces every rate, except rate 0 of attention and recurrent layers.
    """

    def __init__(self, p: float | None) -> None:
        super().__init__()
        self.p = p

    @abstractmethod
    def drop(self, x: Tensor, call: Call) -> Tensor:
        """The tensor after dropout at one site."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name.rstrip("_") in CALLED:
            return self._dropout(name, *args, **kwargs)
        if name == "multi_head_attention_forward":
            return self._heads(func, *args, **kwargs)
        if name == Function.ATTENTION.value and _given(args, kwargs, 4, "dropout_p") > 0:
            return self._attention(*args, **kwargs)
        if name in RECURRENT:
            return self._recurrent(func, Function(name), args, kwargs)
        return func(*args, **kwargs)

    def _site(self, x: Tensor, kind: Function, rate: float) -> Tensor:
        rate = float(rate) if self.p is None else self.p
        return self.drop(x, Call(kind, rate)) if rate > 0 else x

    def _dropout(self, name: str, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        x, kind = named["input"], CALLED[name.rstrip("_")]
        out = self._site(x, kind, named.get("p", 0.5))
        if kind is Function.NATIVE:
            return out, torch.ones_like(x, dtype=torch.bool)
        if (named.get("inplace", False) or name.endswith("_")) and out is not x:
            return x.copy_(out)
        return out

    def _heads(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        rate = _given(args, kwargs, 10, "dropout_p")
        if rate <= 0:
            return func(*args, **kwargs)
        with self:
            return attention(*args, **(kwargs | {"training": True}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(QKᵀ / √d + mask) with dropout, times V: as torch computes it in one kernel."""
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._site(scores.softmax(-1), Function.ATTENTION, dropout_p) @ value

    def _recurrent(self, func: Callable[..., Any], kind: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) != 9 or kwargs:
            return func(*args, **kwargs)
        packed = not isinstance(args[3], bool)  # (data, batch_sizes, start, weights, bias, layers, rate, …)
        layers, rate = args[5:7] if packed else args[4:6]
        if layers < 2 or rate <= 0:
            return func(*args)
        if packed:
            raise UnsupportedLayer(
                f"dropout between the layers of a {kind} on packed sequences is not supported; pass padded sequences."
            )
        x, start, weights, bias, layers, rate, _, both, batch_first = args
        return self._layers(func, kind, x, start, weights, bias, layers, rate, both, batch_first)

    def _layers(
        self,
        func: Callable[..., Any],
        kind: Function,
        x: Tensor,
        start: Any,
        weights: list[Tensor],
        bias: bool,
        layers: int,
        rate: float,
        both: bool,
        batch_first: bool,
    ) -> Any:
        """One layer after the other, with dropout in between; fused kernels do not expose their masks."""
        each = len(weights) // layers
        states = start if isinstance(start, (tuple, list)) else (start,)
        directions = 2 if both else 1
        ends: list[tuple[Tensor, ...]] = []
        for index in range(layers):
            x = self._site(x, kind, rate) if index else x
            rows = slice(index * directions, (index + 1) * directions)
            first = tuple(s[rows].contiguous() for s in states)
            own = weights[index * each : (index + 1) * each]
            begin = first if kind is Function.LSTM else first[0]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="RNN module weights")  # weights not contiguous on a GPU
                x, *end = func(x, begin, own, bias, 1, 0.0, False, both, batch_first)
            ends.append(tuple(end))
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


@dataclass(frozen=True)
class Masks:
    """Which units are kept: a function of (seed, site, draw), and of the input if masks are per input."""

    seed: int
    draws: Tensor  # indices [S]
    size: int  # examples N, of each draw
    keys: Tensor | None = None  # [N]: key of each input; None for one mask for all

    def keep(self, site: int, length: int, inner: list[int], rate: float, examples: bool) -> Tensor:
        """True where a unit is kept, [S, N or 1, k, *inner], for a dimension of S · N · k entries."""
        count = len(self.draws)
        groups, rest = divmod(length, count * self.size) if examples else (length, 0)
        if rest or (not examples and count > 1):
            raise UnsupportedLayer(f"dropout site {site} has {length} rows for {count} draws of {self.size} inputs.")
        seed = derived_seed(self.seed, "site", site)
        if self.keys is None or not examples:
            return example_uniform(seed, 0, self.draws, (count, 1, groups, *inner)) >= rate
        own = [example_uniform(seed, d, self.keys, (self.size, groups, *inner)) for d in self.draws.tolist()]
        return torch.stack(own) >= rate


class MaskMode(DropoutMode):
    """Masks that are a function of (seed, draw, site): for ``draws`` × ``size`` examples laid out draw by draw."""

    def __init__(self, p: float | None, dims: list[int | None], masks: Masks, active: list[bool]) -> None:
        super().__init__(p)
        self.dims, self.masks, self.active = dims, masks, active
        self.at = 0

    def drop(self, x: Tensor, call: Call) -> Tensor:
        index = self.at
        self.at += 1
        if index >= len(self.dims):
            raise UnsupportedLayer(
                f"the network calls dropout more than {len(self.dims)} times for these inputs, unlike "
                "for the first inputs; masks are assigned to calls by their order."
            )
        return self._masked(x, call, index) if self.active[index] else x

    def _masked(self, x: Tensor, call: Call, index: int) -> Tensor:
        """Apply the mask to x, with dimension d split into (draws, examples, remainder)."""
        dim = self.dims[index]
        moved = x.movedim(dim, 0) if dim is not None else x.unsqueeze(0)
        inner = list(moved.shape[1:])
        if call.features:
            whole = 1 if (call.kind, x.dim()) in UNBATCHED else 2
            kept = whole - (1 if dim is not None and dim < whole else 0)
            inner = [n if i < kept else 1 for i, n in enumerate(inner)]
        keep = self.masks.keep(index, len(moved), inner, call.rate, dim is not None)  # [S, N or 1, k, *inner]
        draws, _, groups = keep.shape[:3]
        laid = moved.reshape(draws, -1, groups, *moved.shape[1:])
        out = dropped(laid, keep.to(x.dtype), call).reshape(moved.shape)
        return out.movedim(0, dim) if dim is not None else out.squeeze(0)

    def finish(self) -> None:
        if self.at != len(self.dims):
            raise UnsupportedLayer(
                f"the network calls dropout {self.at} times for these inputs but {len(self.dims)} times for the first "
                "inputs; masks are assigned to calls by their order."
            )


SATURATION = 1.7580993408473766  # λ α of SELU: alpha dropout replaces dropped units by minus this


def dropped(x: Tensor, keep: Tensor, call: Call) -> Tensor:
    """x with ``keep`` (ones and zeros) at the call's rate, scaled as torch does."""
    p = call.rate
    if call.kind in ALPHA:
        if p == 1:
            return torch.zeros_like(x)
        a = 1 / math.sqrt((SATURATION**2 * p + 1) * (1 - p))
        return x * (keep * a) + ((keep - 1) * (SATURATION * a) + SATURATION * a * p)
    return x * (keep / (1 - p)) if p < 1 else torch.zeros_like(x)


def _given(args: Any, kwargs: dict[str, Any], place: int, name: str) -> float:
    return float(kwargs.get(name, args[place] if len(args) > place else 0.0))
