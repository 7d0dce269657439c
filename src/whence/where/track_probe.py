"""A few inputs looked at through a posterior: each layer's part of the variance, and the uncertainty, in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.batches import PAIR_BATCH, Inputs, size_of
from whence.predictive import linearised
from whence.predictive.dispatch import LINK_POINTS
from whence.predictive.links import predict_gaussian
from whence.predictive.predictions import Prediction
from whence.predictive.projection import project
from whence.randomness import Points

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

UNCERTAINTIES = ("entropy", "variance", "aleatoric", "epistemic")


@dataclass(frozen=True)
class LayerShare:
    """What one layer does to the variance of the outputs."""

    variance_share: float
    prior_share: float
    explained: float


@dataclass(frozen=True)
class Look:
    """What was seen: a share for each block, and means over the inputs; None where a task has no such number."""

    shares: list[LayerShare]
    uncertainty: dict[str, float | None]
    loss: float | None  # of the plain network, where targets are known


@torch.inference_mode(False)
def look(posterior: Laplace, inputs: Inputs, targets: Tensor | None = None) -> Look:
    """The numbers of ``posterior.where(inputs)`` and ``posterior.predict(inputs)``, from one set of gradients."""
    if posterior.curvature.joint:
        rows = posterior.where(inputs).layers
        shares = [LayerShare(r.variance_share or 0.0, r.prior_share or 0.0, r.explained or 0.0) for r in rows]
        prediction = posterior.predict(inputs, method="linearised")
        means = _means(prediction, size_of(inputs))  # type: ignore[arg-type]
        return Look(shares, _divided(means, size_of(inputs)), _loss(posterior, inputs, targets))
    traces = torch.zeros(len(posterior.blocks), 2, dtype=torch.float64)
    sums: dict[str, float] = {}
    for cov, mean, found in _pieces(posterior, inputs):
        traces += found
        prediction = predict_gaussian(posterior.likelihood, mean, cov, "mc", Points(LINK_POINTS), lambda c=cov: c)  # type: ignore[misc]
        for name, value in _means(prediction, len(mean)).items():
            sums[name] = sums.get(name, 0.0) + value
    own, prior = traces.sum(0).tolist()
    shares = [
        LayerShare(v / own if own else 0.0, p / prior if prior else 0.0, 1 - v / p if p else 0.0)
        for v, p in traces.tolist()
    ]
    return Look(shares, _divided(sums, size_of(inputs)), _loss(posterior, inputs, targets))


def _pieces(posterior: Laplace, inputs: Inputs) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for piece in linearised.pieces(posterior, inputs):
        yield from linearised.fitting(posterior, partial(_piece, posterior), piece, "tracking")


def _piece(posterior: Laplace, piece: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance [N, C, C] and mean [N, C] of the outputs, and Σₓ tr V by block, posterior and prior [B, 2]."""
    mean, grads = linearised.differentiate(posterior, piece)
    centred = posterior.likelihood.task == "classification"
    total, found = None, []
    for gaussian, blocks in posterior.gaussians():
        projection = project(gaussian, blocks, grads, None)
        weights, alone = gaussian.weights()
        own = projection.weigh(weights, alone)
        prior = projection.weigh(alone.expand_as(weights), alone)
        total = own if total is None else total + own
        found.append(torch.stack([_trace(own, centred), _trace(prior, centred)]))
    assert total is not None
    return total, mean, torch.stack(found).cpu()


def _trace(cov: Tensor, centred: bool) -> Tensor:
    """Σₙ tr V, or of V with the mean over outputs taken out."""
    trace = cov.diagonal(dim1=-2, dim2=-1).double().sum()
    return trace - cov.double().sum() / cov.shape[-1] if centred else trace


def _means(prediction: Prediction, size: int) -> dict[str, float]:
    """Sums over the inputs of means over the outputs, of what this prediction has."""
    found = {name: getattr(prediction, name, None) for name in UNCERTAINTIES}
    return {n: float(v.double().mean()) * size for n, v in found.items() if v is not None}


def _divided(sums: dict[str, float], size: int) -> dict[str, float | None]:
    return {name: sums[name] / size if name in sums else None for name in UNCERTAINTIES}


def _loss(posterior: Laplace, inputs: Inputs, targets: Tensor | None) -> float | None:
    """Mean negative log likelihood of the plain network."""
    if targets is None:
        return None
    with torch.no_grad():
        network = posterior.network
        pieces = network.pieces(inputs, PAIR_BATCH)
        outputs, targets = torch.cat([network(piece) for piece in pieces]), targets.to(network.device)
        counted = posterior.likelihood.counts(targets)
        if counted is not None and len(counted) == len(outputs) and not bool(counted.all()):
            which = counted.nonzero().squeeze(1)
            outputs, targets = outputs[which], targets[which]
        checked = posterior.likelihood.check(outputs, targets)
        return float(posterior.likelihood.nll(outputs, checked).double().mean()) if len(outputs) else None
