"""A fixed random part of a data set, gathered once, without side effects on later reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from whence.engine.batches import (
    Data,
    Inputs,
    as_inputs,
    as_source,
    concatenate,
    from_numpy,
    is_pair,
    map_tensors,
    size_of,
    take,
    tensors_in,
)
from whence.engine.files import digest
from whence.engine.padding import same_length
from whence.engine.randomness import derived_seed, example_uniform
from whence.errors import BadData


@dataclass(frozen=True)
class Subset:
    """Examples, and the size of the data that they come from."""

    inputs: Inputs
    targets: Tensor
    size: int

    def first(self, count: int) -> tuple[Inputs, Tensor]:
        """The first ``count`` examples, which are a random sample too."""
        return take(self.inputs, slice(0, count)), self.targets[:count]

    def fingerprint(self) -> str:
        """Hash of the values."""
        every = (*tensors_in(self.inputs), self.targets)
        return digest(t.float() if t.is_floating_point() else t for t in every)[:16]


def gather(data: Any, count: int, seed: int, device: torch.device, dtype: torch.dtype) -> Subset:
    """``count`` examples of the data in random order; at most one pass, none if examples can be indexed."""
    data = as_source(data)
    if hasattr(data, "__next__"):
        raise BadData(
            "data is a one-shot iterator: gathering examples would exhaust it before your loop reads it. "
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
        if _can_index(data):
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
    inputs = map_tensors(lambda t: t.detach().clone(), inputs)  # the caller may change them
    if targets is not None and len(targets) != size_of(inputs):
        raise BadData(f"probe: {size_of(inputs)} inputs but {len(targets)} targets.")
    if [t.dim() for t in tensors_in(inputs)] != [t.dim() for t in tensors_in(like)]:
        raise refused_probe(inputs, like)
    return inputs, targets


def refused_probe(inputs: Inputs, like: Inputs, error: Exception | None = None) -> BadData:
    """The error for a probe that the network does not accept."""

    def shapes(x: Inputs) -> str:
        return ", ".join(f"[{', '.join(map(str, ['N', *t.shape[1:]]))}]" for t in tensors_in(x))

    return BadData(
        f"the probe's inputs have shape {shapes(inputs)}, the data's {shapes(like)}. A probe is a few inputs of the "
        f"network, or a pair (inputs, targets).{'' if error is None else f' ({error})'}"
    )


@contextmanager
def as_before(device: torch.device, seed: int, data: Any = None) -> Iterator[None]:
    """Seed random numbers inside, and restore the generators of torch and of the loader afterwards."""
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


def _can_index(data: Any) -> bool:
    """Whether it is a standard loader that yields every example of a data set once."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return False
    if type(data.batch_sampler) is not BatchSampler or not hasattr(data.dataset, "__len__"):
        return False
    sampler = data.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(data.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _fetched(loader: DataLoader, order: list[int]) -> list[Any]:
    """These examples, collated by the loader's function."""
    dataset, step, batches = loader.dataset, loader.batch_size or 1, []
    for start in range(0, len(order), step):
        which = order[start : start + step]
        many = getattr(dataset, "__getitems__", None)
        batches.append(loader.collate_fn(many(which) if many else [dataset[i] for i in which]))
    return batches


def _streamed(data: Data, count: int, seed: int, generator: torch.Generator) -> Subset:
    """One pass: every example gets a random number, and those with the ``count`` smallest are kept."""
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
    return Subset(*_picked(inputs, targets, order), seen)


def _smallest(parts: list[tuple[Tensor, Inputs, Tensor]], count: int) -> tuple[Tensor, Inputs, Tensor]:
    keys = torch.cat([k for k, _, _ in parts])
    inputs, targets = _together([(x, y) for _, x, y in parts])
    which = keys.argsort()[:count]
    return (keys[which], *_picked(inputs, targets, which))


def _picked(inputs: Inputs, targets: Tensor, which: Tensor) -> tuple[Inputs, Tensor]:
    return take(inputs, which.to(_place(inputs))), targets[which.to(targets.device)]


def _joined(data: Data, size: int) -> Subset:
    return Subset(*_together([(b.inputs, b.targets) for b in data]), size)


def _together(parts: Iterable[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
    inputs, targets = map(list, zip(*parts, strict=True))
    inputs, targets = same_length(inputs, targets, "data")
    try:
        return concatenate(inputs), torch.cat(targets)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadData(
            f"data: examples of different batches cannot be concatenated ({error}). Pad them to one shape, or pass "
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
