"""A group of one rank, on the CPU and, where there is one, on a GPU with NCCL; and a checkpoint there."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import whence
from tests.comparison import assert_close
from tests.curvature import distributed_work as work
from tests.curvature.distributed_seeds import Batches, Killed
from whence.errors import BadOption

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
PLACES = [("gloo", "cpu"), pytest.param(("nccl", "cuda"), marks=CUDA)]


@pytest.fixture(params=PLACES, ids=["gloo", "nccl"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    backend, place = request.param
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=timeout)
    yield place
    dist.destroy_process_group()


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full", "lowrank"])
def test_one_rank_is_one_process(device: str, structure: str) -> None:
    model, x, y = work.small()
    options: dict[str, Any] = {"likelihood": "classification", "structure": structure, "device": device, "rank": 10}
    wanted = whence.laplace(model, (x, y), **options)
    loader = work.dealt(x, y, 0, 1, 4)
    got = whence.laplace(model, loader, process_group=True, validation=(x, y), **options).with_prior(whence.Relative())
    got = got.with_data_scale(1.0)
    assert_close(got.covariance(), wanted.covariance(), 1e-6)
    more = got.update(loader, process_group=True) if structure in ("kron", "diag", "full") else None
    assert more is None or more.record.data_size == 2 * len(y)


def test_members_and_methods(device: str) -> None:
    _, x, y = work.small()
    ensemble = work.ensemble(process_group=True, device=device, vectorised=False)
    assert [p.device.type for p in ensemble.networks()[0].parameters()] == [device] * 4
    alone = work.ensemble(device=device, vectorised=False)
    for mine, its in zip(ensemble.networks(), alone.networks(), strict=True):
        one, other = (nn.utils.parameters_to_vector(n.parameters()).detach() for n in (mine, its))
        assert_close(one, other)
    found = whence.compare({"ensemble": ensemble, "alone": alone}, (x, y), process_group=True, progress=False)
    assert found["ensemble"]["nll"] == pytest.approx(found["alone"]["nll"])


@CUDA
def test_nccl_needs_a_gpu(tmp_path: Path) -> None:
    model, x, y = work.small()
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(BadOption, match="NCCL, which needs the network on a GPU"):
            whence.laplace(model, (x, y), likelihood="classification", process_group=True)
    finally:
        dist.destroy_process_group()


@CUDA
@pytest.mark.parametrize("name", ["kron", "ekfac", "lowrank", "kfra", "hessian"])
def test_a_killed_fit_goes_on_there(name: str, tmp_path: Path) -> None:
    """To rounding: a GPU adds in any order."""
    from tests.curvature.test_checkpoint import quiet, setting

    model, batches, options = setting(name)
    options |= {"device": "cuda"}
    file = {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)}
    with pytest.raises(Killed):
        quiet(model, Batches(batches, 4), **options, **file)
    again = quiet(model, batches, **options, **file)
    assert_close(again.covariance(), quiet(model, batches, **options).covariance(), 1e-6)
