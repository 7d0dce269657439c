"""The ranks of a process group: they agree on the work, fail together, and add up their sums.

Ranks exchange messages only when they synchronise. There each learns whether the others have come that far, so
that the failure of one rank stops the others instead of leaving them waiting.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from whence.engine.batches import map_tensors
from whence.errors import BadData, BadOption, RankFailed, RanksDiffer

P = ParamSpec("P")
T = TypeVar("T")

EXAMPLES = 2**40  # range of example indices per rank, if there are no global indices
START = (
    "Start the script with torchrun --nproc-per-node=2 script.py and call torch.distributed.init_process_group() "
    "in it first."
)


class Ranks:
    """The processes of a process group; a single one if there is no group."""

    def __init__(self, group: Any = None) -> None:
        self.group, self.rank, self.size = group, 0, 1
        self.over = False  # all ranks know of the failure
        if group is not None:
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @classmethod
    def of(cls, group: Any) -> Ranks:
        """Ranks for the public option ``process_group``: None, a group, or True or ``"world"`` for the default one."""
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
            raise BadOption("this process is not a member of the process group; call it only from members.")
        try:
            ranks = cls(group)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise BadOption(
                f"process_group is a {type(group).__name__}, not a torch process group of this process ({error})."
            ) from error
        if ranks.rank < 0:
            raise BadOption("this process is not a member of the process group; call it only from members.")
        return ranks

    @property
    def alone(self) -> bool:
        return self.group is None

    # Synchronising

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Report an error on this rank to the others, which raise :class:`RankFailed`."""
        if self.alone:
            yield
            return
        try:
            yield
            self.synchronise("finishing")
        except Exception as error:
            if not self.over:
                self.over = True
                self._tell(error)
            raise

    def synchronise(self, doing: str, value: Any = None) -> list[Any]:
        """Wait for all ranks and return their values by rank; raise if one of them failed."""
        if self.alone:
            return [value]
        found = self._gathered((True, doing, value), doing)
        for rank, (fine, _, brought) in enumerate(found):
            if not fine:
                self.over = True
                raise RankFailed(f"rank {rank} failed, so this rank ({self.rank}) stops too: {brought}")
        for rank, (_, where, _) in enumerate(found):
            if where != found[0][1]:
                self.differ(f"rank {rank} is {where} while rank 0 is {found[0][1]}; they must make the same calls")
        return [brought for _, _, brought in found]

    def _tell(self, error: Exception) -> None:
        with suppress(RankFailed):  # the others have already ended
            self._gathered((False, "", f"{type(error).__name__}: {error}"), "telling the others")

    def _gathered(self, value: Any, doing: str) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._talk(doing, lambda: dist.all_gather_object(found, value, group=self.group))
        return found

    def _talk(self, doing: str, collective: Callable[[], Any]) -> None:
        """Run a collective call, with an error that explains a lost rank."""
        try:
            collective()
        except RuntimeError as error:
            self.over = True
            why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise RankFailed(
                f"rank {self.rank} lost another rank while {doing}: its process ended, or it took longer than the "
                f"timeout of the process group ({why}). See the output of the other ranks; "
                "torch.distributed.init_process_group(timeout=…) allows more time."
            ) from error

    def differ(self, how: str) -> None:
        """Raise an error; every rank must call this."""
        self.over = True
        raise RanksDiffer(f"the ranks of the process group differ: {how}.")

    def agree(self, signature: dict[str, Any], doing: str) -> None:
        """Refuse ranks whose signatures differ, before their sums are added up."""
        found = self.synchronise(doing, signature)
        for key, wanted in found[0].items():
            for rank, other in enumerate(found):
                if other.get(key) != wanted:
                    self.differ(f"{key} is {_difference(other.get(key), wanted, rank)}")

    # Exchange

    def from_first(self, value: T, doing: str = "sharing rank 0's values") -> T:
        """Rank 0's value on all ranks; its tensors arrive on the CPU."""
        if self.alone:
            return value
        sent = (
            _pickled(value, doing) if self.rank == 0 else b""
        )  # first: a failure must not come after the others have synchronised
        self.synchronise(doing)
        return pickle.loads(self.broadcast(sent, 0, doing))  # type: ignore[no-any-return]

    def broadcast(self, value: T, owner: int, doing: str) -> T:
        """The owner's value on all ranks; call it after ``synchronise``."""
        if self.alone:
            return value
        box = [map_tensors(lambda t: t.detach().cpu(), value) if self.rank == owner else None]
        source = dist.get_global_rank(self.group, owner)
        self._talk(doing, lambda: dist.broadcast_object_list(box, src=source, group=self.group))
        return box[0]  # type: ignore[return-value]

    def summed(self, tensor: Tensor) -> Tensor:
        """Σ over ranks; call it after ``synchronise``."""
        if self.alone:
            return tensor
        total = tensor.detach().clone().contiguous()
        self._talk("adding up sums", lambda: dist.all_reduce(total, group=self.group))
        return total

    def sharing(self) -> WorkSharing | None:
        """Work sharing between the ranks; None for a single rank."""
        return None if self.alone else WorkSharing(self)

    def check_device(self, device: torch.device) -> None:
        """Refuse NCCL for a network that is not on a GPU."""
        if not self.alone and dist.get_backend(self.group) == "nccl" and device.type != "cuda":
            raise BadOption(
                f"the process group uses NCCL, which needs the network on a GPU, but it is on {device}. Pass device=…, "
                "or initialise the group with backend='gloo' (or 'cpu:gloo,cuda:nccl')."
            )


