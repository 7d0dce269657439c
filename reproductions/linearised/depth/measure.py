"""One network: trained, its evidence, its test NLL."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.linearised.depth.config import Config
from reproductions.linearised.depth.kernels import (
    LOG_2PI,
    Evidence,
    Layers,
    at_linear_optimum,
    at_trained_weights,
    layers_of,
    refined_prediction,
)
from reproductions.linearised.depth.networks import loss, mlp, trained
from reproductions.linearised.depth.subjects import Subject, subject
from reproductions.store import Values
from whence import metrics

GRID = 81
ENDS = (-1.6, 1.6)


def by_depth(config: Config, name: str, seed: int) -> Values:
    """Every depth and width."""
    data = subject(config, name, seed)
    found: Values = {}
    for depth in config.depths:
        for width in config.widths:
            torch.manual_seed(seed)
            network = trained(config, mlp(data.x[0].numel(), data.outputs, depth, width), data)
            found[f"{depth}, {width}"] = measured(config, data, network, panel=seed == config.seeds[0])
    return found


def by_activation(config: Config, name: str, seed: int) -> Values:
    data = subject(config, name, seed)
    found: Values = {}
    for activation in config.activations:
        torch.manual_seed(seed)
        network = mlp(data.x[0].numel(), data.outputs, config.activation_depth, config.widths[-1], activation)
        found[activation] = measured(config, data, trained(config, network, data), panel=False)
    return found


def measured(config: Config, data: Subject, network: nn.Module, panel: bool) -> Values:
    """Evidence at the trained weights and at the linear model's optimum, test NLL of both and of the network alone."""
    layers = layers_of(network, data.x)
    own = at_trained_weights(data, network, layers, config.iterations)
    posterior = process(data, network, layers, own)
    found: Values = {
        "train loss": float(loss(data, layers.outputs)),
        "trained": _shown(own) | {"nll": nll(posterior.predict(data.test_x), data.test_y)},
        "alone": _alone(data, network, layers),
    }
    if data.classes == 0:
        best, test = at_linear_optimum(data, layers, config.iterations), layers_of(network, data.test_x)
        mean, variance = refined_prediction(data, layers, test, best)
        away = (data.test_y.flatten() - mean).square() / variance
        found["refined"] = _shown(best) | {"nll": 0.5 * float((away + variance.log()).mean() + LOG_2PI)}
    if panel and data.x[0].numel() == 1:
        x = torch.linspace(*ENDS, GRID, dtype=torch.float64).unsqueeze(1)
        prediction = posterior.predict(x)
        found["panel"] = {
            "mean": prediction.mean.flatten().tolist(),
            "std": prediction.epistemic.sqrt().flatten().tolist(),
        }
    return found


def process(data: Subject, network: nn.Module, layers: Layers, found: Evidence) -> Any:
    """The Gaussian process of the linearised network under the chosen prior and noise."""
    likelihood: Any = "classification" if data.classes > 2 else "binary"
    given = whence.Gaussian(found.noise) if found.noise is not None else likelihood
    prior = dict(zip(layers.names, found.precisions, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = whence.laplace(
            network, (data.x, data.y), likelihood=given, structure="diag", prior_precision=prior, progress=False
        )
        return posterior.function_space((data.x, data.y), progress=False)


def nll(prediction: Any, y: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(metrics.nll(prediction, y, resamples=0))


def _alone(data: Subject, network: nn.Module, layers: Layers) -> float:
    """Test NLL of the network without a posterior; numbers with the noise of training residuals."""
    with torch.no_grad():
        outputs = network(data.test_x)
    if data.classes:
        return float(loss(Subject(data.test_x, data.test_y, data.test_x, data.test_y, data.classes), outputs))
    noise = float((data.y - layers.outputs).square().mean().clamp(min=1e-6))
    away = (data.test_y - outputs).square() / noise
    return 0.5 * float(away.mean()) + 0.5 * math.log(noise) + 0.5 * LOG_2PI


def _shown(found: Evidence) -> Values:
    return {
        "evidence": found.value, "fit": found.fit, "occam": found.occam, "gamma": found.gamma, "noise": found.noise,
        "precisions": list(found.precisions),
    }  # fmt: skip
