"""Attacks on a data set: accuracy and uncertainty over step sizes or updates.

Index legend: N inputs, T rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from whence.engine.batches import is_pair
from whence.engine.options import Option
from whence.engine.progress import progress_bar
from whence.errors import BadData, BadOption, NotDefined, fraction, one_of, whole_number
from whence.extras.robustness.attacks import Attack, AttackOptions, classes_of, one_tensor, placed, step_size
from whence.extras.robustness.averaged import Averaged
from whence.functional import source_for
from whence.posteriors.base import Posterior
from whence.tables import Table, text

MEANS = ("accuracy", "kept", "target", "entropy", "epistemic", "confidence")


@dataclass(frozen=True)
class RobustnessRow:
    """Means over the inputs, each with its standard error (None for a single input)."""

    step: float  # size of the step, or number of updates
    accuracy: float | None  # share predicted correctly; None without labels
    kept: float  # share with the same prediction as before the attack
    target: float | None  # share predicted as the target; None if there is none
    entropy: float  # of the averaged prediction, in nats
    epistemic: float  # mutual information between label and draw, in nats
    confidence: float  # largest probability
    accuracy_se: float | None
    kept_se: float | None
    target_se: float | None
    entropy_se: float | None
    epistemic_se: float | None
    confidence_se: float | None
    masked: float  # share with zero gradient in every dimension that may change
    saturated: float  # share where the probability of the attacked class rounds to 0 or 1

    @classmethod
    def of(cls, step: float, values: dict[str, Tensor]) -> RobustnessRow:
        """From the values of every input, [N] each."""
        columns: dict[str, Any] = dict.fromkeys(MEANS) | {f"{name}_se": None for name in MEANS}
        for name, value in values.items():
            columns[name] = float(value.mean())
            if name in MEANS and len(value) > 1:
                columns[f"{name}_se"] = float(value.std() / len(value) ** 0.5)
        return cls(step=step, **columns)

    def cell(self, name: str) -> str:
        """A column for printing, with its standard error."""
        value, error = getattr(self, name), getattr(self, f"{name}_se", None)
        if name == "step":
            return f"{value:g}"
        return "" if value is None else f"{value:.3f}" if error is None else f"{value:.3f} ±{error:.3f}"


class AttackKind(Option):
    """Away from a class, or towards one."""

    UNTARGETED = "untargeted"
    TARGETED = "targeted"


@dataclass(frozen=True, repr=False)
class Robustness:
    """Made by :func:`untargeted` and :func:`targeted`."""

    attack: Literal["untargeted", "targeted"]
    rows: tuple[RobustnessRow, ...]  # by increasing step
    count: int  # inputs that were attacked
    excluded: int = 0  # inputs not attacked: already predicted as the target, or with an ignored label
    target: int | None = None
    step: float | None = None  # size of each update of a targeted attack

    def _table(self) -> Table:
        return Table.of_rows(RobustnessRow, self.rows).filled()

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are not empty."""
        return list(self._table())

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of plain numbers, for JSON."""
        return self._table().to_dict()

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``."""
        return self._table().to_pandas()

    def half(self, of: Literal["accuracy", "kept"] | None = None, level: float = 0.5) -> float | None:
        """The step at which a share falls to ``level``, interpolated between rows; None if it never does.

        ``of``: ``"accuracy"`` (default with labels), or ``"kept"``.
        """
        fraction(level, "level")
        name = ("accuracy" if "accuracy" in self.columns else "kept") if of is None else of
        one_of(name, ("accuracy", "kept"), "of")
        if name not in self.columns:
            raise NotDefined("there is no accuracy without labels: attack a pair (inputs, labels), or use of='kept'.")
        before: tuple[float, float] | None = None
        for row in self.rows:
            value = float(getattr(row, name))
            if value <= level:
                if before is None:
                    return row.step
                start, above = before
                return start + (row.step - start) * (above - level) / (above - value)
            before = row.step, value
        return None

    def fooled(self, share: float = 0.99) -> int | None:
        """The first update after which at least ``share`` of the inputs are predicted as the target; None if never."""
        if AttackKind(self.attack) is not AttackKind.TARGETED:
            raise NotDefined("an untargeted attack has no target class; see half().")
        fraction(share, "share", one=True)
        return next((int(r.step) for r in self.rows if r.target is not None and r.target >= share), None)

    def plot(self, ax: Any = None) -> Any:
        """Shares and uncertainty over steps: a matplotlib figure."""
        from whence.report import figures

        return figures.robustness(self, ax=ax)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        left_out = f" ({self.excluded:,} excluded)" if self.excluded else ""
        towards = "" if self.target is None else f" towards class {self.target}, by {self.step:g} each"
        head = f"{self.attack} attack{towards}: {self.count:,} inputs{left_out}"
        names = [n for n in self.columns if not n.endswith("_se")]
        return f"{head}\n{text(names, [[row.cell(name) for name in names] for row in self.rows])}"

    __repr__ = __str__


