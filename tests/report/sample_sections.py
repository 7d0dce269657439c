"""Sections of the made-up audit records that hold curves and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Record = dict[str, Any]


def estimate(value: float, width: float | None = None, count: int = 540) -> Record:
    """With an interval, or without where no width is given."""
    half = width if width is not None else 0.12 * abs(value)
    low, high = (None, None) if half == 0 else (value - half, value + 0.9 * half)
    return {"value": value, "low": low, "high": high, "level": 0.95, "count": count}


def split(rng: np.random.Generator, total: float, count: int, negative: bool = False) -> list[float]:
    """Parts that add up to the total; one of them below zero where asked for."""
    parts = rng.dirichlet(np.full(count, 0.8)) * total
    if negative and count > 2:
        parts[0] += parts[1] + 0.03 * total
        parts[1] = -0.03 * total
    return [float(part) for part in parts]


def metric(name: str, label: str, plain: float, bayesian: float, better: str = "lower") -> Record:
    gap, width = bayesian - plain, 0.02 if plain > 0.9 else None
    return {
        "name": name, "label": label, "better": better, "about": f"How far off the {name} is, in plain words.",
        "plain": estimate(plain, width), "bayesian": estimate(bayesian, width),
        "difference": estimate(gap, abs(gap) / 2) if gap else None,
    }  # fmt: skip


def quality(rng: np.random.Generator) -> Record:
    bins = np.linspace(0.25, 0.98, 8)

    def reliability(over: float) -> list[Record]:
        hits = [float(max(0.05, c - over * (1.1 - c))) for c in bins]
        return [
            {"confidence": float(c), "accuracy": a, "low": max(0, a - 0.12), "high": min(1, a + 0.1), "count": 20 + i}
            for i, (c, a) in enumerate(zip(bins, hits, strict=True))
        ]

    def spread(scale: float) -> list[float]:
        return [float(x) for x in np.sort(np.minimum(rng.exponential(scale, 200), math.log(10)))]

    metrics = [
        metric("nll", "Negative log likelihood", 0.182, 0.141), metric("brier", "Brier score", 0.064, 0.06),
        metric("ece", "Expected calibration error", 0.031, 0.013),
        metric("accuracy", "Accuracy", 0.961, 0.961, "higher"),
        metric("auroc", "AUROC of novelty by entropy", 0.91, 0.95, "higher"),
    ]  # fmt: skip
    curves = {
        "test": {"plain": spread(0.15), "bayesian": spread(0.25)},
        "ood": {"plain": spread(0.8), "bayesian": spread(1.4)},
    }
    return {
        "metrics": metrics, "reliability": {"plain": reliability(0.35), "bayesian": reliability(0.08)},
        "uncertainty": {"name": "entropy", "label": "entropy of the prediction (nats)", **curves},
        "words": ["The Bayesian network's probabilities are nearer to the truth than the plain network's."],
    }  # fmt: skip


def deferral(error: str) -> Record:
    def row(aim: str, target: float, confidence: float | None, threshold: float | None, answers: str) -> Record:
        kept = {"all": 1.0, "some": 0.91, "none": 0.0}[answers]
        return {
            "aim": aim, "target": target, "confidence": confidence, "threshold": threshold, "answers": answers,
            "validation": {"coverage": kept, "error": 0.018 if kept else None},
            "test": {"coverage": estimate(0.93, 0.02) if threshold else estimate(kept, 0),
                     "error": estimate(0.021, 0.011) if kept else None,
                     "deferred_error": estimate(0.44, 0.12) if kept < 1 else None},
        }  # fmt: skip

    coverage = np.linspace(0.02, 1, 60)
    curve = {
        key: {"coverage": coverage.tolist(), "error": (scale * coverage**2.5).tolist()}
        for key, scale in (("plain", 0.05), ("bayesian", 0.04))
    }
    rows = [
        row("coverage", 1.0, None, None, "all"), row("coverage", 0.9, None, 0.48, "some"),
        row("max_error", 0.05, 0.95, 0.62, "some"), row("max_error", 0.01, 0.95, None, "none"),
    ]  # fmt: skip
    return {
        "measure": "entropy", "label": "entropy of the prediction (nats)", "error": error, "rows": rows,
        "curve": curve, "words": ["Handing 7% of the inputs to a person leaves 2.1% errors among the rest."],
    }  # fmt: skip


def novelty(rng: np.random.Generator, found: list[str]) -> Record:
    def one(key: str, label: str, shift: float, flagged: float) -> Record:
        layers = []
        for i, name in enumerate(found):
            middle = min(0.9, 0.25 + shift * (0.5 if i % 3 else 1))
            spread = [middle - 0.15, middle - 0.06, middle, middle + 0.05, middle + 0.1]
            quantiles = dict(zip(("q05", "q25", "q50", "q75", "q95"), spread, strict=True))
            layers.append({"name": name, **quantiles, "flagged": flagged * (0.5 if i % 3 else 1)})
        counts = rng.poisson(27, 20) if shift == 0 else (400 * np.exp(-np.arange(20) * 8 * shift)).astype(int)
        edges = np.linspace(0, 1, 21).tolist()
        both = {} if key == "reference" else {"flagged_with_entropy": flagged, "flagged_combined": flagged}
        return {"key": key, "label": label, "inputs": 540, "flagged": flagged, "layers": layers,
                "p_values": {"edges": edges, "counts": [int(c) for c in counts]}, **both}  # fmt: skip

    scores = [("novelty", "whence novelty", 0.97, 0.11), ("entropy", "entropy", 0.91, 0.35)]
    return {
        "reference": 257, "names": found, "level": 0.01,
        "sets": [{**one("reference", "Validation data", 0, 0.01), "flagged": None, "p_values": None},
                 one("test", "Test data", 0, 0.013),
                 one("ood", "Out of distribution", 0.35, 0.93)],
        "detectors": [{"name": n, "label": t, "auroc": estimate(a, 0.01), "fpr95": estimate(f, 0.04)}
                      for n, t, a, f in scores],
        "words": ["93% of the letters are flagged, and 1.3% of the digits."],
        "choice": {
            "recommended": "novelty", "label": "whence novelty", "usual": "novelty",
            "words": ["On these inputs whence novelty is the best detector.", "Recommended: the whence novelty."],
            "limits": ["Not everything novel is detected.", "Novelty is not error."], "best": "novelty",
            "lead": estimate(0.06, 0.01), "best_other": "entropy", "difference": estimate(0.06, 0.01),
            "outcome": "better",
        },
    }  # fmt: skip


def pruning(score: str) -> Record:
    fractions = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
    rows = []
    for by, strength in (("snr", 0.3), ("magnitude", 0.4), ("random", 1.0)):
        for part in fractions:
            loss = strength * part**3
            scores = {"accuracy": None, "rmse": None}
            scores[score] = 0.96 - loss if score == "accuracy" else 0.2 + loss
            rows.append({"by": by, "fraction": part, "sparsity": part, "parameters": int(431080 * (1 - part)),
                         "nll": 0.14 + loss, **scores})  # fmt: skip
    return {"rows": rows, "words": ["Three quarters of the weights can go before accuracy falls by one point."]}


def sensitivity(rng: np.random.Generator, found: list[str]) -> list[Record]:
    rows = []
    for factor in (0.1, 1.0, 10.0):
        for name, share in zip(found, split(rng, 1.0, len(found)), strict=True):
            explained = float(0.6 / (1 + 0.2 * factor))
            rows.append({"factor": factor, "name": name, "variance_share": share, "explained": explained})
    return rows


def label_tables(names: list[str]) -> Record:
    """Fields of the quality: a row for each class, and confusions of neighbours."""
    count = len(names)
    rows = [
        {
            "name": name, "frequency": 1 / count, "predicted": 1 / count, "difference": estimate(0.001, 0.01),
            "count": 54 if i else 0, "recall": estimate(0.95 - 0.005 * i, 0.02) if i else None,
            "precision": estimate(0.93, 0.03), "confidence": 0.91, "ece": estimate(0.012, 0.01),
            "deferred": estimate(0.17, 0.05) if i else None,
        }
        for i, name in enumerate(names)
    ]  # fmt: skip
    if rows:
        rows[0] |= {"recall": estimate(0.9, 0.05), "deferred": estimate(0.2, 0.1), "count": 54}
    counts = [[50 if i == j else 4 if j == (i + 1) % count else 0 for j in range(count)] for i in range(count)]
    largest = [
        {"true": names[i], "predicted": names[(i + 1) % count], "count": 4, "share": estimate(0.074, 0.04)}
        for i in range(min(count, 20))
    ]
    confusion = {
        "names": names, "inputs": 54 * count, "errors": 4 * count, "counts": counts if count <= 100 else None,
        "largest": largest,
    }  # fmt: skip
    return {"classes": rows, "confusion": confusion}


def two_classes(positive: str, negative: str) -> Record:
    rates = {key: estimate(0.8, 0.1, 60) for key in ("sensitivity", "specificity", "precision", "npv")}
    curve = {"x": [0.0, 0.5, 1.0], "y": [1.0, 0.8, 0.4]}
    bins = [{"confidence": p, "accuracy": p / 2, "low": p / 3, "high": p, "count": 20} for p in (0.1, 0.5, 0.9)]
    return {
        "positive": positive, "negative": negative, "threshold": 0.5, "true_positives": 40, "false_negatives": 10,
        "true_negatives": 50, "false_positives": 20, "prevalence": estimate(0.4167, 0.09, 120), **rates,
        "average_precision": estimate(0.83, 0.1, 120), "auroc": estimate(0.87, 0.06, 120),
        "precision_recall": curve, "roc": curve, "reliability": {"plain": bins, "bayesian": bins},
    }  # fmt: skip


def deferral_steps(count: int = 40) -> list[Record]:
    return [
        {"threshold": 0.02 * i, "answered": 10 * i, "deferred": 10 * (count - i), "coverage": i / count,
         "error": estimate(0.001 * i, 0.01, 10 * i)}
        for i in range(1, count + 1)
    ]  # fmt: skip


def groups(names: list[str]) -> Record:
    """One grouping; the first group differs, and the last is small."""
    found = [("accuracy", "Accuracy", "higher"), ("nll", "NLL", "lower"), ("ece", "ECE", "lower")]
    metrics = [{"name": n, "label": label, "better": b, "about": "Of inputs."} for n, label, b in found]

    def group(name: str, inputs: int, place: int) -> Record:
        few = inputs < 20
        values = [estimate(0.9 - 0.05 * place, 0.04), estimate(0.3, 0 if few else 0.1), None if few else estimate(0.03)]
        value, p = (0.1, 0.004) if place == 0 else (0.01, 0.8)
        apart = [
            {"quantity": q, "difference": estimate(value, 0.06), "p": p, "is_share": share}
            for q, share in (("error rate", True), ("log loss", False))
        ]  # fmt: skip
        return {
            "name": name, "inputs": inputs, "few": few, "metrics": values, "deferred": estimate(0.2, 0.05),
            "answered_error": estimate(0.02, 0.01), "differences": [] if few or name == "all" else apart,
        }  # fmt: skip

    rows = [group(name, 7 if name == names[-1] else 120, i) for i, name in enumerate(names)]
    return {
        "metrics": metrics, "overall": group("all", 540, 1), "comparisons": 2 * (len(names) - 1), "level": 0.95,
        "groupings": [{"name": "site", "about": "", "groups": rows}], "fewest": 20, "error": "error rate",
        "words": ["2 of 6 comparisons of a group with the rest are significant."],
    }  # fmt: skip
