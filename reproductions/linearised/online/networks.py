"""Networks for tables, trained together: with given decays, and with the evidence online.

The loss of an online network is that of ``OnlineEvidence.loss`` times σ², ½ mean (y − f)² + ½ σ² Σ δ θ² / N, which has
the same minimum; Adam's steps do not depend on a constant factor, and so not on the noise at the moment.

Index legend: B networks, K splits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import whence
from reproductions.linearised.data import Part
from reproductions.linearised.online.config import Config
from reproductions.linearised.stack import (
    Job,
    Loss,
    Schedule,
    Streams,
    Weights,
    descend,
    detached,
    module,
    of,
    outputs,
    start,
)

After = Callable[[int, Weights], None]


def trained(
    part: Part, jobs: Sequence[Job], hidden: int, schedule: Schedule, decays: Weights, after: After | None = None
) -> Weights:
    """Networks that minimise ½ mean (y − f)² + ½ Σ λ θ²; ``decays`` holds λ, [B, …], and may change on the way."""
    streams = Streams(jobs, part, "train")
    weights = {n: v.requires_grad_() for n, v in start(streams, part.x.shape[2], hidden).items()}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        penalty = torch.stack([(decays[n] * v.square()).flatten(1).sum(1) for n, v in weights.items()]).sum(0)
        return 0.5 * (outputs(weights, x) - y).square().mean((1, 2)) + 0.5 * penalty

    def prepare() -> Loss:
        return loss

    def watch(step: int) -> None:
        if after is not None:
            after(step + 1, weights)

    descend(part, jobs, streams, list(weights.values()), prepare, schedule, watch)
    return detached(weights)


def by_decay(part: Part, jobs: Sequence[Job], hidden: int, schedule: Schedule, after: After | None = None) -> Weights:
    """One decay for all weights of a network, that of its job."""
    decay = torch.tensor([job.decay for job in jobs])
    names = {"0.weight": 3, "0.bias": 2, "2.weight": 3, "2.bias": 2}
    return trained(part, jobs, hidden, schedule, {n: decay.view(-1, *[1] * (d - 1)) for n, d in names.items()}, after)


# Early stopping


@dataclass
class Stopped:
    """For each network the step with the lowest error on held-out rows, and the weights there."""

    every: int
    held: Part
    errors: list[list[float]]
    steps: list[int]
    kept: Weights

    @classmethod
    def watching(cls, held: Part, every: int) -> Stopped:
        return cls(every, held, [], [], {})

    def __call__(self, step: int, weights: Weights) -> None:
        if step % self.every:
            return
        with torch.no_grad():
            away = (outputs(weights, self.held.x) - self.held.y).square()
        errors = [float(away[k, :size].mean()) for k, size in enumerate(self.held.sizes)]
        if not self.errors:
            self.steps, self.kept = [step] * len(errors), detached(weights)
        for k, error in enumerate(errors):
            if self.errors and error < min(row[k] for row in self.errors):
                self.steps[k] = step
                for name, value in weights.items():
                    self.kept[name][k] = value[k].detach()
        self.errors.append(errors)


@dataclass
class Kept:
    """Weights of each network after a step of its own."""

    steps: Sequence[int]
    weights: Weights

    def __call__(self, step: int, weights: Weights) -> None:
        for k, last in enumerate(self.steps):
            if step == last:
                for name, value in weights.items():
                    self.weights.setdefault(name, torch.zeros_like(value))[k] = value[k].detach()


# The evidence online


@dataclass(frozen=True)
class Variant:
    """A prior and the structure of the curvature in the updates."""

    structure: Literal["full", "kron"]
    relative: bool = False
    begin: float = 1.0  # precision, or τ

    @property
    def prior(self) -> float | whence.Relative:
        return whence.Relative(self.begin) if self.relative else self.begin


VARIANTS = {
    "online": Variant("full"),
    "online, kron": Variant("kron"),
    "online, relative": Variant("full", relative=True),
}

STARTS = {
    **{f"isotropic, δ = {begin:g}": Variant("full", False, begin) for begin in (0.01, 1.0, 100.0)},
    **{f"relative, τ = {begin:g}": Variant("full", True, begin) for begin in (0.01, 0.1, 1.0)},
}


class Learner:
    """One network's evidence; between updates its precisions and noise are constants of the common training."""

    def __init__(self, variant: Variant, data: tuple[Tensor, Tensor], hidden: int) -> None:
        self.variant, self.data = variant, data
        features = data[0].shape[1]
        self.network = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1)).eval()
        self.evidence: Any = None

    def load(self, weights: Weights) -> None:
        self.network.load_state_dict(weights)
        if self.evidence is None:
            self.evidence = whence.online_evidence(
                self.network, self.data, likelihood="regression", prior_precision=self.variant.prior,
                structure=self.variant.structure, keep_best=False, seed=0,
            )  # fmt: skip

    def decays(self) -> Weights:
        """λ = σ² δ / N of every weight."""
        factor = self.evidence.likelihood.number**2 / len(self.data[1])
        values = self.evidence.posterior.prior.values
        return {
            n: factor * torch.as_tensor(values[n]).float().expand(p.shape) for n, p in self.network.named_parameters()
        }

    def trace(self) -> list[dict[str, Any]]:
        """Every update, for the figures."""
        return [
            {"step": r.step, "evidence": r.log_evidence, "noise": r.noise, "precision": list(r.precision.values())}
            for r in self.evidence.records
        ]


def learned(config: Config, part: Part, jobs: Sequence[Job], schedule: Schedule, variant: Variant) -> list[Learner]:
    """A network for each job, with the evidence asked every now and then during training."""
    learners = [Learner(variant, part.of(job.split), config.hidden) for job in jobs]
    begin = start(Streams(jobs, part, "train"), part.x.shape[2], config.hidden)
    decays: Weights = {}

    def spread() -> None:
        each = [learner.decays() for learner in learners]
        decays.update({name: torch.stack([one[name] for one in each]) for name in each[0]})

    moments = config.moments(schedule.steps)

    def after(step: int, weights: Weights) -> None:
        if step in moments:
            for k, learner in enumerate(learners):
                learner.load({n: v.detach() for n, v in of(weights, k).items()})
                learner.evidence.steps = step
                learner.evidence.update()
            spread()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, learner in enumerate(learners):
            learner.load(of(begin, k))
        spread()
        weights = trained(part, jobs, config.hidden, schedule, decays, after)
    for k, learner in enumerate(learners):
        learner.network = module(weights, k)
    return learners
