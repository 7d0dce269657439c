"""A whole data set attacked: accuracy and uncertainty over step sizes, or over updates.

Index legend: N inputs, T rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from whence.batches import from_numpy, is_pair
from whence.errors import BadData, BadOption, one_of
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior
from whence.robustness.asking import averaged
from whence.robustness.attacks import BATCH, Method, prepared
from whence.robustness.averaged import Averaged, Seen
from whence.robustness.moving import amount, classes_of, one_tensor, placed, whole
from whence.robustness.table import Robustness, RobustnessRow

Values = dict[str, Tensor]  # by column, [N]
MEANS = ("accuracy", "kept", "target", "entropy", "epistemic", "confidence")


def untargeted(
    posterior: Posterior | nn.Module,
    data: Any,
    *,
    steps: Sequence[float],
    away: Literal["predicted", "labels"] = "predicted",
    scale: Any = None,
    bounds: tuple[Any, Any] | None = None,
    likelihood: Likelihood | Literal["classification"] | None = None,
    method: Method | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int = BATCH,
    progress: bool = True,
) -> Robustness:
    """:func:`fgsm` with each step size (Ritter et al. 2018, figure 3): a row for each.

    ``data``: a pair (inputs, labels), a loader of such batches, or bare inputs, which have no accuracy. ``away``: from
    the predicted class, or from the label. Gradient and predictions of all step sizes share the same draws; the other
    options are those of :func:`fgsm`.
    """
    one_of(away, ("predicted", "labels"), "away")
    sizes = sorted({amount(step, "steps") for step in _sequence(steps)})
    average = averaged(posterior, likelihood, method, num_samples, generator)
    table = _Collected([float(size) for size in sizes])

    def attack(x: Tensor, labels: Tensor | None, update: Callable[[], Any]) -> int:
        moving, moves = prepared(average, x, scale, bounds)
        if away == "labels" and labels is None:
            raise BadOption("away='labels' needs labels: pass a pair (inputs, labels), or away='predicted'.")
        before = average.look(moving, labels if away == "labels" else None, gradient=True)
        assert before.direction is not None
        signs = moves.signs(before.direction)
        classes = before.labels if away == "predicted" or labels is None else labels
        fixed = {"masked": _all_zero(signs), "saturated": _saturated(before, classes)}
        for row, size in enumerate(sizes):
            now = before if size == 0 else average.look(moves.moved(moving, -size, signs))
            table.add(row, now, labels, before.labels, None, fixed)
            update()
        return 0

    excluded = _over(average, data, batch_size, attack, len(sizes), progress)
    return Robustness("untargeted", table.rows(), table.count, excluded)


def targeted(
    posterior: Posterior | nn.Module,
    data: Any,
    *,
    target: int,
    step: float,
    steps: int,
    scale: Any = None,
    bounds: tuple[Any, Any] | None = None,
    likelihood: Likelihood | Literal["classification"] | None = None,
    method: Method | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int = BATCH,
    progress: bool = True,
) -> Robustness:
    """:func:`iterative` towards one class (Ritter et al. 2018, figure 4): a row before and after each update.

    Inputs that are predicted as the target before the attack are left out. ``data`` as for :func:`untargeted`; the
    other options are those of :func:`iterative`.
    """
    eta, count, goal = amount(step), whole(steps, "steps"), whole(target, "target", 0)
    average = averaged(posterior, likelihood, method, num_samples, generator)
    table = _Collected([float(t) for t in range(count + 1)])

    def attack(x: Tensor, labels: Tensor | None, update: Callable[[], Any]) -> int:
        moving, moves = prepared(average, x, scale, bounds)
        first = average.look(moving)
        classes = classes_of(goal, len(moving), first.log_probs.shape[-1], "target").to(moving.device)
        others = first.labels != classes
        first, classes, moving = first.take(others), classes[others], moving[others]
        labels = None if labels is None else labels[others]
        masked = torch.zeros(len(moving), dtype=torch.bool, device=moving.device)
        for row in range(count + 1 if len(moving) else 0):
            now = average.look(moving, classes, gradient=row < count)
            shown = now if row else first  # the same but for rounding, which decides between equal probabilities
            more = {"masked": masked, "saturated": _saturated(shown, classes)}
            table.add(row, shown, labels, first.labels, classes, more)
            if now.direction is not None:
                signs = moves.signs(now.direction)
                moving, masked = moves.moved(moving, eta, signs), _all_zero(signs)
            update()
        return len(x) - len(moving)

    excluded = _over(average, data, batch_size, attack, count + 1, progress)
    if not table.count:
        raise BadData(
            f"all {excluded} inputs are predicted as class {goal} before the attack; there is none to attack."
        )
    return Robustness("targeted", table.rows(), table.count, excluded, goal, eta)


def _sequence(steps: Any) -> list[Any]:
    try:
        found = list(steps.tolist() if isinstance(steps, Tensor) else steps)
    except TypeError:
        raise BadOption(f"steps={steps!r} must be a sequence of step sizes, such as (0, 0.1, 0.2).") from None
    if not found:
        raise BadOption("steps is empty: give at least one step size.")
    return found


def _over(
    average: Averaged,
    data: Any,
    batch_size: int,
    attack: Callable[[Tensor, Tensor | None, Callable[[], Any]], int],
    rows: int,
    progress: bool,
) -> int:
    """Each batch attacked; how many inputs were left out."""
    excluded, size = 0, whole(batch_size, "batch_size")
    total, batches = _batches(average, data, size)
    bar = tqdm(
        total=None if total is None else total * rows, desc="attack", unit="step", delay=3, leave=False,
        disable=not progress,
    )  # fmt: skip
    with bar:
        for index, (x, labels) in enumerate(batches):
            x = placed(x, average.network)
            if labels is not None:
                outputs = x.new_zeros(len(x), average.classes(x))
                labels = average.likelihood.check(outputs, labels.to(x.device), index).flatten()
                counted = average.likelihood.mask(labels)
                excluded += int((~counted).sum())
                x, labels = x[counted], labels[counted]
            if len(x):
                excluded += attack(x, labels, bar.update)
    return excluded


def _batches(average: Averaged, data: Any, size: int) -> tuple[int | None, Iterator[tuple[Tensor, Tensor | None]]]:
    """Number of batches where it is known, and the batches."""
    data, network = from_numpy(data), average.network
    if isinstance(data, Tensor):
        x = one_tensor(data, "data")
        return -(-len(x) // size), ((piece, None) for piece in x.split(size))
    if is_pair(data) and isinstance(data[0], Tensor):
        x, y = one_tensor(data[0], "data"), data[1]
        if len(x) != len(y):
            raise BadData(f"data: {len(x)} inputs but {len(y)} labels.")
        data = list(zip(x.split(size), y.split(size), strict=True))
    source = network.read(data)

    def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
        for batch in source:
            inputs = one_tensor(batch.inputs, "data")
            yield from zip(inputs.split(size), batch.targets.split(size), strict=True)

    return source.length(), batches()


def _all_zero(signs: Tensor) -> Tensor:
    return (signs == 0).flatten(1).all(1)


def _saturated(seen: Seen, classes: Tensor) -> Tensor:
    probs = seen.probs.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    return (probs >= 1) | (probs <= 0)


class _Collected:
    """Values of every input for every row; means at the end."""

    def __init__(self, steps: list[float]) -> None:
        self.steps = steps
        self.found: list[dict[str, list[Tensor]]] = [{} for _ in steps]

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.found[0].get("kept", []))

    def add(
        self, row: int, seen: Seen, labels: Tensor | None, before: Tensor, target: Tensor | None, more: Values
    ) -> None:
        now = seen.labels
        values: Values = {"kept": now == before, "entropy": seen.entropy, "epistemic": seen.epistemic}
        values |= {"confidence": seen.log_probs.amax(-1).exp().clamp(max=1), **more}
        if labels is not None:
            values["accuracy"] = now == labels
        if target is not None:
            values["target"] = now == target
        for name, value in values.items():
            self.found[row].setdefault(name, []).append(value)

    def rows(self) -> tuple[RobustnessRow, ...]:
        return tuple(self._row(step, found) for step, found in zip(self.steps, self.found, strict=True))

    def _row(self, step: float, found: dict[str, list[Tensor]]) -> RobustnessRow:
        values = {name: torch.cat(parts).double().cpu() for name, parts in found.items()}
        columns: dict[str, Any] = dict.fromkeys(MEANS) | {f"{name}_se": None for name in MEANS}
        for name, value in values.items():
            columns[name] = float(value.mean())
            if name in MEANS and len(value) > 1:
                columns[f"{name}_se"] = float(value.std() / len(value) ** 0.5)
        return RobustnessRow(step=step, **columns)
