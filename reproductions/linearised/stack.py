"""Many networks with one hidden layer, trained together: each has its own split, random numbers and decay.

Every network draws from a generator of its own, and all operations are batched over networks, so a network trained
alone is the same one up to rounding; a test compares them.

Index legend: B networks, T steps of a block, m examples of a batch, D features, H hidden units, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reproductions.linearised.data import Part
from whence.engine.randomness import derived_seed

Weights = dict[str, Tensor]  # each [B, *shape of a Linear]; names as in a Sequential of Linear, ReLU, Linear
BLOCK = 20  # steps whose random numbers are drawn together


@dataclass(frozen=True)
class Job:
    """One network."""

    split: int
    seed: int = 0
    decay: float = 0.0  # λ of ½ mean (y − f)² + ½ λ ‖θ‖²; of variational inference: the prior precision
    dropout: float = 0.0  # of inputs and hidden units


@dataclass(frozen=True)
class Schedule:
    """Adam; the learning rate falls as a cosine, or is constant."""

    steps: int
    batch: int
    lr: float = 0.01
    constant: bool = False

    def rate(self, step: int) -> float:
        return self.lr if self.constant else self.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))


def outputs(weights: Weights, x: Tensor) -> Tensor:
    """Of every network for its own inputs, [B, n, D] → [B, n, 1]."""
    return _second(weights, _first(weights, x).relu())


def _first(weights: Weights, x: Tensor) -> Tensor:
    return torch.baddbmm(weights["0.bias"].unsqueeze(1), x, weights["0.weight"].transpose(1, 2))


def _second(weights: Weights, hidden: Tensor) -> Tensor:
    return torch.baddbmm(weights["2.bias"].unsqueeze(1), hidden, weights["2.weight"].transpose(1, 2))


def of(weights: Weights, network: int) -> Weights:
    """One network's weights, without the dimension of networks."""
    return {name: value[network] for name, value in weights.items()}


def module(weights: Weights, network: int) -> nn.Sequential:
    """One network as a module."""
    hidden, features = weights["0.weight"].shape[1:]
    found = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    found.load_state_dict(of(weights, network))
    return found.eval()


def drawn(weights: Weights, x: Tensor) -> Tensor:
    """Outputs of S networks for the same inputs [n, D], [S, n, 1]."""
    count = len(weights["2.bias"])
    return outputs(weights, x.expand(count, *x.shape))


# Random numbers


class Streams:
    """What each network draws: start weights, rows of batches, noise."""

    def __init__(self, jobs: Sequence[Job], part: Part, purpose: str) -> None:
        seeds = [derived_seed(job.seed, purpose, job.split) for job in jobs]
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.sizes = [part.sizes[job.split] for job in jobs]
        self._queues = [torch.zeros(0, dtype=torch.long) for _ in jobs]

    def uniform(self, *shape: int) -> Tensor:
        return torch.stack([torch.rand(shape, generator=g) for g in self.generators])

    def normal(self, *shape: int) -> Tensor:
        return torch.stack([torch.randn(shape, generator=g) for g in self.generators])

    def rows(self, steps: int, batch: int) -> Tensor:
        """Row numbers for some steps, one permutation after another, [T, B, m]."""
        for i, (generator, size) in enumerate(zip(self.generators, self.sizes, strict=True)):
            while len(self._queues[i]) < steps * batch:
                self._queues[i] = torch.cat([self._queues[i], torch.randperm(size, generator=generator)])
        found = torch.stack([queue[: steps * batch] for queue in self._queues])
        self._queues = [queue[steps * batch :] for queue in self._queues]
        return found.reshape(-1, steps, batch).transpose(0, 1)


def start(streams: Streams, features: int, hidden: int) -> Weights:
    """As torch starts Linear layers: uniform within ±1/√(number of inputs)."""
    shapes = {"0.weight": (hidden, features), "0.bias": (hidden,), "2.weight": (1, hidden), "2.bias": (1,)}
    bounds = {"0": features**-0.5, "2": hidden**-0.5}
    return {name: (2 * streams.uniform(*shape) - 1) * bounds[name[0]] for name, shape in shapes.items()}


