"""Memory: chunk sizes, and how work continues in smaller chunks when memory runs out.

Sizes chosen in advance are in :class:`Sizes`. If an allocation still fails, the work is repeated in
halves until it fits (:func:`in_parts_that_fit`). :func:`remembered` caches a result as long as its argument exists.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from whence.errors import TooLarge, is_out_of_memory, notice

T = TypeVar("T")
R = TypeVar("R")
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Sizes:
    """How much is computed or kept at a time, which changes results by rounding only, and which method is used from
    which size on. Numbers are bytes where nothing else is said.
    """

    intermediate: int = 64 * MIB  # one intermediate tensor on a CPU
    cuda_intermediate: int = 2 * GIB
    columns: int = 32 * MIB  # gradients in one backward pass on a CPU; more would not fit the cache
    patches: int = 16 * MIB  # convolution patches computed at a time on a CPU
    tangents: int = 96 * MIB  # activations of one forward-mode pass on a CPU; tensors above some 16 MiB are far slower
    cuda_tangents: int = 8 * GIB
    prediction: int = 32 * MIB  # gradients of one piece of a linearised prediction; more is hardly faster
    cuda_prediction: int = 72 * MIB
    covariance: int = 64 * MIB  # output covariance that a prediction keeps; larger ones are recomputed
    joint: int = 4 * GIB  # limit on Jacobian and covariance of a joint prediction
    features: int = 4 * GIB  # rows of training examples that a posterior over functions keeps
    validation: int = 512 * MIB  # projections and covariances that tuning keeps
    cuda_validation: int = 8 * GIB
    drawn_validation: int = 2 * GIB  # outputs along directions that tuning keeps on a CPU
    priors: int = 8 * MIB  # products of gradients under many priors, on a CPU
    cuda_priors: int = 512 * MIB
    decomposition: int = GIB  # matrices that are decomposed in one call, in float64
    dense_curvature: int = 6 * GIB  # dense curvature, at the most
    dense_covariance: int = 2 * GIB  # a dense covariance of all weights, at the most
    probes: int = GIB  # gradients that are looked at on the first batch
    checked: int = 4 * MIB  # numbers that are checked for NaN at a time
    hessian_rows: int = 64  # rows of a Hessian in one backward pass
    directions: int = 16  # directions that a low-rank fit sends through the network together
    directions_drawn: int = GIB  # directions of a linearised prediction that are drawn at a time
    shuffled: int = 256 * MIB  # examples that are shuffled, augmented and normalised at once
    shuffled_examples: int = 16_384  # the same, by their number

    # Products: longer sums in float32 lose digits.
    rows: int = 32_768  # rows in one product on a CPU
    split_rows: int = 1024  # rows in one product on tensor cores, of numbers split in two
    split_products: int = 512 * MIB  # such products that are kept until they are added

    # Eigendecompositions, by the size of the matrix.
    double: int = 2048  # in float64 up to this size on a CPU
    cuda_double: int = 512
    on_cpu: int = 96  # those of a GPU, on the CPU up to this size

    # Structures, by the number of parameters.
    dense_block: int = 512  # a block without a Kronecker rule is kept dense up to this size
    call_by_call: int = 2**23  # the diagonal of a tied weight is summed call by call above this size

    # Work.
    reduction: int = 0  # terms that a long sum of products adds up at a time, on a CPU; 0: all
    cuda_reduction: int = 4096  # kernels for small results of long sums keep few processors busy
    exact: int = 2 * 10**12  # multiplications up to which all outputs are differentiated on a CPU: half a minute
    cuda_exact: int = 2 * 10**14
    exact_memory: int = 2 * GIB  # gradients of one input up to which shares are exact on a CPU
    cuda_exact_memory: int = 16 * GIB
    questions: int = 1  # about the same inputs, that share this work: an audit asks many

    def one_tensor(self, device: torch.device) -> int:
        """Bytes that one intermediate tensor may take on a device."""
        return self.cuda_intermediate if device.type == "cuda" else self.intermediate

    def forward_mode(self, device: torch.device) -> int:
        """Bytes that the activations of one forward-mode pass may take on a device."""
        return self.cuda_tangents if device.type == "cuda" else self.tangents

    def summed_together(self, device: torch.device) -> int:
        """Terms of a long sum that are added up at a time; 0 for all."""
        return self.cuda_reduction if device.type == "cuda" else self.reduction

    def exact_work(self, device: torch.device) -> int:
        """Multiplications up to which a prediction is exact."""
        return self.cuda_exact if device.type == "cuda" else self.exact

    def exact_shares(self, device: torch.device) -> int:
        """Multiplications up to which shares and novelty are exact."""
        return self.exact_work(device) // self.questions

    def exact_bytes(self, device: torch.device) -> int:
        """Bytes of one input's gradients up to which shares and novelty are exact."""
        return self.cuda_exact_memory if device.type == "cuda" else self.exact_memory


