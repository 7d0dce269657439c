"""On a GPU checks are gathered and looked at when all pieces are done: what was wrong is named all the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.engine.checks import DeferredChecks
from whence.errors import BadData


class Overflows(nn.Module):
    """NaN for inputs above 2."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + torch.where(x.amax(1, keepdim=True) > 2, torch.nan, 0.0)


@pytest.mark.parametrize("link", ["mc", "probit"])
def test_outputs_that_are_not_finite_are_named_after_all_pieces(
    link: str, monkeypatch: pytest.MonkeyPatch, set_sizes: Any
) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(30, 3), torch.randint(3, (30,))
    posterior = whence.laplace(Overflows(), (x, y), likelihood="classification", progress=False)
    posterior.predict(x, link=link)
    monkeypatch.setattr("whence.predictive.dispatch.DeferredChecks", partial(DeferredChecks, on_cpu=True))
    set_sizes(intermediate=1)  # pieces of one input
    same = posterior.predict(x, link=link)
    torch.testing.assert_close(same.probs, posterior.predict(x, link=link).probs)
    x[4] = 3.0
    with pytest.raises(BadData, match="the outputs of the network of batch 0 contain 3 NaN"):
        posterior.predict(x, link=link)


def test_labels_out_of_range_are_named_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(30, 3), torch.randint(3, (30,))
    batches = [(x[:10], y[:10]), (x[10:20], y[10:20]), (x[20:], y[20:])]
    monkeypatch.setattr("whence.training.loop.DeferredChecks", partial(DeferredChecks, on_cpu=True))
    made = whence.variational(nn.Linear(3, 3), batches, likelihood="classification", epochs=2, seed=0, progress=False)
    assert len(made.history) == 2
    batches[1][1][3] = 7
    with pytest.raises(BadData, match=r"batch 1: .*7"):
        whence.variational(nn.Linear(3, 3), batches, likelihood="classification", epochs=2, seed=0, progress=False)
