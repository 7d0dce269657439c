"""The verdict: one paragraph, and a few points that a reader can take away."""

from __future__ import annotations

from typing import Any

from whence.auditing.context import Context
from whence.auditing.quality import mean_confidence

CALIBRATED = (0.02, 0.05)  # calibration errors that are good, and that are passable
NEGLIGIBLE = 1e-3  # nats that nobody would notice
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
        "mixed": "notices some inputs from elsewhere",
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
            _place(made),
            _prior(made),
        )
        if point is not None
    ]
    judged = [p["tone"] for p in points if p["label"] in JUDGED]
    tone = "unknown" if not judged else "good" if set(judged) == {"good"} else "poor" if "poor" in judged else "mixed"
    words = " ".join([*_opening(context, rows), *_summary(points, made)])
    return {"words": words, "tone": tone, "points": points}


def _summary(points: list[Point], made: dict[str, Any]) -> list[str]:
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
    rows = [row for row in made.get("layers") or [] if row["test"] is not None]
    if rows:
        top = max(rows, key=lambda row: row["test"]["variance_share"])
        share = top["test"]["variance_share"]
        words.append(f"Its uncertainty sits mostly in {top['name']!r}, which causes {share:.0%} of the variance.")
    return words


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _point(label: str, words: str, tone: str) -> Point:
    return {"label": label, "words": words, "tone": tone}


def _opening(context: Context, rows: dict[str, Any]) -> list[str]:
    size = context.sets.get("test")
    kind = type(context.posterior.network.module).__name__
    weights = sum(p.numel() for p in context.posterior.network.params.values())
    words = f"{kind} has {weights:,} weights"
    if size is not None and "accuracy" in rows:
        return [f"{words} and answers {rows['accuracy']['bayesian']['value']:.1%} of {len(size):,} test inputs right."]
    if size is not None and "rmse" in rows:
        return [f"{words} and is off by {rows['rmse']['bayesian']['value']:.3g} (RMSE) on {len(size):,} test inputs."]
    return [f"{words}."]


def _calibration(context: Context, rows: dict[str, Any]) -> Point | None:
    if "ece" in rows:
        value, plain = rows["ece"]["bayesian"]["value"], rows["ece"]["plain"]["value"]
        tone = _graded(value, CALIBRATED, below=True)
        confidence = mean_confidence(context)
        right = rows["accuracy"]["bayesian"]["value"]
        lean = ""
        if confidence is not None and abs(confidence - right) > 0.01:
            lean = f"; it claims {'more' if confidence > right else 'less'} than it keeps"
        words = f"Its stated confidence is off by {value:.1%} on average (plain network {plain:.1%}){lean}."
        return _point("Calibration", words, tone)
    if "coverage" in rows:
        value = rows["coverage"]["bayesian"]["value"]
        tone = _graded(abs(value - 0.95), CALIBRATED, below=True)
        return _point("Calibration", f"Its 95 % intervals hold the truth {value:.1%} of the time.", tone)
    return None


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
    return _point("Knows its errors", words, _graded(value, DETECTED))


def _novel(rows: dict[str, Any], made: dict[str, Any]) -> Point | None:
    found = made.get("novelty")
    if found and found["detectors"]:
        by_name = {d["name"]: d["auroc"]["value"] for d in found["detectors"]}
        value = by_name["novelty"]
        other = f" (entropy: {by_name['entropy']:.2f})" if "entropy" in by_name else ""
        words = f"Novelty by layer tells inputs from elsewhere apart with an AUROC of {value:.2f}{other}."
        return _point("Notices what is new", words, _graded(value, DETECTED))
    row = rows.get("ood_auroc")
    if row is None or row["bayesian"] is None:
        return None
    value = row["bayesian"]["value"]
    words = f"Uncertainty tells inputs from elsewhere apart with an AUROC of {value:.2f}."
    return _point("Notices what is new", words, _graded(value, DETECTED))


def _place(made: dict[str, Any]) -> Point | None:
    rows = [row for row in made.get("layers") or [] if row["test"] is not None]
    if not rows:
        return None
    top = max(rows, key=lambda row: row["test"]["variance_share"])
    drop = ""
    if all(row["ood"] is not None for row in rows):
        fallen = max(rows, key=lambda row: row["test"]["explained"] - row["ood"]["explained"])
        drop = (
            f" For inputs from elsewhere the data explain least, compared with test data, in {fallen['name']!r} "
            f"({fallen['test']['explained']:.0%} → {fallen['ood']['explained']:.0%})."
        )
    words = f"Most of its variance comes from {top['name']!r} ({top['test']['variance_share']:.0%}).{drop}"
    return _point("Where it sits", words, "note")


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
    return _point("Is it the prior?", f"The data have settled {explained:.0%} of what the prior left open.", tone)


def _graded(value: float, limits: tuple[float, float], below: bool = False) -> str:
    good, fair = limits
    if below:
        return "good" if value <= good else "mixed" if value <= fair else "poor"
    return "good" if value >= good else "mixed" if value >= fair else "poor"
