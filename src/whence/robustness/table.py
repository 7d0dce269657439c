"""How a prediction stands an attack: a row for each step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from whence.errors import BadOption, NotDefined, need, one_of
from whence.metrics.tables import text

SHARES = ("accuracy", "kept", "target")


@dataclass(frozen=True)
class RobustnessRow:
    """Means over the inputs, each with its standard error (None for one input alone)."""

    step: float  # size of the step, or number of updates
    accuracy: float | None  # share predicted as their true class; None without labels
    kept: float  # share predicted as they were before the attack
    target: float | None  # share predicted as the target; None where there is none
    entropy: float  # of the averaged prediction, in nats
    epistemic: float  # mutual information between label and draw, in nats
    confidence: float  # largest probability
    accuracy_se: float | None
    kept_se: float | None
    target_se: float | None
    entropy_se: float | None
    epistemic_se: float | None
    confidence_se: float | None
    masked: float  # share whose gradient was 0 in every dimension that may move, when they were to be moved here
    saturated: float  # share where the probability of the attacked class rounds to 0 or 1 when it is differentiated


@dataclass(frozen=True, repr=False)
class Robustness:
    """Made by :func:`untargeted` and :func:`targeted`."""

    attack: Literal["untargeted", "targeted"]
    rows: tuple[RobustnessRow, ...]  # by increasing step
    count: int  # inputs that were attacked
    excluded: int = 0  # inputs that were not: predicted as the target before, or of a label that does not count
    target: int | None = None
    step: float | None = None  # size of each update of a targeted attack

    @property
    def columns(self) -> list[str]:
        """Names of the columns that hold something."""
        return [f.name for f in fields(RobustnessRow) if any(getattr(row, f.name) is not None for row in self.rows)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of plain numbers, for JSON."""
        return {name: [getattr(row, name) for row in self.rows] for name in self.columns}

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``."""
        columns = self.columns
        return need("pandas", "pandas").DataFrame(
            [{name: asdict(row)[name] for name in columns} for row in self.rows], columns=columns
        )

    def half(self, of: Literal["accuracy", "kept"] | None = None, level: float = 0.5) -> float | None:
        """The step at which a share falls to ``level``, interpolated between rows; None if it never does.

        ``of``: ``"accuracy"`` (default where there are labels), or ``"kept"``.
        """
        if not 0 < level < 1:
            raise BadOption(f"level={level} is not between 0 and 1.")
        name = ("accuracy" if "accuracy" in self.columns else "kept") if of is None else of
        one_of(name, ("accuracy", "kept"), "of")
        if name not in self.columns:
            raise NotDefined("there is no accuracy without labels: attack a pair (inputs, labels), or ask of='kept'.")
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
        if self.attack != "targeted":
            raise NotDefined("an untargeted attack has no target that inputs could be taken for; see half().")
        if not 0 < share <= 1:
            raise BadOption(f"share={share} is not between 0 and 1.")
        return next((int(r.step) for r in self.rows if r.target is not None and r.target >= share), None)

    def plot(self, ax: Any = None) -> Any:
        """Shares and uncertainty over steps: a matplotlib figure."""
        from whence.report import figures

        return figures.robustness(self, ax=ax)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        left_out = f" ({self.excluded:,} left out)" if self.excluded else ""
        towards = "" if self.target is None else f" towards class {self.target}, by {self.step:g} each"
        head = f"{self.attack} attack{towards}: {self.count:,} inputs{left_out}"
        names = [n for n in self.columns if not n.endswith("_se")]
        lines = [[_cell(row, name) for name in names] for row in self.rows]
        return f"{head}\n{text(names, lines)}"

    __repr__ = __str__


def _cell(row: RobustnessRow, name: str) -> str:
    value = getattr(row, name)
    if name == "step":
        return f"{value:g}"
    error = getattr(row, f"{name}_se", None)
    shown = "" if value is None else f"{value:.3f}"
    return shown if error is None or value is None else f"{shown} ±{error:.3f}"
