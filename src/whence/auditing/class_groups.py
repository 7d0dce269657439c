"""Test inputs by class, for the views of the profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.auditing.data import Examples
from whence.auditing.tasks import Classes, Task

CLASSES = 20  # classes with a view


@dataclass(frozen=True)
class ClassGroups:
    """Test inputs by class; none for tasks without classes."""

    labels: tuple[int, ...]
    members: Tensor | None  # bool [N, G]
    predicted: bool = False  # classes are those that the network predicts

    @classmethod
    def of(cls, task: Task, examples: Examples, predicted: Callable[[], Tensor | None]) -> ClassGroups:
        """The most frequent classes."""
        if not isinstance(task, Classes):
            return cls((), None)
        given = examples.targets is not None and examples.targets.dim() == 1
        labels = examples.targets if given else predicted()
        if labels is None:
            return cls((), None)
        counted = sorted(((int((labels == c).sum()), int(c)) for c in labels.unique() if c >= 0), reverse=True)
        chosen = tuple(sorted(c for _, c in counted[:CLASSES]))
        members = torch.stack([labels == c for c in chosen], 1) if chosen else None
        return cls(chosen, members, not given)
