"""Evidence and test NLL of every network, by data set and seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from reproductions.claims import Interval, interval
from reproductions.store import Values

WHERE = {"trained": "at the trained weights", "refined": "at the linear model's optimum"}
Pairs = dict[str, tuple[float, float]]  # network → evidence, test NLL


class Numbers:
    """``units[kind][data][seed]``: networks by name."""

    def __init__(self, units: Values) -> None:
        self.units: dict[str, dict[str, dict[int, Values]]] = {}
        for unit, value in units.items():
            kind, name, seed = unit.split("/")
            self.units.setdefault(kind, {}).setdefault(name, {})[int(seed)] = value

    def data(self, kind: str) -> list[str]:
        return list(self.units.get(kind, {}))

    def pairs(self, kind: str, name: str, seed: int, where: str) -> Pairs:
        """Empty where that evidence is not defined (labels have none at the linear model's optimum)."""
        networks = self.units[kind][name][seed]
        return {n: (v[where]["evidence"], v[where]["nll"]) for n, v in networks.items() if where in v}

    def each(self, kind: str, name: str, where: str) -> list[Pairs]:
        """By seed."""
        found = [self.pairs(kind, name, seed, where) for seed in sorted(self.units[kind][name])]
        return [pairs for pairs in found if pairs]

    def with_where(self, kind: str, where: str) -> list[str]:
        return [name for name in self.data(kind) if self.each(kind, name, where)]

    def over_data(self, kind: str, where: str, figure: Figure) -> list[float]:
        """A figure of the networks, one for each data set: its mean over seeds."""
        names = self.with_where(kind, where)
        return [fmean(figure(pairs) for pairs in self.each(kind, name, where)) for name in names]


class Figure:
    """A number about some networks' evidence and NLL."""

    def __call__(self, pairs: Pairs) -> float:
        raise NotImplementedError


class Correlation(Figure):
    """Spearman's, of the evidence and −NLL: 1 if the evidence orders the networks as test data do."""

    def __call__(self, pairs: Pairs) -> float:
        first, second = ranks([e for e, _ in pairs.values()]), ranks([-nll for _, nll in pairs.values()])
        a, b = ([x - fmean(r) for x in r] for r in (first, second))
        norm = (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
        return sum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else 0.0


class OverMean(Figure):
    """NLL of the network that the evidence chooses, less the mean over networks: a choice by chance."""

    def __call__(self, pairs: Pairs) -> float:
        return chosen(pairs)[1] - fmean(nll for _, nll in pairs.values())


class Regret(Figure):
    """NLL of the network that the evidence chooses, less that of the best one, which only test data know."""

    def __call__(self, pairs: Pairs) -> float:
        return chosen(pairs)[1] - min(nll for _, nll in pairs.values())


def chosen(pairs: Pairs) -> tuple[float, float]:
    return max(pairs.values())


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def over(values: Sequence[float]) -> Interval | None:
    """None with fewer than two values."""
    return interval(values) if len(values) > 1 else None


def shown(values: Sequence[float], digits: int = 2) -> str:
    found = over(values)
    return found.text(digits) if found else f"{values[0]:.{digits}f} (one value)" if values else ""
