"""Linearised Laplace of one network: prior precision and noise chosen together on validation data.

With noise σ and prior precision δ the covariance of the outputs is σ² v, where v depends on the ratio r = σ² δ alone:
the posterior covariance of the weights is σ² (J̃ᵀ J̃ + r I)⁻¹. So the search is over r, and the best σ for each r is
known in closed form.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.linearised.stack import drawn
from reproductions.linearised.uci.config import Config
from reproductions.linearised.uci.noise import best_noise, lowest, mixture_nll, scaled_nll

Pair = tuple[Tensor, Tensor]
RATIOS = tuple(10 ** (k / 2) for k in range(-8, 9))
CLOSE = (10**-0.25, 10**0.25)
STRONGER = (1.0, 10.0, 100.0, 1000.0)  # times the ratio of the linearised prediction, for weight draws
AROUND = (0.1, 1.0, 10.0)  # times it, for the refined model
LOOKED_AT = 1000  # validation rows


@dataclass(frozen=True)
class Structure:
    """A kind of covariance of the weights."""

    structure: str
    layers: str | None = None

    def fit(self, network: nn.Module, data: Pair, noise: float = 1.0, precision: float = 1.0) -> Any:
        """With the exact Gauss–Newton matrix and an isotropic prior."""
        return whence.laplace(
            network, data, likelihood=whence.Gaussian(noise), structure=self.structure, layers=self.layers,  # type: ignore[call-overload]
            prior_precision=precision, progress=False,
        )  # fmt: skip


STRUCTURES = {
    "full": Structure("full"), "kron": Structure("kron"), "diag": Structure("diag"), "last": Structure("full", "last"),
}  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """What validation data chose; the prior precision is ratio / noise²."""

    ratio: float
    noise: float
    nll: float  # on the validation data, standardised

    @property
    def precision(self) -> float:
        return self.ratio / self.noise**2


def choose(
    config: Config, name: str, network: nn.Module, train: Pair, validation: Pair, seed: int
) -> dict[str, Chosen]:
    """For every kind of prediction by one network."""
    found = {}
    for method, structure in STRUCTURES.items():
        posterior = structure.fit(network, train)
        best = found[method] = of_network(posterior, validation)
        if method == "full":
            found["sampled"] = of_draws(posterior, network, validation, best.ratio, config.draws, seed)
            if config.refines(name):
                found["refined"] = of_refined(posterior, train, validation, best.ratio)
    return found


def of_network(posterior: Any, validation: Pair) -> Chosen:
    """For linearised predictions: a grid, and its best point's neighbours."""
    x, y = (t[:LOOKED_AT] for t in validation)

    def at(ratio: float) -> Chosen:
        found = posterior.with_prior(ratio).predict(x)
        noise, nll = scaled_nll(found.mean - y, found.epistemic)
        return Chosen(ratio, noise, nll)

    best = min((at(ratio) for ratio in RATIOS), key=lambda c: c.nll)
    return min((best, *(at(best.ratio * factor) for factor in CLOSE)), key=lambda c: c.nll)


def of_draws(posterior: Any, network: nn.Module, validation: Pair, start: float, count: int, seed: int) -> Chosen:
    """For predictions by weight draws, which need a stronger prior: a few ratios, the noise by a search for each."""
    x, y = (t[:LOOKED_AT] for t in validation)
    found = []
    for ratio in (start * factor for factor in STRONGER):
        away = posterior.with_prior(ratio).deviations(count, torch.Generator().manual_seed(seed))
        noise = best_noise(drawn(moved(network, away, 1e-3), x), y)[0]

        def nll(sigma: float, away: dict[str, Tensor] = away) -> float:
            return mixture_nll(drawn(moved(network, away, sigma), x), y, sigma)

        found.append(Chosen(ratio, *lowest(nll, noise)))
    return min((c for c in found if math.isfinite(c.nll)), key=lambda c: c.nll)


def moved(network: nn.Module, away: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    return {name: p.detach() + scale * away[name] for name, p in network.named_parameters()}


def of_refined(posterior: Any, train: Pair, validation: Pair, start: float) -> Chosen:
    """For the optimum of the linear model, which moves with the ratio."""
    x, y = (t[:LOOKED_AT] for t in validation)
    found = []
    for ratio in (start * factor for factor in AROUND):
        prediction = refined(posterior.with_prior(ratio), train).predict(x)
        found.append(Chosen(ratio, *scaled_nll(prediction.mean - y, prediction.epistemic)))
    return min(found, key=lambda c: c.nll)


def refined(posterior: Any, train: Pair) -> Any:
    """Quietly: a step that is not needed any more is no news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return posterior.refined(train, progress=False)


def by_evidence(posterior: Any) -> Any:
    """Prior precision and noise by the evidence of the training data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return posterior.tune(progress=False)
