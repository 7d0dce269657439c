"""What a fit gives: the curvature of a network by block, without any prior."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whence.batches import Inputs
from whence.curvature.blocks import Block
from whence.curvature.options import Options
from whence.curvature.plan import Plan
from whence.curvature.record import FitRecord
from whence.curvature.signals import Signals
from whence.errors import BadOption
from whence.likelihoods import Likelihood
from whence.linalg.structures import Structure


@dataclass(frozen=True)
class Curvature:
    """Curvature of a network by block: sums over the data, without any prior."""

    blocks: list[Block]
    structures: list[Structure]
    record: FitRecord
    options: Options
    joint: bool = False  # one structure over all blocks together
    keep: Tensor | None = None  # entries of the joined vector that are Bayesian (a subnetwork)
    seconds: dict[str, float] = field(default_factory=dict)
    signals: Signals = field(default_factory=dict)  # what each block saw; empty in files of older versions

    def scaled(self, factor: float) -> Curvature:
        """factor · H; record and signals count accordingly."""
        return replace(
            self,
            structures=[s.scaled(factor) for s in self.structures],
            record=self.record.scaled(factor),
            signals={name: signal.scaled(factor) for name, signal in self.signals.items()},
        )

    def with_noise(self, noise: float) -> Curvature:
        """Under a Gaussian with another standard deviation: H ∝ 1/σ² (the empirical Fisher ∝ 1/σ⁴)."""
        assert self.record.noise is not None
        power = 4 if self.options.curvature == "empirical" else 2
        factor = (self.record.noise / noise) ** power
        return replace(
            self, structures=[s.reweighted(factor) for s in self.structures], record=self.record.with_noise(noise)
        )

    def merged(self, other: Curvature) -> Curvature:
        """Curvature on both data sets together."""
        mine = [_kept(b) for b in self.blocks]
        same_entries = (self.keep is None) == (other.keep is None) and (
            self.keep is None or other.keep is None or torch.equal(self.keep, other.keep)
        )
        theirs = [_kept(b) for b in other.blocks]
        if mine != theirs or self.joint != other.joint or not same_entries:
            raise BadOption(
                "the two curvatures are not of the same network with the same selection and structure (max_factor too)."
            )
        structures = [a.merged(b) for a, b in zip(self.structures, other.structures, strict=True)]
        both = self.signals.keys() & other.signals.keys()
        signals = {name: s.merged(other.signals[name]) for name, s in self.signals.items() if name in both}
        return replace(self, structures=structures, record=self.record.merged(other.record), signals=signals)


def _kept(block: Block) -> tuple[object, ...]:
    """What two blocks must share for their curvatures to be added."""
    return block.name, block.structure, block.params, block.thin_inputs, block.thin_outputs, block.by_call


@dataclass(frozen=True)
class Fit:
    """A curvature with what else the pass over the data gave."""

    curvature: Curvature
    plan: Plan
    likelihood: Likelihood
    probe: tuple[Inputs, Tensor]  # a few training examples
