"""A fit that was killed goes on from its checkpoint, and gives the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.curvature import distributed_seeds as small
from tests.curvature.distributed_seeds import Batches, Killed
from tests.curvature.distributed_work import Breaking, examples
from tests.processes import process
from whence.errors import BadData, BadFile, BadOption, Notice

FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "kron": ("conv2d", {"structure": "kron"}),
    "ekfac": ("conv2d", {"structure": "ekfac"}),
    "block": ("mlp", {"structure": "block"}),
    "full": ("mlp", {"structure": "full"}),
    "diag": ("embedding", {"structure": "diag"}),
    "lowrank": ("mlp", {"structure": "lowrank", "rank": 10}),
    "kfra": ("mlp", {"structure": "kron", "curvature": "kfra"}),
    "hessian": ("mlp", {"structure": "block", "curvature": "hessian", "prior_precision": 100.0}),
    "sampled": ("mlp", {"structure": "kron", "curvature": "mc"}),
    "noise": ("regression_2", {"structure": "kron", "likelihood": "regression"}),
    "passes": ("mlp", {"structure": "diag", "curvature": "mc", "passes": 2}),
    "thin": ("mlp", {"structure": "ekfac", "max_factor": 5}),
    "no_rule": ("bare_parameters", {"structure": "kron"}),
}


def setting(name: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], dict[str, Any]]:
    from tests.comparison import likelihood_of

    network, options = FITS[name]
    case, x, y = examples(network)
    batches = [(x[n : n + 2], y[n : n + 2]) for n in range(0, len(y), 2)]
    return case.model, batches, {"likelihood": likelihood_of(case), "progress": False, **options}


def quiet(model: nn.Module, data: Any, **options: Any) -> whence.Laplace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, **options)


def assert_bits(got: whence.Laplace, wanted: whence.Laplace) -> None:
    for mine, its in zip(got.curvature.structures, wanted.curvature.structures, strict=True):
        for key, value in its.tensors().items():
            assert torch.equal(mine.tensors()[key], value), key
    assert got.curvature.record == wanted.curvature.record
    assert torch.equal(got.covariance(), wanted.covariance())


def killed_at(name: str) -> list[tuple[str, int]]:
    """In each stage; a pass has six batches."""
    more = {"kron": [0, 1], "ekfac": [9], "lowrank": [8, 15], "passes": [8]}
    return [(name, 4), *((name, at) for at in more.get(name, []))]


@pytest.mark.parametrize(("name", "at"), [pair for name in FITS for pair in killed_at(name)])
def test_a_killed_fit_goes_on(name: str, at: int, tmp_path: Path) -> None:
    model, batches, options = setting(name)
    torch.manual_seed(5)
    wanted = quiet(model, batches, **options)
    path = tmp_path / "fit.safetensors"
    file = {"execution": whence.Execution(checkpoint=path, checkpoint_every=0)}
    torch.manual_seed(5)
    with pytest.raises(Killed):
        quiet(model, Batches(batches, at), **options, **file)
    assert path.exists() == (at > 0)
    torch.manual_seed(6)  # as a new process has other random numbers
    if not path.exists():
        torch.manual_seed(5)
    again = quiet(model, Batches(batches), **options, **file)
    assert_bits(again, wanted)
    assert list(tmp_path.iterdir()) == []  # removed once the fit is complete


def test_a_fit_can_be_killed_often(tmp_path: Path) -> None:
    model, batches, options = setting("ekfac")
    file = {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)}
    for at in (3, 5, 8, 4):  # twice in the first pass, twice in the second
        with pytest.raises(Killed):
            quiet(model, Batches(batches, at), **options, **file)
    assert_bits(quiet(model, batches, **options, **file), quiet(model, batches, **options))


class Counting(nn.Module):
    """Counts its forward passes, also those of its copies."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 2:
            Counting.calls += 1
        return self.inner(x)


