"""The values of all units, put together by set, method and split."""

from __future__ import annotations

from reproductions.claims import Interval, difference
from reproductions.store import Values

TITLES = {
    "plain": "one network",
    "temperature": "one network, temperature of validation rows",
    "laplace, full": "Laplace, full",
    "laplace, kron": "Laplace, Kronecker",
    "laplace, diag": "Laplace, diagonal",
    "laplace, last": "Laplace, last layer",
    "laplace, evidence": "Laplace, full, by the evidence",
    "laplace, sampled": "Laplace, full, weight draws",
    "variational": "variational",
    "dropout": "MC dropout",
    "swag": "SWAG",
    "ensemble": "ensemble",
}
HMC = "HMC"


class Numbers:
    """``scores[set][method][metric]``: one number for each split; HMC has its own first splits."""

    def __init__(self, units: Values) -> None:
        self.scores: dict[str, dict[str, dict[str, list[float]]]] = {}
        self.chosen: dict[str, list[Values]] = {}
        self.hmc: dict[str, Values] = {}
        for unit, value in units.items():
            name, place = unit.split("/")
            if name == "hmc":
                self.hmc[place] = value
                continue
            self.chosen.setdefault(name, []).append(value["chosen"])
            for method, scores in value["methods"].items():
                own = self.scores.setdefault(name, {}).setdefault(method, {})
                for metric, number in scores.items():
                    own.setdefault(metric, []).append(number)

    def sets(self) -> list[str]:
        return list(self.scores)

    def over(self, name: str, method: str, other: str, metric: str) -> Interval | None:
        """Split by split, ``method`` − ``other``; None without two splits."""
        first, second = (self.scores[name][m][metric] for m in (method, other))
        return difference(first, second) if len(first) > 1 else None

    def all_over(self, method: str, other: str, metric: str) -> dict[str, Interval]:
        found = {name: self.over(name, method, other, metric) for name in self.sets()}
        return {name: interval for name, interval in found.items() if interval is not None}
