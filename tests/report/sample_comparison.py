"""A believable record of a comparison, made up from the contract: for tests of what shows it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.report.sample_record import HOSTILE
from tests.report.sample_sections import estimate, split

Record = dict[str, Any]
KINDS = {
    "plain network": "plain", "Laplace": "Laplace", "Variational": "Variational", "MC dropout": "Dropout",
    "Deep ensemble": "Ensemble", "HMC": "Hmc",
}  # fmt: skip
LAYERS = ("conv1", "conv2", "fc1", "fc2", "head")
METRICS = (
    ("accuracy", "Accuracy", "higher", 0.961, 0.972), ("nll", "NLL", "lower", 0.182, 0.121),
    ("brier", "Brier score", "lower", 0.064, 0.049), ("ece", "ECE", "lower", 0.031, 0.011),
    ("coverage", "Coverage of 95% intervals", "0.95", 0.90, 0.948),
    ("error_auroc", "AUROC of errors", "higher", 0.91, 0.93),
    ("ood_auroc", "AUROC against novel inputs", "higher", 0.88, 0.97),
)  # fmt: skip
SECTIONS = ("reliability", "uncertainty", "rejection", "layers", "agreement", "distance")


def methods(count: int = 6, layers: int = 5, seed: int = 0, title: str = "Five methods on digits") -> Record:
    """A comparison of a plain network and up to five posteriors; the ensemble has no shares."""
    rng = np.random.default_rng(seed)
    names = list(KINDS)[:count]
    found: Record = {
        "schema": "whence.comparison/1", "created": "2026-11-15T15:00:00+00:00", "title": title,
        "task": "classification", "classes": None,
        "data": {"test": {"inputs": 540, "cut": False}, "ood": {"inputs": 300, "cut": True}},
        "methods": [_method(name, i) for i, name in enumerate(names)],
        "metrics": [_metric(i, *row, len(names)) for i, row in enumerate(METRICS)],
        "reliability": [_bins(0.4 - 0.07 * i) for i in range(len(names))],
        "uncertainty": {
            "name": "entropy", "label": "entropy of the prediction (nats)",
            "test": [_spread(rng, 0.12 + 0.03 * i) for i in range(len(names))],
            "ood": [_spread(rng, 0.7 + 0.2 * i) for i in range(len(names))],
        },
        "rejection": [_curve(0.05 - 0.004 * i) for i in range(len(names))],
        "layers": _layers(rng, names, layers),
        "distance": {
            "reference": "HMC", "total_variation": [estimate(0.12 - 0.02 * i, 0.01) for i in range(len(names))],
            "wasserstein": [None if i == 1 else estimate(0.3 - 0.04 * i, 0.02) for i in range(len(names))],
        },
        "words": ["NLL: best are Deep ensemble and HMC.",
                  "MC dropout and Laplace put their uncertainty in partly different layers: 31% of the variance "
                  "would have to move."],
        "run": {
            "versions": {"whence": "0.4.0", "torch": "2.13.0", "numpy": "2.3.0", "python": "3.11.2"},
            "platform": "Linux x86_64", "device": "cpu", "seed": 0,
            "seconds": {"data": 0.1, **{name: 1.5 * i + 0.02 for i, name in enumerate(names)}, "layers": 61.0},
            "left_out": [{"what": "memory of HMC", "why": "it was not measured"}],
            "notices": ["HMC: 3 of 400 draws diverged."],
        },
    }  # fmt: skip
    found["agreement"] = _agreement(names, found["layers"]["share"])
    return found


def bare() -> Record:
    """Two methods and their scores; nothing else could be had."""
    record = methods(2, title="Little to say")
    record |= dict.fromkeys(SECTIONS)
    record["data"]["ood"] = None
    record["run"]["left_out"] = [{"what": name, "why": f"no {name} for this task."} for name in SECTIONS]
    return record


def hostile() -> Record:
    """Every name that a user chooses tries to leave its place."""
    record = methods(title=HOSTILE)
    record["methods"][1].update(name=HOSTILE, describe=HOSTILE, network=HOSTILE)
    record["layers"]["names"][0] = HOSTILE
    record["layers"]["why_not"][4] = HOSTILE
    record["agreement"]["methods"][0] = HOSTILE
    record["uncertainty"]["label"] = HOSTILE
    record["metrics"][0].update(label=HOSTILE, about=HOSTILE)
    record["distance"]["reference"] = HOSTILE
    record["words"], record["run"]["notices"] = [HOSTILE], [HOSTILE]
    return record


def inside() -> Record:
    """As it stands in an audit's record."""
    record = {key: value for key, value in methods(4).items() if key not in ("schema", "created", "title", "run")}
    return {**record, "left_out": []}


