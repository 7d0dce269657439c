"""HMC on shuffling loaders, and its options."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.covering import covering
from whence.errors import BadFile, BadOption, Notice
from whence.posteriors.hmc import Hmc, hmc


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] + 0.3 * torch.randn(n, generator=gen) > 0).long()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def sampled(net: nn.Module, given: Any, **options: Any) -> Hmc:
    settings = {"likelihood": "classification", "chains": 2, "num_samples": 4, "warmup": 4, "max_depth": 3} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return hmc(net, given, progress=False, generator=torch.Generator().manual_seed(0), **settings)


@pytest.mark.parametrize(("likelihood", "own"), covering(["classification", "regression"], [False, True]))
def test_an_hmc_run_on_a_shuffling_loader_goes_on(likelihood: str, own: bool, tmp_path: Path) -> None:
    x, y = data()
    net = nn.Linear(3, 2 if likelihood == "classification" else 1)
    targets = y if likelihood == "classification" else x[:, :1] + torch.randn(60, 1)
    generator = torch.Generator().manual_seed(3) if own else None  # moves on from pass to pass

    def loader(inputs: Tensor = x) -> DataLoader[Any]:
        return DataLoader(TensorDataset(inputs, targets), 20, shuffle=True, generator=generator)

    path = tmp_path / "run"
    first = sampled(net, loader(), likelihood=likelihood, checkpoint=path)
    again = sampled(net, loader(), likelihood=likelihood, checkpoint=path)
    assert torch.equal(first.positions, again.positions)
    with pytest.raises(BadFile, match=r"other examples: data= is not the same") as caught:
        sampled(net, loader(x + 1), likelihood=likelihood, checkpoint=path)
    assert len(str(caught.value).replace(str(path), "")) < 130
    with pytest.raises(BadFile, match="other examples"):  # the same inputs and targets, in other pairs
        sampled(net, (x, targets.roll(1, 0)), likelihood=likelihood, checkpoint=path)
    with torch.no_grad():
        net.weight.add_(1)
    with pytest.raises(BadFile, match="another network"):
        sampled(net, loader(), likelihood=likelihood, checkpoint=path)


def test_hmc_leaves_the_generator_of_torch_alone() -> None:
    loader = DataLoader(TensorDataset(*data()), 20, shuffle=True)
    net = model()
    draws = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        draws.append(sampled(net, loader).positions)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*draws)  # whatever torch's generator was at


@pytest.mark.parametrize("options", [{"target_accept": "a"}, {"step_size": "a"}, {"target_accept": None}])
def test_hmc_options_that_are_no_numbers(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(BadOption, match=f"{name}={value!r}"):
        sampled(model(), data(), **options)
