"""An embedding that is moved towards a baseline, for gradients in token ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class MovedEmbedding(TorchFunctionMode):
    """Adds ``delta`` to the embedding of ``ids``, after moving it to α e + (1 − α) b."""

    def __init__(self, ids: Tensor, alpha: float, baseline: Any) -> None:
        super().__init__()
        self.ids, self.alpha, self.baseline = ids, alpha, baseline
        self.delta: Tensor | None = None
        self.away: Tensor | None = None  # e − b

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is not F.embedding or not self._is_ids(args[0] if args else (kwargs or {}).get("input")):
            return out
        if self.away is None:
            base = self.baseline
            if isinstance(base, int) and not isinstance(base, bool):
                weight = args[1] if len(args) > 1 else (kwargs or {})["weight"]
                base = weight.detach()[base]
            self.away = (out.detach() - (0.0 if base is None else base)).clone()
            self.delta = torch.zeros_like(self.away, requires_grad=True)
        assert self.delta is not None
        return out + (self.alpha - 1) * self.away + self.delta

    def _is_ids(self, given: Any) -> bool:
        same = isinstance(given, Tensor) and given.shape == self.ids.shape and not given.is_floating_point()
        return same and (given is self.ids or bool((given == self.ids).all()))
