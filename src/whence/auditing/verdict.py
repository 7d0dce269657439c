"""The verdict: one paragraph, and a few points that a reader can take away."""

from __future__ import annotations

from typing import Any

from whence.auditing.context import Context
from whence.auditing.leading import leader
from whence.auditing.quality import mean_confidence
from whence.auditing.scoring import NEGLIGIBLE

CALIBRATED = (0.02, 0.05)  # calibration errors that are good, and that are passable
NOTHING = 0.005  # a calibration error that is none
TOO_WIDE = 0.1  # interval of a calibration error that says nothing
DETECTED = (0.9, 0.75)  # AUROCs that are good, and that are passable

JUDGED = ("Calibration", "Bayesian or plain", "Knows its errors", "Notices what is new")

SAID = {
    "Calibration": {
        "good": "means what it says when it states a confidence",
        "mixed": "states confidences that are somewhat off",
        "poor": "states confidences that cannot be taken at their word",
    },
    "Bayesian or plain": {
        "good": "predicts better with uncertain weights than with fixed ones",
        "poor": "predicts worse with uncertain weights than with fixed ones",
    },
    "Knows its errors": {
        "good": "tends to know when it is wrong",
        "mixed": "knows only some of its errors",
        "poor": "hardly knows when it is wrong",
    },
    "Notices what is new": {
        "good": "notices inputs from elsewhere",
        "mixed": "notices only some inputs from elsewhere",
        "poor": "hardly notices inputs from elsewhere",
    },
}

Point = dict[str, str]


def verdict(context: Context, made: dict[str, Any]) -> dict[str, Any]:
    """From the sections that were finished."""
    rows = {row["name"]: row for row in made["quality"]["metrics"]} if made.get("quality") else {}
    points = [
        point
        for point in (
            _calibration(context, rows),
            _gain(rows),
            _errors(rows, made),
            _novel(rows, made),
            _place(context, made),
            _prior(made),
        )
        if point is not None
    ]
    judged = [p["tone"] for p in points if p["label"] in JUDGED]
    tone = "unknown" if not judged else "good" if set(judged) == {"good"} else "poor" if "poor" in judged else "mixed"
    words = " ".join([*_opening(context, rows), *_summary(context, points, made)])
    return {"words": words, "tone": tone, "points": points}


def _summary(context: Context, points: list[Point], made: dict[str, Any]) -> list[str]:
    """What the points come to, without their numbers."""
    tones = {point["label"]: point["tone"] for point in points}
    known = [(SAID[label][tone], tone) for label, tone in tones.items() if tone in SAID.get(label, {})]
    words = []
    good = [said for said, tone in known if tone == "good"]
    rest = [said for said, tone in known if tone != "good"]
    if good:
        words.append(f"It {_listed(good)}.")
    if rest:
        words.append(f"{'But it' if good else 'It'} {_listed(rest)}.")
    first = leader(context, made)
    return [*words, first.briefly()] if first is not None else words


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _point(label: str, words: str, tone: str) -> Point:
    return {"label": label, "words": words, "tone": tone}


def _opening(context: Context, rows: dict[str, Any]) -> list[str]:
    held = context.sets.get("test")
    members = len(context.subject.networks)
    whole = f"An ensemble of {members} networks" if members > 1 else context.subject.kind
    words = f"{whole} has {context.subject.parameters:,} weights"
    row = rows.get("accuracy") or rows.get("rmse")
    if held is None or row is None or row["bayesian"] is None:
        return [f"{words}."]
    value, count = row["bayesian"]["value"], row["bayesian"]["count"]
    one = "label" if context.task in ("classification", "binary") else "value"
    of = "test input" if count == len(held) else f"test {one}"
    of = f"{count:,} {of}{'' if count == 1 else 's'}"
    if row["name"] == "accuracy":
        return [f"{words} and answers {value:.1%} of {of} right."]
    return [f"{words} and is off by {value:.3g} (RMSE) on {of}."]


def _calibration(context: Context, rows: dict[str, Any]) -> Point | None:
    if rows.get("ece") and rows["ece"]["bayesian"]:
        return _confidence(context, rows)
    if rows.get("coverage") and rows["coverage"]["bayesian"]:
        found = rows["coverage"]["bayesian"]
        holds = found["low"] is not None and found["low"] <= 0.95 <= found["high"]
        tone = "good" if holds or abs(found["value"] - 0.95) <= CALIBRATED[0] else None
        tone = tone or ("mixed" if abs(found["value"] - 0.95) <= CALIBRATED[1] else "poor")
        return _point("Calibration", f"Its 95 % intervals hold the truth {found['value']:.1%} of the time.", tone)
    return None


