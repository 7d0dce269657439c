"""The averaged prediction as a function of the inputs, under draws that stay the same, and which way it falls.

p̄(y|x) = Σ_s w_s p_s(y|x). With the margin m_s = log Σ_{c≠y} exp f_sc − f_sy of a draw, p_s(y|x) = σ(−m_s), and so

    ∇ₓ log p̄(y|x) = Σ_s a_s ∇ₓ(−m_s) / p̄(y|x),   a_s = w_s p_s (1 − p_s).

An attack by signs needs it up to a positive factor for each input, so the a_s are normalised over the draws, in
logarithms. Where probabilities round to 0 or 1 the gradient of log p̄ itself is lost in float32; the direction is not.

Index legend: S draws, N inputs, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from whence.batches import check_finite
from whence.curvature.jacobian import widened
from whence.curvature.memory import Room, attempt, release
from whence.errors import BadData, NotDefined, TooLarge
from whence.functional import Network, differentiable, full_precision
from whence.likelihoods import Categorical
from whence.predictive.predictions import entropy_of
from whence.robustness.sources import Source


@dataclass(frozen=True)
class Seen:
    """The averaged prediction for some inputs."""

    log_probs: Tensor  # [N, C]
    aleatoric: Tensor  # expected entropy over draws, [N]
    direction: Tensor | None = None  # in which log p̄ of the asked classes rises, in the shape of the inputs

    def take(self, which: Tensor) -> Seen:
        """Of some of the inputs, without their direction."""
        return Seen(self.log_probs[which], self.aleatoric[which])

    @property
    def labels(self) -> Tensor:
        return self.log_probs.argmax(-1)

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    @property
    def entropy(self) -> Tensor:
        return entropy_of(self.probs)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information; not below 0, which rounding could bring it to."""
        return (self.entropy - self.aleatoric).clamp(min=0)


@dataclass
class Averaged:
    """A mixture of draws from one or more sources."""

    sources: Sequence[Source]
    likelihood: Categorical
    _room: Room = field(default_factory=Room, repr=False)
    _classes: int | None = None

    @property
    def network(self) -> Network:
        return self.sources[0].network

    def classes(self, x: Tensor) -> int:
        """C, from one input."""
        if self._classes is None:
            self._classes = self.look(x[:1]).log_probs.shape[-1]
        return self._classes

    def look(self, x: Tensor, classes: Tensor | None = None, gradient: bool = False) -> Seen:
        """Predict for inputs [N, …]; with ``gradient`` also the direction for ``classes`` [N] (None: the predicted)."""
        if gradient and classes is None:
            first = self.look(x)
            return replace(first, direction=self.look(x, first.labels, gradient=True).direction)
        with torch.inference_mode(False), full_precision(), differentiable(self.network, fused=True):
            x = x.clone() if x.is_inference() else x
            asked = classes.clone() if gradient and classes is not None else None
            most = min(source.most(x) for source in self.sources)
            parts = zip(x.split(most), [None] * len(x) if asked is None else asked.split(most), strict=False)
            found = [self._fitting(piece, some) for piece, some in parts]
        self._room.say("the attack", "draw")
        self._room.ran_out = None
        return _joined(found)

    def _fitting(self, x: Tensor, classes: Tensor | None) -> Seen:
        """With fewer draws together, then fewer inputs, where memory runs out."""
        while (found := attempt(lambda: self._look(x, classes))) is None:
            release(self.network.device)
            together = max(source.together(x, classes is not None, self._room.columns) for source in self.sources)
            if not self._room.shrink(len(x), together):
                raise TooLarge(
                    f"one draw for one input does not fit into the memory of {self.network.device}. Take "
                    "method='sampled', a smaller network, or a device with more memory."
                )
            if together == 1:
                half = len(x) // 2
                cuts = (slice(0, half), slice(half, len(x)))
                return _joined([self._fitting(x[c], None if classes is None else classes[c]) for c in cuts])
        return found

    def _look(self, x: Tensor, classes: Tensor | None) -> Seen:
        total = _Running()
        leaf = x.detach().clone().requires_grad_(classes is not None)
        with torch.set_grad_enabled(classes is not None):
            for source in self.sources:
                for compute, log_weights in source.parts(leaf, classes is not None, self._room.columns):
                    self._add(total, compute, log_weights, leaf, classes)
        return total.seen()

    def _add(
        self, total: _Running, compute: Callable[[], Tensor], log_weights: Tensor, leaf: Tensor, classes: Tensor | None
    ) -> None:
        outputs = widened(compute())
        require_classes(outputs)
        check_finite(outputs, "the outputs under the draws", 0)
        weights = log_weights.to(outputs.device, outputs.dtype)
        total.add(outputs.detach(), weights)
        if classes is not None:
            minus_margin = -margins(outputs, classes)
            total.add_direction(minus_margin, weights, leaf)


