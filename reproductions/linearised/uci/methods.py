"""Every method: its hyperparameters chosen on validation rows, then its prediction by networks of all training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.linearised.data import Splits
from reproductions.linearised.stack import Weights, drawn, module, of, with_masks
from reproductions.linearised.uci import laplace
from reproductions.linearised.uci.config import Config
from reproductions.linearised.uci.laplace import STRUCTURES, Chosen
from reproductions.linearised.uci.networks import Group, errors, held_out, stacked_outputs, swag_draws
from reproductions.linearised.uci.noise import FEWEST, best_noise
from reproductions.linearised.variational import MeanField
from whence.predictive.links import predict_draws

SCALES = (0.1, 0.3, 1.0, 3.0)  # of SWAG's covariance
Predict = Callable[[Tensor], Any]  # inputs → prediction


@dataclass
class Choices:
    """What validation rows chose for each split; by method a list over splits."""

    decay: list[float] = field(default_factory=list)
    noise: dict[str, list[float]] = field(default_factory=dict)
    value: dict[str, list[float]] = field(default_factory=dict)  # rate, prior precision or scale
    laplace: dict[str, list[Chosen]] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """One value of a hyperparameter, with outputs on validation rows by split."""

    values: list[float]
    outputs: list[Tensor]  # [S, n, 1] each


def choose(config: Config, name: str, numbers: tuple[int, ...], splits: Splits) -> Choices:
    """By networks of the training rows without the validation rows."""
    group, validation = Group(config, name, numbers, splits.train), held_out(splits)
    places, found = group.places, Choices()
    by_decay = group.by_decay()
    scores = [errors(weights, validation) for weights in by_decay]
    best = [min(range(len(scores)), key=lambda i: scores[i][k]) for k in places]
    found.decay = [config.decays[i] for i in best]
    plain = {n: torch.stack([by_decay[i][n][k] for k, i in enumerate(best)]) for n in by_decay[0]}
    xs, ys = ([validation.of(k)[i] for k in places] for i in range(2))

    def keep(method: str, candidates: Sequence[Candidate]) -> None:
        tried = [[best_noise(c.outputs[k], ys[k]) for c in candidates] for k in places]
        winners = [min(range(len(candidates)), key=lambda i: tried[k][i][1]) for k in places]
        found.noise[method] = [tried[k][i][0] for k, i in enumerate(winners)]
        found.value[method] = [candidates[i].values[k] for k, i in enumerate(winners)]

    nothing = [0.0] * len(places)
    keep("plain", [Candidate(nothing, [stacked_outputs([plain], xs[k], k) for k in places])])
    members = [plain, *group.members(found.decay, first=1)]
    keep("ensemble", [Candidate(nothing, [stacked_outputs(members, xs[k], k) for k in places])])
    longer = group.longer(found.decay)
    keep("longer", [Candidate(nothing, [stacked_outputs([longer], xs[k], k) for k in places])])
    rates = [[rate] * len(places) for rate in config.dropouts]
    keep("dropout", [
        Candidate(row, [_dropout(config, weights, k, row[k], xs[k]) for k in places])
        for row, weights in zip(rates, group.with_dropout(found.decay, rates), strict=True)
    ])  # fmt: skip
    priors = [[prior] * len(places) for prior in config.priors]
    keep("variational", [
        Candidate(row, [_variational(config, q, k, xs[k]) for k in places])
        for row, q in zip(priors, group.variational(priors), strict=True)
    ])  # fmt: skip
    collectors = group.swag(plain, found.decay)
    keep("swag", [
        Candidate([s] * len(places), [_swag(config, collectors[k], s, k, xs[k]) for k in places]) for s in SCALES
    ])  # fmt: skip
    for k in places:
        train, held = splits.train.of(k), validation.of(k)
        own = laplace.choose(config, name, module(plain, k), train, held, k)
        own["longer"] = laplace.of_network(STRUCTURES["full"].fit(module(longer, k), train), held)
        for method, choice in own.items():
            found.laplace.setdefault(method, []).append(choice)
    return found


# The final networks


def predictors(
    config: Config, name: str, numbers: tuple[int, ...], splits: Splits, chosen: Choices
) -> dict[str, list[Predict]]:
    """By method, one for each split."""
    group = Group(config, name, numbers, splits.train)
    members = group.members(chosen.decay)
    plain, longer = members[0], group.longer(chosen.decay)
    rates = chosen.value["dropout"]
    dropped = group.with_dropout(chosen.decay, [rates])[0]
    mean_field = group.variational([chosen.value["variational"]])[0]
    collectors = group.swag(plain, chosen.decay)
    found: dict[str, list[Predict]] = {}
    for k in group.places:
        train, noise = splits.train.of(k), {m: noises[k] for m, noises in chosen.noise.items()}
        residuals = stacked_outputs([plain], train[0], k)[0] - train[1]
        draws: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
            "plain, training noise": (
                max(float(residuals.square().mean().sqrt()), FEWEST), partial(_members, [plain], k)
            ),
            "plain": (noise["plain"], partial(_members, [plain], k)),
            "longer": (noise["longer"], partial(_members, [longer], k)),
            "ensemble": (noise["ensemble"], partial(_members, members, k)),
            "dropout": (noise["dropout"], partial(_dropout, config, dropped, k, rates[k])),
            "variational": (noise["variational"], partial(_variational, config, mean_field, k)),
            "swag": (noise["swag"], partial(_swag, config, collectors[k], chosen.value["swag"][k], k)),
        }  # fmt: skip
        made: dict[str, Predict] = {method: _by_draws(*given) for method, given in draws.items()}
        own = {method: each[k] for method, each in chosen.laplace.items()}
        made |= _laplace(config, module(plain, k), train, own, k)
        best = own["longer"]
        posterior = STRUCTURES["full"].fit(module(longer, k), train, best.noise, best.precision)
        made["longer, laplace"] = posterior.predict
        for method, predict in made.items():
            found.setdefault(method, []).append(predict)
    return found


def _laplace(
    config: Config, network: nn.Module, train: laplace.Pair, chosen: dict[str, Chosen], seed: int
) -> dict[str, Predict]:
    found: dict[str, Predict] = {}
    posteriors = {m: s.fit(network, train, chosen[m].noise, chosen[m].precision) for m, s in STRUCTURES.items()}
    for method, posterior in posteriors.items():
        found[f"laplace, {method}"] = posterior.predict
    full, own = posteriors["full"], chosen["sampled"]
    under = full.with_noise(own.noise).with_prior(own.precision)
    away = under.deviations(config.draws, torch.Generator().manual_seed(seed))
    found["laplace, sampled"] = _by_draws(own.noise, partial(drawn, laplace.moved(network, away, 1.0)))
    if "refined" in chosen:
        own = chosen["refined"]
        found["laplace, refined"] = laplace.refined(full.with_noise(own.noise).with_prior(own.precision), train).predict
    found["laplace, evidence"] = laplace.by_evidence(full).predict
    return found


def _by_draws(noise: float, of_inputs: Callable[[Tensor], Tensor]) -> Predict:
    return lambda x: predict_draws(whence.Gaussian(noise), of_inputs(x))


def _members(members: Sequence[Weights], split: int, x: Tensor) -> Tensor:
    return stacked_outputs(members, x, split)


def _dropout(config: Config, weights: Weights, split: int, rate: float, x: Tensor) -> Tensor:
    return with_masks(of(weights, split), x, rate, config.draws, torch.Generator().manual_seed(split))


def _variational(config: Config, found: MeanField, split: int, x: Tensor) -> Tensor:
    return drawn(found.draw(split, config.draws, torch.Generator().manual_seed(split)), x)


def _swag(config: Config, collector: whence.SwagCollector, scale: float, split: int, x: Tensor) -> Tensor:
    return drawn(swag_draws(collector, scale, config.draws, split), x)
