"""How much the KL counts at each step. Every weight is reported; over an epoch plain and Blundell's average to one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from whence.errors import BadOption

KlSchedule = Literal["plain", "blundell"] | int | float


@dataclass(frozen=True)
class KlWeight:
    """``temperature`` · schedule; the loss of a step is (N / |batch|) Σ NLL + weight · KL."""

    temperature: float = 1.0
    schedule: KlSchedule = "plain"

    def __post_init__(self) -> None:
        t = self.temperature
        if isinstance(t, bool) or not isinstance(t, (int, float)) or not (math.isfinite(t) and t >= 0):
            raise BadOption(f"kl_weight={t!r} must be a number, at least 0; 1 is the plain ELBO.")
        known = self.schedule in ("plain", "blundell")
        if not known and (
            isinstance(self.schedule, (str, bool))
            or not isinstance(self.schedule, (int, float))
            or not 0 < self.schedule < math.inf
        ):
            raise BadOption(
                f"kl_schedule={self.schedule!r} is neither 'plain', 'blundell' nor a positive number of warm-up epochs."
            )

    def at(self, epoch: int, step: int, steps: int) -> float:
        """Of step 0, 1 … of an epoch with so many steps."""
        if self.schedule == "plain":
            return self.temperature
        if self.schedule == "blundell":
            return self.temperature * steps * blundell(step, steps)
        return self.temperature * min(1.0, (epoch + (step + 1) / steps) / float(self.schedule))

    def describe(self, last: float | None) -> str:
        """What was maximised where it was not the ELBO itself; ``last`` is the mean weight of the last epoch."""
        if last is not None and not isinstance(self.schedule, str) and last < self.temperature * (1 - 1e-9):
            return f"tempered: KL × {last:.3g}, before the end of a warm-up over {self.schedule:g} epochs"
        return "" if self.temperature == 1.0 else f"tempered: KL × {self.temperature:g}"


def blundell(step: int, steps: int) -> float:
    """π_i = 2^(M−i) / (2^M − 1) for i = 1 … M: Blundell et al. (2015), section 3.4. They add up to one."""
    return 2.0 ** -(step + 1) / -math.expm1(-steps * math.log(2.0))