class _Running:
    """Sums over draws, chunk by chunk; the direction is kept relative to the largest weight seen so far."""

    def __init__(self) -> None:
        self.log_probs: Tensor | None = None  # [N, C]
        self.aleatoric: Tensor | None = None  # [N]
        self.direction: Tensor | None = None  # [N, …]
        self.top: Tensor | None = None  # log Σ a_s of the draws so far, [N]

    def add(self, outputs: Tensor, log_weights: Tensor) -> None:
        """Outputs [S, N, C] of draws with log w [S]."""
        each = outputs.log_softmax(-1)
        log_probs = (each + log_weights[:, None, None]).logsumexp(0)
        aleatoric = log_weights.exp() @ entropy_of(each.exp())
        self.log_probs = log_probs if self.log_probs is None else torch.logaddexp(self.log_probs, log_probs)
        self.aleatoric = aleatoric if self.aleatoric is None else self.aleatoric + aleatoric

    def add_direction(self, minus_margin: Tensor, log_weights: Tensor, leaf: Tensor) -> None:
        """Σ_s a_s ∇(−m_s) over these draws, −m [S, N] with its graph; log a_s = log w_s + log σ(m_s) + log σ(−m_s)."""
        known = minus_margin.detach()
        log_a = log_weights[:, None] + functional.logsigmoid(known) + functional.logsigmoid(-known)
        own = log_a.logsumexp(0)  # [N]
        top = own if self.top is None else torch.logaddexp(self.top, own)
        gradient = slope(((log_a - top).exp() * minus_margin).sum(), leaf)
        if self.direction is not None and self.top is not None:
            faded = (self.top - top).exp().to(gradient.dtype)
            gradient = gradient + self.direction * faded.reshape(-1, *[1] * (gradient.dim() - 1))
        self.direction, self.top = gradient, top

    def seen(self) -> Seen:
        assert self.log_probs is not None and self.aleatoric is not None
        if self.direction is not None and not bool(torch.isfinite(self.direction).all()):
            bad = int((~torch.isfinite(self.direction)).flatten(1).any(1).sum())
            raise BadData(
                f"the gradient in the inputs is NaN or infinite for {bad} of {len(self.direction)} inputs. Take "
                "method='sampled' or float64, or look for a square root or a division at 0 in the network."
            )
        return Seen(self.log_probs, self.aleatoric, self.direction)


def slope(value: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else (None,)
    if found is None:
        raise NotDefined(
            "the outputs have no gradient in the inputs: the network rounds, looks them up or detaches them, and a "
            "gradient attack cannot be made on it."
        )
    return found


def margins(outputs: Tensor, classes: Tensor) -> Tensor:
    """m = log Σ_{c≠y} exp f_c − f_y, so that log p(y) = log σ(−m): outputs [S, N, C] → [S, N]."""
    index = classes.expand(outputs.shape[:2]).unsqueeze(-1)
    mine = outputs.gather(-1, index).squeeze(-1)
    hot = torch.zeros_like(outputs, dtype=torch.bool).scatter_(-1, index, True)
    return outputs.masked_fill(hot, float("-inf")).logsumexp(-1) - mine


def require_classes(outputs: Tensor) -> None:
    """Outputs [S, N, C] of two classes at least."""
    if outputs.dim() != 3:
        raise NotDefined(
            f"attacks are for one label for each input, outputs [N, C]; this network gives [N, "
            f"{', '.join(map(str, outputs.shape[2:]))}]."
        )
    if outputs.shape[-1] < 2:
        raise BadData(
            "the network gives one number for each input; an attack needs the logits of two classes at least."
        )


def _joined(found: list[Seen]) -> Seen:
    if len(found) == 1:
        return found[0]

    def cat(name: str) -> Any:
        parts = [getattr(seen, name) for seen in found]
        return None if parts[0] is None else torch.cat(parts)

    return Seen(cat("log_probs"), cat("aleatoric"), cat("direction"))
