"""Quantities of single weights under a Laplace posterior, and how they differ between layers and units.

Index legend: P weights of a block, n values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from whence.engine.memory import remembered
from whence.errors import one_of
from whence.linalg.gaussian import BlockGaussian
from whence.recording.blocks import Block
from whence.recording.units import units_of
from whence.tables import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

CPU = torch.device("cpu")
COMPARED = 20_000  # largest number of weights compared per layer, evenly spaced


# One number for each weight, [P] in float64, on the CPU unless another device is given


def weights_of(posterior: Laplace, block: Block, on: torch.device = CPU) -> Tensor:
    """The trained weights."""
    return block.gather(posterior.network.params).detach().to(on, torch.float64)


def variance_of(posterior: Laplace, block: Block, on: torch.device = CPU) -> Tensor:
    """Posterior variance."""
    if posterior.curvature.joint:
        return block.gather(_joint_variances(posterior)).to(on, torch.float64)
    return block.to_flat(gaussian_of(posterior, block.name)[0].variance()).to(on, torch.float64)


@remembered
def _joint_variances(posterior: Laplace) -> dict[str, Tensor]:
    return posterior.variance()


def std_of(posterior: Laplace, block: Block) -> Tensor:
    """Posterior standard deviation."""
    return variance_of(posterior, block).sqrt()


def identified_of(posterior: Laplace, block: Block, on: torch.device = CPU) -> Tensor:
    """1 − posterior variance / prior variance."""
    if posterior.curvature.joint:
        prior = posterior.prior.flat(list(block.params)).to(on, torch.float64)
        return 1 - variance_of(posterior, block, on) * prior
    return block.to_flat(gaussian_of(posterior, block.name)[0].identified()).to(on, torch.float64)


def signal_to_noise_of(posterior: Laplace, block: Block) -> Tensor:
    """|weight| / standard deviation."""
    return weights_of(posterior, block).abs() / std_of(posterior, block)


def curvature_of(posterior: Laplace, block: Block, on: torch.device = CPU) -> Tensor:
    """diag(H) / N: the curvature of one example's loss, without the prior."""
    noise = posterior.scale / posterior.data_scale  # a tuned noise changes the loss
    factor = noise / max(posterior.curvature.record.data_size, 1e-300)
    return factor * curvature_diagonal(posterior, block).to(on, torch.float64)


def relative_curvature_of(posterior: Laplace, block: Block) -> Tensor:
    """weight² diag(H) / N, which is invariant to rescaling of the network."""
    return weights_of(posterior, block).square() * curvature_of(posterior, block)


Quantity = Literal["std", "identified", "signal_to_noise", "curvature", "relative_curvature"]
QUANTITIES: dict[Quantity, Callable[[Laplace, Block], Tensor]] = {
    "std": std_of,
    "identified": identified_of,
    "signal_to_noise": signal_to_noise_of,
    "curvature": curvature_of,
    "relative_curvature": relative_curvature_of,
}


def gaussian_of(posterior: Laplace, layer: str) -> tuple[BlockGaussian, Sequence[Block]]:
    """The Gaussian that a layer belongs to: its own, or that of all layers if they are correlated."""
    groups = enumerate(posterior.curvature.groups)
    return next((posterior.gaussian(i), blocks) for i, blocks in groups if layer in [b.name for b in blocks])


def curvature_diagonal(posterior: Laplace, block: Block) -> Tensor:
    """diag(H) of one block, [P], according to its structure."""
    pairs = zip(posterior.curvature.structures, posterior.curvature.groups, strict=True)
    structure, blocks = next((found, group) for found, group in pairs if block.name in [b.name for b in group])
    if len(blocks) == 1:
        return block.to_flat(structure.diagonal())
    parts = structure.diagonal().split([b.size for b in blocks])
    return next(part for b, part in zip(blocks, parts, strict=True) if b.name == block.name)


