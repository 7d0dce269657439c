"""What a training went through, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from whence.errors import need


@dataclass(frozen=True)
class Row:
    """One epoch. ``nll`` and ``kl`` are sums over the data set and over the weights, both means over its steps."""

    epoch: int
    elbo: float  # −nll − kl, whatever the KL weighed in training
    nll: float
    kl: float
    kl_weight: float
    lr: float
    validation: float | None  # mean negative log likelihood of the averaged prediction
    seconds: float

    def summary(self) -> str:
        checked = "" if self.validation is None else f", validation {self.validation:.4g}"
        return f"elbo {self.elbo:.5g}, kl {self.kl:.4g} × {self.kl_weight:.3g}{checked}"


@dataclass(frozen=True)
class History:
    """Rows, one for each epoch."""

    rows: tuple[Row, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``."""
        columns = [f.name for f in fields(Row)]
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.rows], columns=columns)
