"""How unlike the training data an input is, layer by layer, and overall.

Per input and layer ``unexplained`` = tr V_b(x) / tr V_b(x; prior): the part of what the prior left open that the
training data have not settled. Held against in-distribution inputs it gives a p-value for each layer; combined, a score
and an overall p-value, which is uniform on fresh in-distribution inputs however the layers depend on each other.

Index legend: N inputs, B layers, n reference inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.errors import BadOption, NotDefined, need, one_of
from whence.metrics.tables import text
from whence.where.combining import COMBINATIONS, DEFAULT, Combination, combined, overall, ranks
from whence.where.reference import Reference, own_precision, profile, reference_of

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

SHOWN = 10  # inputs that describe() puts in words


@dataclass(frozen=True)
class Novelty:
    """Made by :func:`whence.novelty`. Small p-values: the input is unlike the reference, and so the training data."""

    names: tuple[str, ...]  # of the layers
    unexplained: Tensor  # [N, B], float64 on the CPU
    p_values: Tensor  # [N, B]
    score: Tensor  # [N], higher is more novel; it goes on rising where p-values have reached 1 / (n + 1)
    p_value: Tensor  # [N], overall
    reference: Reference
    combine: str

    def __len__(self) -> int:
        return len(self.score)

    @property
    def layer(self) -> tuple[str, ...]:
        """The layer with the smallest p-value for each input; of equal ones the earliest."""
        return tuple(self.names[b] for b in self.p_values.argmin(1).tolist())

    def flag(self, level: float = 0.01) -> Tensor:
        """Whether each input is novel, bool [N]; of fresh in-distribution inputs ``level`` are flagged."""
        least = 1 / (self.reference.size + 1)
        if not least <= level < 1:
            raise BadOption(
                f"level={level} is not in {least:.2g}..1: {self.reference.size} reference inputs give no smaller "
                "p-value. Take more of them, or a larger level."
            )
        return self.p_value <= level

    def words(self, index: int, level: float = 0.01) -> str:
        """What is to be said of one input."""
        if not -len(self) <= index < len(self):
            raise BadOption(f"there is no input {index} among {len(self)}.")
        index %= len(self)
        p, by_layer = float(self.p_value[index]), self.p_values[index]
        most = int(by_layer.argmin())
        if p > level:
            return f"input {index} is like the training data (p = {p:.2g}; least in {self._of(index, most)})."
        below = (by_layer <= level).nonzero().flatten().tolist()
        if not below:
            return f"input {index} departs from the training data (p = {p:.2g}) in all layers together, in none alone."
        places = f"first in {self._of(index, below[0])}"
        if most != below[0]:
            places += f", most in {self._of(index, most)}"
        others = len(below) - len({below[0], most})
        more = f", and in {others} more {'layer' if others == 1 else 'layers'}" if others else ""
        return f"input {index} departs from the training data (p = {p:.2g}): {places}{more}."

    def describe(self, level: float = 0.01) -> str:
        """The summary, and the most novel inputs in words."""
        flagged = int(self.flag(level).sum())
        order = self.score.argsort(descending=True, stable=True)[: min(flagged, SHOWN)].tolist()
        lines = [str(self), *(self.words(i, level) for i in order)]
        if flagged > SHOWN:
            lines.append(f"… and {flagged - SHOWN:,} more.")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """One row for each input, as a ``pandas.DataFrame``."""
        columns: dict[str, Any] = {"input": range(len(self)), "score": self.score, "p_value": self.p_value}
        columns["layer"] = self.layer
        columns |= {f"p_value:{name}": self.p_values[:, b] for b, name in enumerate(self.names)}
        columns |= {f"unexplained:{name}": self.unexplained[:, b] for b, name in enumerate(self.names)}
        plain = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in columns.items()}
        return need("pandas", "pandas").DataFrame(plain)

    def __str__(self) -> str:
        level = max(0.01, 1 / (self.reference.size + 1))
        novel = self.flag(level)
        count, total = int(novel.sum()), len(self)
        head = (
            f"{count:,} of {total:,} inputs have p ≤ {level:.2g} (about {level * total:.0f} would if none were novel; "
            f"{self.reference.size:,} reference inputs, layers combined by {self.combine!r})"
        )
        firsts = [name for name, flagged in zip(self.layer, novel.tolist(), strict=True) if flagged]
        here, usual = self.unexplained.median(0).values, self.reference.unexplained.median(0).values
        below = (self.p_values <= level).sum(0)
        rows = [
            [name, f"{here[b]:.3g}", f"{usual[b]:.3g}", f"{int(below[b]):,}", f"{firsts.count(name):,}"]
            for b, name in enumerate(self.names)
        ]
        columns = ("layer", "unexplained", "in reference", f"p ≤ {level:.2g}", "smallest p of novel ones")
        return f"{head}\n{text(columns, rows)}"

    def _of(self, index: int, layer: int) -> str:
        return f"{self.names[layer]!r} (p = {float(self.p_values[index, layer]):.2g})"


def novelty(posterior: Laplace, x: Any, *, reference: Any = None, combine: Combination = "auto") -> Novelty:
    """How unlike the training data the inputs are.

    ``reference``: in-distribution inputs that were not trained on, or :func:`whence.reference_of` them, made once;
    ``None`` takes what the posterior was tuned on. ``combine``: how layers become one score. ``"gauss"`` (``"auto"``)
    asks how likely it is that some layers are shifted, given how layers correlate; ``"fisher"`` sums log p-values,
    ``"smallest"`` takes the smallest, and ``"cauchy"`` is between the two.
    """
    one_of(combine, COMBINATIONS, "combine")
    known = _reference(posterior, reference)
    unexplained = profile(posterior, x, known.precision or own_precision(posterior, known.left))
    own, score = combined(known.unexplained, unexplained, combine)
    return Novelty(
        names=known.names,
        unexplained=unexplained,
        p_values=ranks(known.unexplained, unexplained),
        score=score,
        p_value=overall(own, score),
        reference=known,
        combine=DEFAULT if combine == "auto" else combine,
    )


def _reference(posterior: Laplace, given: Any) -> Reference:
    given = getattr(posterior, "reference", None) if given is None else given
    if given is None:
        raise NotDefined(
            "novelty is held against in-distribution inputs, and this posterior has none: tune it on validation data, "
            "or pass reference=validation_inputs (not the training data)."
        )
    return given.check(posterior) if isinstance(given, Reference) else reference_of(posterior, given)