def untargeted(
    posterior: Posterior | nn.Module,
    data: Any,
    *,
    steps: Sequence[float],
    away: Literal["predicted", "labels"] = "predicted",
    progress: bool = True,
    **options: Unpack[AttackOptions],
) -> Robustness:
    """:func:`fgsm` with each step size (Ritter et al. 2018, figure 3): a row for each.

    ``data``: a pair (inputs, labels), a loader of such batches, or bare inputs (without accuracy). ``away``: from
    the predicted class, or from the label. Gradient and predictions of all step sizes share the same draws; the
    options are those of :func:`fgsm`.
    """
    from_labels = one_of(away, ("predicted", "labels"), "away") == "labels"
    sizes = sorted({step_size(step, "steps") for step in _sequence(steps)})
    attack = Attack.of(posterior, **options)
    table = _Collected([float(size) for size in sizes])

    def batch(x: Tensor, labels: Tensor | None, update: Callable[[], Any]) -> int:
        start, moves = attack.start(x)
        if from_labels and labels is None:
            raise BadOption("away='labels' needs labels: pass a pair (inputs, labels), or away='predicted'.")
        before = attack.predictor.predict(start, labels if from_labels else None, gradient=True)
        signs = moves.signs(before.direction)
        classes = labels if from_labels and labels is not None else before.labels
        fixed = {"masked": _all_zero(signs), "saturated": _saturated(before, classes)}
        for row, size in enumerate(sizes):
            now = before if size == 0 else attack.predictor.predict(moves.add(start, -size, signs))
            table.add(row, now, labels, before.labels, None, fixed)
            update()
        return 0

    excluded = _over(attack, data, batch, len(sizes), progress)
    return Robustness("untargeted", table.rows(), table.count, excluded)


def targeted(
    posterior: Posterior | nn.Module,
    data: Any,
    *,
    target: int,
    step: float,
    steps: int,
    progress: bool = True,
    **options: Unpack[AttackOptions],
) -> Robustness:
    """:func:`iterative` towards one class (Ritter et al. 2018, figure 4): a row before and after each update.

    Inputs already predicted as the target before the attack are excluded. ``data`` as for :func:`untargeted`; the
    options are those of :func:`fgsm`.
    """
    eta, count, goal = step_size(step), whole_number(steps, "steps"), whole_number(target, "target", 0)
    attack = Attack.of(posterior, **options)
    table = _Collected([float(t) for t in range(count + 1)])

    def batch(x: Tensor, labels: Tensor | None, update: Callable[[], Any]) -> int:
        moving, moves = attack.start(x)
        first = attack.predictor.predict(moving)
        classes = classes_of(goal, len(moving), first.log_probs.shape[-1], "target").to(moving.device)
        others = first.labels != classes
        first, classes, moving = first.take(others), classes[others], moving[others]
        labels = None if labels is None else labels[others]
        masked = torch.zeros(len(moving), dtype=torch.bool, device=moving.device)
        for row in range(count + 1 if len(moving) else 0):
            now = attack.predictor.predict(moving, classes, gradient=row < count)
            counted = now if row else first  # the two differ only by rounding, which breaks ties
            more = {"masked": masked, "saturated": _saturated(counted, classes)}
            table.add(row, counted, labels, first.labels, classes, more)
            if now.direction is not None:
                signs = moves.signs(now.direction)
                moving, masked = moves.add(moving, eta, signs), _all_zero(signs)
            update()
        return len(x) - len(moving)

    excluded = _over(attack, data, batch, count + 1, progress)
    if not table.count:
        raise BadData(
            f"all {excluded} inputs are predicted as class {goal} before the attack; there is nothing to attack."
        )
    return Robustness("targeted", table.rows(), table.count, excluded, goal, eta)


