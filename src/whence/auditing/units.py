"""Names and units of predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.auditing.data import Examples, token_ids
from whence.auditing.tasks import Numbers, Task, task_of
from whence.errors import BadOption
from whence.likelihoods import Likelihood
from whence.predictive.links import predict_draws
from whence.report.formatting import squared
from whence.report.record.audit import Elements


@dataclass(frozen=True)
class Outputs:
    """The name and the unit of every output."""

    names: tuple[str, ...]
    units: tuple[str, ...] | None = None

    @property
    def unit(self) -> str | None:
        """The unit of all outputs; None if they have none, or different ones."""
        return self.units[0] if self.units is not None and len(set(self.units)) == 1 else None

    def uncertainty_label(self, task: Task, elements: Elements | None = None) -> str:
        """The task's measure of uncertainty in words, with its unit."""
        label = task.label
        if elements in ("pixels", "tokens", "positions"):
            label = f"mean {label.replace('of the prediction', f'per {elements[:-1]}')}"
        return label if self.unit is None else f"{label} in {squared(self.unit)}"

    def unit_of(self, output: int) -> str | None:
        return None if self.units is None else self.units[output]


def elements_of(task: Task, examples: Examples | None) -> Elements | None:
    """What the scores of a set count, if not inputs: several elements of each."""
    if examples is None or examples.targets is None:
        return None
    images = isinstance(examples.inputs, Tensor) and examples.inputs.dim() == 4
    return task.elements(examples.targets, token_ids(examples.inputs) is not None, images)


TARGET = Outputs(("target",))  # one number without a unit


def read_outputs(
    likelihood: Likelihood, shape: tuple[int, ...], unit: str | Sequence[str] | None, targets: Sequence[str] | None
) -> Outputs:
    """``unit`` for all outputs or one for each, ``targets`` their names; ``shape`` is that of the network's outputs."""
    task = task_of(likelihood)
    for option, given in (("unit", unit), ("targets", targets)):
        if given is not None and not isinstance(task, Numbers):
            raise BadOption(f"{option}= is for predicted numbers; this is {task.name}.")
    if isinstance(targets, str):
        raise BadOption(f"targets={targets!r} is one name; pass a list: [{targets!r}].")
    count = _predicted(likelihood, shape) if isinstance(task, Numbers) else 1
    names = tuple(map(str, targets)) if targets is not None else _numbered(count)
    units = None if unit is None else (unit,) * count if isinstance(unit, str) else tuple(map(str, unit))
    for option, given in (("targets", names), ("unit", units)):
        if given is not None and len(given) != count:
            raise BadOption(f"{option}= has {len(given)} entries for {count} outputs.")
    if units is not None and not all(one.strip() for one in units):
        raise BadOption(f"unit={unit!r} has an empty unit; leave out unit= if there is none.")
    return Outputs(names, units)


def _predicted(likelihood: Likelihood, shape: tuple[int, ...]) -> int:
    """How many numbers are predicted for an input; dense outputs count as one."""
    centre = predict_draws(likelihood, torch.zeros(1, 1, *shape)).mean  # type: ignore[union-attr]
    return centre.shape[1] if centre.dim() == 2 else 1


def _numbered(count: int) -> tuple[str, ...]:
    return ("target",) if count == 1 else tuple(f"output {k}" for k in range(count))
