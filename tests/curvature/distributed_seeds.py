"""What two ranks do about seeds and checkpoints of a sampled Fisher, and about what cannot be sent."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

import whence
from whence.engine.ranks import Ranks
from whence.errors import Notice


class Killed(BaseException):
    """Nothing catches it on the way."""


class Batches:
    """Data that raise ``error`` before the ``at``-th batch of all passes together."""

    def __init__(self, data: Any, at: int | None = None, error: type[BaseException] = Killed) -> None:
        self.data, self.at, self.error, self.given = data, at, error, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            if self.given == self.at:
                raise self.error
            self.given += 1
            yield batch

    def __len__(self) -> int:
        return len(self.data)


def setting() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (12,), generator=generator)


def batches_of(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[n : n + 2], y[n : n + 2]) for n in range(0, len(y), 2)]


def fitted(data: Any, **options: Any) -> whence.Laplace:
    model, _, _ = setting()
    options = {"likelihood": "classification", "progress": False, "prior_precision": 1.0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, **options)


def attempt(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sampled(rank: int, folder: Path, lost: int, seeds: tuple[int, int], again: tuple[int, int] | None) -> Any:
    """A sampled Fisher that fails on rank 1, goes on without the file of rank ``lost``, and one that did not fail."""
    _, x, y = setting()
    parts = batches_of(x, y)[rank::2]
    path = folder / f"lost{lost}{seeds}{again}.safetensors"
    file: dict[str, Any] = {"execution": whence.Execution(checkpoint=path, checkpoint_every=0)}
    common: dict[str, Any] = {"structure": "kron", "curvature": "mc", "process_group": True}

    def generator(of: tuple[int, int] | None) -> dict[str, Any]:
        return {} if of is None else {"generator": torch.Generator().manual_seed(of[rank])}

    wanted = fitted(parts, **common, **generator(seeds)).covariance()
    at = 2 if rank == 1 else None
    attempt(lambda: fitted(Batches(parts, at, ValueError), **common, **generator(seeds), **file))
    found = sorted(folder.glob(f"{path.stem}*"))
    dist.barrier()
    if rank == lost:
        found[rank].unlink()
    dist.barrier()
    got = attempt(lambda: fitted(parts, **common, **generator(again), **file).covariance())
    return {"files": len(found), "got": got, "wanted": wanted}


def seeds_differ(rank: int, folder: Path) -> Any:
    """Files of two fits."""
    _, x, y = setting()
    parts = batches_of(x, y)[rank::2]
    kept = {}
    for seed in (1, 2):
        path = folder / f"differ{seed}.safetensors"
        execution = whence.Execution(checkpoint=path, checkpoint_every=0)
        options: dict[str, Any] = {
            "structure": "kron",
            "curvature": "mc",
            "process_group": True,
            "execution": execution,
        }
        generator = torch.Generator().manual_seed(seed)
        data = Batches(parts, 2 if rank == 1 else None, ValueError)
        attempt(functools.partial(fitted, data, **options, generator=generator))
        kept[seed] = sorted(folder.glob(f"differ{seed}*"))
    dist.barrier()
    if rank == 1:
        os.replace(kept[2][1], kept[1][1])
    dist.barrier()
    path = folder / "differ1.safetensors"
    return attempt(
        lambda: fitted(
            parts, structure="kron", curvature="mc", process_group=True, execution=whence.Execution(checkpoint=path)
        )
    )


def unpicklable(rank: int) -> Any:
    ranks = Ranks.of(True)

    def job() -> None:
        with ranks.guarded():
            ranks.from_first({"lock": threading.Lock()} if rank == 0 else None)

    return attempt(job)


def sent(rank: int) -> Any:
    return Ranks.of(True).from_first({"x": torch.arange(3), "n": 2} if rank == 0 else None)


def ignored(rank: int) -> Any:
    """All labels of rank 1 are left out."""
    _, x, y = setting()
    data = (x, y) if rank == 0 else (x, torch.full_like(y, -100))
    likelihood = whence.Categorical(ignore_index=-100)
    return fitted(data, structure="diag", likelihood=likelihood, process_group=True).record.output_shape


def seeds(rank: int, ranks: int, folder: str) -> dict[str, Any]:
    """All of it, by name."""
    files = Path(folder)
    jobs: dict[str, Callable[[], Any]] = {
        "sent": lambda: sent(rank),
        "unpicklable": lambda: unpicklable(rank),
        "ignored": lambda: ignored(rank),
        "lost 0": lambda: sampled(rank, files, 0, (7, 7), None),
        "lost 1": lambda: sampled(rank, files, 1, (7, 8), (7, 8)),
        "per rank": lambda: sampled(rank, files, -1, (7, 8), (7, 8)),
        "others": lambda: sampled(rank, files, 0, (7, 8), (9, 8)),
        "differ": lambda: seeds_differ(rank, files),
    }
    return {name: attempt(job) for name, job in jobs.items()}
