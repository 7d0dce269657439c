"""The values of all units, put together by table, method and split."""

from __future__ import annotations

from reproductions.claims import Interval, difference
from reproductions.store import Values

TITLES = {
    "plain, training noise": "one network, noise of training residuals",
    "plain": "one network, noise of validation residuals",
    "laplace, full": "Laplace, full",
    "laplace, kron": "Laplace, Kronecker",
    "laplace, diag": "Laplace, diagonal",
    "laplace, last": "Laplace, last layer",
    "laplace, chosen": "Laplace, the best of these on validation rows",
    "laplace, refined": "Laplace, full, at the linear model's optimum",
    "laplace, evidence": "Laplace, full, by the evidence",
    "laplace, sampled": "Laplace, full, weight draws",
    "variational": "variational",
    "dropout": "MC dropout",
    "swag": "SWAG",
    "ensemble": "ensemble",
    "longer": "one network, trained five times longer",
    "longer, laplace": "Laplace, full, of the network trained longer",
    "hmc": "HMC",
}
LINEARISED = ("full", "kron", "diag", "last")
KINDS = ("standard", "gap")


class Numbers:
    """``scores[kind][set][method][metric]``: one number for each split; HMC has its own first splits."""

    def __init__(self, units: Values) -> None:
        self.scores: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {kind: {} for kind in KINDS}
        self.hmc: dict[str, Values] = {}
        self.chosen: dict[str, dict[str, list[Values]]] = {kind: {} for kind in KINDS}
        for unit, value in units.items():
            kind, name, *_ = unit.split("/")
            if kind == "hmc":
                self.hmc[name] = value
                continue
            methods = dict(value["methods"]) | {"laplace, chosen": _chosen(value)}
            into = self.scores[kind].setdefault(name, {})
            self.chosen[kind].setdefault(name, []).append(value["chosen"])
            for method, scores in methods.items():
                own = into.setdefault(method, {})
                for metric, values in scores.items():
                    own.setdefault(metric, []).extend(values)

    def sets(self, kind: str) -> list[str]:
        return list(self.scores[kind])

    def methods(self, kind: str) -> list[str]:
        """In the order of the tables."""
        return [m for m in TITLES if any(m in own for own in self.scores[kind].values())]

    def each(self, kind: str, name: str, method: str, metric: str) -> list[float] | None:
        """One number for each split; None if the method was not measured on this table."""
        return self.scores[kind].get(name, {}).get(method, {}).get(metric)

    def over(self, kind: str, name: str, method: str, other: str, metric: str) -> Interval | None:
        """Split by split, ``method`` − ``other``; None without two splits of both."""
        first, second = (self.each(kind, name, m, metric) for m in (method, other))
        if first is None or second is None or len(first) != len(second) or len(first) < 2:
            return None
        return difference(first, second)

    def all_over(self, kind: str, method: str, other: str, metric: str) -> dict[str, Interval]:
        """By table."""
        found = {name: self.over(kind, name, method, other, metric) for name in self.sets(kind)}
        return {name: interval for name, interval in found.items() if interval is not None}


def _chosen(value: Values) -> dict[str, list[float]]:
    """For each split the linearised structure with the lowest NLL on validation rows."""
    nlls = {m: value["chosen"]["laplace"][m]["nll"] for m in LINEARISED}
    best = [min(LINEARISED, key=lambda m: nlls[m][k]) for k in range(len(value["splits"]))]
    metrics = value["methods"]["laplace, full"]
    return {key: [value["methods"][f"laplace, {m}"][key][k] for k, m in enumerate(best)] for key in metrics}
