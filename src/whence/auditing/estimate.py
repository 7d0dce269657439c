"""How long the steps of an audit take, estimated from a forward pass before they begin.

The factors are rounded from audits of small convolution networks on a CPU; while an audit runs, its own pace replaces
them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from whence.engine.batches import Inputs, size_of
from whence.functional import Network

INPUTS = 32  # of the forward pass that is timed
BACKWARD = 3.0  # a training step, in forward passes
COLUMNS = 16  # where random columns replace many outputs
MANY = 100  # outputs up to which curvature is exact by default
PRUNED = 51  # networks of a pruning curve
ATTRIBUTED = 3.0 * 22 * 10  # predictions: with their gradients, of the inputs shown and those of the check, by steps
FEATURES = 5_000  # training inputs that other detectors read


@dataclass(frozen=True)
class AuditSize:
    """What the time of an audit depends on."""

    outputs: int
    train: int | None  # None if unknown, or if nothing is fitted
    sets: Mapping[str, int]  # inputs of test, validation and ood
    profiled: int
    tuned: int  # validation inputs for tuning
    sampled: bool  # whether curvature is sampled

    def forward_passes(self) -> dict[str, float]:
        """Expected work of each step, in forward passes of one input; of steps that take long."""
        columns = self.outputs if self.outputs <= MANY else COLUMNS
        one = BACKWARD * (1 + 0.9 * columns)  # a linearised prediction of one input
        few = {name: min(count, self.profiled) for name, count in self.sets.items()}
        fit = 1 if self.sampled or self.outputs > MANY else self.outputs
        found = {
            "fit": (self.train or 0) * BACKWARD * (0.7 + 0.3 * fit),
            "tune": 3.5 * one * self.tuned,
            "examine": 1.5 * one * (few.get("test", 0) + few.get("validation", 0)),
            "quality": 1.5 * one * few.get("ood", 0),
            "profile": 2 * one * (few.get("test", 0) + few.get("ood", 0)),
            "attribution": ATTRIBUTED * one if self.outputs <= MANY else 0.0,
            "novelty": float(min(self.train or 0, FEATURES)),
            "pruning": float(PRUNED * few.get("test", 0)),
        }
        for name, step in (("test", "quality"), ("ood", "quality"), ("validation", "deferral")):
            beyond = self.sets.get(name, 0) - few.get(name, 0)  # inputs that are only predicted
            found[step] = found.get(step, 0.0) + one * beyond
        return found


def expected_seconds(network: Network, inputs: Inputs, size: AuditSize) -> dict[str, float]:
    """Expected seconds of each step."""
    each = forward_seconds(network, inputs)
    return {name: passes * each for name, passes in size.forward_passes().items()}


@torch.no_grad()
def forward_seconds(network: Network, inputs: Inputs) -> float:
    """Seconds of a forward pass for one input, when some go through together."""
    some = next(network.pieces(inputs, INPUTS))
    seconds = float("inf")
    for _ in range(3):  # the first is slower
        start = time.perf_counter()
        network(some)
        if network.device.type == "cuda":
            torch.cuda.synchronize(network.device)
        seconds = min(seconds, time.perf_counter() - start)
    return seconds / size_of(some)


@dataclass
class Pace:
    """The time left, from expected seconds and how long finished steps took in comparison."""

    expected: dict[str, float]
    planned: float = 0.0  # expected seconds of finished steps
    taken: float = 0.0  # their actual seconds

    def finished(self, step: str, seconds: float) -> None:
        if step in self.expected:
            self.planned += self.expected[step]
            self.taken += seconds

    def left(self, steps: list[str]) -> float:
        """Seconds that these steps will take; what is known before the first counts as a tenth of all."""
        whole = sum(self.expected.values())
        prior = 0.1 * whole
        pace = (self.taken + prior) / (self.planned + prior) if whole else 1.0
        return pace * sum(self.expected.get(step, 0.0) for step in steps)
