"""Ranks that each have a part of the data give what one process on all of it gives; and they fail together."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import whence
from tests.comparison import assert_close
from tests.curvature import distributed_work as work
from tests.processes import process
from whence.engine.ranks import Ranks, WorkSharing

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")

Found = dict[str, list[Any]]


def found_by(ranks: int, temporary: pytest.TempPathFactory) -> Found:
    """What the ranks found, by piece of work and rank; started once for all workers of a test run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = temporary.mktemp("ranks")
        start(ranks, folder)
        return read(ranks, folder)
    folder = temporary.getbasetemp().parent / f"ranks-{ranks}"
    done = folder.with_suffix(".done")
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(2000):
            if done.exists():
                break
            time.sleep(0.1)
    else:
        start(ranks, folder)
        done.touch()
    return read(ranks, folder)


def start(ranks: int, folder: Path) -> None:
    """Run the processes to their end."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    started = [process(work.run, rank, ranks, str(folder)) for rank in range(ranks)]
    for one in started:
        one.start()
    for one in started:
        one.join(180)
        if one.is_alive():
            one.kill()


def read(ranks: int, folder: Path) -> Found:
    found: Found = {}
    for path in sorted(folder.glob("*.pt")):
        name, rank = path.stem.rsplit("-", 1)
        values = found.setdefault(name, [None] * ranks)
        values[int(rank)] = torch.load(path, weights_only=False)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by(2, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by(4, tmp_path_factory)


def of(found: Found, name: str) -> list[Any]:
    """What the ranks found; a traceback is a failure."""
    for rank, value in enumerate(found[name]):
        assert not isinstance(value, str), f"rank {rank}: {value}"
    return found[name]


def assert_same(ranks: list[dict[str, Any]], wanted: dict[str, Any], tolerance: float = 1e-9) -> None:
    """Near the answer of one process, and the same bits on all ranks."""
    for got in ranks:
        assert_close(got["covariance"], wanted["covariance"], tolerance)
        assert got["loss"] == pytest.approx(wanted["loss"], rel=1e-9)
        assert got["size"] == wanted["size"]
        assert (got["noise"] or 0.0) == pytest.approx(wanted["noise"] or 0.0, rel=1e-9)
    for got in ranks[1:]:
        assert torch.equal(got["covariance"], ranks[0]["covariance"])
        assert all(torch.equal(a, b) for a, b in zip(got["spectral"], ranks[0]["spectral"], strict=True))
        assert {k: got[k] for k in ("loss", "prior", "scale", "options")} == {
            k: ranks[0][k] for k in ("loss", "prior", "scale", "options")
        }


@pytest.mark.parametrize("name", work.FITS)
def test_ranks_add_up(two: Found, name: str) -> None:
    """Every structure and curvature, with a sampler that repeats an example."""
    wanted = work.numbers(work.whole(name))
    assert wanted["size"] == work.EXAMPLES
    assert_same([found[name] for found in of(two, "fits")], wanted, 1e-6 if "lowrank" in name else 1e-9)


@pytest.mark.parametrize("name", ["kron", "ekfac", "full", "diag_mc", "lowrank", "noise"])
def test_four_ranks_add_up(four: Found, name: str) -> None:
    wanted = work.numbers(work.whole(name))
    assert_same([found[name] for found in of(four, "four")], wanted, 1e-6 if "lowrank" in name else 1e-9)


@pytest.mark.parametrize("name", ["shuffled", "batch_sampler", "no batching", "by hand"])
def test_orders(two: Found, name: str) -> None:
    model, x, y = work.small()
    wanted = work.numbers(whence.laplace(model, (x, y), likelihood="classification"))
    assert_same([found[name] for found in of(two, "orders")], wanted)


def test_tuned_alike(two: Found) -> None:
    model, x, y = work.small()
    wanted = whence.laplace(model, (x, y), likelihood="classification", validation=(x + 0.1, y))
    for found in of(two, "tuned"):
        assert found["prior"] == pytest.approx(wanted.prior_precision.tau, rel=1e-6)
        assert found["scale"] == pytest.approx(wanted.data_scale, rel=1e-6)
    assert_same(of(two, "tuned"), work.numbers(wanted), 1e-6)


def test_more_data(two: Found) -> None:
    """Draws of the second part have the numbers that follow the first."""
    model, x, y = work.small()
    options = {"likelihood": "classification", "generator": torch.Generator().manual_seed(7), "curvature": "mc"}
    wanted = whence.laplace(model, (x[:6], y[:6]), **options).update((x[6:], y[6:]))
    assert_same(of(two, "more_data"), work.numbers(wanted))


def test_wrapped_networks(two: Found) -> None:
    model, x, y = work.small()
    wanted = work.numbers(whence.laplace(model, (x, y), likelihood="classification"))
    for kind in ("ddp", "fsdp", "mixed"):
        assert_same([found[kind] for found in of(two, "wrapped")], wanted)
    for found in of(two, "wrapped"):
        before, after, copied = found["fsdp kinds"]
        assert set(before) == set(after) == {"DTensor"}
        assert copied is nn.Sequential
        assert "a sharded network is True on rank 1 and False on rank 0" in found["one of them"]
        assert "UnsupportedLayer: the weights of '0' (Linear) are sharded over processes" in found["loose"]
        assert "get_model_state_dict" in found["loose"]


def test_members_are_shared_out(two: Found) -> None:
    for option, name, tolerance in ((False, "members", 0.0), ("auto", "side by side", 1e-6)):
        wanted = [n.state_dict() for n in work.ensemble(vectorised=option).networks()]
        for found in of(two, "spread"):
            assert len(found[name]) == 3
            for mine, its in zip(found[name], wanted, strict=True):
                for key, value in its.items():
                    assert_close(mine[key], value, max(tolerance, 1e-12))
        one, other = (found[name] for found in of(two, "spread"))
        assert all(torch.equal(a[k], b[k]) for a, b in zip(one, other, strict=True) for k in a)


def test_members_of_a_mixture_add_up(two: Found) -> None:
    one, other = (found["evidences"] for found in of(two, "spread"))
    assert len(one) == 2
    assert torch.equal(one[:1], other[:1])
    model, x, y = work.small()
    wanted = whence.laplace(model, (x, y), likelihood="classification", prior_precision=1.0).log_evidence()
    assert float(one[0]) == pytest.approx(float(wanted))


def test_comparisons_are_the_same(two: Found) -> None:
    wanted = work.compared()
    one, other = (found["comparison"] for found in of(two, "spread"))
    assert one == other
    assert one == wanted


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("nan", "BadData: data: the inputs of batch 2", "RankFailed: rank 0 failed"),
        (
            "label",
            "BadData: batch 1",
            "RankFailed: rank 1 failed, so this rank (0) stops too: BadData: batch 1",
        ),
        ("bad option", "BadOption: draws=0", "RankFailed: rank 1 failed"),
        (
            "predicate",
            "RuntimeError: a predicate",
            "RankFailed: rank 1 failed, so this rank (0) stops too: Run",
        ),
        ("sampler", "BadOption: the DistributedSampler is for rank 0 of 3, but this is rank", "BadOption"),
        ("collate", "BadData: batch 0 has 4 examples where the DistributedSampler gave 2", "BadData"),
        ("validation part", "BadOption: validation uses a DistributedSampler", "BadOption"),
        ("group", "BadOption: process_group='nccl' is neither", "BadOption: process_group='nccl' is neither"),
        (
            "notice",
            "RuntimeError: DistributedSampler(drop_last=True) drops 1 of 11 examples",
            "RuntimeError: Dist",
        ),
        (
            "own sampler",
            "RuntimeError: 11 examples do not divide by 2 ranks, and Own is not a sampler",
            "RuntimeError: 11",
        ),
        (
            "dropped",
            "RuntimeError: the loader's drop_last=True drops 2 examples of each rank",
            "RuntimeError: the",
        ),
        (
            "unsaid",
            "RuntimeError: the DistributedSampler gives this process only one of 2 parts",
            "RuntimeError: the Dist",
        ),
    ],
)
def test_a_rank_that_fails_stops_all(two: Found, name: str, own: str, others: str) -> None:
    said = [found[name] for found in of(two, "failures")]
    failed = 0 if name == "nan" else 1
    assert said[failed].startswith(own)
    assert said[1 - failed].startswith(others)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", "EmptyData: rank 1 got no data"),
        ("weights", "RanksDiffer: the ranks of the process group differ: the hash of the weights is '"),
        ("dtype", "'[5, 4] torch.float32' for '0.weight' on rank 1 and '[5, 4] torch.float64' on rank 0"),
        ("architecture", "the network is "),
        ("option", "structure is 'diag' on rank 1 and 'kron' on rank 0"),
        ("prior", "prior_precision is 2.0 on rank 1 and 1.0 on rank 0"),
        (
            "selection",
            "RanksDiffer: the ranks of the process group differ: the choice of weights is None for",
        ),
        ("seed", "the data's sampler is (1, 0) for 'order (seed, epoch)' on rank 1 and (0, 0) on rank 0"),
        ("validation", "RanksDiffer: the ranks of the process group differ: the validation score"),
        ("member", "RanksDiffer: the ranks of the process group differ: the hash of the first weights is"),
        ("methods", "RanksDiffer: the ranks of the process group differ: the options is (0,"),
        ("after all", "no error"),
    ],
)
def test_ranks_that_differ_all_say_so(two: Found, name: str, words: str) -> None:
    one, other = (found[name] for found in of(two, "failures"))
    assert one == other
    assert words in one


def test_each_rank_goes_on_from_its_own_file(two: Found) -> None:
    for rank, found in enumerate(of(two, "checkpoints")):
        assert "the disk went away" in found["said"]
        assert found["said"].startswith("OSError" if rank == 1 else "RankFailed: rank 1 failed")
        assert found["files"] == ["fit.rank0-of-2.safetensors", "fit.rank1-of-2.safetensors"]
        assert found["left"] == []
        assert found["same"]


def test_fewer_examples_than_ranks(four: Found) -> None:
    for found in of(four, "four"):
        assert found["few"].startswith("EmptyData: rank 3 got no data (of 4 ranks, 1 got none)")


def test_groups_of_some_ranks(four: Found) -> None:
    model, x, y = work.small()
    wanted = work.numbers(whence.laplace(model, (x, y), likelihood="classification"))
    found = of(four, "four")
    assert_same([found[1]["pair"], found[3]["pair"]], wanted)
    assert "not a member of the process group" in found[0]["outside"]


def test_a_process_that_ends_is_an_error_for_all(four: Found) -> None:
    assert four["lost"][3] is None
    for rank, found in enumerate(four["lost"][:3]):
        assert found["lost"].startswith(f"RankFailed: rank {rank} lost another rank while adding up the curvature")
        assert "timeout" in found["lost"]


def test_without_a_group() -> None:
    model, x, y = work.small()
    for given in (True, "world"):
        with pytest.raises(whence.errors.BadOption, match="torchrun"):
            whence.laplace(model, (x, y), likelihood="classification", process_group=given)
    with pytest.raises(whence.errors.BadOption, match=r"neither a torch process group, True nor 'world'"):
        whence.laplace(model, (x, y), likelihood="classification", process_group="gloo")


def test_jobs_are_shared_out_evenly() -> None:
    ranks = Ranks()
    ranks.size = 3
    costs = [1.0, 8.0, 27.0, 8.0, 8.0, 1.0, 1.0]
    owners = WorkSharing(ranks).assign(costs)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(3)]
    assert max(loads) == 27.0
    assert sorted(loads) == [11.0, 16.0, 27.0] or sorted(loads) == [10.0, 17.0, 27.0]
    assert WorkSharing(ranks).assign([]) == []


@pytest.mark.parametrize("name", ["lost 0", "lost 1", "per rank"])
def test_a_sampled_fisher_goes_on_with_any_rank_s_file(name: str, two: Found) -> None:
    for found in of(two, "seeds"):
        case = found[name]
        assert case["files"] == 2
        assert isinstance(case["got"], torch.Tensor), case["got"]
        assert torch.equal(case["got"], case["wanted"])


def test_another_generator_or_another_fit_is_refused(two: Found) -> None:
    for found in of(two, "seeds"):
        assert found["others"]["got"].startswith("BadFile") and "generator differs" in found["others"]["got"]
        assert found["differ"].startswith("BadFile") and "several fits" in found["differ"]


def test_what_cannot_be_pickled_stops_all_ranks(two: Found) -> None:
    assert of(two, "seeds")[0]["unpicklable"].startswith("BadData") and "pickle" in of(two, "seeds")[0]["unpicklable"]
    assert of(two, "seeds")[1]["unpicklable"].startswith("RankFailed") and "lock" in of(two, "seeds")[1]["unpicklable"]
    for found in of(two, "seeds"):
        assert found["sent"]["n"] == 2 and found["sent"]["x"].tolist() == [0, 1, 2]


def test_the_output_shape_is_that_of_a_rank_with_targets(two: Found) -> None:
    assert [found["ignored"] for found in of(two, "seeds")] == [(3,), (3,)]
