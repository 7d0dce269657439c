"""The layer with the largest share of the variance, and what the verdict says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whence.auditing.rules_in_words import ALWAYS_A_NOTE
from whence.numerals import percent
from whence.report.record.sections import Layer, Sensitivity, Shares
from whence.report.record.verdict import Point
from whence.where.examined import FACTORS

PRIORS = dict(zip(FACTORS, ("a prior ten times weaker", "this prior", "one ten times stronger"), strict=True))


@dataclass(frozen=True)
class LeadingLayer:
    """The layer with the largest share of the variance of test inputs."""

    name: str
    shares: Shares
    elsewhere: tuple[tuple[float, str], ...] = ()  # factor on the prior precision, and which layer leads there instead
    others: tuple[tuple[float, float], ...] = ()  # factor on the prior precision, and this layer's share there

    def briefly(self, own_prior: bool = False) -> str:
        """``own_prior``: whether the shares are under another prior than the predictions."""
        if self.elsewhere:
            return "Which layer contributes most to the variance depends on the prior."
        share = percent(self.shares.variance_share, 0)
        start = "Under the weaker prior of the profile, layer" if own_prior else "Layer"
        return f"{start} `{self.name}` contributes the largest share of the variance ({share})."

    def words(self) -> str:
        """The layer's share, that under other priors, and under the prior alone."""
        own = self.shares
        share = percent(own.variance_share, 0)
        alone = "" if own.prior_share is None else f"; {percent(own.prior_share, 0)} under the prior alone"
        if not self.elsewhere:
            span = "; " + ", ".join(f"{percent(there, 0)} with {PRIORS[factor]}" for factor, there in self.others)
            if {percent(there, 0) for _, there in self.others} <= {share}:
                span = ", also with priors ten times weaker and ten times stronger" if self.others else ""
            return f"Layer `{self.name}` contributes the largest share of the variance ({share}{span}{alone})."
        instead = " and ".join(f"layer `{name}` under {PRIORS[factor]}" for factor, name in self.elsewhere)
        return (
            f"No layer has the largest share of the variance under every prior: layer `{self.name}` under this one "
            f"({share}{alone}), {instead}."
        )


def leading_layer(layers: Sequence[Layer], sensitivity: Sequence[Sensitivity]) -> LeadingLayer | None:
    """The leading layer, if the layer table has shares."""
    shared = _with_shares(layers)
    if not shared:
        return None
    name, shares = max(shared.items(), key=lambda item: item[1].variance_share or 0.0)
    elsewhere, others = [], []
    for factor in FACTORS:
        rows = [row for row in sensitivity if row.factor == factor]
        mine = next((row.variance_share for row in rows if row.name == name), None)
        if factor != 1 and mine is not None:
            others.append((factor, mine))
        if rows and (first := max(rows, key=lambda row: row.variance_share or 0.0).name) != name:
            elsewhere.append((factor, first))
    return LeadingLayer(name, shares, tuple(elsewhere), tuple(others))


def _with_shares(layers: Sequence[Layer]) -> dict[str, Shares]:
    """Shares of test data, by layer."""
    return {row.name: row.test for row in layers if row.test is not None and row.test.variance_share is not None}


def location(layers: Sequence[Layer], leader: LeadingLayer | None) -> Point | None:
    """The point about the source of the uncertainty."""
    if leader is None:
        return None
    words = leader.words()
    inside = _with_shares(layers)
    drops = {
        row.name: (inside[row.name].explained, row.ood.explained)
        for row in layers
        if row.name in inside and row.ood is not None
    }
    known = {name: (a, b) for name, (a, b) in drops.items() if a is not None and b is not None}
    if len(known) == len(inside):
        name, (before, after) = max(known.items(), key=lambda item: item[1][0] - item[1][1])
        if before - after > 0.01:
            words += (
                f" For out-of-distribution inputs the part of the prior variance that training explains falls most in "
                f"layer `{name}`, from {percent(before, 0)} to {percent(after, 0)}."
            )
    return Point.about("location", words, "note", ALWAYS_A_NOTE)
