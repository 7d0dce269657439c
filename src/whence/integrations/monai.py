"""MONAI: batches that are dictionaries, and whole volumes in windows.

Index legend: N volumes, C classes, D × H × W voxels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, NotDefined, one_of
from whence.posteriors.base import Posterior

PARTS = ("probs", "entropy", "aleatoric", "epistemic", "mean", "variance")


class Batches:
    """Batches (inputs, targets) of plain tensors from a loader of dictionaries; read again for every pass.

    Args:
        loader: of batches such as ``{"image": …, "label": …}``.
        image: the key of the input; several keys become a tuple of inputs.
        label: the key of the targets; None for inputs alone.
        classes: whether targets are classes, of shape N × 1 × D × H × W or one-hot N × C × D × H × W: they become
            whole numbers N × D × H × W. False leaves them as they are, for ``"binary"`` and for numbers.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        image: str | Sequence[str] = "image",
        label: str | None = "label",
        *,
        classes: bool = True,
    ) -> None:
        if iter(loader) is loader:
            raise BadData("the loader is a one-shot iterator; pass a DataLoader or a list of batches.")
        self.loader, self.label, self.classes = loader, label, classes
        self.images = [image] if isinstance(image, str) else list(image)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.loader):
            if not isinstance(batch, Mapping):
                raise BadData(f"batch {index} is a {type(batch).__name__}, not a dictionary; whence reads it as it is.")
            found = tuple(self._tensor(batch, key, index) for key in self.images)
            inputs = found[0] if len(found) == 1 else found
            if self.label is None:
                yield inputs
                continue
            targets = self._tensor(batch, self.label, index)
            yield inputs, _classes(targets, index) if self.classes else targets

    def _tensor(self, batch: Mapping[Any, Any], key: str, index: int) -> Tensor:
        """One entry without its metadata."""
        value = batch.get(key)
        if not isinstance(value, Tensor):
            what = "missing" if key not in batch else f"a {type(value).__name__}"
            raise BadData(f"batch {index}: {key!r} is {what}; the keys are {', '.join(map(repr, batch))}.")
        return value.as_subclass(Tensor)


def _classes(labels: Tensor, index: int) -> Tensor:
    """Classes N × D × H × W, from one channel or from one-hot channels."""
    if labels.dim() < 3:
        return labels.long()
    if labels.shape[1] == 1:
        return labels[:, 0].long()
    if bool((labels.sum(1) != 1).any()) or bool(((labels != 0) & (labels != 1)).any()):
        raise BadData(
            f"batch {index}: the labels of shape {list(labels.shape)} are neither one channel of classes nor one-hot. "
            "Where regions overlap, pass classes=False, and likelihood='binary' to whence."
        )
    return labels.argmax(1)


def window_predictor(
    posterior: Posterior, parts: Sequence[str] = ("probs", "epistemic"), **options: Any
) -> Callable[[Tensor], dict[str, Tensor]]:
    """What ``monai.inferers`` calls for each window: parts of the prediction, by name.

    Args:
        posterior: of a network with an answer for every voxel.
        parts: of "probs", "entropy", "aleatoric", "epistemic", and for numbers "mean" and "variance".
        options: of ``posterior.predict``.
    """
    if isinstance(parts, str):
        raise BadOption(f"parts={parts!r} is one name; pass a list: [{parts!r}].")
    names = [one_of(part, PARTS, "part") for part in parts]

    def predict(window: Tensor) -> dict[str, Tensor]:
        prediction = posterior.predict(window.as_subclass(Tensor), **options)
        found = {}
        for name in names:
            value = getattr(prediction, name, None)
            if not isinstance(value, Tensor):
                raise NotDefined(f"{type(prediction).__name__} has no part {name!r}.")
            with torch.no_grad():
                found[name] = value if value.dim() == window.dim() else value.unsqueeze(1)  # [N, 1, D, H, W]
        return found

    return predict
