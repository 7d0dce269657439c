"""How good are the uncertainties? The plain network beside the Bayesian one, on test data."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence.auditing.context import UNCERTAINTY, Context, uncertainty
from whence.auditing.plain import estimate
from whence.auditing.scoring import METRICS, NEGLIGIBLE, losses_of, paired, reliability_of, scores_of, sorted_values
from whence.errors import BadData, NotDefined
from whence.metrics import Estimate

KINDS = ("plain", "bayesian")


def quality(context: Context) -> dict[str, Any]:
    """Metrics with intervals, reliability, and the distribution of uncertainty in and out of distribution."""
    held = context.need("test", targets=True)
    assert held.targets is not None
    scores = {kind: _scores(context, kind, held.targets) for kind in KINDS}
    rows = []
    for name, (label, better, about) in METRICS.items():
        if any(name in s for s in scores.values()):
            row: dict[str, Any] = {"name": name, "label": label, "better": better, "about": about}
            row |= {kind: estimate(s.get(name)) for kind, s in scores.items()}
            rows.append(row | {"difference": estimate(_difference(context, name, held.targets))})
    return {
        "metrics": rows,
        "reliability": _reliability(context, held.targets),
        "uncertainty": _spread(context),
        "words": _words(context, {r["name"]: r for r in rows}),
    }


def _scores(context: Context, kind: str, targets: Tensor) -> dict[str, Estimate]:
    ood = context.prediction("ood", kind) if context.has("ood") else None
    return scores_of(context.prediction("test", kind), targets, ood, context.options.seed)


def _difference(context: Context, name: str, targets: Tensor) -> Estimate | None:
    """Bayesian − plain, input by input."""
    plain, bayesian = (losses_of(name, context.prediction("test", kind), targets) for kind in KINDS)
    return None if plain is None or bayesian is None else paired(bayesian - plain, context.options.seed)


def _reliability(context: Context, targets: Tensor) -> dict[str, Any] | None:
    if context.task not in ("classification", "binary"):
        return None
    return {kind: reliability_of(context.prediction("test", kind), targets) for kind in KINDS}


def _spread(context: Context) -> dict[str, Any]:
    name, label = UNCERTAINTY[context.task]

    def curves(held: str) -> dict[str, list[Any]] | None:
        if not context.has(held):
            return None
        return {kind: sorted_values(uncertainty(context.prediction(held, kind))) for kind in KINDS}

    return {"name": name, "label": label, "test": curves("test"), "ood": curves("ood")}


def _words(context: Context, rows: dict[str, dict[str, Any]]) -> list[str]:
    words = []
    if (row := rows.get("nll")) is not None and row["difference"] is not None:
        low, high = row["difference"]["low"], row["difference"]["high"]
        value = row["difference"]["value"]
        if (low is not None and high is not None and low <= 0 <= high) or abs(value) < NEGLIGIBLE:
            words.append("Treating the weights as uncertain makes no difference to the log loss that shows here.")
        else:
            which = "better" if value < 0 else "worse"
            words.append(f"Treating the weights as uncertain makes the log loss {which} by {abs(value):.3g} nats.")
    if (row := rows.get("ece")) is not None and context.task == "classification":
        prediction = context.prediction("test")
        target = context.need("test").targets
        assert target is not None
        confidence = float(prediction.confidence.double().mean())
        right = float(rows["accuracy"]["bayesian"]["value"])
        tendency = "more" if confidence > right else "less"
        words.append(
            f"On average it claims {confidence:.1%} and is right {right:.1%} of the time: {tendency} confident than "
            "it should be."
            if abs(confidence - right) > 0.005
            else f"On average it claims {confidence:.1%} and is right {right:.1%} of the time."
        )
    return words


def mean_confidence(context: Context) -> float | None:
    """Of the Bayesian prediction on test data."""
    try:
        return float(context.prediction("test").confidence.double().mean())
    except (AttributeError, NotDefined, BadData):
        return None
