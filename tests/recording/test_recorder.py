"""Backward passes of many columns at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from whence.recording import recorder as capture


def test_a_backward_pass_that_vmap_refuses_is_batched_in_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("vmap: no batching rule")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    plain = whence.laplace(model, (x, y), likelihood="classification")
    monkeypatch.setattr(capture, "_vmapped", refuse)
    found = whence.laplace(model, (x, y), likelihood="classification")
    assert (found.network.runtime.vmapped_backward, found.network.runtime.batched_backward) == (False, True)
    assert_close(found.covariance(), plain.covariance(), 1e-12)
