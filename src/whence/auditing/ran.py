"""What was done: versions, seeds, times, coverage, and what is not covered."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from whence._version import __version__
from whence.auditing.plain import cleaned, number
from whence.errors import WhenceError

TUNED = {"evidence": "evidence", "validation": "validation data"}


@dataclass
class Log:
    """What happened on the way."""

    seconds: dict[str, float] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    interrupted: str | None = None

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append({"what": what, "why": why})


def ran(posterior: Any, log: Log, seed: int) -> dict[str, Any]:
    """The last section of every record."""
    total = sum(p.numel() for p in posterior.network.params.values())
    device = posterior.network.device
    return {
        "versions": {
            "whence": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "seed": seed,
        "seconds": {name: round(value, 3) for name, value in log.seconds.items()},
        "posterior": _posterior(posterior),
        "structures": [
            {"name": n, "kind": s.kind, "parameters": s.parameters, "structure": s.structure, "reason": s.reason}
            for n, s in posterior.structures.items()
        ],
        "covered": number(posterior.parameters / total),
        "not_covered": _not_covered(posterior, total),
        "left_out": list(log.left_out),
        "notices": list(dict.fromkeys(log.notices)),
        "interrupted": log.interrupted,
    }


def _posterior(posterior: Any) -> dict[str, Any]:
    options = posterior.curvature.options
    tuning = posterior.tuning
    try:
        evidence = number(posterior.log_evidence())
    except WhenceError:
        evidence = None
    precision = posterior.prior_precision
    return {
        "structure": options.structure,
        "curvature": options.curvature,
        "prior_precision": number(precision) if isinstance(precision, float) else None,
        "data_scale": number(posterior.data_scale),
        "tuned_on": "nothing" if tuning is None else TUNED[tuning.criterion],
        "log_evidence": evidence,
        "training": cleaned(
            {
                "examples": posterior.record.data_size,
                "accuracy": posterior.record.accuracy,
                "confidence": posterior.record.mean_confidence,
            }
        ),
    }


def _not_covered(posterior: Any, total: int) -> list[str]:
    """Parameters outside the posterior, and what the numbers do not speak of."""
    found = []
    chosen = {p.name for b in posterior.blocks for p in b.params}
    outside = {n: p.numel() for n, p in posterior.network.params.items() if n not in chosen}
    if outside:
        names = ", ".join(list(outside)[:4]) + (f" and {len(outside) - 4} more" if len(outside) > 4 else "")
        found.append(f"{sum(outside.values()):,} of {total:,} weights are not Bayesian: {names}.")
    slow = [n for n, s in posterior.structures.items() if s.structure == "diag" and s.reason]
    if slow:
        found.append(f"Correlations between the weights of {', '.join(slow[:4])} are not kept.")
    if not posterior.curvature.joint:
        found.append("Correlations between layers are not kept.")
    found.append("Uncertainty about the architecture, the training procedure and the data themselves is not covered.")
    return found
