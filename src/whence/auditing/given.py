"""Checks of what users pass to an audit, and what follows from the shape of the outputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from whence.auditing.data import try_out
from whence.auditing.fitting import Sets
from whence.auditing.tasks import Task
from whence.errors import BadOption
from whence.likelihoods import Categorical, Likelihood
from whence.metrics.conformal import OF_LABELS, OF_NUMBERS, Score, ScoreName
from whence.posteriors.base import Posterior


def check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "inputs" else 2
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadOption(f"{name}={value!r} must be a whole number, at least {least}.")


def check_score(score: ScoreName | None, task: Task) -> None:
    allowed = OF_LABELS if task.has_labels else OF_NUMBERS
    if score is not None and Score.parse(score, "conformal_score") not in allowed:
        names = " or ".join(repr(str(one)) for one in allowed)
        raise BadOption(f"conformal_score={score!r} is not for {task.name}; use {names}.")


def feature_names(names: Sequence[str] | None, sets: Sets) -> tuple[str, ...] | None:
    """One name for each column of tabular inputs."""
    if names is None:
        return None
    for found in sets.values():
        if found is not None and isinstance(found.inputs, Tensor) and found.inputs.dim() == 2:
            columns = found.inputs.shape[1]
            if len(names) != columns:
                raise BadOption(f"features= has {len(names)} names for {columns} columns of {found.name}.")
    return tuple(map(str, names))


def answer_count(likelihood: Likelihood, shape: tuple[int, ...]) -> int:
    """Number of classes, labels or numbers, from the shape of the outputs of one input."""
    if isinstance(likelihood, Categorical) and likelihood.class_dim == -1:
        return shape[-1]
    return shape[0] if shape else 1


def output_shape(posterior: Posterior, sets: Sets) -> tuple[int, ...]:
    """Shape of the outputs of one input."""
    shape = posterior.output_shape
    examples = next((found for found in sets.values() if found is not None), None)
    if shape is None and examples is not None:
        shape = tuple(try_out(posterior.snapshots[0], examples.inputs, examples.name).shape[1:])
    return shape or ()
