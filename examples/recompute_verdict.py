"""Recompute the verdict of an audit from its JSON file, without whence: ``python recompute_verdict.py audit.json``.

The rules are those of docs/audit.md; their thresholds are in the file. Exits with 1 if a tone differs from the file's.
"""

import json
import sys

JUDGED = ("independence", "guessing", "generalisation", "classes", "calibration", "errors", "novelty")
BESIDE = ("gain", "groups")  # have a tone, and do not decide


def graded(value, mixed, poor):
    return "good" if value <= mixed else "poor" if value > poor else "mixed"


def auroc_tone(found, good, poor):
    if found["value"] >= good and (found["low"] is None or found["low"] >= poor):
        return "good"
    return "poor" if found["value"] < poor and (found["high"] is None or found["high"] < poor) else "mixed"


def independence(record, rules, metrics):
    overlap, test = record["data"].get("overlap"), record["data"]["test"]
    if overlap and overlap["test"] is not None and test:
        held = record["data"]["validation"]
        parts = [overlap["test"] / test["inputs"], (overlap.get("between") or 0) / test["inputs"]]
        parts.append((overlap["validation"] or 0) / held["inputs"] if held else 0.0)
        return graded(max(parts), rules["duplicates_mixed"], rules["duplicates_poor"])


def guessing(record, rules, metrics):
    guess, accuracy = record["quality"].get("guessing"), metrics.get("accuracy")
    if not guess or not guess["nll"] or guess["difference"]["low"] is None:
        return None
    below = guess.get("accuracy") is not None and accuracy and (accuracy["high"] or 1) < guess["accuracy"]
    if below or -guess["difference"]["low"] < rules["skill_poor"] * abs(guess["nll"]):
        return "poor"
    return "good" if guess["difference"]["high"] < 0 else "mixed"


def generalisation(record, rules, metrics):
    training = record["run"]["posterior"]["training"]
    rows = [row for row in record["quality"]["metrics"] if row["name"] == "accuracy" and row["bayesian"]]
    accuracy = rows and (rows[0]["plain"] or rows[0]["bayesian"])
    if training and training["accuracy"] is not None and accuracy and accuracy["high"] is not None:
        return graded(training["accuracy"] - accuracy["high"], rules["gap_mixed"], rules["gap_poor"])


def classes(record, rules, metrics):
    rows = record["quality"].get("classes") or []
    by_threshold = record["quality"].get("two_classes") or any(row.get("specificity") for row in rows)
    if rules.get("recall_mixed") is not None and not by_threshold:
        rows = [row for row in rows if row["count"] and row["recall"]]
        ends = [row["recall"]["high"] or 0.0 for row in rows]
        return ("mixed" if min(ends) < rules["recall_mixed"] else "good") if ends else None


def class_error(row, rules):
    """The least difference of a class's mean probability from its frequency, relative to the rarer outcome."""
    low, high, frequency = row["difference"]["low"], row["difference"]["high"], row["frequency"] or 0
    rarer = min(frequency, 1 - frequency)
    if low is None or high is None or low <= 0 <= high or not rarer:
        return 0.0
    least = min(abs(low), abs(high))
    return least / rarer if least > rules["ece_negligible"] else 0.0


def answers_error(row):
    """How far the mean confidence of a class's answers is from their accuracy at least."""
    found = row.get("overconfidence")
    if not found or found["low"] is None or found["high"] is None:
        return 0.0
    return max(found["low"], -found["high"], 0.0)


def apart(found, level):
    """How far a coverage is from its level at least."""
    low, high = (found["value"] if found[end] is None else found[end] for end in ("low", "high"))
    return abs(min(max(level, low), high) - level)


