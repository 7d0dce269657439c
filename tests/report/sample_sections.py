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
        "curve": curve, "words": ["Handing 7 % of the inputs to a person leaves 2.1 % errors among the rest."],
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
        "words": ["93 % of the letters are flagged, and 1.3 % of the digits."],
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
