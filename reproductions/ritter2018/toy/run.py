"""The units of work: for each activation and seed a network, HMC, every Laplace posterior, and a check of them all."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import torch

import whence
from reproductions.experiment import Context
from reproductions.ritter2018.toy import measure, reference
from reproductions.ritter2018.toy.config import Config
from reproductions.ritter2018.toy.methods import fitted, predicted, tuned
from reproductions.ritter2018.toy.names import DETERMINISTIC, HMC, PAPER, TUNINGS, WAYS
from reproductions.ritter2018.toy.problem import Mode, Problem, mode
from reproductions.store import Results, Values

NETWORK, AGAIN, CHECK = "network", "HMC from the prior", "check"


def name(activation: str, seed: int, what: str) -> str:
    return f"{activation}/{seed}/{what}"


def subjects(config: Config) -> list[tuple[str, int]]:
    return [(activation, seed) for activation, seeds in config.seeds.items() for seed in seeds]


def parts(config: Config, activation: str, seed: int) -> list[str]:
    again = [AGAIN] if (activation, seed) == config.first else []
    return [NETWORK, HMC, *again, DETERMINISTIC, *config.methods, CHECK]


def units(config: Config) -> list[str]:
    return [name(*subject, part) for subject in subjects(config) for part in parts(config, *subject)]


def run(config: Config, results: Results, context: Context) -> None:
    for activation, seed in subjects(config):
        subject = Subject(Problem(config, activation, seed, context.device), context)
        for part in parts(config, activation, seed):
            results.unit(name(activation, seed, part), partial(subject.unit, part))


class Subject:
    """One network with its posteriors; each is made when it is asked for first."""

    def __init__(self, problem: Problem, context: Context) -> None:
        self.problem, self.context = problem, context
        self.posterior = cache(self._posterior)

    def unit(self, part: str) -> Values:
        special = {NETWORK: self.trained, HMC: self.true, AGAIN: self.again, CHECK: self.check}
        special[DETERMINISTIC] = self.deterministic
        return special[part]() if part in special else self.laplace(part)

    @property
    def first(self) -> bool:
        """Whether it is the one that the figures show."""
        return (self.problem.activation, self.problem.seed) == self.problem.config.first

    def curve(self, prediction: Callable[[], Any]) -> Values:
        return measure.curve(self.problem, prediction()) if self.first else {}

    @cached_property
    def mode(self) -> Mode:
        return mode(self.problem)

    def trained(self) -> Values:
        problem, found = self.problem, self.mode

        def plain(pair: Any) -> dict[str, list[float]]:
            x, y = (v.flatten().cpu() for v in pair)
            return {"x": (x * problem.config.x_scale).tolist(), "y": (y * problem.config.y_scale).tolist()}

        with torch.no_grad():
            off = (found.net(problem.train[0]) - problem.train[1]) * problem.config.y_scale
        return {
            "weights": sum(p.numel() for p in found.net.parameters()),
            "energies": found.energies,
            "energy": found.energy,
            "gradient_norm": found.gradient,
            "train_rmse": float(off.square().mean().sqrt()),
            "train": plain(problem.train),
            "validation": plain(problem.validation),
            "grid": (problem.fine.flatten().cpu() * problem.config.x_scale).tolist(),
        }

    # HMC

    def sampled(self, settings: dict[str, Any], start: str) -> whence.Hmc:
        """Chains, gone on with where they were cut off."""
        problem = self.problem
        weights = torch.cat([p.detach().cpu().flatten() for p in self.mode.net.parameters()]).numpy().tobytes()
        key = hashlib.sha256(weights + json.dumps([problem.activation, problem.seed, settings, start]).encode())
        self.context.cache.mkdir(parents=True, exist_ok=True)
        file = self.context.cache / f"toy-hmc-{key.hexdigest()[:16]}.safetensors"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", whence.errors.Notice)  # kept in .problems
            return whence.hmc(
                self.mode.net, problem.train, likelihood=problem.likelihood, start=start, kernel="hmc",
                prior_precision=problem.config.prior_precision, checkpoint=file, progress=self.context.progress,
                generator=torch.Generator().manual_seed(problem.seed), **settings,
            )  # fmt: skip

    @cached_property
    def hmc(self) -> whence.Hmc:
        config = self.problem.config
        return self.sampled(config.long if self.first else config.short, "trained")

    @cached_property
    def truth(self) -> Any:
        """What distances are taken to: draws picked evenly from all chains."""
        return self.some(self.hmc, self.problem.grid)

    @cached_property
    def whole_truth(self) -> Any:
        """By every draw."""
        return self.hmc.predict(self.problem.grid, num_samples=self.kept)

    @property
    def kept(self) -> int:
        """Draws of all chains."""
        return self.hmc.positions.shape[:2].numel()

    def some(self, posterior: whence.Posterior, x: Any, way: str = "sampled") -> Any:
        return predicted(self.problem, posterior, x, way, self.problem.config.distance_draws)

    def true(self) -> Values:
        problem, posterior, whole = self.problem, self.hmc, self.whole_truth
        generator = torch.Generator().manual_seed(problem.seed)
        other = posterior.predict(problem.grid, num_samples=problem.config.distance_draws, generator=generator)
        on_test = self.some(posterior, problem.test[0])
        return {
            **self.curve(lambda: self.hmc.predict(problem.fine, num_samples=self.kept)),
            "spread": measure.spread(problem, whole),
            "target_std": measure.by_region(problem, whole.std * problem.config.y_scale),
            **measure.errors(problem, whole, on_test),
            "again": measure.distances(problem, other, self.truth),  # other draws of the same chains
            **mixed(posterior, problem),
        }

    def again(self) -> Values:
        posterior = self.sampled(self.problem.config.short, "prior")
        found = self.some(posterior, self.problem.grid)
        return measure.distances(self.problem, found, self.truth) | mixed(posterior, self.problem)

    # Laplace

    def described(self, posterior: whence.Posterior, way: str) -> Values:
        """A way to predict: its curves, its distances, its errors."""
        problem = self.problem
        found = predicted(problem, posterior, problem.grid, way)
        return {
            **self.curve(lambda: predicted(problem, posterior, problem.fine, way)),
            "spread": measure.spread(problem, found),
            **measure.distances(problem, self.some(posterior, problem.grid, way), self.truth),
            **measure.gaps(problem, found, self.whole_truth),
            **measure.errors(problem, found, self.some(posterior, problem.test[0], way)),
        }

    def deterministic(self) -> Values:
        return self.described(whence.ensemble([self.mode.net], likelihood=self.problem.likelihood), "sampled")

    def _posterior(self, method: str, tuning: str, way: str) -> whence.Laplace:
        if tuning == "tuned":
            return tuned(self.problem, self.posterior(method, "untuned", ""), way)
        return fitted(self.problem, self.mode.net, method)

    def laplace(self, method: str) -> Values:
        found: Values = {}
        for tuning in TUNINGS:
            for way in WAYS:
                posterior = self.posterior(method, tuning, way if tuning == "tuned" else "")
                found[f"{tuning} {way}"] = self.described(posterior, way) | hyperparameters(posterior)
        return found

    def check(self) -> Values:
        """Whether whence's posteriors equal slow ones, written out in plain torch."""
        found = {}
        for method in PAPER:
            for tuning, way in (("untuned", ""), ("tuned", "sampled")):
                posterior = self.posterior(method, tuning, way)
                found[f"{tuning} {method}"] = reference.compared(self.problem, self.mode.net, method, posterior)
        return found


