"""Data sets as the audit holds them: in memory, so that a shuffling loader gives every section the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.batches import (
    Inputs,
    as_targets,
    check_finite,
    concatenate,
    from_numpy,
    inputs_of,
    is_pair,
    map_tensors,
    size_of,
    split_batch,
    take,
    tensors_in,
    to_device,
)
from whence.errors import BadData
from whence.functional import Network
from whence.likelihoods import Likelihood


@dataclass(frozen=True)
class Held:
    """Inputs, with targets where there are any, on the CPU."""

    name: str  # "test", "validation", "ood"
    inputs: Inputs
    targets: Tensor | None
    cut: bool = False  # whether there were more

    def __len__(self) -> int:
        return size_of(self.inputs)

    def at(self, index: Tensor) -> Inputs:
        """Some of the inputs."""
        return take(self.inputs, index)

    @property
    def pair(self) -> tuple[Inputs, Tensor]:
        """With targets, or zeros in their place: what cannot be taken for anything but inputs and targets."""
        return self.inputs, torch.zeros(len(self)) if self.targets is None else self.targets

    def counted(self, likelihood: Likelihood) -> Held:
        """Without examples whose label the likelihood ignores."""
        kept = None if self.targets is None else likelihood.counts(self.targets)
        if kept is None or bool(kept.all()):
            return self
        index = kept.nonzero().flatten()
        if not len(index):
            raise BadData(f"{self.name}: every one of the {len(self)} labels is to be ignored.")
        assert self.targets is not None
        return Held(self.name, self.at(index), self.targets[index], self.cut)

    def thinned(self, most: int) -> Held:
        """At most so many, evenly spaced."""
        if len(self) <= most:
            return self
        index = spaced(len(self), most)
        return Held(self.name, self.at(index), None if self.targets is None else self.targets[index], self.cut)

    def describe(self) -> dict[str, Any]:
        return {"inputs": len(self), "cut": self.cut}


def spaced(total: int, count: int) -> Tensor:
    """``count`` of the numbers below ``total``, evenly spaced."""
    return torch.linspace(0, total - 1, count, dtype=torch.float64).round().long()


def hold(data: Any, name: str, most: int, targets: bool = True) -> Held | None:
    """Read at most ``most`` examples. With ``targets`` they are expected; bare inputs are taken too."""
    if data is None:
        return None
    data = from_numpy(data)
    if is_pair(data):
        inputs, given = data
        if size_of(inputs) != len(given):
            raise BadData(f"{name}: {size_of(inputs)} inputs but {len(given)} targets.")
        return _whole(name, inputs, given if targets else None, most)
    if isinstance(data, Mapping) and any(key in data for key in ("labels", "label", "targets", "target")):
        inputs, given = split_batch(data, 0)
        return _whole(name, inputs, as_targets(given, name, 0) if targets else None, most)
    if isinstance(data, (Tensor, Mapping)) or (isinstance(data, tuple) and all(isinstance(t, Tensor) for t in data)):
        return _whole(name, data, None, most)
    if isinstance(data, torch.utils.data.Dataset) and not isinstance(data, torch.utils.data.IterableDataset):
        raise BadData(f"{name} is a Dataset; wrap it: torch.utils.data.DataLoader(dataset, batch_size=256).")
    if not isinstance(data, Iterable):
        raise BadData(f"{name} is a {type(data).__name__}, which is neither a loader nor tensors.")
    return _read(name, data, most, targets)


def _whole(name: str, inputs: Inputs, targets: Tensor | None, most: int) -> Held:
    count = size_of(inputs)
    if not count:
        raise BadData(f"{name} is empty: it holds no example.")
    check_finite(inputs, f"{name}: the inputs", 0)
    if targets is not None:
        check_finite(targets, f"{name}: the targets", 0)
    held = Held(name, _home(inputs), None if targets is None else _home(targets), count > most)
    return held.thinned(most)


def _read(name: str, loader: Iterable[Any], most: int, targets: bool) -> Held:
    inputs, given, seen, cut = [], [], 0, False
    for index, batch in enumerate(loader):
        if seen >= most:
            cut = True
            break
        x, y = _split(batch, index, name, targets)
        check_finite(x, f"{name}: the inputs", index)
        size = size_of(x)
        if size > most - seen:
            size, cut = most - seen, True
            x = take(x, slice(0, size))
        inputs.append(_home(x))
        seen += size
        if y is not None:
            check_finite(y, f"{name}: the targets", index)
            given.append(_home(y)[:size])
    if not seen:
        raise BadData(f"{name} is empty: it gave no example. If it is a generator, it may be exhausted.")
    return Held(name, _joined(inputs, name), torch.cat(given) if given else None, cut)


def _joined(parts: list[Inputs], name: str) -> Inputs:
    try:
        return concatenate(parts)
    except RuntimeError as error:
        shapes = {str([list(t.shape[1:]) for t in tensors_in(part)]) for part in parts}
        some = ", ".join(sorted(shapes)[:4])
        raise BadData(
            f"{name}: examples of different shapes ({some}) cannot be held together. Pad all batches to one length, "
            "with a mask if the network takes one."
        ) from error


def _split(batch: Any, index: int, name: str, targets: bool) -> tuple[Inputs, Tensor | None]:
    if isinstance(batch, Tensor) and not targets:
        return batch, None
    if not isinstance(batch, (Tensor, Mapping, tuple, list)):
        raise BadData(
            f"{name}: batch {index} is a {type(batch).__name__}. A batch is (inputs, targets), or a mapping with "
            "'labels'."
        )
    if not targets:
        x = from_numpy(inputs_of(batch))
    else:
        x, y = split_batch(batch, index) if not isinstance(batch, Tensor) else (batch, None)
        x, y = from_numpy(x), None if y is None else as_targets(y, name, index)
    if not any(True for _ in tensors_in(x)):
        raise BadData(f"{name}: the inputs of batch {index} are a {type(x).__name__}, which holds no tensor.")
    return x, (y if targets else None)


def _home(value: Any) -> Any:
    return map_tensors(lambda t: t.detach().cpu(), value)


def try_out(network: Network, inputs: Inputs, name: str, trained_on: str = "") -> Tensor:
    """The outputs for one example, or an error that gives shapes instead of a stack of calls."""
    one = to_device(take(inputs, slice(0, 1)), network.device, network.dtype)
    try:
        with torch.no_grad():
            return network(one)
    except (RuntimeError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, BadData):
            raise
        came = ", ".join(str(list(t.shape)) for t in tensors_in(one))
        expected = f" (the training inputs are {trained_on})" if trained_on else ""
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadData(f"{name}: the network fails on inputs of shape {came}{expected}: {reason}") from error


def shape_of(inputs: Inputs) -> list[int] | None:
    """The shape of one example, where inputs are one tensor."""
    return list(inputs.shape[1:]) if isinstance(inputs, Tensor) else None


def outputs_of(network: Network, inputs: Inputs, batch: int = 512) -> Tensor:
    """The plain network's outputs, on the CPU."""
    found = []
    with torch.no_grad():
        for start in range(0, size_of(inputs), batch):
            piece = to_device(take(inputs, slice(start, start + batch)), network.device, network.dtype)
            found.append(network(piece).cpu())
    return torch.cat(found)
