"""The averaged prediction under fixed draws as a function of the inputs, and its gradient direction.

p̄(y|x) = Σ_s w_s p_s(y|x). With the margin m_s = log Σ_{c≠y} exp f_sc − f_sy of a draw, p_s(y|x) = σ(−m_s), and so

    ∇ₓ log p̄(y|x) = Σ_s a_s ∇ₓ(−m_s) / p̄(y|x),   a_s = w_s p_s (1 − p_s).

An attack by signs needs it up to a positive factor for each input, so the a_s are normalised over the draws, in
logarithms. If probabilities round to 0 or 1, the gradient of log p̄ is lost in float32, but the direction is not.

Index legend: S draws, N inputs, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from whence.engine.batches import check_finite
from whence.engine.contexts import full_precision
from whence.engine.memory import ChunkLimits, in_parts_that_fit
from whence.errors import BadData, BadOption, NotDefined, one_of, whole_number
from whence.functional import Network, differentiable
from whence.likelihoods import Bernoulli, Categorical, Likelihood
from whence.linalg.dense import widened
from whence.posteriors.base import Posterior, is_posterior
from whence.posteriors.ensembles import ensemble
from whence.predictive.predictions import entropy_of
from whence.predictive.sources import Source


@dataclass(frozen=True)
class Averaged:
    """The averaged prediction for some inputs."""

    log_probs: Tensor  # [N, C]
    aleatoric: Tensor  # expected entropy over draws, [N]
    direction: Tensor | None = None  # in which log p̄ of the given classes increases, in the shape of the inputs

    @classmethod
    def joined(cls, parts: list[Averaged]) -> Averaged:
        if len(parts) == 1:
            return parts[0]
        directions = [p.direction for p in parts if p.direction is not None]
        return cls(
            torch.cat([p.log_probs for p in parts]),
            torch.cat([p.aleatoric for p in parts]),
            torch.cat(directions) if directions else None,
        )

    def take(self, which: Tensor) -> Averaged:
        """Some of the inputs, without their direction."""
        return Averaged(self.log_probs[which], self.aleatoric[which])

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
        """Mutual information; clamped at 0 against rounding."""
        return (self.entropy - self.aleatoric).clamp(min=0)


@dataclass
class AveragedPredictor:
    """A mixture of fixed draws from one or more sources."""

    sources: Sequence[Source]
    likelihood: Categorical
    _limits: ChunkLimits = field(default_factory=ChunkLimits, repr=False)
    _classes: int | None = None

    @classmethod
    def of(
        cls,
        posterior: Posterior | nn.Module,
        likelihood: Likelihood | str | None = None,
        method: str | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> AveragedPredictor:
        """The prediction of ``posterior.predict`` with the same options, or of a module."""
        with torch.inference_mode(False):
            found = _posterior(posterior, likelihood)
        labels = _categorical(found.likelihood)
        if method is not None:
            one_of(method, ("linearised", "sampled"), "method")
        if num_samples is not None:
            whole_number(num_samples, "num_samples", 1, "None uses the default")
        with torch.inference_mode(False), torch.no_grad(), full_precision():
            return cls(found.sources(method, num_samples, generator), labels)

    @property
    def network(self) -> Network:
        return self.sources[0].network

    def classes(self, x: Tensor) -> int:
        """C, from one input."""
        if self._classes is None:
            self._classes = self.predict(x[:1]).log_probs.shape[-1]
        return self._classes

    def predict(self, x: Tensor, classes: Tensor | None = None, gradient: bool = False) -> Averaged:
        """Predict [N, …]; with ``gradient`` also the direction for ``classes`` [N] (None: the predicted ones)."""
        if gradient and classes is None:
            first = self.predict(x)
            return replace(first, direction=self.predict(x, first.labels, gradient=True).direction)
        with torch.inference_mode(False), full_precision(), differentiable(self.network, fused=True):
            x = x.clone() if x.is_inference() else x
            wanted = classes.clone() if gradient and classes is not None else None
            most = min(source.most(x) for source in self.sources)
            parts = zip(x.split(most), [None] * len(x) if wanted is None else wanted.split(most), strict=False)
            found = [done for piece, some in parts for done in self._in_parts(piece, some)]
        self._limits.notify("the attack", "draw")
        self._limits.ran_out = None
        return Averaged.joined(found)

    def _in_parts(self, x: Tensor, classes: Tensor | None) -> Iterator[Averaged]:
        """With fewer draws at a time, then fewer inputs, if memory runs out."""
        given = (x,) if classes is None else (x, classes)
        return in_parts_that_fit(
            given,
            lambda part: self._sum(part[0], part[1] if len(part) > 1 else None),
            limits=self._limits,
            size=lambda part: len(part[0]),
            split=lambda part, size: list(zip(*(t.split(size) for t in part), strict=True)),
            device=self.network.device,
            too_large=lambda _: (
                f"a single draw for one input does not fit into memory on {self.network.device}. Use method='sampled', "
                "a smaller network, or a device with more memory."
            ),
        )

    def _sum(self, x: Tensor, classes: Tensor | None) -> Averaged:
        wanted = classes is not None
        self._limits.under_way = max(s.together(x, wanted, self._limits.columns) for s in self.sources)
        total = _Running()
        leaf = x.detach().clone().requires_grad_(classes is not None)
        with torch.set_grad_enabled(classes is not None):
            for source in self.sources:
                for compute, log_weights in source.parts(leaf, classes is not None, self._limits.columns):
                    self._add(total, compute, log_weights, leaf, classes)
        return total.averaged()

    def _add(
        self, total: _Running, compute: Callable[[], Tensor], log_weights: Tensor, leaf: Tensor, classes: Tensor | None
    ) -> None:
        outputs = widened(compute())
        _require_classes(outputs)
        check_finite(outputs, "the outputs under the draws", 0)
        weights = log_weights.to(outputs.device, outputs.dtype)
        total.add(outputs.detach(), weights)
        if classes is not None:
            total.add_direction(-margins(outputs, classes), weights, leaf)


def _posterior(given: Any, likelihood: Any) -> Posterior:
    if is_posterior(given):
        if likelihood is not None:
            raise BadOption(f"a posterior has its own likelihood ({given.likelihood!r}); omit likelihood.")
        return given  # type: ignore[no-any-return]
    if not isinstance(given, nn.Module):
        raise BadOption(
            "an attack needs a posterior, such as whence.laplace returns, or a torch.nn.Module, not a "
            f"{type(given).__name__}."
        )
    if likelihood is None:
        raise BadOption(f"a network ({type(given).__name__}) needs likelihood='classification'.")
    return ensemble([given], likelihood=likelihood)


def _categorical(likelihood: Likelihood) -> Categorical:
    if isinstance(likelihood, Categorical):
        return likelihood
    binary = isinstance(likelihood, Bernoulli)
    raise NotDefined(
        "attacks move inputs away from one class or towards another, so they need likelihood=Categorical(); this "
        f"posterior has {likelihood!r}.{' Two classes can be two logits with Categorical().' if binary else ''}"
    )


def _require_classes(outputs: Tensor) -> None:
    """Check for outputs [S, N, C] of at least two classes."""
    if outputs.dim() != 3:
        raise NotDefined(
            f"attacks need one label per input, outputs [N, C]; this network returns [N, "
            f"{', '.join(map(str, outputs.shape[2:]))}]."
        )
    if outputs.shape[-1] < 2:
        raise BadData("the network returns one number per input; an attack needs the logits of at least two classes.")


def margins(outputs: Tensor, classes: Tensor) -> Tensor:
    """m = log Σ_{c≠y} exp f_c − f_y, so that log p(y) = log σ(−m): outputs [S, N, C] → [S, N]."""
    index = classes.expand(outputs.shape[:2]).unsqueeze(-1)
    own = outputs.gather(-1, index).squeeze(-1)
    hot = torch.zeros_like(outputs, dtype=torch.bool).scatter_(-1, index, True)
    return outputs.masked_fill(hot, float("-inf")).logsumexp(-1) - own


class _Running:
    """Running sums over draws; the direction is relative to the largest weight so far."""

    def __init__(self) -> None:
        self.log_probs: Tensor | None = None  # [N, C]
        self.aleatoric: Tensor | None = None  # [N]
        self.direction: Tensor | None = None  # [N, …]
        self.top: Tensor | None = None  # log Σ a_s of the draws so far, [N]

    def add(self, outputs: Tensor, log_weights: Tensor) -> None:
        """Add outputs [S, N, C] of draws with log w [S]."""
        each = outputs.log_softmax(-1)
        log_probs = (each + log_weights[:, None, None]).logsumexp(0)
        aleatoric = log_weights.exp() @ entropy_of(each.exp())
        self.log_probs = log_probs if self.log_probs is None else torch.logaddexp(self.log_probs, log_probs)
        self.aleatoric = aleatoric if self.aleatoric is None else self.aleatoric + aleatoric

    def add_direction(self, minus_margin: Tensor, log_weights: Tensor, leaf: Tensor) -> None:
        """Add Σ_s a_s ∇(−m_s) of these draws, −m [S, N] with graph; log a_s = log w_s + log σ(m_s) + log σ(−m_s)."""
        known = minus_margin.detach()
        log_a = log_weights[:, None] + functional.logsigmoid(known) + functional.logsigmoid(-known)
        own = log_a.logsumexp(0)  # [N]
        top = own if self.top is None else torch.logaddexp(self.top, own)
        gradient = _input_gradient(((log_a - top).exp() * minus_margin).sum(), leaf)
        if self.direction is not None and self.top is not None:
            faded = (self.top - top).exp().to(gradient.dtype)
            gradient = gradient + self.direction * faded.reshape(-1, *[1] * (gradient.dim() - 1))
        self.direction, self.top = gradient, top

    def averaged(self) -> Averaged:
        assert self.log_probs is not None and self.aleatoric is not None
        if self.direction is not None and not bool(torch.isfinite(self.direction).all()):
            bad = int((~torch.isfinite(self.direction)).flatten(1).any(1).sum())
            raise BadData(
                f"the gradient in the inputs is NaN or infinite for {bad} of {len(self.direction)} inputs. Use "
                "method='sampled' or float64, or check the network for a square root or division at 0."
            )
        return Averaged(self.log_probs, self.aleatoric, self.direction)


def _input_gradient(value: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else (None,)
    if found is None:
        raise NotDefined(
            "the outputs have no gradient in the inputs: the network rounds, looks up or detaches them, so a gradient "
            "attack on it is impossible."
        )
    return found
