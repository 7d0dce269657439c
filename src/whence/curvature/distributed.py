"""The ranks of a process group: they agree on what is done, fail together, and add up their sums.

Ranks talk only at meetings. A meeting tells every rank whether all the others have come that far, so that a rank
that fails makes the others stop instead of wait; between two meetings each works for itself.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from whence.batches import map_tensors
from whence.curvature.record import SUMS, FitRecord
from whence.curvature.signals import Signal
from whence.errors import BadData, BadOption, RankFailed, RanksDiffer
from whence.linalg.structures import Ekfac, Structure

P = ParamSpec("P")
T = TypeVar("T")

EXAMPLES = 2**40  # numbers of examples that each rank has for itself, where there are none for the whole
START = (
    "Start the script with torchrun --nproc-per-node=2 script.py and call torch.distributed.init_process_group() "
    "in it first."
)


class Ranks:
    """The processes that work together; one alone where there is no process group."""

    def __init__(self, group: Any = None) -> None:
        self.group, self.rank, self.size = group, 0, 1
        self.over = False  # all ranks know that it failed
        if group is not None:
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @classmethod
    def of(cls, group: Any) -> Ranks:
        """The front door's ``process_group``: None, a group, or True or ``"world"`` for the default one."""
        if isinstance(group, Ranks):
            return group
        if group is None or group is False:
            return cls()
        if not dist.is_available():
            raise BadOption("process_group was given, but this build of torch has no distributed package.")
        if isinstance(group, str) and group != "world":
            raise BadOption(f"process_group={group!r} is neither a torch process group, True nor 'world'.")
        if not dist.is_initialized():
            raise BadOption(f"process_group was given, but no process group is initialised. {START}")
        group = dist.group.WORLD if group is True or group == "world" else group
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise BadOption("this process is not a member of the process group; call only from those that are.")
        try:
            ranks = cls(group)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise BadOption(
                f"process_group is a {type(group).__name__}, not a torch process group of this process ({error})."
            ) from error
        if ranks.rank < 0:
            raise BadOption("this process is not a member of the process group; call only from those that are.")
        return ranks

    @property
    def alone(self) -> bool:
        return self.group is None

    # Meetings

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What goes wrong inside on one rank is told to the others, which raise :class:`RankFailed`."""
        if self.alone:
            yield
            return
        try:
            yield
            self.meet("finishing")
        except Exception as error:
            if not self.over:
                self.over = True
                self._tell(error)
            raise

    def meet(self, doing: str, value: Any = None) -> list[Any]:
        """Wait for all ranks; the values that they bring, by rank. Raises if one of them failed."""
        if self.alone:
            return [value]
        found = self._gathered((True, doing, value), doing)
        for rank, (fine, _, brought) in enumerate(found):
            if not fine:
                self.over = True
                raise RankFailed(f"rank {rank} failed, so that this one (rank {self.rank}) stops too: {brought}")
        for rank, (_, where, _) in enumerate(found):
            if where != found[0][1]:
                self.differ(f"rank {rank} is {where} while rank 0 is {found[0][1]}; they must make the same calls")
        return [brought for _, _, brought in found]

    def _tell(self, error: Exception) -> None:
        with suppress(RankFailed):  # they are gone already
            self._gathered((False, "", f"{type(error).__name__}: {error}"), "telling the others")

    def _gathered(self, value: Any, doing: str) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._talk(doing, lambda: dist.all_gather_object(found, value, group=self.group))
        return found

    def _talk(self, doing: str, collective: Callable[[], Any]) -> None:
        """A collective call; one that breaks off is put into words."""
        try:
            collective()
        except RuntimeError as error:
            self.over = True
            why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise RankFailed(
                f"rank {self.rank} lost another rank while {doing}: its process ended, or it took longer than the "
                f"timeout of the process group ({why}). The output of the other ranks says why; "
                "torch.distributed.init_process_group(timeout=…) allows more time."
            ) from error

    def differ(self, how: str) -> None:
        """Raise on all ranks, which must all have seen it."""
        self.over = True
        raise RanksDiffer(f"the ranks of the process group do not do the same: {how}.")

    def agree(self, signature: dict[str, Any], doing: str) -> None:
        """Refuse ranks that differ in anything of the signature, before they add up what does not belong together."""
        found = self.meet(doing, signature)
        for key, wanted in found[0].items():
            for rank, other in enumerate(found):
                if other.get(key) != wanted:
                    self.differ(f"{key} is {_difference(other.get(key), wanted, rank)}")

    # Exchange

    def from_first(self, value: T, doing: str = "sharing what rank 0 has") -> T:
        """Rank 0's value on all ranks; its tensors arrive on the CPU."""
        if self.alone:
            return value
        sent = _pickled(value, doing) if self.rank == 0 else b""  # before the meeting: a failure must not come after
        self.meet(doing)
        return pickle.loads(self.broadcast(sent, 0, doing))  # type: ignore[no-any-return]

    def broadcast(self, value: T, owner: int, doing: str) -> T:
        """The owner's value on all ranks; call it after a meeting."""
        if self.alone:
            return value
        box = [map_tensors(lambda t: t.detach().cpu(), value) if self.rank == owner else None]
        source = dist.get_global_rank(self.group, owner)
        self._talk(doing, lambda: dist.broadcast_object_list(box, src=source, group=self.group))
        return box[0]  # type: ignore[return-value]

    def summed(self, tensor: Tensor) -> Tensor:
        """Σ over ranks; call it after a meeting."""
        if self.alone:
            return tensor
        total = tensor.detach().clone().contiguous()
        self._talk("adding up sums", lambda: dist.all_reduce(total, group=self.group))
        return total

    def summed_structure(self, structure: Structure) -> Structure:
        """The curvature of all ranks' data."""
        if self.alone:
            return structure
        if isinstance(structure, Ekfac):  # its eigenvectors are the same everywhere
            return replace(structure, values=self.summed(structure.values))
        return structure.replaced({key: self.summed(value) for key, value in structure.tensors().items()})

    def summed_signal(self, signal: Signal) -> Signal:
        """What all ranks' data show of a block's inputs."""
        return replace(signal, squares=self.summed(signal.squares), count=self.summed(signal.count))

    def summed_record(self, record: FitRecord, device: torch.device) -> FitRecord:
        """The record of all ranks' data."""
        if self.alone:
            return record
        values = torch.tensor([getattr(record, key) for key in SUMS], dtype=torch.float64, device=device)
        totals = dict(zip(SUMS, self.summed(values).tolist(), strict=True))
        shapes = self.meet("adding up the record", record.output_shape)  # () where no target of a rank counts
        shape = next((s for s in shapes if s), ())
        return replace(record, **{**totals, "seen": int(totals["seen"])}, output_shape=shape)

    def share(self) -> Share | None:
        """For work that is dealt out to the ranks; None where there is one alone."""
        return None if self.alone else Share(self)

    def check_device(self, device: torch.device) -> None:
        """NCCL moves nothing but what lies on a GPU."""
        if not self.alone and dist.get_backend(self.group) == "nccl" and device.type != "cuda":
            raise BadOption(
                f"the process group uses NCCL, which needs the network on a GPU, and it is on {device}. Pass device=…, "
                "or initialise the group with backend='gloo' (or 'cpu:gloo,cuda:nccl')."
            )