def thinned(values: Tensor, limit: int) -> Tensor:
    """At most ``limit`` of the values, evenly spaced."""
    return values[:: -(-len(values) // limit)]


# Differences between layers and units


@dataclass(frozen=True)
class Differences:
    """Rank-based effect sizes, which unlike p-values do not depend on the number of weights."""

    of: str
    between: Table  # pairs of layers: medians and Cliff's δ
    inside: Table  # each layer's units: Kruskal–Wallis H and ε²
    overall: float  # ε² of all layers together

    def __str__(self) -> str:
        limits = ((0.01, "hardly"), (0.06, "weakly"), (0.14, "clearly"))
        words = next((word for limit, word in limits if self.overall < limit), "strongly")
        return (
            f"layers differ {words} in {self.of} (ε² = {self.overall:.3f})\n\nbetween layers\n{self.between}\n\n"
            f"inside layers, between units\n{self.inside}"
        )


def differences(posterior: Laplace, of: Quantity = "std") -> Differences:
    """Differences between layers, and between the units of each layer."""
    one_of(of, QUANTITIES, "quantity")
    values = {b.name: QUANTITIES[of](posterior, b) for b in posterior.blocks}
    compared = {name: thinned(v, COMPARED) for name, v in values.items()}
    names = list(values)
    pairs = [(first, second) for i, first in enumerate(names) for second in names[i + 1 :]]
    units = {b.name: units_of(posterior.network, b) for b in posterior.blocks}
    inside = [_between_units(values[name], units[name].of_weight, units[name].count) for name in names]
    return Differences(
        of,
        Table(
            {
                "first": [first for first, _ in pairs],
                "second": [second for _, second in pairs],
                "first_median": [float(values[first].median()) for first, _ in pairs],
                "second_median": [float(values[second].median()) for _, second in pairs],
                "delta": [cliffs_delta(compared[first], compared[second]) for first, second in pairs],
            }
        ),
        Table(
            {
                "name": names,
                "units": [units[name].count for name in names],
                "H": [h for h, _ in inside],
                "epsilon_squared": [effect for _, effect in inside],
            }
        ),
        kruskal(list(compared.values()))[1],
    )


def _between_units(values: Tensor, unit: Tensor, count: int) -> tuple[float, float]:
    step = -(-len(values) // (10 * COMPARED))
    values, unit = values[::step], unit[::step]
    order = unit.argsort(stable=True)
    sizes = [n for n in torch.bincount(unit, minlength=count).tolist() if n]
    return kruskal(values[order].split(sizes))


def magnitude(posterior: Laplace) -> Table:
    """Weight magnitude against uncertainty: Spearman's ρ of |w| with std and with identified, by layer and overall."""
    sizes = [weights_of(posterior, block).abs() for block in posterior.blocks]
    stds = [std_of(posterior, block) for block in posterior.blocks]
    identified = [identified_of(posterior, block) for block in posterior.blocks]
    for values in (sizes, stds, identified):
        values.append(torch.cat(values))
    return Table(
        {
            "name": [*(block.name for block in posterior.blocks), "all layers"],
            "weights": [len(size) for size in sizes],
            "rho_std": [spearman(size, std) for size, std in zip(sizes, stds, strict=True)],
            "rho_identified": [spearman(size, known) for size, known in zip(sizes, identified, strict=True)],
        }
    )


# Rank statistics


def average_ranks(values: Tensor) -> Tensor:
    """Ranks 1 to n from the smallest; ties get the mean of their ranks, [n]."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() - 1) / 2)[inverse]


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of the ranks; 0 if one of the two is constant."""
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else 0.0


def cliffs_delta(x: Tensor, y: Tensor) -> float:
    """P(X > Y) − P(X < Y) (Cliff 1993), from −1 to 1."""
    ordered = y.sort().values
    x = x.contiguous()
    above = torch.searchsorted(ordered, x)
    below = len(y) - torch.searchsorted(ordered, x, right=True)
    return float((above - below).double().mean()) / len(y)


def kruskal(groups: Sequence[Tensor]) -> tuple[float, float]:
    """H of Kruskal & Wallis (1952), corrected for ties, and ε² = (H − k + 1) / (n − k), at least 0."""
    values = torch.cat(list(groups))
    n, k = len(values), len(groups)
    ranks = average_ranks(values)
    sizes = [len(g) for g in groups]
    means = torch.stack([part.mean() for part in ranks.split(sizes)])
    squares = (ranks - ranks.mean()).square().sum()
    if float(squares) == 0 or k < 2 or n <= k:
        return 0.0, 0.0
    between = (torch.tensor(sizes, dtype=torch.float64) * (means - ranks.mean()).square()).sum()
    h = float((n - 1) * between / squares)
    return h, max(0.0, (h - k + 1) / (n - k))