def test_what_was_counted_is_not_computed_again(tmp_path: Path) -> None:
    _, batches, options = setting("kfra")
    batches, options = batches[:5], {**options, "curvature": "ggn"}
    model = Counting()
    file = {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)}

    def calls(data: Any, **more: Any) -> int:
        Counting.calls = 0
        quiet(model, data, **options, **more)
        return Counting.calls

    all_of_them = calls(batches)
    with pytest.raises(Killed):
        quiet(model, Batches(batches, 4), **options, **file)
    assert calls(batches, **file) == all_of_them - 4 - 1  # four batches, and the look at the second one


def test_the_end_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails after the sums were complete (here the decomposition) costs no second pass."""
    from whence.posteriors.laplace.posterior import Laplace

    model, batches, options = setting("kron")
    file = {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)}
    with monkeypatch.context() as patch:
        patch.setattr(Laplace, "gaussians", lambda self: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            quiet(model, batches, **options, **file)
    data = Batches(batches)
    again = quiet(model, data, **options, **file)
    assert data.given == 1  # the first batch, for the network to be looked at
    assert_bits(again, quiet(model, batches, **options))


def test_more_data_has_a_checkpoint(tmp_path: Path) -> None:
    model, batches, options = setting("kron")
    first = quiet(model, batches[:2], **options)
    wanted = first.update(batches[2:])
    with pytest.raises(Killed):
        first.update(
            Batches(batches[2:], 3), execution=whence.Execution(checkpoint=tmp_path / "more", checkpoint_every=0)
        )
    assert_bits(
        first.update(batches[2:], execution=whence.Execution(checkpoint=tmp_path / "more", checkpoint_every=0)), wanted
    )


def test_members_have_files_of_their_own(tmp_path: Path) -> None:
    model, batches, options = setting("kron")
    other, _, _ = setting("kron")
    with torch.no_grad():
        next(other.parameters()).mul_(1.01)
    file = {"execution": whence.Execution(checkpoint=tmp_path / "fit.safetensors", checkpoint_every=0)}
    with pytest.raises(Killed):
        whence.laplace_ensemble([model, other], Batches(batches, 9), **options, **file)
    assert [p.name for p in tmp_path.iterdir()] == ["fit.member1.safetensors"]
    with pytest.warns(Notice, match=r"fit.member1.safetensors: 3 batches"):
        again = whence.laplace_ensemble([model, other], batches, weights="equal", **options, **file)
    assert_bits(again.members[1], quiet(other, batches, **options))


def test_it_says_that_it_goes_on_and_when_it_is_written(tmp_path: Path) -> None:
    model, batches, options = setting("kron")
    path = tmp_path / "fit.safetensors"
    with pytest.raises(Killed):
        quiet(
            model, Batches(batches, 4), **options, execution=whence.Execution(checkpoint=path)
        )  # a minute has not passed
    assert not path.exists()
    with pytest.raises(Killed):
        quiet(
            model, Batches(batches, 4), **options, execution=whence.Execution(checkpoint=str(path), checkpoint_every=0)
        )
    with pytest.warns(Notice, match=r"resuming from .*fit.safetensors: 4 batches of 'curvature' are done"):
        whence.laplace(model, batches, **options, execution=whence.Execution(checkpoint=path))
    assert not path.exists()


@pytest.fixture
def broken_off(tmp_path: Path) -> tuple[nn.Module, list[Any], dict[str, Any], Path]:
    """A fit that counts four batches of six."""
    model, batches, options = setting("kron")
    path = tmp_path / "fit.safetensors"
    options |= {"execution": whence.Execution(checkpoint=path, checkpoint_every=0)}
    with pytest.raises(Killed):
        quiet(model, Batches(batches, 4), **options)
    return model, batches, options, path


Broken = tuple[nn.Module, list[Any], dict[str, Any], Path]


def test_other_fits_are_refused(broken_off: Broken) -> None:
    model, batches, options, path = broken_off
    with pytest.raises(BadFile, match=r"belongs to another fit: curvature was 'ggn' and is now 'mc'.*Delete the file"):
        quiet(model, batches, **{**options, "curvature": "mc"})
    with pytest.raises(BadFile, match="another fit: the structure was"):
        quiet(model, batches, **{**options, "structure": "diag"})
    with pytest.raises(BadFile, match="another fit: the choice of weights was"):
        quiet(model, batches, **options, layers="last")
    with pytest.raises(BadFile, match="another fit: batches was 6 and is now 5"):
        quiet(model, batches[:5], **options)
    with pytest.raises(BadFile, match="another fit: first_batch was"):
        quiet(model, batches[::-1][1:] + batches[:1], **options)
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    with pytest.raises(BadFile, match="another fit: network was"):
        quiet(model, batches, **options)
    assert path.exists()


def test_data_in_another_order_are_refused(broken_off: Broken) -> None:
    model, batches, options, _ = broken_off
    batches[3], batches[2] = batches[2], batches[3]
    with pytest.raises(BadFile, match=r"another order .* batch 3 is not the one .* shuffle=False"):
        quiet(model, batches, **options)


def test_a_loader_that_shuffles_is_said(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    model, batches, options = setting("kron")
    data = TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    with pytest.warns(Notice, match=r"the loader shuffles.*shuffle=False is safer"):
        whence.laplace(
            model, DataLoader(data, 2, shuffle=True), execution=whence.Execution(checkpoint=tmp_path / "fit"), **options
        )
    seeded = DataLoader(data, 2, shuffle=True, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        whence.laplace(model, seeded, execution=whence.Execution(checkpoint=tmp_path / "fit"), **options)


def test_data_that_end_early_are_refused(broken_off: Broken) -> None:
    model, batches, options, _ = broken_off

    class Short(Batches):
        def __len__(self) -> int:
            return 6

    with pytest.raises(BadData, match=r"the data ended after 2 batches, but .* counts 4"):
        quiet(model, Short(batches[:2]), **options)


def test_damaged_files_are_refused(broken_off: Broken) -> None:
    model, batches, options, path = broken_off
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"not safetensors at all"):
        path.write_bytes(damaged)
        with pytest.raises(BadFile, match=r"(truncated|changed|not a readable).* delete the file to start again"):
            quiet(model, batches, **options)
    quiet(
        model,
        batches,
        **{
            **options,
            "execution": None,
        },
    ).save(path)
    with pytest.raises(BadFile, match=r"it is not the checkpoint of a fit\. Choose another name"):
        quiet(model, batches, **options)
    assert isinstance(whence.load(path, model), whence.Laplace)  # and is left as it was


def test_another_generator_is_refused(tmp_path: Path) -> None:
    model, batches, options = setting("sampled")
    options |= {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)}

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    with pytest.raises(Killed):
        quiet(model, Batches(batches, 4), generator=generator(1), **options)
    with pytest.raises(BadFile, match="generator differs"):
        quiet(model, batches, generator=generator(2), **options)
    quiet(model, batches, generator=generator(1), **options)


def test_places_are_checked_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches, options = setting("kron")
    for place, words in ((tmp_path / "none" / "fit", "folder .* is missing"), (tmp_path, "is a folder")):
        data = Batches(batches)
        with pytest.raises(BadFile, match=words):
            quiet(model, data, **options, execution=whence.Execution(checkpoint=place))
        assert data.given == 0
    for every in (-1.0, float("nan"), True, "often"):
        with pytest.raises(BadOption, match="checkpoint_every"):
            quiet(
                model,
                batches,
                **options,
                execution=whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=every),
            )
    with pytest.raises(BadOption, match="applies only with checkpoint"):
        quiet(model, batches, **options, execution=whence.Execution(checkpoint_every=1.0))
    with pytest.raises(BadOption, match="pass the name of a file"):
        quiet(model, batches, **options, execution=whence.Execution(checkpoint=3))
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    data = Batches(batches)
    with pytest.raises(BadFile, match=r"needs \d+ MiB, but 0 MiB are free"):
        quiet(model, data, **options, execution=whence.Execution(checkpoint=tmp_path / "fit"))
    assert data.given == 1


def test_a_disk_that_fills_up_does_not_end_a_fit(broken_off: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.engine import files

    model, batches, options, path = broken_off

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(files, "save_file", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Killed):
            whence.laplace(model, Batches(batches, 5), **options)
    assert any(
        "No space left on device; the fit continues without a newer checkpoint" in str(w.message) for w in caught
    )
    assert path.read_bytes() == before


def test_bad_data_after_a_checkpoint(broken_off: Broken) -> None:
    """What was refused is refused again: nothing of it is in the file."""
    model, batches, options, _ = broken_off
    x, y = batches[4]
    batches[4] = (x, y + 99)
    for _ in range(2):
        with pytest.raises(BadData, match="batch 4"):
            quiet(model, batches, **options)


# Processes that are really killed


def fit_slowly(folder: str, how: str) -> None:
    """Run in a process of its own: ends in the middle, or waits there to be ended."""
    torch.set_num_threads(1)
    model, batches, options = setting("ekfac")

    def end() -> None:
        if how == "exit":
            os._exit(3)
        Path(folder, "here").touch()
        time.sleep(60)

    data = Breaking(batches, 4, end)
    quiet(
        model,
        data,
        **options,
        execution=whence.Execution(checkpoint=Path(folder, "fit.safetensors"), checkpoint_every=0),
    )


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_process_that_is_killed(how: str, tmp_path: Path) -> None:
    started = process(fit_slowly, str(tmp_path), how)
    started.start()
    try:
        while how == "kill" and not (tmp_path / "here").exists():
            assert started.is_alive()
            time.sleep(0.05)
        if how == "kill":
            started.kill()
        started.join(60)
        assert started.exitcode == (3 if how == "exit" else -signal.SIGKILL)
    finally:
        started.kill()
    path = tmp_path / "fit.safetensors"
    assert path.exists()
    model, batches, options = setting("ekfac")
    with pytest.warns(Notice, match="4 batches of 'curvature' are done"):
        again = whence.laplace(model, batches, **options, execution=whence.Execution(checkpoint=path))
    assert_bits(again, quiet(model, batches, **options))
    assert not path.exists()


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
    _, x, y = small.setting()
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
        model, _, _ = small.setting()
        data = loader(at)  # last, as it seeds torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            return whence.laplace(model, data, likelihood="classification", **options, **more).covariance()

    wanted, file = (
        run(None),
        {"execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0)},
    )
    with pytest.raises(Killed):
        run(at, **file)
    assert torch.equal(run(None, **file), wanted)


def squared(scale: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda f, y: scale * (f - y).square().sum(-1)


def test_a_checkpoint_of_another_custom_likelihood_is_refused(tmp_path: Path) -> None:
    _, x, _ = small.setting()
    parts = small.batches_of(x, torch.ones(12, 3, dtype=torch.float64))
    options: dict[str, Any] = {
        "structure": "kron",
        "execution": whence.Execution(checkpoint=tmp_path / "fit", checkpoint_every=0),
    }
    with pytest.raises(Killed):
        small.fitted(Batches(parts, 3), likelihood=whence.Custom(squared(0.5)), **options)
    with pytest.raises(BadFile, match="values of the likelihood"):
        small.fitted(parts, likelihood=whence.Custom(squared(0.6)), **options)
    again = small.fitted(parts, likelihood=whence.Custom(squared(0.5)), **options)
    wanted = small.fitted(parts, likelihood=whence.Custom(squared(0.5)), structure="kron")
    assert torch.equal(again.covariance(), wanted.covariance())
