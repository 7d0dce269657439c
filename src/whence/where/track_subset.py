"""A fixed random part of a data set, gathered once, and without disturbing whoever reads the data next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from whence.batches import (
    Data,
    Inputs,
    as_inputs,
    concatenate,
    from_numpy,
    is_pair,
    map_tensors,
    size_of,
    take,
    tensors_in,
)
from whence.engine.files import digest
from whence.errors import BadData
from whence.randomness import derived_seed, example_uniform


@dataclass(frozen=True)
class Sample:
    """Examples, and how many there are in the data that they come from."""

    inputs: Inputs
    targets: Tensor
    size: int

    def first(self, count: int) -> tuple[Inputs, Tensor]:
        """The first ``count`` of them; their order is random, so that these are a sample too."""
        return take(self.inputs, slice(0, count)), self.targets[:count]

    def fingerprint(self) -> str:
        """Hash of the numbers."""
        every = (*tensors_in(self.inputs), self.targets)
        return digest(t.float() if t.is_floating_point() else t for t in every)[:16]


def gather(data: Any, count: int, seed: int, device: torch.device, dtype: torch.dtype) -> Sample:
    """``count`` examples of the data in random order; one pass at most, none where examples can be had by number."""
    data = from_numpy(data)
    if hasattr(data, "__next__"):
        raise BadData(
            "data is a one-shot iterator: gathering examples to track would use it up before your loop reads it. "
            "Pass a DataLoader, a list of batches, or a pair of tensors."
        )
    checked = Data(data, device, dtype)
    generator = torch.Generator().manual_seed(derived_seed(seed, "subset"))
    with as_before(device, seed, data):
        if is_pair(data):
            inputs, targets = data
            order = torch.randperm(len(targets), generator=generator)[:count]
            chosen = (take(inputs, order.to(_place(inputs))), targets[order.to(targets.device)])
            return _joined(Data(chosen, device, dtype), len(targets))
        if _by_number(data):
            order = torch.randperm(len(data.dataset), generator=generator)[:count]
            return _joined(Data(_fetched(data, order.tolist()), device, dtype), len(data.dataset))
        return _streamed(checked, count, derived_seed(seed, "subset"), generator)


def probe_inputs(
    probe: Any, like: Inputs, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Inputs, Tensor | None]:
    """The inputs of a probe, with targets if it is a pair; ``like`` are inputs of the data."""
    probe, targets = from_numpy(probe), None
    paired = isinstance(probe, (tuple, list)) and len(probe) == 2 and isinstance(probe[1], Tensor)
    if paired and _same_nest(probe[0], like) and not _same_nest(probe, like):
        probe, targets = probe[0], probe[1].to(device).clone()
    with as_before(device, seed, probe):
        inputs = concatenate(list(as_inputs(probe, device, dtype, 2**31)))
    inputs = map_tensors(lambda t: t.detach().clone(), inputs)  # of our own: yours may change
    if targets is not None and len(targets) != size_of(inputs):
        raise BadData(f"probe: {size_of(inputs)} inputs but {len(targets)} targets.")
    mine, theirs = [[list(t.shape) for t in tensors_in(x)] for x in (inputs, like)]
    if [len(s) for s in mine] != [len(s) for s in theirs]:
        raise BadData(_other_shape(mine, theirs))
    return inputs, targets


def _other_shape(mine: list[list[int]], theirs: list[list[int]]) -> str:
    shown = [", ".join(str(["N", *s[1:]]).replace("'", "") for s in shapes) for shapes in (mine, theirs)]
    return (
        f"the probe's inputs have shape {shown[0]}, the data's {shown[1]}. A probe is a few inputs as the network "
        "takes them, or a pair (inputs, targets)."
    )


def refuse_shape(inputs: Inputs, like: Inputs, error: Exception) -> BadData:
    """The error for a probe that the network does not take."""
    mine, theirs = [[list(t.shape) for t in tensors_in(x)] for x in (inputs, like)]
    return BadData(f"{_other_shape(mine, theirs)} ({error})")


@contextmanager
def as_before(device: torch.device, seed: int, data: Any = None) -> Iterator[None]:
    """Random numbers start at ``seed`` inside, and outside torch and a loader's own generators are as before."""
    index = device.index if device.index is not None else 0
    batches = getattr(data, "batch_sampler", None)
    owners = (data, getattr(data, "sampler", None), batches, getattr(batches, "sampler", None))
    found = {id(g): g for g in (getattr(owner, "generator", None) for owner in owners)}
    generators = [g for g in found.values() if isinstance(g, torch.Generator)]
    states = [g.get_state() for g in generators]
    with torch.random.fork_rng([index] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[index].manual_seed(seed)
        for g in generators:
            g.manual_seed(seed)
        try:
            yield
        finally:
            for g, state in zip(generators, states, strict=True):
                g.set_state(state)


def _by_number(data: Any) -> bool:
    """Whether it is a plain loader that gives every example of a data set once, so that some can be asked for."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return False
    if type(data.batch_sampler) is not BatchSampler or not hasattr(data.dataset, "__len__"):
        return False
    sampler = data.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(data.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _fetched(loader: DataLoader, order: list[int]) -> list[Any]:
    """These examples, collated as the loader does."""
    dataset, step, batches = loader.dataset, loader.batch_size or 1, []
    for start in range(0, len(order), step):
        which = order[start : start + step]
        many = getattr(dataset, "__getitems__", None)
        batches.append(loader.collate_fn(many(which) if many else [dataset[i] for i in which]))
    return batches


def _streamed(data: Data, count: int, seed: int, generator: torch.Generator) -> Sample:
    """One pass: every example gets a random number, and those with the ``count`` smallest stay."""
    kept: list[tuple[Tensor, Inputs, Tensor]] = []
    bound, held, seen = 1.0, 0, 0
    for batch in data:
        size = size_of(batch.inputs)
        keys = example_uniform(seed, 0, torch.arange(seen, seen + size), (size, 1)).squeeze(1)
        seen += size
        which = (keys < bound).nonzero().squeeze(1)
        if len(which):
            kept.append((keys[which], *_picked(batch.inputs, batch.targets, which)))
            held += len(which)
        if held > 2 * count:
            kept = [_smallest(kept, count)]
            bound, held = float(kept[0][0].max()), count
    _, inputs, targets = _smallest(kept, count)
    order = torch.randperm(len(targets), generator=generator)
    return Sample(*_picked(inputs, targets, order), seen)


def _smallest(parts: list[tuple[Tensor, Inputs, Tensor]], count: int) -> tuple[Tensor, Inputs, Tensor]:
    keys = torch.cat([k for k, _, _ in parts])
    inputs, targets = _together([(x, y) for _, x, y in parts])
    which = keys.argsort()[:count]
    return (keys[which], *_picked(inputs, targets, which))


def _picked(inputs: Inputs, targets: Tensor, which: Tensor) -> tuple[Inputs, Tensor]:
    return take(inputs, which.to(_place(inputs))), targets[which.to(targets.device)]


def _joined(data: Data, size: int) -> Sample:
    return Sample(*_together([(b.inputs, b.targets) for b in data]), size)


def _together(parts: Iterable[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
    inputs, targets = zip(*parts, strict=True)
    try:
        return concatenate(list(inputs)), torch.cat(targets)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadData(
            f"data: examples of different batches cannot be put together ({error}). Pad them to one shape, or pass "
            "a pair of tensors."
        ) from error


def _place(inputs: Inputs) -> torch.device:
    return next(tensors_in(inputs)).device


def _same_nest(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor)
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        return isinstance(a, Mapping) and isinstance(b, Mapping) and set(a) == set(b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same_nest(x, y) for x, y in zip(a, b, strict=True))
    return False
