"""Batches: reading tensors, pairs, mappings and loaders, and moving them to a device.

``inputs`` is a tensor, a tuple of tensors or a mapping of names to tensors; the examples are along the first
dimension of each of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.engine.checks import check_finite as check_finite
from whence.engine.checks import tensors_in as tensors_in
from whence.engine.padding import filled
from whence.engine.sources import LABELS as LABELS
from whence.engine.sources import as_source as as_source
from whence.engine.sources import bare as bare
from whence.engine.sources import from_numpy as from_numpy
from whence.engine.sources import is_inputs as is_inputs
from whence.engine.sources import is_pair as is_pair
from whence.engine.sources import opened as opened
from whence.errors import BadData, EmptyData

LabelRule = Callable[[Any, Any, bool], tuple[Any, Any]]  # see :mod:`whence.labels`
Check = Callable[[Any], None]  # of the inputs of a batch, see ``Network.check_inputs``
Inputs = Any  # Tensor | tuple[Tensor, ...] | Mapping[str, Any]; nested in any way

PAIR_BATCH = 512  # batch size for a bare pair of tensors


@dataclass(frozen=True)
class Batch:
    """One batch, on the device of the network."""

    inputs: Inputs
    targets: Tensor
    index: int  # index of the batch in its pass
    offset: int  # index of its first example in the data
    counted: Tensor | None = None  # which examples have a valid target, on the CPU; None if not computed
    stride: int = 1  # difference between the indices of consecutive examples


def map_tensors(fn: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply ``fn`` to every tensor in a nest of tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(fn, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(fn, item) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(fn, item) for item in value)
    return value


def size_of(inputs: Inputs) -> int:
    """Number of examples: the common first dimension of all tensors that have one."""
    sizes = {t.shape[0] for t in tensors_in(inputs) if t.dim() > 0}
    if not sizes:
        raise BadData("the inputs contain no tensor with an example dimension")
    if len(sizes) > 1:
        raise BadData(
            f"the inputs disagree on the number of examples: first dimensions {sorted(sizes)}. "
            "The first dimension of every input tensor must count examples."
        )
    return sizes.pop()


def check_count(outputs: Tensor, size: int, who: str = "") -> Tensor:
    """The outputs, if their first dimension counts the examples that went in."""
    if outputs.dim() == 0 or len(outputs) != size:
        raise BadData(
            f"{size} examples went in, but the outputs{who} have shape {list(outputs.shape)}. The first dimension of "
            "inputs and outputs must count examples; for one example pass x.unsqueeze(0)."
        )
    return outputs


def take(inputs: Inputs, which: slice | Tensor) -> Inputs:
    """The examples ``which`` of the inputs."""
    return map_tensors(lambda t: t[which] if t.dim() > 0 else t, inputs)


def to_device(value: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """Move tensors to ``device``; floating-point ones to ``dtype`` as well."""

    def move(t: Tensor) -> Tensor:
        if t.is_inference():
            with torch.inference_mode(False):
                t = t.clone()
        wanted = dtype if dtype is not None and t.is_floating_point() else t.dtype
        return t.to(device, wanted, non_blocking=device.type == "cuda")

    return map_tensors(move, value)


def concatenate(parts: list[Inputs]) -> Inputs:
    """Join inputs of the same kind along the examples."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() > 0 else first
    if isinstance(first, Mapping):
        return {key: concatenate([p[key] for p in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(concatenate(list(items)) for items in zip(*parts, strict=True))
    return first


def split_batch(batch: Any, index: int, rule: LabelRule | None = None) -> tuple[Inputs, Any]:
    """The (inputs, targets) of a loader's batch: a pair, or a mapping with ``labels`` as the network expects them."""
    inputs, targets, labels = _split(batch, index)
    return (inputs, targets) if rule is None else rule(inputs, targets, labels)


def _split(batch: Any, index: int) -> tuple[Inputs, Any, bool]:
    """Inputs, targets, and whether the targets were the labels of a mapping."""
    if isinstance(batch, Mapping):
        for key in LABELS:
            if key in batch:
                return {k: v for k, v in batch.items() if k != key}, batch[key], True
        raise BadData(
            f"batch {index} is a mapping without 'labels' (it has {sorted(map(str, batch))}). "
            "Yield (inputs, targets), or add the targets under 'labels'."
        )
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1], False
    kind = f"{type(batch).__name__} of length {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    more = " Several inputs are a tuple: ((x1, x2), targets)." if isinstance(batch, (tuple, list)) else ""
    raise BadData(f"batch {index} is a {kind}. A batch is (inputs, targets), or a mapping with 'labels'.{more}")


def cut(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """The inputs in consecutive pieces of at most ``size`` examples."""
    total = size_of(inputs)
    for start in range(0, total, size):
        yield take(inputs, slice(start, start + size))


def counted_examples(batch: Batch, counts: Callable[[Tensor], Tensor | None]) -> tuple[Batch, Tensor]:
    """The examples with a valid target, by a likelihood's ``counts``, and their indices in the data."""
    rows = batch.offset + batch.stride * torch.arange(size_of(batch.inputs), device=batch.targets.device)
    counted = batch.counted
    if counted is None and batch.targets.dim() and len(batch.targets) == len(rows):
        counted = counts(batch.targets)
    if counted is None or bool(counted.all()):
        return batch, rows
    which = counted.nonzero().squeeze(1).to(rows.device)
    return replace(batch, inputs=take(batch.inputs, which), targets=batch.targets[which]), rows[which]


class Data:
    """A data set: checked batches on one device, for one or several passes."""

    def __init__(
        self,
        source: Any,
        device: torch.device,
        dtype: torch.dtype,
        name: str = "data",
        rule: LabelRule | None = None,
        takes: Sequence[str] | None = None,
        check: Check | None = None,
    ) -> None:
        source = as_source(source, takes=takes, role=name)
        self.source, self.device, self.dtype, self.name, self.rule = source, device, dtype, name, rule
        self.check = check
        if is_pair(source):
            check_lengths(source[0], source[1], name)
        elif isinstance(source, Tensor):
            raise BadData(f"{name} is one tensor. Pass a pair (inputs, targets), or a loader of such batches.")
        elif isinstance(source, str):
            raise BadData(f"{name} is the text {source!r}. Pass a pair (inputs, targets), or a loader of such batches.")
        elif not isinstance(source, Iterable):
            raise BadData(f"{name} is a {type(source).__name__}, which is neither a loader nor a pair of tensors.")
        self.read = 0
        self.counts: Callable[[Tensor], Tensor | None] = lambda _: None  # set to the likelihood's

    @property
    def one_shot(self) -> bool:
        """Whether it can be read only once."""
        return not is_pair(self.source) and iter(self.source) is self.source

    def require_passes(self, needed: int, why: str) -> None:
        """Refuse a one-shot iterator where more than one pass is needed."""
        if needed > 1 and self.one_shot:
            raise BadData(
                f"{self.name} is a one-shot iterator, but {why} needs {needed} passes over it. "
                "Pass a DataLoader, a list of batches, or a pair of tensors."
            )

    def __len__(self) -> int:
        if is_pair(self.source):
            return -(-len(self.source[1]) // PAIR_BATCH)
        return len(self.source)

    def length(self) -> int | None:
        """Number of batches, if known."""
        try:
            return len(self)
        except TypeError:
            return None

    def _raw(self) -> Iterator[tuple[Inputs, Any]]:
        if is_pair(self.source):
            inputs, targets = self.source
            for start in range(0, len(targets), PAIR_BATCH):
                piece = slice(start, start + PAIR_BATCH)
                pair = take(inputs, piece), targets[piece]
                yield pair if self.rule is None else self.rule(*pair, False)
        else:
            for index, batch in enumerate(self.source):
                yield split_batch(batch, index, self.rule)

    def __iter__(self) -> Iterator[Batch]:
        waiting: Batch | None = None  # waits for its counts, which a GPU sends during the batch before
        batches = self._batches()
        while True:
            try:
                batch = next(batches, None)
            except Exception:
                if waiting is not None:
                    yield _with_counts(waiting)
                raise
            if waiting is not None:
                yield _with_counts(waiting)
                waiting = None
            if batch is None:
                return
            if isinstance(batch.counted, _Fetched):
                waiting = batch
            else:
                yield batch

    def _batches(self) -> Iterator[Batch]:
        self.read += 1
        offset = 0
        for index, (inputs, targets) in enumerate(self._raw()):
            inputs, given = from_numpy(inputs), as_targets(targets, self.name, index)
            inputs, targets = to_device(inputs, self.device, self.dtype), to_device(given, self.device)
            check_finite(inputs, f"{self.name}: the inputs", index)
            check_finite(targets, f"{self.name}: the targets", index)
            size = size_of(inputs)
            if size == 0:
                continue
            if given.dim() == 0:
                raise BadData(
                    f"{self.name}: batch {index} is one example (its target is a single number). Examples must be "
                    "along the first dimension: pass a DataLoader with a batch_size, or a list of all examples."
                )
            if self.check is not None:
                self.check(inputs)
            counted: Any = None
            if len(given) == size:  # otherwise the likelihood raises the error
                counted = self.counts(given if given.device.type == "cpu" else targets)
            if counted is not None and counted.is_cuda:
                counted = _Fetched(counted)
                inputs, targets = map_tensors(torch.clone, (inputs, targets))  # the loader may reuse its buffers
            yield Batch(inputs, targets, index, offset, counted)
            offset += size
        if offset == 0:
            again = " It was read before and may be exhausted." if self.read > 1 else ""
            raise EmptyData(f"{self.name} is empty: it yielded no example.{again}")


class _Fetched:
    """A small tensor on its way from a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.host.copy_(tensor, non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream(tensor.device))


def _with_counts(batch: Batch) -> Batch:
    assert isinstance(batch.counted, _Fetched)
    batch.counted.event.synchronize()
    return replace(batch, counted=batch.counted.host)


def check_lengths(inputs: Inputs, targets: Tensor, name: str) -> None:
    """Refuse a pair whose inputs and targets do not have the same first dimension."""
    if targets.dim() == 0:
        raise BadData(f"{name} is one example; its first dimension must count examples: pass (x[None], y[None]).")
    if size_of(inputs) != len(targets):
        raise BadData(f"{name}: {size_of(inputs)} inputs but {len(targets)} targets.")


def as_targets(targets: Any, name: str, index: int) -> Tensor:
    """Targets as a tensor."""
    try:
        return torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadData(
            f"{name}: the targets of batch {index} are a {type(targets).__name__}, not a tensor of numbers."
        ) from error


def joined(pieces: Iterable[Tensor], dim: int = 0) -> Tensor:
    """Concatenate the outputs of consecutive pieces; NaN at positions that only longer sequences have."""
    found = list(pieces)

    def refused() -> BadData:
        shapes = sorted({tuple(t.shape[dim + 1 :]) for t in found})
        one, other = (f"[{', '.join(['N', *map(str, shape)])}]" for shape in shapes[:2])
        return BadData(f"the batches have outputs of different shapes, {one} and {other}: predict them one by one.")

    if len({t.dim() for t in found}) > 1:
        raise refused()
    return filled(found, dim, refused)


def as_inputs(
    x: Any,
    device: torch.device,
    dtype: torch.dtype,
    batch_size: int,
    rule: LabelRule | None = None,
    check: Check | None = None,
) -> Iterator[Inputs]:
    """Batches of the argument of ``predict``: bare inputs, a loader, or a data set."""
    x = as_source(x, pairs=False)  # a pair would be a tuple of inputs here
    if is_inputs(x):
        pieces: Iterable[Inputs] = [inputs_of(x, rule) if isinstance(x, Mapping) else x]
    elif isinstance(x, Iterable):
        pieces = (from_numpy(inputs_of(batch, rule)) for batch in x)
    else:
        raise BadData(f"cannot predict for a {type(x).__name__}; pass inputs or a loader.")
    index, seen = -1, 0
    for index, piece in enumerate(pieces):
        if not any(True for _ in tensors_in(piece)):
            raise BadData(f"the inputs are a {type(piece).__name__} without a tensor; pass torch.tensor(inputs).")
        piece = to_device(piece, device, dtype)
        check_finite(piece, "the inputs", index)
        if check is not None:
            check(piece)
        seen += size_of(piece)
        yield from cut(piece, batch_size)
    if seen == 0:
        raise BadData("there are no inputs to predict for: the data are empty.")


def inputs_of(batch: Any, rule: LabelRule | None = None) -> Inputs:
    """The inputs of a loader's batch, with or without targets."""
    if rule is not None and isinstance(batch, Mapping) and "labels" in batch:
        return split_batch(batch, 0, rule)[0]
    if isinstance(batch, Mapping):
        return {k: v for k, v in batch.items() if k not in LABELS}
    if isinstance(batch, (tuple, list)):
        return batch[0]
    return batch
