"""A rank's part of a data set under a ``DistributedSampler``, with each example counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from whence.engine.batches import Batch, size_of, take
from whence.engine.ranks import Ranks
from whence.errors import BadData, BadOption, EmptyData, notice


@dataclass(frozen=True)
class Part:
    """Example k of a rank is at ``rank`` + k · ``ranks`` in the order; examples past ``size`` are repeats."""

    rank: int
    ranks: int
    size: int  # size of the data set
    dealt: int  # examples that this rank gets, including repeats
    batch_size: int

    @property
    def count(self) -> int:
        """Number of this rank's examples without repeats."""
        return min(self.dealt, max(0, -(-(self.size - self.rank) // self.ranks)))

    def once(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without repeats, with example indices in the whole data set."""
        seen = 0
        for batch in batches:
            size = size_of(batch.inputs)
            self._check(batch.index, seen, size)
            left = self.count - seen
            if left <= 0:
                break
            yield replace(_cut(batch, left), offset=self.rank + seen * self.ranks, stride=self.ranks)
            seen += size
        if not seen:
            raise EmptyData(
                f"the {self.size} examples are too few for {self.ranks} ranks: this rank gets only repeats. Use fewer "
                "processes."
            )

    def _check(self, index: int, seen: int, size: int) -> None:
        """Check that there is one example per sampler index; otherwise repeats cannot be identified."""
        wanted = min(self.batch_size, self.dealt - seen)
        if size != wanted:
            raise BadData(
                f"batch {index} has {size} examples where the DistributedSampler gave {wanted} indices, so its repeats "
                "cannot be identified. Let the loader yield one example per index, or give each rank its own part "
                "of the data, without this sampler."
            )


def _cut(batch: Batch, most: int) -> Batch:
    """At most the first ``most`` examples."""
    if size_of(batch.inputs) <= most:
        return batch
    first = slice(0, most)
    counted = None if batch.counted is None else batch.counted[first]
    return replace(batch, inputs=take(batch.inputs, first), targets=batch.targets[first], counted=counted)


def sampler_of(source: Any) -> DistributedSampler | None:
    """The ``DistributedSampler`` of a loader, directly or inside its batch sampler."""
    if not isinstance(source, DataLoader):
        return None
    for outer in (source.batch_sampler, source.sampler):
        for sampler in (outer, getattr(outer, "sampler", None)):
            if isinstance(sampler, DistributedSampler):
                return sampler
    return None


def _batch_size(source: DataLoader, sampler: DistributedSampler) -> int | None:
    """The batch size; None if the sampler or its wrapper is a custom class."""
    outer: Any = source.sampler if source.batch_sampler is None else source.batch_sampler
    plain = type(sampler).__iter__ is DistributedSampler.__iter__ and type(outer) is BatchSampler
    return int(outer.batch_size) if plain and outer.sampler is sampler else None


def part_of(source: Any, ranks: Ranks) -> Part | None:
    """This rank's part, if the loader has a known distributed sampler."""
    sampler = sampler_of(source)
    if sampler is None:
        return None
    if ranks.alone:
        if sampler.num_replicas > 1:
            notice(
                f"the DistributedSampler gives this process only one of {sampler.num_replicas} parts of the data. "
                "Pass process_group=True to fit on all parts."
            )
        return None
    if (sampler.num_replicas, sampler.rank) != (ranks.size, ranks.rank):
        raise BadOption(
            f"the DistributedSampler is for rank {sampler.rank} of {sampler.num_replicas}, but this is rank "
            f"{ranks.rank} of {ranks.size} of the process group. Create it with num_replicas={ranks.size} and "
            f"rank={ranks.rank}."
        )
    size, batch_size = len(sampler.dataset), _batch_size(source, sampler)  # type: ignore[arg-type]
    if batch_size is None:
        if size % ranks.size and not sampler.drop_last:
            notice(
                f"{size:,} examples do not divide by {ranks.size} ranks, and {type(sampler).__name__} is not a sampler "
                "that whence knows: any examples that it repeats are counted twice. Use torch's "
                "DistributedSampler, or give each rank its own part."
            )
        return None
    _say_dropped(size, sampler, batch_size if source.drop_last else 1)
    return Part(ranks.rank, ranks.size, size, sampler.num_samples, batch_size)


def _say_dropped(size: int, sampler: DistributedSampler, batch_size: int) -> None:
    """Give a notice about examples that no rank gets."""
    if sampler.drop_last and size % sampler.num_replicas:
        notice(
            f"DistributedSampler(drop_last=True) drops {size - sampler.total_size:,} of {size:,} examples; with "
            "drop_last=False it repeats some instead, which are counted once."
        )
    if sampler.num_samples % batch_size:
        notice(f"the loader's drop_last=True drops {sampler.num_samples % batch_size} examples of each rank.")


def dealing(source: Any) -> dict[str, Any]:
    """How the sampler distributes the data; it must be the same on all ranks."""
    sampler = sampler_of(source)
    if sampler is None:
        return {"DistributedSampler": False}
    order = (sampler.seed, sampler.epoch) if sampler.shuffle else None
    return {
        "DistributedSampler": True,
        "size": len(sampler.dataset),  # type: ignore[arg-type]
        "order (seed, epoch)": order,
        "drop_last": sampler.drop_last,
    }
