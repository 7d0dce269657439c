"""One split: every method with its hyperparameters chosen by NLL on the validation part, scored on the test part."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import whence
from reproductions.linearised.classes.config import Config
from reproductions.store import Values
from whence import metrics, zoo
from whence.engine.randomness import derived_seed

Pair = tuple[Tensor, Tensor]
STRUCTURES: dict[str, dict[str, Any]] = {
    "full": {"structure": "full"}, "kron": {"structure": "kron"}, "diag": {"structure": "diag"},
    "last": {"structure": "full", "layers": "last"},
}  # fmt: skip
SCORES: dict[str, Callable[..., Any]] = {
    "nll": metrics.nll, "accuracy": metrics.accuracy, "ece": metrics.ece, "brier": metrics.brier,
}  # fmt: skip


@dataclass(frozen=True)
class Split:
    train: Pair
    held: Pair
    test: Pair
    classes: int


def split_of(config: Config, name: str, seed: int) -> Split:
    """Inputs are standardised by the training part."""
    data = zoo.load(name if name == "two-moons" else f"uci/{name}", seed=seed, validation=0.15, progress=False)
    assert data.train is not None and data.validation is not None and data.test is not None
    train, held, test = (part.tensors() for part in (data.train, data.validation, data.test))
    return Split((train[0][: config.rows], train[1][: config.rows]), held, test, len(data.classes))


def network_of(config: Config, split: Split, seed: int, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    hidden = nn.Linear(split.train[0].shape[1], config.hidden)
    between = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(hidden, nn.ReLU(), *between, nn.Linear(config.hidden, split.classes))


def trained(
    config: Config, split: Split, seed: int, precision: float, dropout: float = 0.0, member: int = 0
) -> nn.Sequential:
    """Adam with a cosine schedule on the mean of −log p, and ½ δ ‖θ‖² / N."""
    own = derived_seed(seed, "network", member)
    network, (x, y) = network_of(config, split, own, dropout), split.train
    generator, size = torch.Generator().manual_seed(own), min(config.batch, len(y))
    optimiser = torch.optim.Adam(network.parameters(), lr=config.rate)
    queue = torch.zeros(0, dtype=torch.long)
    for step in range(config.steps):
        if len(queue) < size:
            queue = torch.cat([queue, torch.randperm(len(y), generator=generator)])
        rows, queue = queue[:size], queue[size:]
        optimiser.param_groups[0]["lr"] = config.rate * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        optimiser.zero_grad()
        penalty = torch.stack([p.square().sum() for p in network.parameters()]).sum()
        (cross_entropy(network(x[rows]), y[rows]) + 0.5 * precision / len(y) * penalty).backward()
        optimiser.step()
    return network.eval()


def held_nll(predict: Callable[[Tensor], Any], pair: Pair) -> float:
    return float(metrics.nll(predict(pair[0]), pair[1], resamples=0))


def best(candidates: list[tuple[Any, Callable[[Tensor], Any]]], held: Pair) -> tuple[Any, Callable[[Tensor], Any]]:
    """The candidate (a value and its prediction) with the lowest NLL on the validation part."""
    return min(candidates, key=lambda candidate: held_nll(candidate[1], held))


def measured(config: Config, name: str, seed: int) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = split_of(config, name, seed)
        chosen, predictors = every_method(config, split, seed)
        with torch.no_grad():
            predictions = {method: predict(split.test[0]) for method, predict in predictors.items()}
    scores = {method: scored(found, split.test[1]) for method, found in predictions.items()}
    return {"chosen": chosen, "methods": scores, "test": len(split.test[1])}


def scored(found: Any, labels: Tensor) -> dict[str, float]:
    return {key: float(metric(found, labels, resamples=0)) for key, metric in SCORES.items()}


def every_method(config: Config, split: Split, seed: int) -> tuple[Values, dict[str, Callable[[Tensor], Any]]]:
    networks = {precision: trained(config, split, seed, precision) for precision in config.precisions}
    candidates = [(precision, plain(network)) for precision, network in networks.items()]
    precision, alone = best(candidates, split.held)
    network = networks[precision]
    members = [network, *(trained(config, split, seed, precision, member=m) for m in range(1, config.members))]
    chosen: Values = {"precision": precision}
    found = {"plain": alone, "ensemble": whence.ensemble(members, likelihood="classification").predict}
    chosen["temperature"] = temperature(network, split.held)
    found["temperature"] = plain(nn.Sequential(network, Scaled(chosen["temperature"])))
    for method, options in STRUCTURES.items():
        posterior = whence.laplace(
            network, split.train, likelihood="classification", prior_precision=1.0, progress=False, **options
        )
        tuned: Any = posterior.tune(split.held, data_scale=False, progress=False)
        chosen[f"laplace, {method}"] = float(tuned.prior_precision)
        found[f"laplace, {method}"] = tuned.predict
        if method == "full":
            found["laplace, evidence"] = posterior.tune(progress=False).predict
            sampled = posterior.tune(split.held, method="sampled", data_scale=False, progress=False)
            found["laplace, sampled"] = by_draws(sampled, config)
    return chosen, found | others(config, split, seed, precision, network, chosen)


def others(
    config: Config, split: Split, seed: int, precision: float, network: nn.Module, chosen: Values
) -> dict[str, Callable[[Tensor], Any]]:
    """Dropout, variational inference and SWAG."""
    found = {}
    rates: list[tuple[Any, Callable[[Tensor], Any]]] = [
        (
            rate,
            by_draws(
                whence.dropout(trained(config, split, seed, precision, rate), likelihood="classification"), config
            ),
        )
        for rate in config.dropouts
    ]
    chosen["dropout"], found["dropout"] = best(rates, split.held)
    priors: list[tuple[Any, Callable[[Tensor], Any]]] = [
        (prior, by_draws(whence.variational(
            network, split.train, likelihood="classification", prior_precision=prior, epochs=config.epochs, lr=3e-3,
            batch_size=config.batch, seed=seed, progress=False,
        ), config))
        for prior in config.priors
    ]  # fmt: skip
    chosen["variational"], found["variational"] = best(priors, split.held)
    swag = whence.swag(
        network, split.train, likelihood="classification", epochs=config.collections, lr=0.01,
        weight_decay=precision / len(split.train[1]), batch_size=config.batch, seed=seed, progress=False,
    )  # fmt: skip
    scales: list[tuple[Any, Callable[[Tensor], Any]]] = [
        (scale, by_draws(swag.with_scale(scale), config)) for scale in config.scales
    ]
    chosen["swag"], found["swag"] = best(scales, split.held)
    return found


def plain(network: nn.Module) -> Callable[[Tensor], Any]:
    found: Callable[[Tensor], Any] = whence.ensemble([network], likelihood="classification").predict
    return found


def by_draws(posterior: Any, config: Config) -> Callable[[Tensor], Any]:
    def predict(x: Tensor) -> Any:
        generator = torch.Generator().manual_seed(0)
        return posterior.predict(x, method="sampled", num_samples=config.draws, generator=generator)

    return predict


class Scaled(nn.Module):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs / self.temperature


def temperature(network: nn.Module, held: Pair) -> float:
    """With the lowest NLL on the validation part, by a golden section in its logarithm."""
    with torch.no_grad():
        outputs = network(held[0])

    def lost(log: float) -> float:
        return float(cross_entropy(outputs / math.exp(log), held[1]))

    low, high, ratio = -3.0, 3.0, (math.sqrt(5) - 1) / 2
    for _ in range(40):
        one, two = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, two) if lost(one) < lost(two) else (one, high)
    return math.exp((low + high) / 2)
