"""Which layer contributes most of the variance, and whether that depends on the prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whence.auditing.context import FACTORS, Context

UNDER = dict(zip(FACTORS, ("one ten times weaker", "this prior", "one ten times stronger"), strict=True))


@dataclass(frozen=True)
class Leader:
    """The layer with the largest share of the variance of test inputs."""

    name: str
    share: float
    prior_share: float | None
    low: float | None = None  # its least and its largest share under weaker and stronger priors
    high: float | None = None
    others: tuple[tuple[float, str], ...] = ()  # factor on the prior precision, and who leads there instead

    @property
    def throughout(self) -> bool:
        return not self.others

    def briefly(self) -> str:
        if not self.throughout:
            return "Which layer contributes most to the variance depends on the prior."
        return f"`{self.name}` contributes the largest share of the variance ({self.share:.0%})."

    def words(self) -> str:
        """With its range, and the share that the prior alone would give it."""
        alone = "" if self.prior_share is None else f"; {self.prior_share:.0%} under the prior alone"
        if self.throughout:
            span = ""
            if self.low is not None and self.high is not None:
                span = f"; {self.low:.0%} to {self.high:.0%} under priors ten times weaker to ten times stronger"
            return f"`{self.name}` contributes the largest share of the variance ({self.share:.0%}{span}{alone})."
        instead = " and ".join(f"`{name}` under {UNDER[factor]}" for factor, name in self.others)
        return (
            f"No layer has the largest share of the variance under every prior: `{self.name}` under this one "
            f"({self.share:.0%}{alone}), {instead}."
        )


def leader(context: Context, made: dict[str, Any]) -> Leader | None:
    """From the layer table, where it was made and has shares."""
    rows = [row for row in made.get("layers") or [] if row["test"] and row["test"]["variance_share"] is not None]
    if not rows:
        return None
    most = max(rows, key=lambda row: row["test"]["variance_share"])
    name, top = most["name"], most["test"]
    others = []
    for factor in FACTORS:
        there = [row for row in context.sensitivity if row["factor"] == factor]
        if there and (first := max(there, key=lambda row: row["variance_share"])["name"]) != name:
            others.append((factor, first))
    return Leader(
        name, top["variance_share"], top["prior_share"], top.get("share_low"), top.get("share_high"), tuple(others)
    )