class Share:
    """Jobs that are dealt out to the ranks: do your own, then exchange all of them in order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.rank, self.size = ranks, ranks.rank, ranks.size

    def assign(self, costs: Sequence[float]) -> list[int]:
        """The owner of each job: the dearest first, each to the rank that has least to do."""
        loads, owners = [0.0] * self.size, [0] * len(costs)
        for job in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            owner = min(range(self.size), key=lambda r: (loads[r], r))
            owners[job], loads[owner] = owner, loads[owner] + costs[job]
        return owners

    def exchange(self, owner: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The owner's tensors on all ranks; the others pass empty ones of the same shapes and types."""
        ranks = self._ranks
        ranks.meet("sharing decompositions")  # an owner that failed does not come to the broadcast
        source = dist.get_global_rank(ranks.group, owner)
        sent = []
        for tensor in tensors:
            tensor = tensor.detach().contiguous()
            ranks._talk("sharing decompositions", lambda t=tensor: dist.broadcast(t, src=source, group=ranks.group))  # type: ignore[misc]
            sent.append(tensor)
        return sent


def together(verb: Callable[P, T]) -> Callable[P, T]:
    """A verb whose ``process_group`` becomes :class:`Ranks`, and whose ranks fail together."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        ranks = Ranks.of(kwargs.get("process_group"))
        kwargs["process_group"] = ranks
        with ranks.guarded():
            return verb(*args, **kwargs)

    return run


def _pickled(value: Any, doing: str) -> bytes:
    """As it is sent, with tensors on the CPU."""
    try:
        return pickle.dumps(map_tensors(lambda t: t.detach().cpu(), value))
    except Exception as error:
        raise BadData(
            f"what the other ranks need cannot be pickled while {doing} ({type(error).__name__}: {error}). Pass "
            "tensors and plain values."
        ) from error


def _difference(theirs: Any, mine: Any, rank: int) -> str:
    """In words; of mappings the first entry that differs."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in [*mine, *theirs]:
            if theirs.get(key) != mine.get(key):
                return f"{theirs.get(key)!r} for {key!r} on rank {rank} and {mine.get(key)!r} on rank 0"
    return f"{theirs!r} on rank {rank} and {mine!r} on rank 0"
