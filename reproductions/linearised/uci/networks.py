"""All networks of one group of splits: trained together, for the choice of hyperparameters and again on all rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

import whence
from reproductions.linearised.data import Part, Splits
from reproductions.linearised.stack import Job, Schedule, Weights, detached, module, of, outputs, train
from reproductions.linearised.uci.config import Config
from reproductions.linearised.variational import MeanField, train_variational

EVERY = 20  # steps between two collections of SWAG
RANK = 20


@dataclass(frozen=True)
class Group:
    """Splits of one table, with the rows on which networks are trained."""

    config: Config
    name: str
    numbers: tuple[int, ...]  # of the splits
    rows: Part

    @property
    def schedule(self) -> Schedule:
        return self.config.schedule(self.name)

    def job(self, split: int, member: int = 0, decay: float = 0.0, dropout: float = 0.0) -> Job:
        return Job(split, 100 * self.numbers[split] + member, decay, dropout)

    def train(self, jobs: Sequence[Job]) -> Weights:
        return train(self.rows, jobs, self.config.hidden, self.schedule)

    def by_decay(self) -> list[Weights]:
        """A network for each decay and split, [K, …] each."""
        return self._each([[self.job(k, decay=decay) for k in self.places] for decay in self.config.decays])

    def members(self, decays: Sequence[float], first: int = 0) -> list[Weights]:
        """The networks of the ensembles, from member ``first`` on; member 0 is the plain network."""
        wanted = range(first, self.config.members)
        return self._each([[self.job(k, m, decays[k]) for k in self.places] for m in wanted])

    def longer(self, decays: Sequence[float]) -> Weights:
        """One network for each split, trained for as many steps as all members together."""
        schedule = replace(self.schedule, steps=self.config.longer * self.schedule.steps)
        jobs = [self.job(k, 0, decays[k]) for k in self.places]
        return train(self.rows, jobs, self.config.hidden, schedule)

    def with_dropout(self, decays: Sequence[float], rates: Sequence[Sequence[float]]) -> list[Weights]:
        """A network for each row of rates, which has one rate for each split."""
        return self._each([[self.job(k, 0, decays[k], row[k]) for k in self.places] for row in rates])

    def variational(self, priors: Sequence[Sequence[float]]) -> list[MeanField]:
        jobs = [self.job(k, 0, row[k]) for row in priors for k in self.places]
        found = train_variational(self.rows, jobs, self.config.hidden, self.schedule)
        return [MeanField(a, b, c) for a, b, c in zip(
            self._parts(found.mean), self._parts(found.std), found.noise.split(len(self.places)), strict=True
        )]  # fmt: skip

    def swag(self, plain: Weights, decays: Sequence[float]) -> list[whence.SwagCollector]:
        """A collector for each split: training goes on at a constant rate, and weights are collected."""
        kept: list[Weights] = []

        def collect(step: int, weights: Weights) -> None:
            if (step + 1) % EVERY == 0:
                kept.append(detached(weights))

        steps = EVERY * self.config.collections
        schedule = Schedule(steps, self.schedule.batch, self.config.swag_rate, constant=True)
        jobs = [self.job(k, decay=decays[k]) for k in self.places]
        train(self.rows, jobs, self.config.hidden, schedule, begin=plain, after=collect)
        return [self._collector(kept, k) for k in self.places]

    def _collector(self, kept: list[Weights], split: int) -> whence.SwagCollector:
        collector = whence.SwagCollector(module(kept[0], split), rank=RANK)
        for weights in kept:
            collector.model.load_state_dict(of(weights, split))
            collector.collect()
        return collector

    @cached_property
    def places(self) -> range:
        return range(len(self.numbers))

    def _each(self, jobs: list[list[Job]]) -> list[Weights]:
        """All in one training, then apart again."""
        return self._parts(self.train([job for row in jobs for job in row]))

    def _parts(self, weights: Weights) -> list[Weights]:
        parts = {name: value.split(len(self.places)) for name, value in weights.items()}
        return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def swag_draws(collector: whence.SwagCollector, scale: float, count: int, seed: int) -> Weights:
    """Weights [S, *shape] of SWAG's Gaussian."""
    posterior = copy.deepcopy(collector).posterior(whence.Gaussian(1.0), scale=scale)
    return posterior.sample(count, torch.Generator().manual_seed(seed))


def errors(weights: Weights, part: Part) -> list[float]:
    """Root mean squared error of every network on its own split."""
    away = (outputs(weights, part.x) - part.y).square()
    return [float(away[k, :size].mean().sqrt()) for k, size in enumerate(part.sizes)]


def stacked_outputs(members: Sequence[Weights], x: Tensor, split: int) -> Tensor:
    """Of all members of one split for the same inputs, [M, n, 1]."""
    return torch.cat([outputs({n: v[split : split + 1] for n, v in w.items()}, x.unsqueeze(0)) for w in members])


def held_out(splits: Splits) -> Part:
    assert splits.validation is not None
    return splits.validation
