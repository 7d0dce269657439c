"""How a prediction shows itself: as a table with one row for each input, in pandas and in notebooks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence.errors import NotDefined
from whence.tables import Table, html_of, number, paragraph

NUMBERS = ("confidence", "mean", "std", "entropy", "aleatoric", "epistemic")
MANY = 20  # classes above which only the most probable one is in the table


class Shown:
    """Base of all predictions: a short repr, a table of the inputs, and the same in pandas and HTML."""

    def table(self) -> Table:
        """One row for each input: label and confidence, or mean and standard deviation, with the uncertainties.

        Several outputs have columns of their own. Dense outputs have no table.
        """
        found: dict[str, Tensor] = {}
        labels = self._known("labels")
        if labels is not None:
            found |= _columns("label", labels)
        for name in NUMBERS:
            value = self._known(name)
            if value is not None:
                found |= _columns(name, value)
        probs = self._known("probs")
        if probs is not None and probs.dim() == 2 and probs.shape[1] <= MANY:
            found |= _columns("probability", probs)
        return Table({name: value.detach().cpu() for name, value in found.items()})

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with one row for each input, see :meth:`table`."""
        return self.table().to_pandas()

    def _known(self, name: str) -> Tensor | None:
        """A value of this kind of prediction; None if it has none, or if it is not defined here."""
        try:
            value = getattr(self, name, None)
        except NotDefined:
            return None
        return value if isinstance(value, Tensor) else None

    @property
    def _size(self) -> tuple[int, ...]:
        first = self._known("probs")
        first = self._known("mean") if first is None else first
        assert first is not None
        return tuple(first.shape)

    def __repr__(self) -> str:
        size = self._size
        shape = f" of shape {list(size[1:])}" if len(size) > 2 else ""
        outputs = size[1] if len(size) > 1 else 1
        parts = [f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in ((size[0], "input"), (outputs, "output"))]
        parts[1] += shape
        for name in ("confidence", "std", "entropy", "epistemic"):
            value = self._known(name)
            if value is not None and value.numel():
                parts.append(f"mean {name} {number(float(value.double().mean()))}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        try:
            return html_of(self.table(), repr(self))
        except NotDefined:
            return paragraph(repr(self))


def _columns(name: str, values: Tensor) -> dict[str, Tensor]:
    """One column, or one for each output."""
    if values.dim() == 1:
        return {name: values}
    if values.dim() > 2:
        raise NotDefined(f"predictions with {name} of shape {list(values.shape)} have no table; read their tensors.")
    if values.shape[1] == 1:
        return {name: values[:, 0]}
    return {f"{name}_{k}": values[:, k] for k in range(values.shape[1])}