class WorkSharing:
    """Jobs divided between the ranks: each rank does its own, then the results are exchanged in order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.rank, self.size = ranks, ranks.rank, ranks.size

    def assign(self, costs: Sequence[float]) -> list[int]:
        """The owner of each job: the most expensive first, each to the rank with the least work."""
        loads, owners = [0.0] * self.size, [0] * len(costs)
        for job in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            owner = min(range(self.size), key=lambda r: (loads[r], r))
            owners[job], loads[owner] = owner, loads[owner] + costs[job]
        return owners

    def exchange(self, owner: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The owner's tensors on all ranks; the others pass empty tensors of the same shapes and dtypes."""
        ranks = self._ranks
        ranks.synchronise("sharing decompositions")  # an owner that failed does not reach the broadcast
        source = dist.get_global_rank(ranks.group, owner)
        sent = []
        for tensor in tensors:
            tensor = tensor.detach().contiguous()
            ranks._talk("sharing decompositions", lambda t=tensor: dist.broadcast(t, src=source, group=ranks.group))  # type: ignore[misc]
            sent.append(tensor)
        return sent


def on_all_ranks(verb: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: ``process_group`` becomes :class:`Ranks`, and its ranks fail together."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        ranks = Ranks.of(kwargs.get("process_group"))
        kwargs["process_group"] = ranks
        with ranks.guarded():
            return verb(*args, **kwargs)

    return run


def _pickled(value: Any, doing: str) -> bytes:
    """Pickle a value for the other ranks, with tensors on the CPU."""
    try:
        return pickle.dumps(map_tensors(lambda t: t.detach().cpu(), value))
    except Exception as error:
        raise BadData(
            f"a value for the other ranks cannot be pickled while {doing} ({type(error).__name__}: {error}). Pass "
            "tensors and plain values."
        ) from error


def _difference(theirs: Any, mine: Any, rank: int) -> str:
    """The difference in words; for mappings the first entry that differs."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in [*mine, *theirs]:
            if theirs.get(key) != mine.get(key):
                return f"{theirs.get(key)!r} for {key!r} on rank {rank} and {mine.get(key)!r} on rank 0"
    return f"{theirs!r} on rank {rank} and {mine!r} on rank 0"
