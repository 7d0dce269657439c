"""One group of splits: choices on validation rows for the baselines, none for the evidence; scores on test rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.linearised.data import Splits, load
from reproductions.linearised.online.config import Config
from reproductions.linearised.online.networks import STARTS, VARIANTS, Kept, Learner, Stopped, by_decay, learned
from reproductions.linearised.stack import Job, Weights, module, outputs
from reproductions.linearised.uci.laplace import STRUCTURES, Chosen, of_network
from reproductions.linearised.uci.noise import FEWEST
from reproductions.linearised.uci.scores import scored
from reproductions.store import Values
from whence.predictive.links import predict_draws

FULL = STRUCTURES["full"]


def measured(config: Config, kind: str, name: str, numbers: tuple[int, ...]) -> Values:
    """Scores of every method on every split of a group, in the unit of the target."""
    chosen = choose(config, name, numbers, load(name, numbers, kind, validation=True))
    splits = load(name, numbers, kind, validation=False)
    predictors, learners = final(config, name, numbers, splits, chosen)
    found: Values = {"splits": list(numbers), "methods": {}, "chosen": _shown(chosen, learners)}
    for method, each in predictors.items():
        rows = [scored(one, splits.test.of(k), splits.train.of(k)[0], splits.spread[k]) for k, one in enumerate(each)]
        found["methods"][method] = {key: [row[key] for row in rows] for key in rows[0]}
    found["trace"] = {method: each[0].trace() for method, each in learners.items()}
    return found


def jobs_of(numbers: tuple[int, ...], decay: float = 0.0) -> list[Job]:
    """The same starts and batches for every method."""
    return [Job(k, 100 * number, decay) for k, number in enumerate(numbers)]


class Choices:
    """What validation rows chose: by split."""

    def __init__(self) -> None:
        self.decay: list[float] = []
        self.stop: list[int] = []
        self.noise: dict[str, list[float]] = {}
        self.laplace: dict[str, list[Chosen]] = {}


def choose(config: Config, name: str, numbers: tuple[int, ...], splits: Splits) -> Choices:
    """By networks of the training rows without the validation rows."""
    held, schedule, found = splits.validation, config.schedule(name), Choices()
    assert held is not None
    count = len(numbers)
    jobs = [job for decay in config.decays for job in jobs_of(numbers, decay)]
    grid = by_decay(splits.train, jobs, config.hidden, schedule)
    parts = [{n: v[i * count : (i + 1) * count] for n, v in grid.items()} for i in range(len(config.decays))]
    errors = [_errors(weights, splits) for weights in parts]
    best = [min(range(len(parts)), key=lambda i: errors[i][k]) for k in range(count)]
    found.decay = [config.decays[i] for i in best]
    stopped = Stopped.watching(held, max(schedule.steps // config.looks, 1))
    by_decay(splits.train, jobs_of(numbers), config.hidden, schedule, stopped)
    found.stop = stopped.steps
    networks = {
        "grid": {n: torch.stack([parts[i][n][k] for k, i in enumerate(best)]) for n in grid},
        "early": stopped.kept,
    }
    for method, weights in networks.items():
        found.noise[method] = [max(e, FEWEST) for e in _errors(weights, splits)]
        found.laplace[method] = [
            of_network(FULL.fit(module(weights, k), splits.train.of(k)), held.of(k)) for k in range(count)
        ]
    return found


def _errors(weights: Weights, splits: Splits) -> list[float]:
    """Root mean squared error on validation rows, which is also the best noise."""
    assert splits.validation is not None
    away = (outputs(weights, splits.validation.x) - splits.validation.y).square()
    return [float(away[k, :size].mean().sqrt()) for k, size in enumerate(splits.validation.sizes)]


Predict = Callable[[Tensor], Any]


def final(
    config: Config, name: str, numbers: tuple[int, ...], splits: Splits, chosen: Choices
) -> tuple[dict[str, list[Predict]], dict[str, list[Learner]]]:
    """Networks of all training rows: predictions by method, one for each split."""
    schedule, part = config.schedule(name), splits.train
    jobs = [Job(k, 100 * number, chosen.decay[k]) for k, number in enumerate(numbers)]
    stopped = Kept(chosen.stop, {})
    by_decay(part, jobs_of(numbers), config.hidden, schedule, stopped)
    networks = {"grid": by_decay(part, jobs, config.hidden, schedule), "early": stopped.weights}
    found: dict[str, list[Predict]] = {}
    for method, weights in networks.items():
        each = range(len(numbers))
        found[method] = [partial(_alone, module(weights, k), chosen.noise[method][k]) for k in each]
        own = chosen.laplace[method]
        found[f"{method}, laplace"] = [
            FULL.fit(module(weights, k), part.of(k), own[k].noise, own[k].precision).predict for k in each
        ]
    learners = {m: learned(config, part, jobs_of(numbers), schedule, variant) for m, variant in VARIANTS.items()}
    for method, own_learners in learners.items():
        found[method] = [partial(_alone, one.network, one.evidence.likelihood.number) for one in own_learners]
        found[f"{method}, laplace"] = [one.evidence.posterior.predict for one in own_learners]
    usual = by_decay(part, jobs_of(numbers, config.usual), config.hidden, schedule)
    found["afterwards, laplace"] = [_afterwards(module(usual, k), part.of(k)).predict for k in range(len(numbers))]
    return found, learners


def _afterwards(network: torch.nn.Module, data: tuple[Tensor, Tensor]) -> Any:
    """The evidence once, after training with the usual decay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FULL.fit(network, data, noise=_residual(network, data)).tune(per_layer=True, progress=False)