def _sequence(steps: Any) -> list[Any]:
    try:
        found = list(steps.tolist() if isinstance(steps, Tensor) else steps)
    except TypeError:
        raise BadOption(f"steps={steps!r} must be a sequence of step sizes, such as (0, 0.1, 0.2).") from None
    if not found:
        raise BadOption("steps is empty: pass at least one step size.")
    return found


def _over(
    attack: Attack,
    data: Any,
    compute: Callable[[Tensor, Tensor | None, Callable[[], Any]], int],
    rows: int,
    progress: bool,
) -> int:
    """Attack each batch; return the number of excluded inputs."""
    excluded, predictor = 0, attack.predictor
    total, batches = _batches(attack, data)
    steps = None if total is None else total * rows
    with progress_bar(total=steps, label="attack", unit="step", shown=progress) as bar:
        for index, (x, labels) in enumerate(batches):
            x = placed(x, attack.network)
            if labels is not None:
                outputs = x.new_zeros(len(x), predictor.classes(x))
                labels = predictor.likelihood.check(outputs, labels.to(x.device), index).flatten()
                counted = predictor.likelihood.mask(labels)
                excluded += int((~counted).sum())
                x, labels = x[counted], labels[counted]
            if len(x):
                excluded += compute(x, labels, bar.update)
    return excluded


def _batches(attack: Attack, data: Any) -> tuple[int | None, Iterator[tuple[Tensor, Tensor | None]]]:
    """Number of batches if known, and the batches."""
    data, size = source_for(attack.network.module, data), attack.batch_size
    if isinstance(data, Tensor):
        x = one_tensor(data, "data")
        return -(-len(x) // size), ((piece, None) for piece in x.split(size))
    if is_pair(data) and isinstance(data[0], Tensor):
        x, y = one_tensor(data[0], "data"), data[1]
        if len(x) != len(y):
            raise BadData(f"data: {len(x)} inputs but {len(y)} labels.")
        data = list(zip(x.split(size), y.split(size), strict=True))
    source = attack.network.read(data)

    def batches() -> Iterator[tuple[Tensor, Tensor | None]]:
        for batch in source:
            inputs = one_tensor(batch.inputs, "data")
            yield from zip(inputs.split(size), batch.targets.split(size), strict=True)

    return source.length(), batches()


def _all_zero(signs: Tensor) -> Tensor:
    return (signs == 0).flatten(1).all(1)


def _saturated(found: Averaged, classes: Tensor) -> Tensor:
    probs = found.probs.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    return (probs >= 1) | (probs <= 0)


class _Collected:
    """Values of every input for every row."""

    def __init__(self, steps: list[float]) -> None:
        self.steps = steps
        self.found: list[dict[str, list[Tensor]]] = [{} for _ in steps]

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.found[0].get("kept", []))

    def add(
        self,
        row: int,
        now: Averaged,
        labels: Tensor | None,
        before: Tensor,
        target: Tensor | None,
        more: dict[str, Tensor],
    ) -> None:
        values = {"kept": now.labels == before, "entropy": now.entropy, "epistemic": now.epistemic, **more}
        values["confidence"] = now.log_probs.amax(-1).exp().clamp(max=1)
        if labels is not None:
            values["accuracy"] = now.labels == labels
        if target is not None:
            values["target"] = now.labels == target
        for name, value in values.items():
            self.found[row].setdefault(name, []).append(value)

    def rows(self) -> tuple[RobustnessRow, ...]:
        """Means over all inputs."""
        joined = [{n: torch.cat(parts).double().cpu() for n, parts in found.items()} for found in self.found]
        return tuple(RobustnessRow.of(step, values) for step, values in zip(self.steps, joined, strict=True))