_sizes: ContextVar[Sizes] = ContextVar("sizes", default=Sizes())  # noqa: B039


def sizes() -> Sizes:
    """The current sizes."""
    return _sizes.get()


@contextlib.contextmanager
def with_sizes(**changes: int) -> Iterator[None]:
    """Change sizes inside a ``with`` block."""
    token = _sizes.set(replace(_sizes.get(), **changes))
    try:
        yield
    finally:
        _sizes.reset(token)


def chunks(total: int, bytes_each: int, device: torch.device) -> Iterator[slice]:
    """Slices of ``range(total)`` whose elements fit into one intermediate tensor."""
    step = max(1, int(sizes().one_tensor(device) // max(bytes_each, 1)))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def available(device: torch.device) -> int | None:
    """Free bytes on a device; None if unknown."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)  # torch 2.8
        return int(min(free + torch.cuda.memory_reserved(device), fraction * whole) - held)
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def readable(count: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / MIB:.1f} MiB"


# When an allocation fails


def release(device: torch.device) -> None:
    """Free the memory of a failed computation."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def none_if_out_of_memory(compute: Callable[[], T]) -> T | None:
    """The result, or None if memory ran out; the failed computation is then released."""
    try:
        return compute()
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise


@dataclass
class ChunkLimits:
    """Chunk sizes learned from failed allocations: columns are halved first, then examples."""

    examples: int | None = None  # None: no limit
    columns: int | None = None
    under_way: int = 0  # columns being computed; 0 before the first
    ran_out: tuple[int, int] | None = None  # examples and columns at the first failure

    def halve(self, examples: int) -> bool:
        """Halve after a failure with ``examples`` examples; False if nothing is left to halve."""
        self.ran_out = self.ran_out or (examples, self.under_way)
        if self.under_way > 1:
            self.columns = self.under_way // 2
        elif examples > 1:
            self.examples = examples // 2
        else:
            return False
        return True

    def notify(self, what: str, unit: str = "root column") -> None:
        """Give a notice of the chunk sizes, if they were reduced."""
        if self.ran_out is None:
            return
        examples, columns = self.ran_out
        chosen = []
        if self.columns is not None:
            chosen.append(f"{self.columns} {unit}{'s' * (self.columns > 1)} (not {columns or 'more'})")
        if self.examples is not None:
            chosen.append(f"{self.examples} example{'s' * (self.examples > 1)} (not {examples})")
        notice(
            f"{what} ran out of memory and continued with {' and '.join(chosen)} at a time; the result is the same. "
            "Smaller batches avoid the failed attempts."
        )


def in_parts_that_fit(
    whole: T,
    compute: Callable[[T], R],
    *,
    limits: ChunkLimits,
    size: Callable[[T], int],
    split: Callable[[T, int], Sequence[T]],
    device: torch.device,
    too_large: Callable[[T], str],
) -> Iterator[R]:
    """``compute(whole)``, or ``compute`` of its parts in order, halved whenever memory runs out.

    ``split(part, n)`` splits a part into pieces of at most n examples. A computation over columns reads
    ``limits.columns`` and sets ``limits.under_way``; it is repeated with fewer columns before examples are split.
    """
    waiting = [whole]
    while waiting:
        part = waiting.pop()
        if limits.examples is not None and size(part) > limits.examples:
            waiting += reversed(split(part, limits.examples))
            continue
        limits.under_way = 0
        done: list[R] = []
        try:
            done.append(compute(part))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        if done:
            yield done.pop()
            continue
        release(device)
        if not limits.halve(size(part)):
            raise TooLarge(too_large(part))
        waiting.append(part)


K = TypeVar("K")
V = TypeVar("V")


def remembered(function: Callable[[K], V]) -> Callable[[K], V]:
    """Cache a function of one object, by identity; the object may be frozen."""
    known: weakref.WeakKeyDictionary[K, V] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def call(owner: K) -> V:
        if owner not in known:
            known[owner] = function(owner)
        return known[owner]

    return call