def _confidence(context: Context, rows: dict[str, Any]) -> Point:
    """Judged by the interval of the calibration error, whose plain value is too large for few inputs."""
    found = rows["ece"]["bayesian"]
    low, high = found["low"], found["high"]
    off = f"Its stated confidence is off by {found['value']:.1%} on average"
    beside = f" (plain network {rows['ece']['plain']['value']:.1%})"
    if low is None or high is None or low <= NOTHING:
        few = high is None or high > TOO_WIDE
        what = f"{found['count']:,} test inputs cannot tell that from {'much more' if few else 'chance'}"
        return _point("Calibration", f"{off}{beside}; {what}.", "unknown" if few else "good")
    confidence, right = mean_confidence(context), rows["accuracy"]["bayesian"]["value"]
    lean = ""
    if confidence is not None and abs(confidence - right) > 0.01:
        lean = f"; it claims {'more' if confidence > right else 'less'} than it keeps"
    tone = "good" if high <= CALIBRATED[1] else "poor" if low > CALIBRATED[1] else "mixed"
    return _point("Calibration", f"{off}{beside}{lean}.", tone)


def _gain(rows: dict[str, Any]) -> Point | None:
    row = rows.get("nll")
    if row is None or row["difference"] is None or row["difference"]["low"] is None:
        return None
    found = row["difference"]
    interval = f"{found['value']:+.3g} nats, 95 % interval {found['low']:+.3g} to {found['high']:+.3g}"
    if found["low"] <= 0 <= found["high"] or abs(found["value"]) < NEGLIGIBLE:
        words = f"Uncertain weights make no difference to its log loss that shows ({interval})."
        return _point("Bayesian or plain", words, "mixed")
    better = found["value"] < 0
    words = f"Uncertain weights make its log loss {'better' if better else 'worse'} ({interval})."
    return _point("Bayesian or plain", words, "good" if better else "poor")


def _errors(rows: dict[str, Any], made: dict[str, Any]) -> Point | None:
    row = rows.get("error_auroc")
    if row is None or row["bayesian"] is None:
        return None
    value = row["bayesian"]["value"]
    extra = ""
    if made.get("deferral") and made["deferral"]["words"]:
        extra = " " + made["deferral"]["words"][0]
    words = f"Its uncertainty ranks wrong answers above right ones with an AUROC of {value:.2f}.{extra}"
    return _point("Knows its errors", words, _graded(row["bayesian"]))


def _novel(rows: dict[str, Any], made: dict[str, Any]) -> Point | None:
    found = made.get("novelty")
    if found and found["detectors"]:
        by_name = {d["name"]: d for d in found["detectors"]}
        own, best = by_name["novelty"]["auroc"], found["detectors"][0]
        beside = [by_name["entropy"]] if "entropy" in by_name else []
        beside += [best] if best["auroc"]["value"] > own["value"] + 0.02 and best not in beside else []
        listed = ", ".join(f"{d['label']}: {d['auroc']['value']:.2f}" for d in beside)
        other = f" ({listed})" if listed else ""
        words = f"Novelty by layer tells inputs from elsewhere apart with an AUROC of {own['value']:.2f}{other}."
        return _point("Notices what is new", words, _graded(max((own, best["auroc"]), key=lambda e: e["value"])))
    row = rows.get("ood_auroc")
    if row is None or row["bayesian"] is None:
        return None
    words = f"Uncertainty tells inputs from elsewhere apart with an AUROC of {row['bayesian']['value']:.2f}."
    return _point("Notices what is new", words, _graded(row["bayesian"]))


def _shared(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Layers with a share of the variance of test data."""
    rows = made.get("layers") or []
    return [row for row in rows if row["test"] is not None and row["test"]["variance_share"] is not None]


def _place(context: Context, made: dict[str, Any]) -> Point | None:
    rows = _shared(made)
    first = leader(context, made)
    if first is None:
        return None
    drop = ""
    if all(row["ood"] is not None and None not in (row["ood"]["explained"], row["test"]["explained"]) for row in rows):
        fallen = max(rows, key=lambda row: row["test"]["explained"] - row["ood"]["explained"])
        inside, outside = fallen["test"]["explained"], fallen["ood"]["explained"]
        if inside - outside > 0.01:
            drop = (
                f" For out-of-distribution inputs, explained falls most in `{fallen['name']}` "
                f"({inside:.0%} → {outside:.0%})."
            )
    return _point("Where it sits", f"{first.words()}{drop}", "note")


def _prior(made: dict[str, Any]) -> Point | None:
    profile = made.get("profile")
    if not profile:
        return None
    explained = profile["views"][0]["explained"][0]
    if profile["note"]:
        return _point("Is it the prior?", profile["note"], "mixed")
    if explained is None:
        return None
    tone = "good" if explained > 0.2 else "mixed"
    return _point("Is it the prior?", f"Training reduced the prior variance by {explained:.0%}.", tone)


def _graded(found: dict[str, Any]) -> str:
    """An AUROC by its interval: good or poor only where the data can tell."""
    value, low, high = found["value"], found["low"], found["high"]
    if value >= DETECTED[0] and (low is None or low >= DETECTED[1]):
        return "good"
    return "poor" if value < DETECTED[1] and (high is None or high < DETECTED[1]) else "mixed"