def calibration(record, rules, metrics):
    ece, coverage = metrics.get("ece"), metrics.get("coverage")
    if ece:
        if ece["low"] is None or ece["low"] <= rules["ece_negligible"]:
            tone = "unknown" if ece["high"] is None or ece["high"] > rules["too_wide"] else "good"
        else:
            tone = "good" if ece["high"] <= rules["ece"] else "poor" if ece["low"] > rules["ece"] else "mixed"
        worst = max((class_error(row, rules) for row in record["quality"].get("classes") or []), default=0.0)
        if worst >= rules["class_mixed"]:
            tone = "poor" if worst >= rules["class_poor"] or tone == "poor" else "mixed"
        off = max((answers_error(row) for row in record["quality"].get("classes") or []), default=0.0)
        if off > rules.get("answers_mixed", 1.0):
            tone = "poor" if off > rules["answers_poor"] or tone == "poor" else "mixed"
        return tone
    if coverage and coverage["value"] is not None:
        low, high = (coverage["value"] if coverage[end] is None else coverage[end] for end in ("low", "high"))
        tone = graded(apart(coverage, 0.95), rules["coverage_good"], rules["coverage_poor"])
        tone = "unknown" if tone == "good" and high - low > 2 * rules["too_wide"] else tone
        rows = (record["quality"].get("numbers") or {}).get("coverage", [])
        judged = [(row.get("joint") or row["bayesian"], row["level"]) for row in rows]
        least, level = max(((apart(found, level), level) for found, level in judged), default=(0.0, 0.95))
        worst = graded(least, rules["coverage_good"], rules["coverage_poor"])
        tone = tone if level == 0.95 or worst == "good" or tone == "poor" else worst
        pit = (record["quality"].get("numbers") or {}).get("pit", {}).get("distance")
        if pit and pit["low"] is not None and rules.get("pit_good") is not None:
            off = graded(pit["low"], rules["pit_good"], rules["pit_poor"])
            tone = tone if off == "good" else max(tone, off, key=["good", "unknown", "mixed", "poor"].index)
        return tone


def errors(record, rules, metrics):
    auroc, implied = metrics.get("error_auroc"), record["quality"].get("implied_error_auroc")
    if auroc:
        tone = auroc_tone(auroc, rules["errors_good"], rules["errors_poor"])
        as_implied = implied is not None and auroc["value"] >= rules["errors_poor"] and (auroc["high"] or 0) >= implied
        return "good" if tone == "mixed" and as_implied else tone


def novelty(record, rules, metrics):
    detectors = (record["novelty"] or {}).get("detectors")
    good, poor = rules["novelty_good"], rules["novelty_poor"]
    if not detectors:
        return auroc_tone(metrics["ood_auroc"], good, poor) if metrics.get("ood_auroc") else None
    choice = record["novelty"].get("choice") or {}
    own = next(one["auroc"] for one in detectors if one["name"] == choice.get("usual", "novelty"))
    tone = auroc_tone(own, good, poor)
    beaten = (detectors[0]["auroc"]["value"] or 0) > (own["value"] or 0) + rules["beaten"]
    beaten = beaten or choice.get("outcome") == "worse"
    return "mixed" if beaten and tone == "good" else tone


def recomputed(record):
    """The tone of each judged point, and the overall one."""
    rules = record["verdict"]["rules"]
    metrics = {row["name"]: row["bayesian"] for row in (record["quality"] or {}).get("metrics", [])}
    tones = {"independence": independence(record, rules, metrics)}
    if record["quality"]:
        for rule in (guessing, generalisation, classes, calibration, errors):
            tones[rule.__name__] = rule(record, rules, metrics)
    tones["novelty"] = novelty(record, rules, metrics)
    tones = {key: tone for key, tone in tones.items() if tone}
    known = set(tones.values())
    overall = "unknown" if known <= {"unknown"} else "poor" if "poor" in known else "mixed"
    return tones, "good" if known == {"good"} else overall


def gain(record, rules):
    quality = record["quality"] or {}
    row = next((row for row in quality.get("metrics", []) if row["name"] == "nll" and row["bayesian"]), None)
    found = row and row["gain" if quality.get("baseline") else "difference"]
    if not found or None in (found["value"], found["low"], found["high"]):
        return None
    if found["low"] <= 0 <= found["high"] or abs(found["value"]) < rules["negligible"]:
        return "note"
    return "good" if found["value"] < 0 else "mixed"


def groups(record, rules):
    found = record.get("groups")
    if not found or not found["comparisons"]:
        return "unknown" if found else None
    rows = [row for one in found["groupings"] for group in one["groups"] for row in group["differences"]]
    rows = [row for row in rows if row["p"] is not None and row["p"] <= 1 - row["difference"]["level"]]
    return "mixed" if any("deferred" not in row["quantity"] for row in rows) else "note"


def beside(record):
    """The tones of the points that do not decide."""
    tones = {rule.__name__: rule(record, record["verdict"]["rules"]) for rule in (gain, groups)}
    return {key: tone for key, tone in tones.items() if tone}


def main(path):
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    tones, overall = recomputed(record)
    tones |= beside(record)
    known = (*JUDGED, *BESIDE)
    written = {point["key"]: point["tone"] for point in record["verdict"]["points"] if point.get("key") in known}
    for key in known:
        if key in tones or key in written:
            print(f"{key:15} {tones.get(key)!s:8} in the file: {written.get(key)}")
    print(f"{'overall':15} {overall:8} in the file: {record['verdict']['tone']}")
    return tones == written and overall == record["verdict"]["tone"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(0 if main(sys.argv[1]) else 1)