def decay_of(jobs: Sequence[Job]) -> Tensor:
    return torch.tensor([job.decay for job in jobs])


# Training


Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch [B, m, D], [B, m, 1]: one number for each network
Prepare = Callable[[], Loss]  # draws the noise of one block of steps; its losses are asked for in order


def descend(
    part: Part, jobs: Sequence[Job], streams: Streams, trained: Sequence[Tensor], prepare: Prepare, schedule: Schedule,
    after: Callable[[int], None] = lambda step: None,
) -> None:  # fmt: skip
    """Minimise the loss of every network in place; ``after`` is called after every step."""
    optimiser = torch.optim.Adam(list(trained), lr=schedule.lr, foreach=True)
    own = torch.tensor([job.split for job in jobs]).unsqueeze(1)
    for first in range(0, schedule.steps, BLOCK):
        rows, loss = streams.rows(BLOCK, schedule.batch), prepare()
        for step in range(first, min(first + BLOCK, schedule.steps)):
            which = rows[step - first]
            optimiser.param_groups[0]["lr"] = schedule.rate(step)
            optimiser.zero_grad()
            loss(part.x[own, which], part.y[own, which]).sum().backward()
            optimiser.step()
            after(step)


def train(
    part: Part, jobs: Sequence[Job], hidden: int, schedule: Schedule, begin: Weights | None = None,
    after: Callable[[int, Weights], None] | None = None,
) -> Weights:  # fmt: skip
    """Networks that minimise the squared error with decay, with dropout where a job has it."""
    streams = Streams(jobs, part, "train" if begin is None else "continue")
    features = part.x.shape[2]
    given = start(streams, features, hidden) if begin is None else begin
    weights = {name: value.clone().requires_grad_() for name, value in given.items()}
    decay, rates = decay_of(jobs), torch.tensor([job.dropout for job in jobs]).view(-1, 1, 1, 1)
    dropped = bool(rates.any())

    def prepare() -> Loss:
        if not dropped:
            return lambda x, y: _squared(weights, outputs(weights, x), y, decay)
        shape = (BLOCK, schedule.batch)
        masks = [(streams.uniform(*shape, units) >= rates) / (1 - rates) for units in (features, hidden)]
        steps = iter(zip(*(mask.unbind(1) for mask in masks), strict=True))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            first, second = next(steps)
            return _squared(weights, _second(weights, _first(weights, x * first).relu() * second), y, decay)

        return loss

    def watch(step: int) -> None:
        if after is not None:
            after(step, weights)

    descend(part, jobs, streams, list(weights.values()), prepare, schedule, watch)
    return detached(weights)


def detached(weights: Weights) -> Weights:
    return {name: value.detach().clone() for name, value in weights.items()}


def squares(weights: Weights) -> Tensor:
    """‖θ‖² of each network, [B]."""
    return torch.stack([value.square().flatten(1).sum(1) for value in weights.values()]).sum(0)


def _squared(weights: Weights, found: Tensor, y: Tensor, decay: Tensor) -> Tensor:
    return 0.5 * (found - y).square().mean((1, 2)) + 0.5 * decay * squares(weights)


def with_masks(weights: Weights, x: Tensor, rate: float, count: int, generator: torch.Generator) -> Tensor:
    """Outputs of one network under ``count`` masks, each the same for all inputs, [S, n, 1]."""
    features, hidden = x.shape[1], weights["2.weight"].shape[1]
    first, second = (
        (torch.rand(count, 1, units, generator=generator) >= rate) / (1 - rate) for units in (features, hidden)
    )
    many = {name: value.expand(count, *value.shape) for name, value in weights.items()}
    return _second(many, _first(many, x * first).relu() * second)
