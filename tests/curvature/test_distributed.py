"""Two ranks, each with half of the data, give what one fit on all of it gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

import whence
from tests.comparison import assert_close, likelihood_of
from tests.reference.networks import ALL

FITS = [
    ("conv2d", {"structure": "kron"}),
    ("conv2d", {"structure": "ekfac"}),
    ("mlp", {"structure": "full"}),
    ("mlp", {"structure": "lowrank", "rank": 10}),
    ("mlp", {"structure": "kron", "curvature": "kfra"}),
    ("embedding", {"structure": "diag"}),
    ("mlp", {"structure": "full", "curvature": "hessian", "prior_precision": 100.0}),
    ("regression_2", {"structure": "block", "likelihood": "regression"}),
]


def fit(name: str, options: dict, part: slice, **more) -> whence.Laplace:
    case = ALL[name](0)
    given = {"likelihood": likelihood_of(case), **options, **more}
    batches = [(case.x[n : n + 1], case.y[n : n + 1]) for n in range(len(case.y))[part]]
    return whence.laplace(case.model, batches, **given)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        for i, (name, options) in enumerate(FITS):
            posterior = fit(name, options, slice(rank, None, 2), process_group=dist.group.WORLD)
            torch.save((posterior.covariance(), posterior.record.loss), f"{folder}/{i}-{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")
def test_ranks_add_up(tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(worker, args=(str(tmp_path),), nprocs=2)
    for i, (name, options) in enumerate(FITS):
        whole = fit(name, options, slice(None))
        for rank in (0, 1):
            covariance, loss = torch.load(tmp_path / f"{i}-{rank}.pt")
            assert_close(covariance, whole.covariance(), 1e-6 if options["structure"] == "lowrank" else 1e-9)
            assert loss == pytest.approx(whole.record.loss)
