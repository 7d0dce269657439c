"""Regressions of ranks and checkpoints: seeds, what cannot be pickled, shapes, orders, likelihoods of one's own."""

from __future__ import annotations

import datetime
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import whence
from whence.curvature.checkpoint import Checkpoint, reorders
from whence.curvature.distributed import Ranks
from whence.errors import BadFile, Notice


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


# In a process group


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
    file: dict[str, Any] = {"checkpoint": path, "checkpoint_every": 0}
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
        options: dict[str, Any] = {"structure": "kron", "curvature": "mc", "process_group": True, "checkpoint": path}
        generator = torch.Generator().manual_seed(seed)
        data = Batches(parts, 2 if rank == 1 else None, ValueError)
        attempt(functools.partial(fitted, data, **options, generator=generator, checkpoint_every=0))
        kept[seed] = sorted(folder.glob(f"differ{seed}*"))
    dist.barrier()
    if rank == 1:
        os.replace(kept[2][1], kept[1][1])
    dist.barrier()
    path = folder / "differ1.safetensors"
    return attempt(lambda: fitted(parts, structure="kron", curvature="mc", process_group=True, checkpoint=path))


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


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timeout)
    files = Path(folder, "files")
    files.mkdir(exist_ok=True)
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
    torch.save({name: attempt(job) for name, job in jobs.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks found."""
    if not dist.is_available():
        pytest.skip("this torch has no distributed package")
    folder = tmp_path_factory.mktemp("two")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", ["lost 0", "lost 1", "per rank"])
def test_a_sampled_fisher_goes_on_with_any_rank_s_file(name: str, two: list[dict[str, Any]]) -> None:
    for found in two:
        case = found[name]
        assert case["files"] == 2
        assert isinstance(case["got"], Tensor), case["got"]
        assert torch.equal(case["got"], case["wanted"])


def test_another_generator_or_another_fit_is_refused(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert found["others"]["got"].startswith("BadFile") and "other numbers" in found["others"]["got"]
        assert found["differ"].startswith("BadFile") and "several fits" in found["differ"]


def test_what_cannot_be_pickled_stops_all_ranks(two: list[dict[str, Any]]) -> None:
    assert two[0]["unpicklable"].startswith("BadData") and "pickle" in two[0]["unpicklable"]
    assert two[1]["unpicklable"].startswith("RankFailed") and "lock" in two[1]["unpicklable"]
    for found in two:
        assert found["sent"]["n"] == 2 and found["sent"]["x"].tolist() == [0, 1, 2]


def test_the_output_shape_is_that_of_a_rank_with_targets(two: list[dict[str, Any]]) -> None:
    assert [found["ignored"] for found in two] == [(3,), (3,)]


# Alone


def test_what_killed_processes_left_goes_with_the_checkpoint(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "fit")
    left, other = tmp_path / ".fit.ab12cd34.part", tmp_path / ".fit.rank0-of-2.ab12cd34.part"
    for path in (file.path, left, other):
        path.touch()
    file.remove()
    assert list(tmp_path.iterdir()) == [other]


class Examples(TensorDataset):
    """Raises before example ``at`` of all passes is read."""

    at: int | None = None
    given = 0

    def __getitem__(self, index: int) -> Any:
        if self.given == self.at:
            raise Killed
        self.given += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(("structure", "at"), [("ekfac", 18), ("lowrank", 30)])
def test_a_seeded_shuffle_goes_on_in_a_later_stage(structure: str, at: int, default: bool, tmp_path: Path) -> None:
    _, x, y = setting()
    options: dict[str, Any] = {
        "structure": structure,
        "progress": False,
        **({"rank": 5} if structure == "lowrank" else {}),
    }

    def loader(at: int | None) -> DataLoader:
        data = Examples(x, y)
        data.at = at
        torch.manual_seed(4)
        generator = None if default else torch.Generator().manual_seed(4)
        return DataLoader(data, 2, shuffle=True, generator=generator)

    def run(at: int | None, **more: Any) -> Tensor:
        model, _, _ = setting()
        data = loader(at)  # last, as it seeds torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            return whence.laplace(model, data, likelihood="classification", **options, **more).covariance()

    wanted, file = run(None), {"checkpoint": tmp_path / "fit", "checkpoint_every": 0}
    with pytest.raises(Killed):
        run(at, **file)
    assert torch.equal(run(None, **file), wanted)


def test_which_loaders_have_another_order_in_each_pass() -> None:
    _, x, y = setting()
    data = TensorDataset(x, y)
    assert not reorders(DataLoader(data)) and not reorders([(x, y)])
    assert reorders(DataLoader(data, shuffle=True))
    assert reorders(DataLoader(data, generator=torch.Generator()))
    assert reorders(DataLoader(data, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 12, 12)))


def squared(scale: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda f, y: scale * (f - y).square().sum(-1)


def test_a_checkpoint_of_another_custom_likelihood_is_refused(tmp_path: Path) -> None:
    _, x, _ = setting()
    parts = batches_of(x, torch.ones(12, 3, dtype=torch.float64))
    options: dict[str, Any] = {"structure": "kron", "checkpoint": tmp_path / "fit", "checkpoint_every": 0}
    with pytest.raises(Killed):
        fitted(Batches(parts, 3), likelihood=whence.Custom(squared(0.5)), **options)
    with pytest.raises(BadFile, match="values of the likelihood"):
        fitted(parts, likelihood=whence.Custom(squared(0.6)), **options)
    again = fitted(parts, likelihood=whence.Custom(squared(0.5)), **options)
    wanted = fitted(parts, likelihood=whence.Custom(squared(0.5)), structure="kron")
    assert torch.equal(again.covariance(), wanted.covariance())


def test_samplers_and_draws_of_custom_likelihoods_are_told_apart() -> None:
    outputs, targets = torch.randn(20, 3), torch.zeros(20, 3)

    def drawn(scale: float) -> dict[str, list[float]]:
        def sample(f: Tensor, generator: torch.Generator) -> Tensor:
            return f + scale * torch.randn(f.shape, generator=generator)

        return whence.Custom(squared(0.5), sample).fingerprint(outputs, targets)

    assert drawn(1.0) == drawn(1.0) != drawn(2.0)
    assert len(drawn(1.0)["nll"]) == 8
    assert whence.Gaussian(1.0).fingerprint(outputs, targets) == {}
