"""Everything that an audit asks about a set of inputs, from one pass where that is exact.

Where random columns stand in for many outputs, shares, novelty and predictions have columns or draws of their own, and
take a pass each.

Index legend: N inputs, B blocks, C outputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.batches import Inputs
from whence.engine.memory import sizes
from whence.posteriors.laplace.layer_subset import restricted_to_layers
from whence.posteriors.laplace.tuning import say_if_untuned
from whence.predictive.collected import CollectedPredictions
from whence.predictive.linearised import Moments
from whence.predictive.linearised_draws import Probes, directions_for
from whence.predictive.predictions import Prediction
from whence.where.novelty_prior import unexplained_by_layer, unexplained_under, with_novelty_prior
from whence.where.one_pass import Asked, decided, examine
from whence.where.question import Question
from whence.where.shares import Shares
from whence.where.tables import under_factors

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

NOVELTY = "novelty"  # the key of the shares under the prior of novelty
FACTORS = (0.1, 1.0, 10.0)  # on the prior precision


@dataclass(frozen=True)
class NoveltyPrior:
    """δ / s of every layer, and the random columns of the reference (0: exact)."""

    precision: tuple[float, ...]
    columns: int = 0


@dataclass(frozen=True)
class Examined:
    """What is known about a set of inputs."""

    posterior: Laplace
    inputs: Inputs
    shares: dict[float, Shares]  # by factor on the prior precision; those of 1 with units, if they were asked for
    unexplained: Tensor | None = None  # [N, B], under the prior of novelty
    moments: KeptMoments | None = field(default=None, repr=False)
    whole: Prediction | None = field(default=None, repr=False)

    @property
    def own(self) -> Shares:
        return self.shares[1.0]

    def prediction(self, layers: Sequence[str] | None = None) -> Prediction:
        """The posterior's prediction, or that of some layers with the others fixed."""
        if layers is None and self.whole is not None:
            return self.whole
        if layers is not None and self.moments is not None and self.moments.kept:
            return self.moments.prediction(layers)
        posterior = self.posterior if layers is None else restricted_to_layers(self.posterior, layers)
        return posterior.predict(self.inputs)


class KeptMoments:
    """The moments of one pass: a prediction, and the covariances by block as long as they are few."""

    def __init__(self, posterior: Laplace, inputs: Inputs) -> None:
        self.posterior, self.inputs = posterior, inputs
        self.names = [b.name for b in posterior.blocks]
        self.collected = CollectedPredictions(posterior, inputs)
        self.kept = not posterior.curvature.joint
        self._bytes = 0
        self._totals: list[Tensor] = []
        self._means: list[Tensor] = []
        self._by_block: list[Tensor] = []  # [B, N, C, C]

    def add(self, moments: Moments) -> None:
        assert moments.by_block is not None
        self.collected.add(moments)
        self._totals.append(_total_variance(moments.cov, self.posterior.likelihood.shift_invariant))
        self._bytes += len(moments.by_block) * moments.cov.numel() * moments.cov.element_size()
        self.kept = self.kept and self._bytes <= sizes().validation
        if self.kept:
            self._means.append(moments.mean)
            self._by_block.append(torch.stack(moments.by_block))
        else:
            self._means, self._by_block = [], []

    @property
    def total_variance(self) -> Tensor:
        """tr V of each input, float64 on the CPU [N]."""
        return torch.cat(self._totals).double().cpu()

    def prediction(self, layers: Sequence[str]) -> Prediction:
        """With only some layers uncertain."""
        which = [self.names.index(name) for name in layers]
        collected = CollectedPredictions(self.posterior, self.inputs)
        for mean, by_block in zip(self._means, self._by_block, strict=True):
            collected.add(Moments(mean, by_block[which].sum(0)))
        return collected.prediction()


def _total_variance(cov: Tensor, shift_invariant: bool) -> Tensor:
    """tr V of covariances [N, C, C]; of centred logits for class labels."""
    trace = cov.diagonal(dim1=1, dim2=2).sum(1)
    return trace - cov.sum((1, 2)) / cov.shape[1] if shift_invariant else trace


def examined(
    posterior: Laplace,
    inputs: Inputs,
    *,
    profile: Laplace | None = None,
    factors: Sequence[float] = (1.0,),
    novelty: NoveltyPrior | None = None,
    units: bool = False,
    groups: Tensor | None = None,
    predict: bool = True,
) -> Examined:
    """Shares of ``profile`` (by default the posterior) under several priors, unexplained, and the prediction.

    ``groups`` [N, G]: units by group of inputs too.
    """
    profile = posterior if profile is None else profile
    question = decided(profile, inputs, Question(), "where()")
    asked: dict[float | str, Laplace] = {1.0: profile}
    for factor, scaled in under_factors(profile, [f for f in factors if f != 1.0]).items():
        asked[factor] = scaled
    together = novelty is not None and question.is_whole and not novelty.columns
    weak = None if novelty is None else with_novelty_prior(posterior, novelty.precision)
    if weak is not None and together:
        asked[NOVELTY] = weak
    moments = KeptMoments(posterior, inputs) if predict and question.is_whole and _exact(posterior, inputs) else None
    found = examine(
        inputs,
        Asked(asked, 1.0 if units else None, groups, {} if moments is None else {"": posterior}),
        question,
        None if moments is None else lambda _, piece: moments.add(piece),
    )
    unexplained = None
    if weak is not None and novelty is not None:
        if together:
            unexplained = unexplained_under(weak, found[NOVELTY].variance, found[NOVELTY].prior)
        else:
            unexplained, _ = unexplained_by_layer(posterior, inputs, novelty.precision, novelty.columns or "exact")
    shares = {f: found[f] for f in sorted(factors)}
    if moments is None:
        return Examined(posterior, inputs, shares, unexplained)
    say_if_untuned(posterior)
    return Examined(posterior, inputs, shares, unexplained, moments, moments.collected.prediction())


def _exact(posterior: Laplace, inputs: Inputs) -> bool:
    """Whether ``predict`` differentiates all outputs."""
    return len(posterior.output_shape) == 1 and directions_for(posterior, inputs, Probes.AUTO, None) is None
