"""Options that users pass as strings and the code uses as enums, and execution options."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from whence.errors import BadOption, notice, one_of

CHECKPOINT_EVERY = 60.0  # seconds


class Option(StrEnum):
    """A choice among strings; printed and saved as its string."""

    @classmethod
    def parse(cls, value: str, name: str) -> Self:
        """The choice with this value; an error that names the option ``name`` if there is none."""
        return cls(one_of(value, [choice.value for choice in cls], name))

    def __repr__(self) -> str:
        return repr(self.value)


def check_interval(checkpoint_every: float, shortest: str = "batch") -> None:
    """Refuse what is no number of seconds."""
    number = isinstance(checkpoint_every, (int, float)) and not isinstance(checkpoint_every, bool)
    if not number or not 0 <= checkpoint_every < math.inf:
        raise BadOption(
            f"checkpoint_every={checkpoint_every!r} must be a number of seconds, 0 (after every {shortest}) or more."
        )


@dataclass(frozen=True)
class Execution:
    """How a fit or an audit is executed; no option here changes a result.

    Args:
        offload: keep curvature and decompositions in main memory, and copy them to the device layer by layer.
        cuda_graphs: whether a batch, or a piece of a prediction, may be replayed as a CUDA graph where launching
            kernels takes most of the time. A graph is compared once with eager execution; pass False for a network
            that changes between calls.
        checkpoint: a file to which the sums are written every ``checkpoint_every`` seconds (0: after every batch). A
            fit that was interrupted resumes from it when called again; it is deleted once the fit is complete.
    """

    offload: bool = False
    cuda_graphs: bool = True
    checkpoint: str | Path | None = None
    checkpoint_every: float = CHECKPOINT_EVERY

    def __post_init__(self) -> None:
        every = self.checkpoint_every
        check_interval(every)
        if not isinstance(self.checkpoint, (str, os.PathLike, type(None))):
            raise BadOption(f"checkpoint is a {type(self.checkpoint).__name__}; pass the name of a file.")
        if self.checkpoint is None and every != CHECKPOINT_EVERY:
            raise BadOption(f"checkpoint_every={every} applies only with checkpoint=….")

    @classmethod
    def of(cls, execution: Execution | None, **earlier: Any) -> Execution:
        """The options passed as ``execution``, or by the deprecated keywords of version 0.1."""
        given = {name: value for name, value in earlier.items() if value is not None}
        if not given:
            return cls() if execution is None else execution
        names = ", ".join(f"{name}=" for name in given)
        if execution is not None:
            raise BadOption(f"pass {names} inside execution=whence.Execution(…), not as separate arguments.")
        notice(f"{names} will be removed in version 0.3: pass execution=whence.Execution({names[:-1]}=…) instead.")
        return cls(**given)
