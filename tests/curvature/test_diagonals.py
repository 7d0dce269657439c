"""The three ways to a diagonal of shared weights give the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close


@pytest.mark.parametrize("structure", ["diag", "ekfac"])
@pytest.mark.parametrize("groups", [1, 2])
def test_squares_of_shared_weights_by_every_way(structure: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.curvature import diagonals

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=groups), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(36, 3)
    ).double()
    x, y = torch.randn(5, 4, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1])
    used = []
    for name in ("_by_pairs_of_positions", "_row_by_row", "summed_rows"):
        plain = getattr(diagonals, name)
        monkeypatch.setattr(diagonals, name, lambda *a, n=name, f=plain: (used.append(n), f(*a))[1])

    def fit() -> list[Tensor]:
        posterior = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
        return [s.values for s in posterior.curvature.structures]

    found = {}
    for way in ("_by_pairs_of_positions", "_row_by_row", "summed_rows"):
        used.clear()
        monkeypatch.setattr(diagonals, "pairs_pay", lambda *_, w=way: w == "_by_pairs_of_positions")
        monkeypatch.setattr(diagonals, "single_rows_pay", lambda *_, w=way: w == "_row_by_row")
        found[way] = fit()
        assert set(used) == {way}
    for way in ("_by_pairs_of_positions", "_row_by_row"):
        for ours, wanted in zip(found[way], found["summed_rows"], strict=True):
            assert_close(ours, wanted, 1e-12)
