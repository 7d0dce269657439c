"""Reading the units: curves and single figures, seed by seed."""

from __future__ import annotations

import math

from reproductions.claims import Interval, Verdict, above, difference
from reproductions.ritter2018.adversarial.config import PLAIN, TARGETED, UNTARGETED
from reproductions.store import Values

AWAY = 0.1  # step from which the table's means are taken


def names(units: Values) -> list[str]:
    """Methods and variants, in the order in which they were run."""
    return list(dict.fromkeys(key.split("/", 2)[2] for key in units if f"/{TARGETED}/" in key))


def seeds(units: Values) -> list[str]:
    return list(dict.fromkeys(key.split("/", 1)[0] for key in units))


def curve(units: Values, attack: str, name: str, column: str) -> list[list[float]]:
    """One list along the attack for each seed."""
    return [units[f"{seed}/{attack}/{name}"]["curves"][column] for seed in seeds(units)]


def steps(units: Values, attack: str) -> list[float]:
    return curve(units, attack, names(units)[0], "step")[0]


def away(units: Values, name: str, column: str, attack: str = UNTARGETED) -> list[float]:
    """Mean over the step sizes that move an image away, for each seed."""
    at = [i for i, step in enumerate(steps(units, UNTARGETED)) if step >= AWAY - 1e-9]
    return [sum(values[i] for i in at) / len(at) for values in curve(units, attack, name, column)]


def plain_methods(units: Values) -> list[str]:
    """Those that were attacked with the gradient of single precision too, on every seed."""
    found = dict.fromkeys(key.split("/", 2)[2] for key in units if f"/{PLAIN}/" in key)
    return [name for name in found if all(f"{seed}/{PLAIN}/{name}" in units for seed in seeds(units))]


def peak(units: Values, name: str) -> list[float]:
    """The largest mean entropy during the targeted attack, for each seed."""
    return [max(values) for values in curve(units, TARGETED, name, "entropy")]


def half(units: Values, name: str) -> list[float]:
    """Updates until half of the images have left their class; the last one if they never do."""
    last = steps(units, TARGETED)[-1]
    found = [units[f"{seed}/{TARGETED}/{name}"]["half"] for seed in seeds(units)]
    return [last if value is None else float(value) for value in found]


def fooled(units: Values, name: str, share: float = 1.0) -> list[float]:
    """The first update after which this share is taken for the target, for each seed; infinite if there is none."""
    where = steps(units, TARGETED)
    return [
        next((step for step, value in zip(where, values, strict=True) if value >= share), math.inf)
        for values in curve(units, TARGETED, name, "target")
    ]


class Along:
    """Two methods along the untargeted attack, step by step.

    At a step one is above the other where the interval of the paired difference over seeds lies above 0. Over all
    steps it is above where that is so at some steps and the contrary at none; it cannot be told where curves cross.
    """

    def __init__(self, units: Values, first: str, second: str, column: str, attacks: tuple[str, str] | None = None):
        one, two = attacks or (UNTARGETED, UNTARGETED)
        a, b = curve(units, one, first, column), curve(units, two, second, column)
        self.names = (first, second)
        self.steps = [step for step in steps(units, UNTARGETED) if step > 0]
        start = len(a[0]) - len(self.steps)
        self.found: list[Interval] = [
            difference([values[i] for values in a], [values[i] for values in b]) for i in range(start, len(a[0]))
        ]

    def at(self, wanted: Verdict) -> list[float]:
        return [step for step, found in zip(self.steps, self.found, strict=True) if above(found) == wanted]

    @property
    def verdict(self) -> Verdict:
        higher, lower = self.at("holds"), self.at("does not hold")
        if higher and not lower:
            return "holds"
        return "does not hold" if lower and not higher else "cannot be told"

    def text(self, digits: int = 2) -> str:
        """Where it is above and below, and the mean difference."""
        parts = [f"{word} at {_runs(self.steps, self.at(verdict))}" for word, verdict in
                 (("above", "holds"), ("below", "does not hold")) if self.at(verdict)]  # fmt: skip
        mean = sum(found.mean for found in self.found) / len(self.found)
        return f"− {self.names[1]}: {mean:+.{digits}f} ({', '.join(parts) or 'not apart at any step'})"


def _runs(every: list[float], found: list[float]) -> str:
    """Neighbouring steps as ranges."""
    runs: list[list[float]] = []
    for i, step in enumerate(every):
        if step not in found:
            continue
        if runs and i and every[i - 1] == runs[-1][-1]:
            runs[-1].append(step)
        else:
            runs.append([step])
    return " and ".join(f"{run[0]:g}" if len(run) == 1 else f"{run[0]:g}–{run[-1]:g}" for run in runs)
