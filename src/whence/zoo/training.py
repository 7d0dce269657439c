"""What a training gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from whence.errors import need
from whence.zoo.settings import Settings

if TYPE_CHECKING:
    from whence.zoo.data import DataSet
    from whence.zoo.plan import Recipe


@dataclass(frozen=True)
class Row:
    """One epoch: the learning rate at its end, the mean training loss, scores on validation data, seconds so far."""

    epoch: int
    lr: float
    loss: float
    validation: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def summary(self) -> str:
        held = "".join(f", validation {name} {value:.4g}" for name, value in self.validation.items())
        return f"loss {self.loss:.4g}{held}"

    def to_dict(self) -> dict[str, float]:
        held = {f"validation_{name}": value for name, value in self.validation.items()}
        return {"epoch": self.epoch, "lr": self.lr, "loss": self.loss, **held, "seconds": self.seconds}


@dataclass(frozen=True)
class Training:
    """A trained network, in evaluation mode, with its history."""

    network: nn.Module
    history: tuple[Row, ...]
    settings: Settings
    seed: int
    best_epoch: int | None  # on validation data
    seconds: float
    device: str
    recipe: Recipe | None = None
    data: DataSet | None = field(default=None, repr=False)
    from_cache: bool = False

    def __repr__(self) -> str:
        name = type(self.network).__name__ if self.recipe is None else self.recipe.name
        last = self.history[-1] if self.history else None
        lines = [
            f"Training of {name}: {len(self.history)} of {self.settings.epochs} epochs in {self.seconds:.1f} s "
            f"on {self.device}, seed {self.seed}" + (", read from the cache" if self.from_cache else "")
        ]
        if last is not None:
            lines.append(f"  last epoch: {last.summary()}")
        if self.best_epoch is not None:
            best = self.history[self.best_epoch - 1]
            lines.append(f"  best on validation data: epoch {self.best_epoch} ({best.summary()})")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """The history, one row for each epoch."""
        return need("pandas", "pandas").DataFrame([row.to_dict() for row in self.history])
