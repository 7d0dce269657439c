"""Checkpoints, scales and names of SWAG."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from whence.errors import BadFile, BadOption
from whence.posteriors.ensembles import fit_ensemble
from whence.posteriors.swag import SwagCollector, swag
from whence.training import loop


def small(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out)).double()


def labelled(size: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


FIT = {"likelihood": "classification", "epochs": 2, "progress": False}


def test_swag_does_not_go_on_from_another_network(tmp_path) -> None:
    model, other, file = small(), small(), tmp_path / "c.safetensors"
    whole = swag(model, labelled(), checkpoint=file, **FIT)
    again = swag(model, labelled(), checkpoint=file, **FIT)
    torch.testing.assert_close(again.covariance(), whole.covariance(), rtol=0, atol=0)
    with pytest.raises(BadFile, match="another network: its training started from other weights"):
        swag(other, labelled(), checkpoint=file, **FIT)


@pytest.mark.parametrize("rank", [0, 2])
def test_nor_after_a_break_before_the_first_collection(rank: int, tmp_path, monkeypatch) -> None:
    model, other, file = small(), small(), tmp_path / "c.safetensors"
    settings = FIT | {"epochs": 4, "every": 2, "rank": rank}
    whole = swag(model, labelled(), **settings)
    original = loop._epoch

    def stops(*args):
        if args[-1] == 1:
            raise KeyboardInterrupt
        original(*args)

    monkeypatch.setattr(loop, "_epoch", stops)
    with pytest.raises(KeyboardInterrupt):
        swag(model, labelled(), checkpoint=file, **settings)
    monkeypatch.setattr(loop, "_epoch", original)
    assert file.exists()
    with pytest.raises(BadFile, match="started from other weights"):
        swag(other, labelled(), checkpoint=file, **settings)
    again = swag(model, labelled(), checkpoint=file, **settings)
    torch.testing.assert_close(again.covariance(), whole.covariance(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_torchs_generator_is_left_alone(kind: str) -> None:
    x, y = labelled()
    pairs = torch.utils.data.TensorDataset(x, y if kind == "classification" else x[:, :3])
    loader = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    settings = FIT | {"likelihood": kind}
    state = torch.random.get_rng_state()
    posterior = swag(model, loader, **settings)
    assert torch.equal(torch.random.get_rng_state(), state)
    collector = SwagCollector(model, 2)
    collector.collect()
    collector.collect()
    collector.posterior(kind, loader)
    assert torch.equal(torch.random.get_rng_state(), state)
    fit_ensemble(small, loader, members=2, vectorised=False, **settings)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert posterior.collections == 2


def test_a_scale_is_a_number() -> None:
    posterior = swag(small(), labelled(), **FIT)
    for wrong in ("a", None, True, 0, -1.0, float("inf"), float("nan"), [1.0]):
        with pytest.raises(BadOption, match="scale="):
            posterior.with_scale(wrong)  # type: ignore[arg-type]
    assert posterior.with_scale(2).scale == posterior.with_scale(torch.tensor(2.0)).scale == 2.0  # type: ignore[arg-type]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.part = nn.Parameter(torch.zeros(3).double()), small()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) + self.shift


def test_a_bare_parameter_is_a_layer_by_its_own_name() -> None:
    found = swag(Bare(), labelled(), **FIT).layers()
    assert found["shift"] == ["shift"] and found["part.0"] == ["part.0.weight", "part.0.bias"] and "" not in found
