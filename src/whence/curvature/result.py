"""The results of a fit: the curvature of a network by block, without a prior, and a record of the data."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whence.curvature.options import CurvatureKind, FitOptions
from whence.curvature.signals import Signals
from whence.engine.batches import Inputs
from whence.engine.checks import check_finite
from whence.engine.ranks import Ranks
from whence.errors import BadOption, TooLarge, notice
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.structures import BlockStructure, Structure, StructureKind
from whence.recording.blocks import UNREACHED, Block, GradientSource
from whence.recording.plan import Plan


@dataclass(frozen=True)
class Curvature:
    """The curvature of a network by block: sums over the data, without a prior."""

    blocks: tuple[Block, ...]
    structures: tuple[Structure, ...]
    record: FitRecord
    options: FitOptions
    joint: bool = False  # one structure for all blocks together
    keep: Tensor | None = None  # Bayesian entries of the concatenated vector (a subnetwork)
    seconds: dict[str, float] = field(default_factory=dict)
    signals: Signals = field(default_factory=dict)  # input statistics by block; empty in files of older versions

    @property
    def groups(self) -> list[tuple[Block, ...]]:
        """The blocks of each structure."""
        return [self.blocks] if self.joint else [(block,) for block in self.blocks]

    def to(self, device: torch.device, *args: Any, **kwargs: Any) -> Curvature:
        """A copy for a network on ``device``; other arguments go to the structures, as in ``Tensor.to``."""
        structures = (s.to(*args, **kwargs) for s in self.structures)
        structures = (s.to("cpu") if self.options.execution.offload else s for s in structures)
        keep = None if self.keep is None else self.keep.to(device)
        signals = {name: s.to(device) for name, s in self.signals.items()}
        return replace(self, structures=tuple(structures), keep=keep, signals=signals)

    def scaled(self, factor: float) -> Curvature:
        """factor · H, with record and signals scaled accordingly."""
        return replace(
            self,
            structures=tuple(s.scaled(factor) for s in self.structures),
            record=self.record.scaled(factor),
            signals={name: signal.scaled(factor) for name, signal in self.signals.items()},
        )

    def with_noise(self, noise: float) -> Curvature:
        """The curvature under a Gaussian with another standard deviation: H ∝ 1/σ² (the empirical Fisher ∝ 1/σ⁴)."""
        assert self.record.noise is not None
        factor = (self.record.noise / noise) ** self.options.curvature.noise_power
        structures = tuple(s.reweighted(factor) for s in self.structures)
        return replace(self, structures=structures, record=self.record.with_noise(noise))

    def merged(self, other: Curvature) -> Curvature:
        """Curvature on both data sets together."""
        mine = [_merge_key(b) for b in self.blocks]
        same_entries = (self.keep is None) == (other.keep is None) and (
            self.keep is None or other.keep is None or torch.equal(self.keep, other.keep)
        )
        theirs = [_merge_key(b) for b in other.blocks]
        if mine != theirs or self.joint != other.joint or not same_entries:
            raise BadOption(
                "the two curvatures differ in network, selection, structure or max_factor, so they cannot be merged."
            )
        structures = tuple(a.merged(b) for a, b in zip(self.structures, other.structures, strict=True))
        both = self.signals.keys() & other.signals.keys()
        signals = {name: s.merged(other.signals[name]) for name, s in self.signals.items() if name in both}
        return replace(self, structures=structures, record=self.record.merged(other.record), signals=signals)


def _merge_key(block: Block) -> tuple[object, ...]:
    """Properties that two blocks must share for their curvatures to be added."""
    return block.name, block.structure, block.params, block.thin_inputs, block.thin_outputs, block.per_call


@dataclass(frozen=True)
class Fit:
    """A curvature with the plan, likelihood and examples of its fit."""

    curvature: Curvature
    plan: Plan
    likelihood: Likelihood
    probe: tuple[Inputs, Tensor]  # a few training examples


@dataclass(frozen=True)
class FitRecord:
    """Size, loss and accuracy of the network on the data it was fitted to."""

    data_size: float = 0.0  # number of examples that the curvature stands for
    seen: int = 0  # examples that were read (more with several augmented passes)
    loss: float = 0.0  # summed negative log likelihood, with all constants
    targets: float = 0.0  # number of predicted labels or values
    correct: float = 0.0
    confidence: float = 0.0  # summed largest probability
    squares: float = 0.0  # summed squared residuals
    noise: float | None = None  # standard deviation at which a Gaussian's curvature was computed
    output_shape: tuple[int, ...] = ()  # of one example

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the training data; None for regression."""
        return self.correct / self.targets if self.confidence else None

    @property
    def mean_confidence(self) -> float | None:
        """Mean largest probability on the training data; None for regression."""
        return self.confidence / self.targets if self.confidence else None

    def merged(self, other: FitRecord) -> FitRecord:
        sums = {key: getattr(self, key) + getattr(other, key) for key in SUMS}
        return replace(self, **sums, output_shape=self.output_shape or other.output_shape)

    def scaled(self, factor: float) -> FitRecord:
        """The record as if every example counted ``factor`` times."""
        return replace(self, **{key: getattr(self, key) * factor for key in SUMS if key != "seen"})

    def with_noise(self, noise: float) -> FitRecord:
        """The same data under a Gaussian with another standard deviation."""
        var = noise**2
        loss = 0.5 * self.squares / var + 0.5 * self.targets * math.log(2 * math.pi * var)
        return replace(self, loss=loss, noise=noise)

    def summed(self, ranks: Ranks, device: torch.device) -> FitRecord:
        """The record of all ranks' data."""
        if ranks.alone:
            return self
        values = torch.tensor([getattr(self, key) for key in SUMS], dtype=torch.float64, device=device)
        totals = dict(zip(SUMS, ranks.summed(values).tolist(), strict=True))
        shapes = ranks.synchronise("adding up the record", self.output_shape)  # () where no target of a rank counts
        shape = next((s for s in shapes if s), ())
        return replace(self, **{**totals, "seen": int(totals["seen"])}, output_shape=shape)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