def mixed(posterior: whence.Hmc, problem: Problem) -> Values:
    """How far the chains can be trusted, for the inputs of the grid."""
    found = posterior.diagnostics(problem.grid)
    chains, each = posterior.positions.shape[:2]
    return {
        "draws": chains * each,
        "chains": chains,
        **found.predictions.worst(),
        "divergences": found.divergences,
        "accept": float(found.accept.mean()),
        "bfmi": float(found.bfmi.min()),
        "problems": list(posterior.problems),
        "sampling_seconds": round(posterior.seconds, 1),
    }


def hyperparameters(posterior: whence.Laplace) -> Values:
    """τ and N / 20 of eq. 9, and the geometric mean of the weights' standard deviations."""
    variances = torch.cat([v.flatten() for v in posterior.variance().values()])
    precision = posterior.prior_precision
    assert isinstance(precision, float)
    found = {
        "precision": precision,
        "data_scale": posterior.data_scale,
        "weight_std": float(variances.log().mean().div(2).exp()),
    }
    if posterior.tuning is not None:
        trials = posterior.tuning.trials
        found["validation_nll"] = posterior.tuning.score
        found["range"] = [
            min(t.prior_factor for t in trials), max(t.prior_factor for t in trials),
            min(t.data_scale for t in trials), max(t.data_scale for t in trials),
        ]  # fmt: skip
    return found