def many() -> Record:
    """Ten methods and thirty layers with long names."""
    record = methods(layers=30)
    for key in ("methods", "reliability", "rejection"):
        record[key] = record[key] + record[key][1:5]
    for i, method in enumerate(record["methods"]):
        record["methods"][i] = {**method, "name": f"{method['name']} with settings number {i}"}
    for metric in record["metrics"]:
        for key in ("values", "best", "difference"):
            metric[key] = metric[key] + metric[key][1:5]
    for holder in (record["uncertainty"], record["layers"], record["distance"]):
        for key, rows in holder.items():
            if isinstance(rows, list) and len(rows) == 6 and key != "names":
                holder[key] = rows + rows[1:5]
    record["layers"]["names"] = [f"encoder.blocks.{i}.attention.projection" for i in range(30)]
    return record


def _method(name: str, place: int) -> Record:
    plain = KINDS[name] == "plain"
    return {
        "name": name, "kind": KINDS[name],
        "describe": "the network as it was trained" if plain
        else f"{KINDS[name]}(431,080 weights of 5 layers, prior precision 12.4, "
        "tuned on validation data; Categorical())",
        "network": "LeNet5", "parameters": 431080 * (5 if name == "Deep ensemble" else 1),
        "seconds": 0.0123 * (1 + 40 * place), "memory": None if place == 5 else 12_300_000 * (1 + place),
        "draws": None if plain or name == "Laplace" else 100,
    }  # fmt: skip


def _metric(at: int, name: str, label: str, better: str, first: float, last: float, count: int) -> Record:
    values = [first + (last - first) * i / max(1, count - 1) for i in range(count)]
    width = 0.015 if better != "lower" else None
    found: list[Record | None] = [estimate(value, width) for value in values]
    if at == 4:
        found[0] = None
    gaps = [None if i == 0 or at > 3 else estimate(v - first, 0.006) for i, v in enumerate(values)]
    return {
        "name": name, "label": label, "better": better, "about": f"What {name} means, in plain words.",
        "values": found, "best": [i >= count - 2 for i in range(count)], "difference": gaps,
    }  # fmt: skip


def _bins(over: float) -> list[Record]:
    bins = np.linspace(0.25, 0.98, 8)
    hits = [float(max(0.05, c - over * (1.1 - c))) for c in bins]
    return [
        {"confidence": float(c), "accuracy": a, "low": max(0, a - 0.12), "high": min(1, a + 0.1), "count": 20 + i}
        for i, (c, a) in enumerate(zip(bins, hits, strict=True))
    ]


def _spread(rng: np.random.Generator, scale: float) -> list[float]:
    return [float(x) for x in np.sort(np.minimum(rng.exponential(scale, 200), math.log(10)))]


def _curve(scale: float) -> Record:
    coverage = np.linspace(0.02, 1, 60)
    return {"coverage": coverage.tolist(), "error": (scale * coverage**2.5).tolist()}


def _layers(rng: np.random.Generator, names: list[str], count: int) -> Record:
    def rows(make: Any, without: tuple[str, ...] = ("plain network", "Deep ensemble")) -> list[Any]:
        return [None if name in without else make(name) for name in names]

    drawn = ("Variational", "MC dropout", "HMC")
    why = "the members have no common weight coordinates (units may be permuted), so there are no shares."
    return {
        "names": list(LAYERS[:count]) + [f"block{i}" for i in range(count - len(LAYERS))],
        "share": rows(lambda name: split(rng, 0.9 if name in drawn else 1.0, count)),
        "error": [[0.004 + 0.003 * i for i in range(count)] if name in drawn else None for name in names],
        "explained": rows(lambda name: rng.uniform(-0.1, 0.95, count).tolist(), ("plain network", *list(KINDS)[4:])),
        "interaction": [0.1 if name in drawn else 0.0 if name == "Laplace" else None for name in names],
        "activations": rows(lambda name: rng.uniform(0.02, 0.6, count).tolist(), ("plain network",)),
        "why_not": [why if name == "Deep ensemble" else None for name in names],
    }  # fmt: skip


def _agreement(names: list[str], shares: list[Any]) -> Record:
    kept = [name for name, row in zip(names, shares, strict=True) if row is not None]
    side = range(len(kept))
    return {
        "methods": kept,
        "rho": [[1.0 if i == j else 0.9 - 0.35 * abs(i - j) for j in side] for i in side],
        "total_variation": [[0.0 if i == j else 0.1 * abs(i - j) for j in side] for i in side],
    }
