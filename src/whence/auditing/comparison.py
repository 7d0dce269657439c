"""What a comparison returns: a table of methods by metrics, and its pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from whence.auditing.result import Recorded
from whence.errors import need
from whence.metrics.tables import text


@dataclass(frozen=True)
class Comparison(Recorded):
    """Made by :func:`whence.compare`: one row for each method, one column for each metric."""

    posteriors: Mapping[str, Any] = field(default_factory=dict, repr=False)
    kind: ClassVar[str] = "comparison"
    schema: ClassVar[str] = "whence.comparison/1"

    @property
    def methods(self) -> list[str]:
        return [method["name"] for method in self.record["methods"]]

    def __getitem__(self, method: str) -> dict[str, float | None]:
        """The values of one method, by metric."""
        if method not in self.methods:
            raise KeyError(f"{method!r} was not compared; there are {', '.join(self.methods)}.")
        place = self.methods.index(method)
        rows = {row["name"]: row["values"][place] for row in self.record["metrics"]}
        return {name: None if value is None else value["value"] for name, value in rows.items()}

    def to_pandas(self) -> Any:
        """One row for each method; intervals as columns ``_low`` and ``_high``."""
        rows = []
        for place, method in enumerate(self.record["methods"]):
            row: dict[str, Any] = {"method": method["name"], "seconds": method["seconds"], "memory": method["memory"]}
            for metric in self.record["metrics"]:
                value = metric["values"][place] or {"value": None, "low": None, "high": None}
                row[metric["name"]] = value["value"]
                row |= {f"{metric['name']}_{end}": value[end] for end in ("low", "high")}
            rows.append(row)
        return need("pandas", "pandas").DataFrame(rows)

    def plot_metrics(self) -> Any:
        """Every metric of every method, with its interval. A matplotlib figure, as all pictures."""
        return _figures().compare_metrics(self)

    def plot_layers(self) -> Any:
        """Shares of the methods side by side, layer by layer."""
        return _figures().compare_layers(self)

    def plot_reliability(self) -> Any:
        """How often each method is right against how sure it says to be."""
        return _figures().compare_reliability(self)

    def plot_uncertainty(self) -> Any:
        """Inverse ECDF of the uncertainty, in and out of distribution."""
        return _figures().compare_uncertainty(self)

    def plot_rejection(self) -> Any:
        """Error of those that are kept against the part that is kept."""
        return _figures().compare_rejection(self)

    def plot_agreement(self) -> Any:
        """Rank agreement between the shares of methods."""
        return _figures().compare_agreement(self)

    def __str__(self) -> str:
        metrics = self.record["metrics"]
        rows = []
        for place, method in enumerate(self.methods):
            cells = [_shown(metric, place) for metric in metrics]
            rows.append([method, *cells, f"{self.record['methods'][place]['seconds']:.2g} s"])
        table = text(["method", *(metric["label"] for metric in metrics), "time"], rows)
        return "\n".join([self.record["title"], table, *self.record["words"]])

    __repr__ = __str__


def _figures() -> Any:
    """The pictures, which stand in a room below: fetched when asked for."""
    from whence.report import figures

    return figures


def _shown(metric: dict[str, Any], place: int) -> str:
    value = metric["values"][place]
    return "" if value is None else f"{value['value']:.4g}{' *' if metric['best'][place] else ''}"
