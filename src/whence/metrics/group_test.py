"""Whether groups of inputs differ from the rest: a permutation test that is corrected for the number of comparisons.

Index legend: N inputs, G groups, Q quantities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PERMUTATIONS = 2000


@dataclass(frozen=True)
class Differences:
    """Means of groups minus means of the rest."""

    value: Tensor  # [G, Q]
    reach: Tensor  # [G, Q]: value ± reach are simultaneous intervals
    p: Tensor  # [G, Q] corrected for all G · Q comparisons


def group_differences(
    values: Tensor, members: Tensor, *, level: float = 0.95, permutations: int = PERMUTATIONS, seed: int = 0
) -> Differences:
    """Compare the mean of every column of ``values`` [N, Q] in every group, ``members`` [N, G], with that of the rest.

    Rows of values are permuted against the groups; the largest |t| of all comparisons is what each |t| is compared with
    (Westfall & Young 1993, single-step max T). If no group differs in anything, some p is at most 1 − level with at
    most that probability, whatever the distributions. Variances are those of the group and of the rest, so that t
    is also right for large groups of larger variance (Janssen 1997), but not below the variance of all inputs: a
    small group without errors does not show that its error rate varies little. Groups need two inputs.
    """
    order = _order(values, members)
    values, inside = values.double()[order], members.double()[order].T  # [N, Q], [G, N]
    scale = values.std(0, correction=0)
    values = (values - values.mean(0)) / torch.where(scale > 0, scale, 1.0)
    sizes = torch.stack([inside.sum(1), len(values) - inside.sum(1)]).unsqueeze(2)  # [2, G, 1]: group and rest
    total = torch.cat([values, values.square()], 1).sum(0)
    value, error = _difference(values, inside, sizes, total)
    t = (value / error).abs()
    largest = torch.empty(permutations, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for i in range(permutations):
        order = torch.randperm(len(values), generator=generator)
        by_chance, its_error = _difference(values[order], inside, sizes, total)
        largest[i] = (by_chance / its_error).abs().max()
    p = (1 + (largest >= t.unsqueeze(2) * (1 - 1e-12)).sum(2)) / (permutations + 1)
    reach = torch.quantile(largest, level, interpolation="higher") * error
    return Differences(value * scale, reach * scale, torch.where(scale > 0, p.double(), 1.0))


def _order(values: Tensor, members: Tensor) -> Tensor:
    """An order of the inputs by what they are, so that the p-values do not depend on the order in which they come."""
    columns = [*members.long().unbind(1), *values.double().unbind(1)]
    return torch.from_numpy(np.lexsort([column.cpu().numpy() for column in columns]))


def _difference(values: Tensor, inside: Tensor, sizes: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each group minus that of the rest, and the standard error, [G, Q] each; ``values`` have variance 1."""
    within = inside @ torch.cat([values, values.square()], 1)
    sums, squares = torch.stack([within, total - within]).chunk(2, dim=2)  # [2, G, Q] each
    means = sums / sizes
    spread = (squares - sums * means).clamp(min=0)
    variances = (spread / (sizes - 1)).clamp(min=1)
    return means[0] - means[1], (variances / sizes).sum(0).sqrt()
