"""How often the intervals of groups contain the truth, and how often groups that do not differ are said to differ.

``python -m benchmarks.subgroups --sets 1000`` prints the tables of docs/metrics.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor

from whence.metrics import Estimate, ece
from whence.metrics.classification import read_labels
from whence.metrics.elements import MetricOptions, elements
from whence.metrics.group_test import group_differences
from whence.metrics.means import mean, share

MANY = 1_000_000
SIZES = (20, 50, 200)
LEVEL = 0.95
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def labels(scale: float, slope: float) -> Draw:
    """Probabilities softmax(z) of three classes, labels from softmax(slope z); z has the std ``scale``."""

    def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = scale * torch.randn(count, 3, generator=g, dtype=torch.float64)
        return z.softmax(1), torch.multinomial((slope * z).softmax(1), 1, generator=g)[:, 0]

    return draw


def several(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Whether each of five labels of an input is wrong; labels of one input share what makes them hard."""
    hard = torch.rand(count, 1, generator=g, dtype=torch.float64) ** 3
    wrong = torch.rand(count, 5, generator=g, dtype=torch.float64) < 0.4 * hard
    return wrong.double(), torch.zeros(count, 5)


def pixels(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Whether each of 64 pixels of an image is wrong; a few images have most of the errors."""
    hard = torch.rand(count, 1, generator=g, dtype=torch.float64) ** 6
    wrong = torch.rand(count, 64, generator=g, dtype=torch.float64) < 0.5 * hard
    return wrong.double(), torch.zeros(count, 64)


def numbers(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Errors with standard deviations between 0.5 and 1.5."""
    std = 0.5 + torch.rand(count, generator=g, dtype=torch.float64)
    return std * torch.randn(count, generator=g, dtype=torch.float64), std


# What is estimated, from a data set: the estimate, or the plain value of a large one


def _accuracy(p: Tensor, y: Tensor, seed: int) -> Estimate:
    found = read_labels("accuracy", p, y, {"seed": seed})
    return share("accuracy", found.correct, found.elements)


def _log_loss(p: Tensor, y: Tensor, seed: int) -> Estimate:
    found = read_labels("nll", p, y, {"seed": seed})
    return mean("nll", found.log_losses(), found.elements, (0.0, math.inf))


def _brier(p: Tensor, y: Tensor, seed: int) -> Estimate:
    found = read_labels("brier", p, y, {"seed": seed})
    return mean("brier", found.squared_distances(), found.elements, (0.0, 2.0))


def _ece(p: Tensor, y: Tensor, seed: int) -> Estimate:
    return ece(p, y, seed=seed)


def _rmse(error: Tensor, _: Tensor, seed: int) -> Estimate:
    members = elements(error.shape, MetricOptions(seed=seed), error.device)
    return mean("rmse", error.square(), members, (0.0, math.inf), root=True)


def _share_of_labels(wrong: Tensor, _: Tensor, seed: int) -> Estimate:
    members = elements(wrong.shape, MetricOptions(seed=seed), wrong.device)
    return share("error", wrong.reshape(-1), members)


NETWORKS = {"over-confident": labels(1.5, 0.6), "calibrated": labels(1.5, 1.0), "mostly right": labels(6.0, 1.0)}
STUDIES: dict[str, tuple[Draw, Callable[[Tensor, Tensor, int], Estimate]]] = {
    **{
        f"{name}, {which}": (draw, score)
        for name, score in (("accuracy", _accuracy), ("NLL", _log_loss), ("Brier score", _brier), ("ECE", _ece))
        for which, draw in NETWORKS.items()
    },
    "RMSE": (numbers, _rmse),
    "error rate of several labels": (several, _share_of_labels),
    "error rate of pixels": (pixels, _share_of_labels),
}


def truth(name: str) -> float:
    """The value in a large sample; of the ECE, whose plug-in value is biased by the noise of labels, without it."""
    draw, score = STUDIES[name]
    first, second = draw(MANY, torch.Generator().manual_seed(0))
    if score is _rmse:
        return float(first.square().mean().sqrt())
    if score is _share_of_labels:
        return float(first.mean())
    found = read_labels("truth", first, second, {"resamples": 0})
    if score is _accuracy:
        return float(found.correct.mean())
    if score is _ece:
        return 0.0 if "over" not in name else float(ece(first, second, resamples=0))
    return float((found.log_losses() if score is _log_loss else found.squared_distances()).mean())


def coverage(name: str, size: int, sets: int, first: int = 1) -> float:
    """In how many data sets of a group of this size the interval contains the truth."""
    draw, score = STUDIES[name]
    true, hits = truth(name), 0
    for seed in range(first, first + sets):
        found = score(*draw(size, torch.Generator().manual_seed(seed)), seed)
        low, high = (float(found) if math.isnan(end) else end for end in found.interval)
        hits += low - 1e-12 <= true <= high + 1e-12
    return hits / sets


# Groups that differ, and groups that do not


def null(*sizes: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Four quantities of inputs, as in an audit, that have nothing to do with the groups."""
    return lambda g: (_quantities(torch.full((sum(sizes),), 0.1, dtype=torch.float64), g), members(*sizes))


def rates(sizes: tuple[int, ...], errors: tuple[float, ...]) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Groups with different error rates."""
    inside = members(*sizes)
    rate = inside.double() @ torch.tensor(errors, dtype=torch.float64)
    return lambda g: (_quantities(rate, g), inside)


def unequal(sizes: tuple[int, ...], stds: tuple[float, ...]) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Groups with equal means and different standard deviations."""
    inside = members(*sizes)
    std = inside.double() @ torch.tensor(stds, dtype=torch.float64)
    return lambda g: (std[:, None] * torch.randn(len(std), 2, generator=g, dtype=torch.float64), inside)


def members(*sizes: int) -> Tensor:
    place = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.nn.functional.one_hot(place).bool()


def _quantities(rate: Tensor, g: torch.Generator) -> Tensor:
    """Wrong, a skewed loss, confidence minus accuracy, deferred."""
    u, v, w = torch.rand(3, len(rate), generator=g, dtype=torch.float64)
    wrong = (u < rate).double()
    loss = torch.where(wrong == 1, 1.5 - v.log(), 0.1 * v)
    return torch.stack([wrong, loss, 0.9 + 0.1 * v - wrong, (w < 0.2).double()], 1)


TESTS = {
    "groups alike: 20, 30, 50, 400": null(20, 30, 50, 400),
    "groups alike: 100, 100": null(100, 100),
    "groups alike: 20 groups of 25": null(*[25] * 20),
    "equal means, standard deviation 3 in 20 of 500, else 1": unequal((20, 480), (3.0, 1.0)),
    "equal means, standard deviation 3 in 50 of 500, else 1": unequal((50, 450), (3.0, 1.0)),
    "equal means, standard deviation 3 in 200 of 1,000, else 1": unequal((200, 800), (3.0, 1.0)),
    "error rate 30% in 25, 5% in 100 and 375": rates((25, 100, 375), (0.3, 0.05, 0.05)),
    "error rate 15% in 100, 5% in 400": rates((100, 400), (0.15, 0.05)),
}


def claimed(name: str, sets: int, permutations: int = 500, first: int = 1) -> float:
    """In how many data sets any group is said to differ in anything."""
    hits = 0
    for seed in range(first, first + sets):
        values, inside = TESTS[name](torch.Generator().manual_seed(seed))
        found = group_differences(values, inside, level=LEVEL, permutations=permutations, seed=seed)
        hits += bool((found.p <= 1 - LEVEL).any())
    return hits / sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000, help="simulated data sets of each row")
    sets = parser.parse_args().sets
    print(f"| metric | {' | '.join(f'n = {size}' for size in SIZES)} |\n|---|{'---|' * len(SIZES)}")
    for name in STUDIES:
        print(f"| {name} | {' | '.join(f'{coverage(name, size, sets):.3f}' for size in SIZES)} |", flush=True)
    print("\n| groups | any difference claimed |\n|---|---|")
    for name in TESTS:
        print(f"| {name} | {claimed(name, sets):.3f} |", flush=True)


if __name__ == "__main__":
    main()