SUMS = ("data_size", "seen", "loss", "targets", "correct", "confidence", "squares")


class RecordSums:
    """Sums a :class:`FitRecord` on the device, and refuses outputs that are not finite."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self._sums: Tensor | None = None  # in the order of SUMS without the first two, float64, on the device
        self.size = 0
        self._shape: tuple[int, ...] = ()

    def add(self, outputs: Tensor, targets: Tensor, index: int) -> None:
        outputs = outputs.detach()
        check_finite(outputs, "the outputs of the network", index)
        loss = self.likelihood.nll(outputs, targets).sum(dtype=torch.float64)
        found = {"loss": loss, **self.likelihood.quality(outputs, targets)}
        values = (found.get(key, 0) for key in SUMS[2:])
        new = torch.stack([v if isinstance(v, Tensor) else loss.new_full((), v) for v in values])
        if self._sums is None:
            self._sums = new
        else:
            self._sums = self._sums.to(new.device)  # it may have been read from a file
            self._sums += new  # in place, for CUDA graphs
        self._shape = self._shape or tuple(outputs.shape[1:])
        self.size += len(outputs)  # last, so that a batch for which memory ran out is not counted

    @property
    def sums(self) -> list[Tensor]:
        """All sums on the device."""
        return [] if self._sums is None else [self._sums]

    @property
    def record(self) -> FitRecord:
        noise = self.likelihood.number if isinstance(self.likelihood, Gaussian) else None
        if self._sums is None:
            return FitRecord(noise=noise)
        sums = dict(zip(SUMS[2:], self._sums.tolist(), strict=True))
        return FitRecord(noise=noise, output_shape=self._shape, data_size=self.size, seen=self.size, **sums)

    def state(self) -> dict[str, Tensor]:
        """The sums so far, for a checkpoint."""
        if self._sums is None:
            return {}
        whole = torch.tensor([self.size, *self._shape], dtype=torch.int64)
        return {"sums": self._sums, "size_and_shape": whole}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if "sums" in state:
            self._sums = state["sums"]
            self.size, *shape = state["size_and_shape"].tolist()
            self._shape = tuple(shape)


def say_fallbacks(blocks: Sequence[Block], options: FitOptions, unused: Collection[str]) -> None:
    """Give notices: parameters without a Kronecker rule, too large for one, or not reaching the output."""
    fallen = [b for b in blocks if b.source is GradientSource.EXAMPLE and b.reason != UNREACHED]
    diagonal = [b for b in blocks if b.source is GradientSource.ROWS and b.structure is BlockStructure.DIAG]
    tied = [] if options.structure is StructureKind.DIAG else diagonal
    exact = [b for b in fallen + tied if not b.per_call]
    if options.structure.factored and exact:
        names = [p.name for b in exact for p in b.params if p.name not in unused]
        how = ", computed per example," if any(b.source is GradientSource.EXAMPLE for b in exact) else ""
        notice(f"no Kronecker rule for {_listed(names)}: an exact diagonal{how} is used (see posterior.structures).")
    large = [b for b in blocks if b.per_call or b.thin_outputs or b.thin_inputs]
    if large and options.curvature is CurvatureKind.KFRA:
        raise TooLarge(f"KFRA passes whole factors back, and {_layers(large)}: {large[0].reason}. Raise max_factor.")
    if large:
        notice(f"{_layers(large)} got a smaller structure: {large[0].reason} (see posterior.structures).")
    unreached = [p.name for b in blocks for p in b.params if p.name in unused]
    if unreached:
        many = "do not reach the output: the data give no information about them"
        one = "does not reach the output: the data give no information about it"
        notice(f"{_listed(unreached)} {one if len(unreached) == 1 else many}.")


def _layers(blocks: Sequence[Block]) -> str:
    return _listed([f"{b.name} ({b.kind})" for b in blocks])


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