def _residual(network: torch.nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return max(float((network(data[0]) - data[1]).square().mean().sqrt()), FEWEST)


def _alone(network: torch.nn.Module, noise: float, x: Tensor) -> Any:
    """Without uncertainty of the weights."""
    return predict_draws(whence.Gaussian(noise), network(x).unsqueeze(0))


def _shown(chosen: Choices, learners: dict[str, list[Learner]]) -> Values:
    found: Values = {"decay": chosen.decay, "stop": chosen.stop, "noise": dict(chosen.noise), "online": {}}
    for method, each in learners.items():
        last = [one.evidence.records[-1] for one in each]
        found["online"][method] = {
            "precision": [list(r.precision.values()) for r in last], "evidence": [r.log_evidence for r in last],
            "gamma": [r.effective_parameters for r in last],
            "seconds": sum(r.seconds for one in each for r in one.evidence.records) / len(each),
        }  # fmt: skip
        found["noise"][method] = [one.evidence.likelihood.number for one in each]
    return found


# Where it starts

IDLE = 1e-3  # of the norm of a unit's incoming weights times that of its outgoing ones, in standardised units


def by_start(config: Config, name: str) -> Values:
    """Scores of the Laplace prediction on the first standard splits, by the prior at the start of the training."""
    numbers = tuple(range(config.start_splits))
    splits, schedule = load(name, numbers, "standard", validation=False), config.schedule(name)
    found: Values = {}
    for begin, variant in STARTS.items():
        each = learned(config, splits.train, jobs_of(numbers), schedule, variant)
        rows = [
            scored(one.evidence.posterior.predict, splits.test.of(k), splits.train.of(k)[0], splits.spread[k])
            | {"gamma": one.evidence.records[-1].effective_parameters, "idle": _idle(one.network)}
            for k, one in enumerate(each)
        ]
        found[begin] = {key: [row[key] for row in rows] for key in rows[0]}
    return found


def _idle(network: torch.nn.Module) -> float:
    """Hidden units that change nothing."""
    weights = network.state_dict()
    return float((weights["0.weight"].norm(dim=1) * weights["2.weight"].norm(dim=0) < IDLE).sum())
