"""When to stop: rules that see only the past, and how they are chosen and judged.

A run is a training that was recorded after every epoch, from epoch 0 (the initial weights) on. A rule names the epoch
at which it would have stopped and the epoch whose weights it would have kept. Its settings are chosen on the validation
losses of all other cells, so that the cell on which it is judged had no part in them; what it costs is the test loss.

Index legend: T records, L layers with a weight matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from reproductions.kniebel2020.stability import Condition
from reproductions.store import Values

Series = list[list[float]]  # [T][L]
WINDOWS = (2, 3, 5)
TOLERANCES = (0.02, 0.05, 0.1, 0.2, 0.3)
PATIENCE = (3, 5, 8)
SETTLED = 0.1  # of the range that a layer went through: within it of the last value, a layer has settled (looking back)


@dataclass(frozen=True)
class Stop:
    """The last epoch that was trained, and the one whose weights are kept."""

    after: int
    kept: int


Rule = Callable[[Values, Condition], Stop]


def series(run: Values, condition: Condition, quantity: str) -> Series:
    """Of the layers with a weight matrix."""
    places = [i for i, layer in enumerate(run["layers"]) if layer["matrix"]]
    return [[record[i] for i in places] for record in run["series"][" ".join(condition)][quantity]]


def optimum(run: Values) -> int:
    """The epoch with the smallest validation loss, known afterwards."""
    return argmin(run["validation"])


def argmin(values: Sequence[float]) -> int:
    return min(range(len(values)), key=values.__getitem__)


# Rules


def when_settled(quantity: str, tolerance: float, window: int) -> Rule:
    """When no layer has moved by more than ``tolerance`` of its range so far, for ``window`` epochs."""

    def rule(run: Values, condition: Condition) -> Stop:
        found = series(run, condition, quantity)
        for t in range(window + 1, len(found)):
            past = zip(*found[: t + 1], strict=True)
            if all(settled(values, tolerance, window) for values in past):
                return Stop(t, t)
        return Stop(len(found) - 1, len(found) - 1)

    return rule


def settled(past: Sequence[float], tolerance: float, window: int) -> bool:
    """Whether the last ``window`` steps of a series stay within ``tolerance`` of the range of all of it."""
    recent = past[-window - 1 :]
    return max(recent) - min(recent) <= tolerance * (max(past) - min(past))


def past_the_peak(quantity: str, tolerance: float) -> Rule:
    """When the mean over layers has fallen by a share of its largest value so far."""

    def rule(run: Values, condition: Condition) -> Stop:
        means = [fmean(row) for row in series(run, condition, quantity)]
        for t in range(1, len(means)):
            if means[t] < (1 - tolerance) * max(means[:t]):
                return Stop(t, t)
        return Stop(len(means) - 1, len(means) - 1)

    return rule


def training_loss(tolerance: float, window: int) -> Rule:
    """When the training loss has fallen by less than a share of itself in ``window`` epochs."""

    def rule(run: Values, _: Condition) -> Stop:
        losses = run["train"]
        for t in range(window, len(losses)):
            if losses[t - window] - losses[t] < tolerance * losses[t - window]:
                return Stop(t, t)
        return Stop(len(losses) - 1, len(losses) - 1)

    return rule


def validation_loss(patience: int) -> Rule:
    """When the validation loss has not improved for ``patience`` epochs; its best weights are kept."""

    def rule(run: Values, _: Condition) -> Stop:
        losses = run["validation"]
        for t in range(1, len(losses)):
            best = argmin(losses[: t + 1])
            if t - best >= patience:
                return Stop(t, best)
        return Stop(len(losses) - 1, argmin(losses))

    return rule


def fixed(epochs: int) -> Rule:
    def rule(run: Values, _: Condition) -> Stop:
        last = min(epochs, len(run["test"]) - 1)
        return Stop(last, last)

    return rule


FAMILIES: dict[str, list[tuple[str, Rule]]] = {
    "all layers have settled": [
        (f"{quantity}, {tolerance:g} of its range in {window} epochs", when_settled(quantity, tolerance, window))
        for quantity, tolerance, window in product(("identified", "explained"), TOLERANCES, WINDOWS)
    ],
    "explained is past its peak": [
        (f"fallen by {tolerance:g}", past_the_peak("explained", tolerance)) for tolerance in TOLERANCES
    ],
    "training loss": [
        (f"less than {tolerance:g} in {window} epochs", training_loss(tolerance, window))
        for tolerance, window in product(TOLERANCES, WINDOWS)
    ],
    "a fixed number of epochs": [(f"{n}", fixed(n)) for n in (2, 3, 5, 8, 10, 15, 20, 30, 50)],
    "validation loss": [(f"patience {n}", validation_loss(n)) for n in PATIENCE],
}


# Choosing and judging


Runs = dict[str, list[Values]]  # by cell


def regret(run: Values, stop: Stop, on: str = "test") -> float:
    """The loss of what was kept less that at the validation optimum."""
    return float(run[on][stop.kept] - run[on][optimum(run)])


def chosen(family: str, runs: Runs, without: str, condition: Condition) -> tuple[str, Rule]:
    """The member of a family with the smallest mean validation regret on all other cells."""
    others = [run for cell, some in runs.items() if cell != without for run in some]

    def cost(member: tuple[str, Rule]) -> float:
        return fmean(regret(run, member[1](run, condition), "validation") for run in others)

    return min(FAMILIES[family], key=cost)


@dataclass(frozen=True)
class Judged:
    """A family of rules on one cell."""

    settings: str
    stops: list[Stop]
    regrets: list[float]
    epochs: list[float]  # stopped less the optimum, as a share of the whole training


def judged(family: str, runs: Runs, condition: Condition) -> Iterator[tuple[str, Judged]]:
    for cell, some in runs.items():
        settings, rule = chosen(family, runs, cell, condition)
        stops = [rule(run, condition) for run in some]
        away = [(s.after - optimum(run)) / (len(run["test"]) - 1) for run, s in zip(some, stops, strict=True)]
        yield cell, Judged(settings, stops, [regret(r, s) for r, s in zip(some, stops, strict=True)], away)


# Looking back


def settled_at(values: Sequence[float]) -> int:
    """The first epoch from which a series stays near its last value."""
    reach = SETTLED * (max(values) - min(values))
    start = len(values) - 1
    while start and abs(values[start - 1] - values[-1]) <= reach:
        start -= 1
    return start
