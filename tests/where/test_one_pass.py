"""One pass for several questions gives what one pass for each of them gives, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.predictive import linearised
from whence.predictive.linearised import Moments
from whence.where.connections import connection_shares, connection_shares_of_groups
from whence.where.novelty_prior import novelty_precision, unexplained_by_layer, with_novelty_prior
from whence.where.one_pass import Asked, examine, shares
from whence.where.question import Question

STRUCTURES = ["kron", "ekfac", "diag", "block", "full", "lowrank"]


class Words(nn.Module):
    """An embedding, a convolution over positions, a norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(11, 4), nn.Conv1d(4, 5, 3, padding=1)
        self.norm, self.hidden, self.head = nn.LayerNorm(5), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        seen = self.norm(torch.relu(self.conv(self.words(ids).mT)).mT)
        return self.head(torch.tanh(self.hidden(seen)).mean(1))


def classifier() -> tuple[nn.Module, Tensor, Tensor, str]:
    return Words().double(), torch.randint(11, (24, 7)), torch.randint(3, (24,)), "classification"


def regressor() -> tuple[nn.Module, Tensor, Tensor, Any]:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    return model, torch.randn(24, 1, 4, 4).double(), torch.randn(24, 2).double(), whence.Gaussian(noise=0.5)


def fitted(make: Callable[[], tuple[nn.Module, Tensor, Tensor, Any]], structure: Any) -> tuple[whence.Laplace, Tensor]:
    torch.manual_seed(0)
    model, x, y, likelihood = make()
    return whence.laplace(model, (x, y), likelihood=likelihood, structure=structure, rank=5, progress=False), x


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", [classifier, regressor])
def test_all_questions_in_one_pass(make: Callable[[], Any], structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = fitted(make, structure)
    monkeypatch.setattr(linearised, "piece_size", lambda *_: 7)  # four pieces
    priors = {"own": posterior, "weak": posterior.with_prior(whence.Relative(0.1))}
    precision = novelty_precision(posterior)
    priors["novelty"] = with_novelty_prior(posterior, precision)
    groups = torch.stack([torch.arange(24) % 3 == c for c in range(3)], 1)
    under = {"strong": posterior.with_prior(whence.Relative(30.0)), "own": posterior}
    seen: dict[str, list[Moments]] = {name: [] for name in under}
    asked = Asked(priors, units="own", groups=groups, moments=under)
    found = examine(x, asked, on_moments=lambda name, piece: seen[name].append(piece))

    for name, prior in priors.items():
        alone = shares(prior, x, units=True)
        for field in ("variance", "prior"):
            assert_close(getattr(found[name], field), getattr(alone, field), 1e-9)
        assert_close(found[name].outputs, alone.outputs, 1e-12)
    assert_close(found["novelty"].unexplained, unexplained_by_layer(posterior, x, precision)[0], 1e-9)

    for name, pieces in seen.items():
        assert len(pieces) == 4
        wanted = list(linearised.moments_of(under[name], x))
        assert_close(torch.cat([m.mean for m in pieces]), torch.cat([m.mean for m in wanted]), 1e-12)
        assert_close(torch.cat([m.cov for m in pieces]), torch.cat([m.cov for m in wanted]), 1e-9)
        for piece in pieces:
            assert piece.by_block is not None
            assert_close(torch.stack(piece.by_block).sum(0), piece.cov, 1e-12)

    for c in range(3):
        mine, some = shares(posterior, x[groups[:, c]], units=True), found["own"].of_group(c, groups[:, c])
        assert_close(some.variance, mine.variance, 1e-9)
        for name, units in mine.units.items():
            total = float(mine.variance.sum())
            assert_close(some.units[name].variance, units.variance, 1e-9, 1e-11 * total)
            assert_close(some.units[name].prior, units.prior, 1e-9, 1e-11 * float(mine.prior.sum()))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_connections_of_groups(structure: str) -> None:
    posterior, x = fitted(classifier, structure)
    groups = torch.stack([torch.arange(24) % 3 == 0, torch.arange(24) > 9], 1)
    chosen = {"conv": [0, 3], "hidden": [1, 2, 5], "norm": [0], "head": [2]}
    found = connection_shares_of_groups(posterior, x, chosen, groups)
    assert len(found) == 2
    for c, some in enumerate(found):
        wanted = connection_shares(posterior, x[groups[:, c]], chosen)
        assert set(some) == set(wanted) == set(chosen)
        for name, one in wanted.items():
            assert_close(some[name].variance, one.variance, 1e-8, 1e-12)
            assert_close(some[name].prior, one.prior, 1e-8, 1e-12)


def test_random_columns_give_no_moments() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 40)).double()
    data = (torch.randn(20, 4).double(), torch.randint(40, (20,)))
    posterior = whence.laplace(model, data, likelihood="classification", progress=False)
    seen: list[Moments] = []
    asked = Asked({"": posterior}, moments={"": posterior})
    found = examine(data[0], asked, Question(probes=4), lambda _, piece: seen.append(piece))
    assert not seen and found[""].spread is not None
    assert_close(found[""].variance, shares(posterior, data[0], Question(probes=4)).variance, 1e-12)
