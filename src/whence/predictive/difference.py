"""How far a served module is from the prediction that was audited."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.batches import cut
from whence.errors import Notice, notice
from whence.predictive.predictions import Prediction, _Probabilities
from whence.predictive.serving import above

TOLERATED = 0.05  # of a probability, of the standard deviation of a number, and of the average uncertainty
PIECE = 32  # inputs at a time: a served module holds all of its draws


@dataclass(frozen=True)
class Difference:
    """A served module beside ``posterior.predict``, on some inputs; absolute differences."""

    inputs: int
    mean: float  # of probabilities, or of the mean of the target: average
    mean_largest: float
    uncertainty: float  # of entropies in nats, or of variances, for each input: average
    uncertainty_largest: float
    usual: float  # average uncertainty of ``predict``
    scale: float  # that the mean is measured by: 1 for probabilities, the average standard deviation of numbers
    deferred: float | None = None  # share of the inputs that are deferred by one and not by the other

    @property
    def small(self) -> bool:
        """Whether means differ by at most 5% (of 1, or of a standard deviation), and the uncertainty on average."""
        fits = self.mean_largest <= TOLERATED * self.scale
        return fits and self.uncertainty <= TOLERATED * self.usual and (self.deferred or 0.0) <= TOLERATED

    def __repr__(self) -> str:
        deferred = "" if self.deferred is None else f"; {self.deferred:.1%} are deferred differently"
        return (
            f"on {self.inputs:,} inputs the served mean differs from predict() by {self.mean:.2g} (largest "
            f"{self.mean_largest:.2g}), the uncertainty by {self.uncertainty:.2g} (largest "
            f"{self.uncertainty_largest:.2g}; it is {self.usual:.2g} on average){deferred}"
        )


def read(prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and total uncertainty as a served module returns them, and what differences of the mean are measured by."""
    if isinstance(prediction, _Probabilities):
        return prediction.probs.detach(), prediction.entropy.detach(), torch.ones_like(prediction.probs)
    return prediction.mean.detach(), prediction.variance.detach(), prediction.variance.detach().sqrt()


@torch.no_grad()
def difference(module: nn.Module, pieces: Iterable[Tensor], predict: Any, threshold: float | None) -> Difference:
    """The module beside ``predict`` on pieces of inputs; a Notice says so where it is not small."""
    served, audited = [], []
    for piece in pieces:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            audited.append(read(predict(piece)))
        served += [module(some)[:2] for some in cut(piece, PIECE)]
    mean, spread = map(torch.cat, zip(*served, strict=True))
    wanted, usual, scale = map(torch.cat, zip(*audited, strict=True))
    means, spreads = (mean - wanted).abs().double(), (spread - usual).abs().double()
    found = Difference(
        inputs=len(mean),
        mean=float(means.mean()),
        mean_largest=float(means.max()),
        uncertainty=float(spreads.mean()),
        uncertainty_largest=float(spreads.max()),
        usual=float(usual.double().mean()),
        scale=float(scale.double().mean()),
        deferred=None
        if threshold is None
        else _share(above(mean, spread, threshold) != above(wanted, usual, threshold)),
    )
    if not found.small:
        notice(f"{found!r}. More draws bring it closer: num_samples=.")
    return found


def _share(which: Tensor) -> float:
    return float(which.double().mean())
