"""What in-distribution inputs leave unexplained: that which novelty is held against.

A tuned prior is for prediction, and is often so strong that everything is unexplained. Novelty takes its own: the shape
D of a relative prior, and for every layer the δ under which the training data leave a small part of their own
curvature, tr[H' δ (s H' + δ)⁻¹] / tr H' = left with H' = D^{-1/2} H D^{-1/2}. It depends on network and data alone, so
that novelty changes neither with the prior precision nor with the data scale. (EKFAC and low rank keep the shape of the
prior that they were fitted with.)

Index legend: n reference inputs, B layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.batches import from_numpy, is_pair
from whence.errors import BadData, BadOption, NotDefined, notice
from whence.linalg.structures import InBasis
from whence.posteriors.block import BlockGaussian
from whence.posteriors.laplace import Laplace
from whence.priors import RELATIVE, RelativePrecision
from whence.where.shares import shares

LEFT = 0.001
ENOUGH = 100  # reference inputs for p-values of 1 %
STEPS = 200  # of the bisection, at most
VANISHING = 1e-30  # squared gradients that single precision cannot be trusted with


@dataclass(frozen=True)
class Reference:
    """tr V_b / tr V_b(prior) of in-distribution inputs that the network was not trained on."""

    names: tuple[str, ...]  # of the layers
    unexplained: Tensor  # [n, B], float64 on the CPU
    left: float = LEFT  # of the training data's own curvature, under the prior it was computed with
    network: str = ""  # hash of the weights
    precision: tuple[float, ...] = ()  # δ / s of every layer, which ``left`` amounts to; empty: to be found again

    @property
    def size(self) -> int:
        """Number of inputs."""
        return len(self.unexplained)

    def check(self, posterior: Laplace) -> Reference:
        """Refuse a reference of another network."""
        names = tuple(b.name for b in posterior.blocks)
        if self.names != names:
            raise BadOption(
                f"the reference is of the layers {_few(self.names)}, the posterior of {_few(names)}. Make one with "
                "whence.reference_of(posterior, validation_inputs)."
            )
        if self.network and posterior.network.hash and self.network != posterior.network.hash:
            raise BadOption(
                "the reference is of a network with other weights. Make one with whence.reference_of(posterior, "
                "validation_inputs)."
            )
        return self

    def __repr__(self) -> str:
        return f"Reference({self.size:,} inputs, {len(self.names)} layers)"


def reference_of(posterior: Laplace, data: Any, *, left: float = LEFT) -> Reference:
    """The reference of in-distribution inputs: validation data, a loader of it, or an (inputs, targets) pair.

    Not the training data: the network knows them better than others of their kind, which would then seem novel.
    ``left`` is what the prior of novelty leaves unexplained of the training data's own curvature.
    """
    data = from_numpy(data)
    precision = own_precision(posterior, left)
    unexplained = profile(posterior, data[0] if is_pair(data) else data, precision)
    count = len(unexplained)
    if count < 2:
        raise BadData(f"a reference of {count} input is none; take {ENOUGH} or more.")
    if count < ENOUGH:
        notice(
            f"the reference has {count} inputs, so that no p-value can be below {1 / (count + 1):.2g}; take {ENOUGH} "
            "or more."
        )
    return Reference(tuple(b.name for b in posterior.blocks), unexplained, left, posterior.network.hash, precision)


def profile(posterior: Laplace, x: Any, precision: tuple[float, ...]) -> Tensor:
    """What is unexplained under the prior of novelty, [N, B].

    Where an input's gradients in a layer vanish (it saturates, or all its units are off) the ratio is 0 / 0. It counts
    as 1: the training data say nothing of it.
    """
    weak = weakened(posterior, precision)
    found = shares(weak, x)
    deltas = [delta for gaussian, blocks in weak.gaussians() for delta in [gaussian.delta] * len(blocks)]
    steepness = found.prior * torch.tensor(deltas, dtype=torch.float64)  # Σ_k J_b D⁻¹ J_bᵀ
    return torch.where(steepness > VANISHING, found.unexplained, 1.0)


def shaped(posterior: Laplace) -> Laplace:
    """The posterior with a prior of the shape that novelty takes."""
    fixed = any(isinstance(s, InBasis) for s in posterior.curvature.structures)
    prior = posterior.prior
    if isinstance(prior, RelativePrecision):
        prior = prior.levelled()
    elif not fixed and all(b.name in posterior.curvature.signals for b in posterior.blocks):
        prior = posterior.resolved(RELATIVE)
    return replace(posterior, prior=prior, tuning=None)


def weakened(posterior: Laplace, precision: tuple[float, ...]) -> Laplace:
    """The posterior under the prior of novelty: δ / s of every layer as given."""
    posterior, factors = shaped(posterior), {}
    for block, wanted in zip(posterior.blocks, precision, strict=True):
        group = posterior.blocks if posterior.curvature.joint else [block]
        factor = wanted * posterior.scale / posterior.block_prior(group).delta
        factors.update({p.name: factor for p in block.params})
    return replace(posterior, prior=posterior.prior.scaled_by(factors), tuning=None)


def own_precision(posterior: Laplace, left: float = LEFT) -> tuple[float, ...]:
    """δ / s of every layer with tr[H' δ (s H' + δ)⁻¹] / tr H' = ``left``."""
    if not isinstance(posterior, Laplace):
        kind = type(posterior).__name__
        raise NotDefined(f"novelty needs the curvature of a Laplace posterior, which a {kind} has not.")
    if posterior.curvature.keep is not None:
        raise NotDefined("novelty of a subnetwork mask is not defined; select whole layers instead.")
    if not 0 < left < 1:
        raise BadOption(f"left={left} is not between 0 and 1; {LEFT} is the default.")
    found: list[float] = []
    for gaussian, blocks in shaped(posterior).gaussians():
        found += [_delta(gaussian, left) / posterior.scale] * len(blocks)
    return tuple(found)


def _delta(gaussian: BlockGaussian, left: float) -> float:
    """What is left grows with δ: Newton's method over log δ, and bisection where that leaves the bracket."""
    values = gaussian.spectral.values.double()
    weights = values.clamp(min=0)
    total, top = weights.sum(), float(values.max()) * gaussian.scale
    if not top > 0:
        return gaussian.delta  # no curvature: nothing is explained under any prior
    least = max(-gaussian.spectral.lowest * gaussian.scale * (1 + 1e-6), top * 1e-14)
    low, high = math.log(least), math.log(max(top, least) * 1e6)
    wide = replace(gaussian, spectral=_doubled(gaussian, values))
    at = (low + high) / 2
    for step in range(STEPS):
        delta = math.exp(at)
        rest = delta / replace(wide, delta=delta).precision
        part, slope = (torch.stack([(weights * rest).sum(), (weights * rest * (1 - rest)).sum()]) / total).tolist()
        low, high = (at, high) if part < left else (low, at)
        newton = at - math.log(part / left) * part / slope if part > 0 and slope > 0 else low
        after = newton if low < newton < high and step % 4 != 3 else (low + high) / 2
        if high - low < 1e-12 or abs(after - at) < 1e-13:
            break
        at = after
    return math.exp(after)


def _doubled(gaussian: BlockGaussian, values: Tensor) -> Any:
    """The decomposition with eigenvalues in double precision; its vectors are not needed."""
    changes: dict[str, Any] = {"values": values}
    for name in ("left_values", "right_values"):
        found = getattr(gaussian.spectral, name, None)
        if isinstance(found, Tensor):
            changes[name] = found.double()
    return replace(gaussian.spectral, **changes)  # type: ignore[type-var]


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
