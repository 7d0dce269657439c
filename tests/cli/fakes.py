"""A record that fills the contract, and an audit that only pretends."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import whence
from tests.report.typed import typed
from whence.errors import Notice


def estimate(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01, "level": 0.95, "count": 100}


def layer(name: str, share: float) -> dict[str, Any]:
    part = {"variance_share": share, "prior_share": share / 2, "explained": 0.5}
    return {
        "name": name, "kind": "Linear", "parameters": 1234, "std": 0.1, "identified": 0.4, "identified_q05": 0.1,
        "identified_q50": 0.4, "identified_q95": 0.9, "effective_parameters": 500.0, "signal_to_noise": 2.0,
        "structure": "kron", "test": part, "ood": {**part, "explained": 0.2},
    }  # fmt: skip


def record(**changes: Any) -> dict[str, Any]:
    metric = {"name": "nll", "label": "Negative log likelihood", "better": "lower", "about": "…"}
    deferred = {"coverage": estimate(0.8), "error": estimate(0.04), "deferred_error": estimate(0.3)}
    rows = [
        {"aim": "max_error", "target": 0.05, "confidence": 0.95, "threshold": 0.7,
         "answers": "some", "validation": {"coverage": 0.8, "error": 0.03}, "test": deferred},
        {"aim": "coverage", "target": 0.5, "confidence": None, "threshold": None,
         "answers": "none", "validation": {"coverage": 0.5, "error": None}, "test": {**deferred, "error": None}},
    ]  # fmt: skip
    whole: dict[str, Any] = {
        "schema": "whence.audit/1", "created": "2026-11-15T14:00:00+00:00", "title": "Net [v2] on digits",
        "task": "classification", "classes": ["a", "b", "c"],
        "network": {"kind": "Sequential", "parameters": 2468, "bayesian": 2468, "layers": 2},
        "data": {"train": {"inputs": 600}, "test": {"inputs": 100, "cut": False}, "validation": None, "ood": None,
                 "input_shape": [4]},
        "verdict": {"words": "The network is sure of itself, and mostly right.", "tone": "mixed",
                    "points": [{"label": "Calibration", "words": "It is well calibrated.", "tone": "good"},
                               {"label": "Novelty", "words": "It sees [nothing] new.", "tone": "poor"}]},
        "quality": {"metrics": [{**metric, "plain": estimate(0.5), "bayesian": estimate(0.4),
                                 "difference": estimate(-0.1)},
                                {**metric, "name": "rmse", "label": "RMSE", "plain": None, "bayesian": estimate(123.4),
                                 "difference": None}],
                    "reliability": None, "uncertainty": None, "words": ["The log loss falls by a fifth."]},
        "deferral": {"measure": "entropy", "label": "entropy of the prediction (nats)", "error": "error rate",
                     "rows": rows, "curve": None, "words": ["One answer in five is handed over."]},
        "layers": [layer("first", 0.75), layer("second", 0.25)],
        "profile": {"measure": "variance", "note": "", "prior_precision": None, "residual": 0.0, "nodes": [],
                    "views": [], "negative": [], "words": ["Most of it comes from first."]},
        "sensitivity": None, "maps": None, "inputs": None,
        "novelty": {"reference": 100, "names": [], "level": 0.01, "sets": [],
                    "words": ["8 of 100 are flagged."], "detectors": [
            {"name": "novelty", "label": "whence novelty", "auroc": estimate(0.9), "fpr95": estimate(0.2)}]},
        "pruning": None,
        "answers": [{"question": "Which layer is least certain?", "words": "first.", "numbers": {}}],
        "run": {"versions": {"whence": "0.1.0", "torch": "2", "numpy": "2", "python": "3"},
                "platform": "here", "device": "cpu", "seed": 0,
                "seconds": {"fit": 1.0, "tune": 2.0},
                "posterior": {"kind": "Laplace", "describe": "Laplace(kron)", "training": None, "structure": "kron",
                              "curvature": "ggn", "prior_precision": 3.2, "data_scale": 1.0,
                              "tuned_on": "validation data", "log_evidence": None},
                "structures": [], "covered": 1.0, "not_covered": [],
                "left_out": [{"what": "pruning", "why": "no test data"}], "notices": ["a note from within"],
                "interrupted": None},
    }  # fmt: skip
    return {**whole, **changes}


class FakeAudit:
    """Has what the command uses of an audit."""

    def __init__(self, found: dict[str, Any], posterior: Any = None) -> None:
        self.record, self.results, self.posterior = found, typed(found), posterior

    @property
    def interrupted(self) -> bool:
        return bool(self.record["run"]["interrupted"])

    def _write(self, path: Path, text: str) -> Path:
        aside = path.with_suffix(".aside")
        aside.write_text(text)
        os.replace(aside, path)
        return path

    def html(self, path: Path) -> Path:
        return self._write(path, "<!doctype html>page")

    def json(self, path: Path) -> Path:
        return self._write(path, json.dumps(self.record))


STEPS = ("fit", "quality", "pruning")
calls: list[dict[str, Any]] = []


def fake_audit(subject: Any, train: Any, *, on_step: Any = None, **options: Any) -> FakeAudit:
    """Steps without work; WHENCE_SLOW is the step that takes long, WHENCE_FAIL the error it ends with."""
    calls.append({"subject": subject, "train": train, **options})
    print("a print from user code")
    found, posterior = record(), None
    if train is not None:
        posterior = whence.laplace(subject, train, likelihood=options["likelihood"], progress=False)
    for done, name in enumerate(STEPS):
        on_step(name, done, len(STEPS))
        warnings.warn(f"note in {name}", Notice, stacklevel=1)
        if os.environ.get("WHENCE_FAIL"):
            raise ZeroDivisionError("it broke")
        time.sleep(float(os.environ.get("WHENCE_PAUSE", "0")))
        if os.environ.get("WHENCE_SLOW") == name:
            try:
                time.sleep(20)
            except KeyboardInterrupt:
                if name == "fit":
                    raise
                found["run"]["interrupted"] = name
                break
    return FakeAudit(found, posterior)
