"""What was done: versions, seeds, times, coverage, and what is not covered."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from whence._version import __version__
from whence.auditing.plain import number
from whence.auditing.subject import Subject


@dataclass
class Log:
    """What happened on the way."""

    seconds: dict[str, float] = field(default_factory=dict)
    left_out: list[dict[str, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    interrupted: str | None = None

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append({"what": what, "why": why})


def environment(device: torch.device, log: Log, seed: int) -> dict[str, Any]:
    """Versions, machine, seed and times, and what was left out."""
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
        "left_out": list(log.left_out),
        "notices": list(dict.fromkeys(log.notices)),
    }


def ran(subject: Subject, log: Log, seed: int) -> dict[str, Any]:
    """The last section of an audit's record."""
    return environment(subject.network.device, log, seed) | {
        "posterior": subject.describe(),
        "structures": subject.structures(),
        "covered": number(subject.bayesian / subject.parameters),
        "not_covered": subject.not_covered(),
        "interrupted": log.interrupted,
    }
