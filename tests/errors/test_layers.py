"""Layers that a method cannot treat are refused by name, and doubtful networks are noticed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.errors.watch import data, mlp, refuse, untouched
from whence.errors import Notice, UnsupportedLayer

STRUCTURES = ("full", "block", "kron", "ekfac", "diag", "lowrank")


def batch_statistics(affine: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(5, track_running_stats=False, affine=affine)
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.ModuleDict({"norm": norm})["norm"], nn.Linear(5, 3)
    )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_batch_norm_without_running_statistics(structure: str) -> None:
    parts = ("'1", "batch", "track_running_stats=False", "group normalisation")
    refuse(batch_statistics(), data(), UnsupportedLayer, *parts, structure=structure)


@pytest.mark.parametrize("structure", ["kron", "lowrank"])
def test_batch_norm_without_running_statistics_or_weights(structure: str) -> None:
    parts = ("1", "track_running_stats=False", "group normalisation")
    refuse(batch_statistics(affine=False), data(), UnsupportedLayer, *parts, structure=structure)


def test_batch_norm_without_running_statistics_below_the_selection() -> None:
    parts = ("1", "track_running_stats=False", "group normalisation")
    refuse(batch_statistics(), data(), UnsupportedLayer, *parts, layers="last")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.head(h + torch.tanh(self.middle(h)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(torch.tanh(self.first(x)))))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3))


NOT_A_CHAIN = {
    "convolution": (convolutional, (1, 4), ("0 (Conv1d)",)),
    "residual": (Residual, (4,), ("first",)),
    "twice": (Twice, (4,), ("more than once",)),
    "normalised": (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), (4,), ("1 (LayerNorm)",)),
    "softmax inside": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1), nn.Linear(5, 3)), (4,), ("0",)),
}


@pytest.mark.parametrize("case", sorted(NOT_A_CHAIN))
def test_kfra_off_a_chain(case: str) -> None:
    make, shape, parts = NOT_A_CHAIN[case]
    given = (torch.randn(12, *shape), torch.arange(12) % 3)
    refuse(make(), given, UnsupportedLayer, *parts, "KFRA", "chains of Linear", "curvature='ggn'", curvature="kfra")


def test_kfra_on_part_of_a_chain() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    refuse(model, data(), UnsupportedLayer, "KFRA", "curvature='ggn'", curvature="kfra", layers=["0", "4"])


def notices(run) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    assert all(issubclass(w.category, Notice) for w in caught), [str(w.message) for w in caught]
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_softmax_at_the_end_is_noticed_once(structure: str) -> None:
    model = nn.Sequential(mlp(), nn.Softmax(-1))
    with untouched(model):
        said = notices(lambda: whence.laplace(model, data(), likelihood="classification", structure=structure))
    assert len(said) == 1
    assert "probabilities" in said[0] and "logits" in said[0] and "softmax" in said[0]


def test_sigmoid_at_the_end_is_noticed() -> None:
    model = nn.Sequential(mlp(outputs=1), nn.Sigmoid())
    given = (torch.randn(24, 4), torch.arange(24) % 2)
    (said,) = notices(lambda: whence.laplace(model, given, likelihood="binary"))
    assert "probabilities" in said and "logits" in said and "sigmoid" in said


def test_logits_are_not_noticed() -> None:
    assert not notices(lambda: whence.laplace(mlp(), data(), likelihood="classification"))
    log_softmax = nn.Sequential(mlp(), nn.LogSoftmax(-1))
    assert not notices(lambda: whence.laplace(log_softmax, data(), likelihood="classification"))


def test_notice_points_at_the_caller() -> None:
    with pytest.warns(Notice, match="probabilities") as caught:
        whence.laplace(nn.Sequential(mlp(), nn.Softmax(-1)), data(), likelihood="classification")
    assert caught[0].filename == __file__


def test_weight_that_does_not_reach_the_output_is_noticed() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spare = mlp(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    (said,) = notices(lambda: whence.laplace(Spare(), data(), likelihood="classification"))
    assert "spare.weight, spare.bias do not reach the output" in said


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


def test_a_forward_pass_without_gradients_is_refused() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    with pytest.raises(whence.errors.NothingSelected, match="no_grad"):
        whence.laplace(Frozen(), classes(), likelihood="classification")
