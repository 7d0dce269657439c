"""When to hand over to a person: thresholds chosen on validation data, measured on test data."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

from torch import Tensor

from whence.auditing.context import UNCERTAINTY, Context, uncertainty
from whence.auditing.plain import estimate, number
from whence.auditing.scoring import curve_of, wrong_of
from whence.errors import NotDefined, Notice
from whence.metrics import Deferral, Estimate, defer, rmse
from whence.metrics.bootstrap import mean
from whence.metrics.elements import elements, read

EVEN = 0.01  # spread of the variances, relative to their mean, below which there is nothing to rank by
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
ERRORS = (0.1, 0.05, 0.02, 0.01, 0.005)
CONFIDENCE = 0.95


def deferral(context: Context) -> dict[str, Any]:
    """A row for each aim: a share of answers, or (for labels) an error rate that is kept with confidence."""
    validation, test = context.need("validation", targets=True), context.need("test", targets=True)
    assert validation.targets is not None and test.targets is not None
    name, label = UNCERTAINTY[context.task]
    found: dict[str, Any] = {"measure": name, "label": label}
    if context.task in ("regression", "count"):
        rows = [_numbers_row(context, coverage) for coverage in COVERAGES]
        words = [*_even(context), *_words(rows, False)]
        return found | {"error": "root mean squared error", "rows": rows, "curve": None, "words": words}
    pairs = {}
    for held in (validation, test):
        assert held.targets is not None
        prediction = context.prediction(held.name)
        wrong = wrong_of(prediction, held.targets)
        if wrong is None:
            raise NotDefined("there is not one label for each input, so that an answer is neither right nor wrong.")
        pairs[held.name] = (uncertainty(prediction), wrong.double())
    rows = [_row(pairs, coverage=c) for c in COVERAGES]
    overall = float(pairs["test"][1].mean())
    rows += [_row(pairs, max_error=e, confidence=CONFIDENCE) for e in ERRORS if e < max(overall, 0.01)]
    curve = {kind: curve_of(context.prediction("test", kind), test.targets) for kind in ("plain", "bayesian")}
    return found | {"error": "error rate", "rows": rows, "curve": curve, "words": _words(rows, True)}


def _row(pairs: dict[str, tuple[Tensor, Tensor]], **asked: float) -> dict[str, Any]:
    rule = _rule(*pairs["validation"], asked)
    reached = rule.check(*pairs["test"])
    return {
        "aim": rule.aim,
        "target": rule.target,
        "confidence": rule.confidence,
        "threshold": number(rule.threshold),
        "answers": "all" if rule.threshold == math.inf else "none" if rule.threshold == -math.inf else "some",
        "validation": {"coverage": number(rule.coverage), "error": _value(rule.error)},
        "test": _reached(reached),
    }


def _rule(spread: Tensor, wrong: Tensor, asked: dict[str, float]) -> Deferral:
    """A threshold chosen on validation data; none where everything is to be answered."""
    if asked.get("coverage") == 1.0:
        whole = defer(spread, wrong, coverage=1.0, resamples=0)
        return replace(whole, threshold=math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # a row that defers everything says so itself
        return defer(spread, wrong, resamples=0, **asked)  # type: ignore[arg-type]


def _reached(rule: Deferral) -> dict[str, Any]:
    return {
        "coverage": estimate(rule.coverage),
        "error": estimate(rule.error),
        "deferred_error": estimate(rule.deferred_error),
    }


def _value(found: Estimate | None) -> float | None:
    return None if found is None else number(found)


def _numbers_row(context: Context, coverage: float) -> dict[str, Any]:
    """For numbers: the variance below which that share of the validation data lies."""
    parts = {}
    for name in ("validation", "test"):
        held = context.need(name)
        prediction = context.prediction(name)
        assert held.targets is not None
        parts[name] = (uncertainty(prediction), prediction.mean.double().cpu(), held.targets.double())
    ordered = parts["validation"][0].sort().values
    threshold = float(ordered[min(len(ordered) - 1, math.ceil(coverage * len(ordered)) - 1)])
    threshold = math.inf if coverage == 1 else threshold

    def reached(name: str, keep: bool) -> Estimate | None:
        spread, centre, target = parts[name]
        mine = (spread <= threshold) == keep
        return rmse(centre[mine], target.reshape(centre.shape)[mine]) if bool(mine.any()) else None

    options = read("coverage", {})
    kept = (parts["test"][0] <= threshold).double()
    covered = mean("coverage", kept, elements(kept.shape, options, kept.device), options, (0.0, 1.0))
    return {
        "aim": "coverage",
        "target": coverage,
        "confidence": None,
        "threshold": number(threshold),
        "answers": "all" if threshold == math.inf else "some",
        "validation": {
            "coverage": number((parts["validation"][0] <= threshold).double().mean()),
            "error": _value(reached("validation", True)),
        },
        "test": {
            "coverage": estimate(covered),
            "error": estimate(reached("test", True)),
            "deferred_error": estimate(reached("test", False)),
        },
    }


def _even(context: Context) -> list[str]:
    """Said where the variances hardly differ."""
    spread = uncertainty(context.prediction("test"))
    if float(spread.std()) > EVEN * float(spread.mean()):
        return []
    return ["The predicted variance is nearly the same for all test inputs: it cannot tell which answers to hand over."]


def _words(rows: list[dict[str, Any]], labels: bool) -> list[str]:
    """The most telling row: four in five answered."""
    whole = next(r for r in rows if r["aim"] == "coverage" and r["target"] == 1.0)
    some = next(r for r in rows if r["aim"] == "coverage" and r["target"] == 0.8)
    if whole["test"]["error"] is None or some["test"]["error"] is None:
        return []
    before, after = whole["test"]["error"]["value"], some["test"]["error"]["value"]
    covered = some["test"]["coverage"]["value"]
    what = (f"{before:.1%}", f"{after:.1%}") if labels else (f"{before:.3g}", f"{after:.3g}")
    name = "error rate" if labels else "typical error"
    words = [
        f"If a person takes over the {1 - covered:.0%} of inputs that are most uncertain, the {name} of the rest "
        f"{'falls' if after < before else 'goes'} from {what[0]} to {what[1]}."
    ]
    if labels:
        words.append(
            "Rows that ask for an error rate take the threshold that keeps it with 95 % confidence on the validation "
            "data."
        )
    return words
