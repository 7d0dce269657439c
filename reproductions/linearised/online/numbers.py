"""The values of all units, put together by case, method and split or seed."""

from __future__ import annotations

from reproductions.claims import Interval, difference
from reproductions.store import Values

TITLES = {
    "early": "early stopping",
    "early, laplace": "early stopping, Laplace",
    "grid": "grid of decays",
    "grid, laplace": "grid of decays, Laplace",
    "afterwards, laplace": "evidence after training, Laplace",
    "online": "evidence online",
    "online, laplace": "evidence online, Laplace",
    "online, exact": "evidence online, Laplace without Kronecker factors",
    "online, kron": "evidence online, Kronecker",
    "online, kron, laplace": "evidence online, Kronecker, Laplace",
    "online, relative": "evidence online, relative prior (τ = 1)",
    "online, relative, laplace": "evidence online, relative prior (τ = 1), Laplace",
}
VALIDATED = ("early", "early, laplace", "grid", "grid, laplace")
KINDS = ("standard", "gap", "images")


class Numbers:
    """``scores[kind][case][method][metric]``: one number for each split or seed; a case of images has a network."""

    def __init__(self, units: Values) -> None:
        self.scores: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {kind: {} for kind in KINDS}
        self.chosen: dict[str, dict[str, list[Values]]] = {kind: {} for kind in KINDS}
        self.traces: dict[str, dict[str, Values]] = {kind: {} for kind in KINDS}  # of the first split or seed
        self.starts: dict[str, dict[str, dict[str, list[float]]]] = {}  # by set, start and metric
        for unit, value in units.items():
            kind, name, _ = unit.split("/")
            if kind == "start":
                self.starts[name] = value
            elif kind == "images":
                of, _, labels = name.rpartition("-")
                for network, own in value.items():
                    single = {m: {k: [v] for k, v in scores.items()} for m, scores in own["methods"].items()}
                    self._add(kind, f"{of}, {int(labels):,} labels, {network}", single, own)
            else:
                self._add(kind, name, value["methods"], value)

    def _add(self, kind: str, case: str, methods: Values, value: Values) -> None:
        into = self.scores[kind].setdefault(case, {})
        self.chosen[kind].setdefault(case, []).append(value["chosen"])
        self.traces[kind].setdefault(case, value["trace"])
        for method, scores in methods.items():
            own = into.setdefault(method, {})
            for metric, values in scores.items():
                own.setdefault(metric, []).extend(values)

    def cases(self, kind: str) -> list[str]:
        return list(self.scores[kind])

    def methods(self, kind: str) -> list[str]:
        """In the order of the tables."""
        return [m for m in TITLES if any(m in own for own in self.scores[kind].values())]

    def each(self, kind: str, case: str, method: str, metric: str) -> list[float] | None:
        """One number for each split or seed; None if the method was not measured in this case."""
        return self.scores[kind].get(case, {}).get(method, {}).get(metric)

    def over(self, kind: str, case: str, method: str, other: str, metric: str) -> Interval | None:
        """Split by split, ``method`` − ``other``; None without two of both."""
        first, second = (self.each(kind, case, m, metric) for m in (method, other))
        if first is None or second is None or len(first) != len(second) or len(first) < 2:
            return None
        return difference(first, second)

    def all_over(self, kind: str, method: str, other: str, metric: str) -> dict[str, Interval]:
        found = {case: self.over(kind, case, method, other, metric) for case in self.cases(kind)}
        return {case: interval for case, interval in found.items() if interval is not None}
