"""Descriptions of a Laplace posterior: summary, structures, and how it was tuned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from whence.curvature.needs import needs
from whence.engine.files import digest, digest_of_values
from whence.errors import WhenceError
from whence.functional import weights_hash
from whence.posteriors.base import LayerStructure, Summary

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


VALIDATION_DATA = "validation data"
TUNED = {"evidence": "evidence", "validation": VALIDATION_DATA}


def structures(posterior: Laplace) -> dict[str, LayerStructure]:
    """The structure of each layer, and why it has it."""
    curvature = posterior.curvature
    whole = {"full": "full", "lowrank": "lowrank"}.get(curvature.options.structure)
    whole = "full, within a mask" if curvature.keep is not None else whole
    item = 8 if posterior.network.dtype == torch.float64 else 4
    return {
        b.name: LayerStructure(
            b.kind, b.size, whole or b.structure, b.reason, memory=0 if whole else needs(b, item).stored
        )
        for b in posterior.blocks
    }


def summary(posterior: Laplace) -> Summary:
    precision, options, record = posterior.prior_precision, posterior.curvature.options, posterior.record
    try:
        evidence = float(posterior.log_evidence())
    except WhenceError:
        evidence = None
    return Summary(
        structure=options.structure,
        curvature=options.curvature,
        prior_precision=precision if isinstance(precision, float) else None,
        prior=posterior.prior.describe(),
        data_scale=posterior.data_scale,
        tuned_on="nothing" if posterior.tuning is None else TUNED[posterior.tuning.criterion],
        log_evidence=evidence,
        examples=record.data_size,
        accuracy=record.accuracy,
        confidence=record.mean_confidence,
    )


def fingerprint(posterior: Laplace) -> str:
    """A hash of the weights, the prior and the data scale; ranks that tuned separately may differ slightly."""
    spec = posterior.prior.spec()
    found = [weights_hash(posterior.network.module), f"{posterior.data_scale:.6g}"]
    for name, value in sorted((spec.get("relative") or spec).items()):
        found.append(f"{name} {value if value is None else format(value, '.6g')}")
    found += [f"{name} {digest([value])}" for name, value in sorted(posterior.prior.tensors().items())]
    return digest_of_values(found)[:12]


def one_line(posterior: Laplace) -> str:
    options, record = posterior.curvature.options, posterior.record
    tuning = posterior.tuning
    tuned = "not tuned: call .tune(validation_data)" if tuning is None else f"tuned by {tuning.criterion}"
    kinds = Counter(row.structure for row in structures(posterior).values())
    blocks = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    quality = f", training accuracy {record.accuracy:.1%}" if record.accuracy is not None else ""
    return (
        f"Laplace({options.structure}, {options.curvature}; {posterior.parameters:,} weights in "
        f"{len(posterior.blocks)} blocks: {blocks}; {posterior.likelihood!r}; {record.data_size:,.0f} "
        f"examples{quality}; prior precision {posterior.prior.describe()}, data scale {posterior.data_scale:.3g}; "
        f"{tuned})"
    )


@dataclass(frozen=True)
class Trial:
    """One point of a tuning: prior factor r, data scale s, and its score (lower is better)."""

    prior_factor: float  # factor of the initial prior precision
    data_scale: float
    score: float
    layer: str = ""  # the layer whose prior was changed; empty for all


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
