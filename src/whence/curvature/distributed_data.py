"""A rank's part of a data set that a ``DistributedSampler`` deals out, each example counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from whence.batches import Batch, size_of, take
from whence.curvature.distributed import Ranks
from whence.errors import BadData, BadOption, EmptyData, notice


@dataclass(frozen=True)
class Part:
    """Example k of a rank is number ``rank`` + k · ``ranks`` of the order; those past ``size`` are repeats."""

    rank: int
    ranks: int
    size: int  # of the data set
    dealt: int  # examples that the sampler gives this rank, repeats included
    batch_size: int

    @property
    def count(self) -> int:
        """Examples of this rank that are no repeats."""
        return min(self.dealt, max(0, -(-(self.size - self.rank) // self.ranks)))

    def once(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without repeats, their examples numbered in the whole data set."""
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
                f"the {self.size} examples are too few for {self.ranks} ranks: this one has repeats only. Use fewer "
                "processes."
            )

    def _check(self, index: int, seen: int, size: int) -> None:
        """One example for each index that the sampler gave, or the repeats cannot be told from the rest."""
        wanted = min(self.batch_size, self.dealt - seen)
        if size != wanted:
            raise BadData(
                f"batch {index} holds {size} examples where the DistributedSampler gave {wanted}, so that its repeats "
                "cannot be found. Let the loader give one example for each index, or give each rank a part of the "
                "data of its own, without this sampler."
            )


def _cut(batch: Batch, most: int) -> Batch:
    """At most the first ``most`` examples."""
    if size_of(batch.inputs) <= most:
        return batch
    first = slice(0, most)
    counted = None if batch.counted is None else batch.counted[first]
    return replace(batch, inputs=take(batch.inputs, first), targets=batch.targets[first], counted=counted)


def sampler_of(source: Any) -> DistributedSampler | None:
    """The ``DistributedSampler`` of a loader, wherever it stands."""
    if not isinstance(source, DataLoader):
        return None
    for outer in (source.batch_sampler, source.sampler):
        for sampler in (outer, getattr(outer, "sampler", None)):
            if isinstance(sampler, DistributedSampler):
                return sampler
    return None


def _batch_size(source: DataLoader, sampler: DistributedSampler) -> int | None:
    """Indices in a batch; None where the sampler or what stands around it deals out in a way of its own."""
    outer: Any = source.sampler if source.batch_sampler is None else source.batch_sampler
    plain = type(sampler).__iter__ is DistributedSampler.__iter__ and type(outer) is BatchSampler
    return int(outer.batch_size) if plain and outer.sampler is sampler else None


def part_of(source: Any, ranks: Ranks) -> Part | None:
    """This rank's part, where a loader's sampler is known to give it one."""
    sampler = sampler_of(source)
    if sampler is None:
        return None
    if ranks.alone:
        if sampler.num_replicas > 1:
            notice(
                f"the DistributedSampler gives this process one of {sampler.num_replicas} parts of the data, and "
                "nothing else is seen without process_group=True."
            )
        return None
    if (sampler.num_replicas, sampler.rank) != (ranks.size, ranks.rank):
        raise BadOption(
            f"the DistributedSampler is for rank {sampler.rank} of {sampler.num_replicas}, and this is rank "
            f"{ranks.rank} of {ranks.size} of the process group. Make it with num_replicas={ranks.size} and "
            f"rank={ranks.rank}."
        )
    size, batch_size = len(sampler.dataset), _batch_size(source, sampler)  # type: ignore[arg-type]
    if batch_size is None:
        if size % ranks.size and not sampler.drop_last:
            notice(
                f"{size} examples do not divide by {ranks.size} ranks, and {type(sampler).__name__} does not deal them "
                "out in a way that whence knows: examples that it repeats are counted twice. Use torch's "
                "DistributedSampler, or give each rank a part of its own."
            )
        return None
    _say_dropped(size, sampler, batch_size if source.drop_last else 1)
    return Part(ranks.rank, ranks.size, size, sampler.num_samples, batch_size)


def _say_dropped(size: int, sampler: DistributedSampler, batch_size: int) -> None:
    """One line on what no rank sees."""
    if sampler.drop_last and size % sampler.num_replicas:
        notice(
            f"DistributedSampler(drop_last=True) leaves out {size - sampler.total_size} of {size} examples; with "
            "drop_last=False it repeats some instead, and these are counted once."
        )
    if sampler.num_samples % batch_size:
        notice(f"the loader's drop_last=True leaves out {sampler.num_samples % batch_size} examples of each rank.")


def dealing(source: Any) -> dict[str, Any]:
    """How the data are dealt out; ranks that differ in it would miss examples or count them twice."""
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
