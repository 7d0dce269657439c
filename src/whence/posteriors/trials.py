"""How a posterior was tuned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One point of a tuning: prior factor r, data scale s, and what it scored (lower is better)."""

    prior_factor: float  # multiplies the prior precision that tuning started from
    data_scale: float
    score: float
    layer: str = ""  # which layer's prior was moved; empty for all


@dataclass(frozen=True)
class Tuning:
    """How a posterior was tuned."""

    criterion: str  # "validation" or "evidence"
    trials: list[Trial] = field(repr=False)
    score: float  # mean NLL per example, or log evidence
    method: str = "linearised"

    def to_dict(self) -> dict[str, Any]:
        return {
            "criterion": self.criterion,
            "method": self.method,
            "score": self.score,
            "trials": [[t.prior_factor, t.data_scale, t.score, t.layer] for t in self.trials],
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Tuning:
        return cls(d["criterion"], [Trial(*t) for t in d["trials"]], d["score"], d["method"])
