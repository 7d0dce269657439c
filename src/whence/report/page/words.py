"""Numbers as the page writes them, and the terms that it explains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whence.metrics.estimate import Estimate

NONE = "–"
LONG = 16  # values of a list that are still written out
GLOSSARY = {
    "nll": (
        "NLL",
        "Negative log likelihood: how surprised the network is by the true answers, on average. Confident mistakes "
        "cost most. Lower is better.",
    ),
    "brier": (
        "Brier score",
        "The squared distance between the probabilities given and what then happened. Lower is better.",
    ),
    "ece": (
        "ECE",
        "Expected calibration error: by how much stated confidence and true hit rate differ on average. 0.02 means "
        "two percentage points. Lower is better.",
    ),
    "auroc": (
        "AUROC",
        "The probability that a score ranks a case to be found (a novel input, a mistake) above an ordinary one. "
        "0.5 is chance, 1 is perfect.",
    ),
    "fpr95": (
        "FPR95",
        "False alarms: the part of ordinary inputs that is flagged when the threshold is set to catch 95 % of the "
        "novel ones. Lower is better.",
    ),
    "entropy": (
        "entropy",
        "How spread out the predicted probabilities are: 0 when all weight is on one class, largest when every class "
        "is equally likely. In nats (natural logarithm).",
    ),
    "explained": (
        "explained",
        "How much of the uncertainty that the prior left open the training data have settled, for these inputs: "
        "1 = everything, 0 = nothing. Below 0, the data have made this part more uncertain.",
    ),
    "identified": (
        "identified",
        "The same for a single weight: 1 − posterior variance / prior variance. 1 = fixed by the data, 0 = the data "
        "say nothing about it.",
    ),
    "prior": (
        "prior",
        "What was assumed about the weights before any data were seen: small numbers around zero. The posterior is "
        "what remains possible after the training data.",
    ),
    "interval": (
        "95 % interval",
        "The range, in square brackets, in which the true value lies in about 95 of 100 such audits. Small data sets "
        "give wide intervals.",
    ),
    "variance": (
        "predictive variance",
        "How much the network's output would move if its weights were replaced by others that fit the training data "
        "about as well.",
    ),
    "deferral": (
        "deferral",
        "Handing an input to a person instead of trusting the network, because its uncertainty is above a threshold.",
    ),
}
TONES = {
    "good": ("✓", "good"),
    "mixed": ("◐", "mixed"),
    "poor": ("✗", "poor"),
    "note": ("→", "note"),
    "unknown": ("?", "unknown"),
}


def number(value: Any, digits: int = 3) -> str:
    """A number with so many significant digits; a list of them with commas; a dash where there is none."""
    if isinstance(value, list | tuple):
        return ", ".join(number(item, digits) for item in value)
    if not _is_number(value):
        return NONE if value is None or isinstance(value, float) else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return _minus(f"{int(value):,}".replace(",", "\u202f" if abs(value) >= 10000 else ""))
    size = abs(value)
    if size < 1e-4 or size >= 1e6:
        return _minus(f"{value:.{digits - 1}e}")
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    return _minus(text.rstrip("0").rstrip(".") if "." in text else text)


def percent(value: Any, digits: int = 3) -> str:
    """A part of one as a percentage, with at most three decimals."""
    if not _is_number(value):
        return NONE
    scaled = 100.0 * float(value)
    decimals = 0 if not scaled else min(3, max(0, digits - 1 - math.floor(math.log10(abs(scaled)))))
    text = f"{scaled:.{decimals}f}"
    tidy = text.rstrip("0").rstrip(".") if "." in text else text
    return _minus("0" if tidy == "-0" else tidy) + "\u202f%"


def estimate(value: Mapping[str, Any] | None, part: bool = False) -> dict[str, str]:
    """Value and interval as text; ``part``: as percentages."""
    if not value or not _is_number(value.get("value")):
        return {"value": NONE, "interval": ""}
    centre, low, high = (value.get(key) for key in ("value", "low", "high"))
    if not (_is_number(low) and _is_number(high)):
        return {"value": percent(centre) if part else number(centre), "interval": ""}
    scale = 100.0 if part else 1.0
    shown = str(Estimate(scale * float(centre or 0), scale * float(low or 0), scale * float(high or 0)))
    first, rest = _minus(shown).split(" ", 1)
    return {"value": first + "\u202f%" * part, "interval": rest}


def judged(metric: Mapping[str, Any]) -> str:
    """What a difference and its interval say, in one word or three."""
    gap = metric.get("difference") or {}
    low, high = gap.get("low"), gap.get("high")
    if not (_is_number(low) and _is_number(high)):
        return ""
    if float(low or 0) <= 0 <= float(high or 0):
        return "no clear difference"
    if metric.get("better") not in ("lower", "higher"):
        return "differs"
    return "better" if (float(high or 0) < 0) == (metric.get("better") == "lower") else "worse"


def duration(seconds: Any) -> str:
    """Seconds, or minutes and seconds."""
    if not _is_number(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else f"{1000 * seconds:{'.0f' if seconds >= 0.001 else '.1g'}} ms"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def term(name: str) -> str:
    """The entry of the glossary that explains a metric, or nothing."""
    return next((key for key in ("nll", "brier", "ece", "auroc", "fpr95", "entropy") if key in name.split("_")), "")


def flat(numbers: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested numbers as rows of a name and a text; long lists by their length."""
    rows = []
    for key, value in numbers.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += flat(value, f"{name}, ")
        elif isinstance(value, list | tuple) and len(value) > LONG:
            rows.append((name, f"{len(value)} values"))
        else:
            rows.append((name, number(value)))
    return rows


def significant(value: Any, digits: int = 4) -> float | int | None:
    """A number rounded to so many significant digits, as small in JSON as it can be; None where there is none."""
    if not _is_number(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def signed(value: float, plus: bool = False, form: str = "g") -> str:
    """A number with a true minus sign, and on demand a plus sign."""
    return _minus(format(value, ("+" if plus else "") + form))


def drawn(text: Any) -> str:
    """A string for a chart, where plotly would read tags and entities."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(text: str, most: int = 26) -> str:
    """A long name by its end, which tells layers apart."""
    return text if len(text) <= most else "…" + text[1 - most :]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _minus(text: str) -> str:
    return text.replace("-", "−")
