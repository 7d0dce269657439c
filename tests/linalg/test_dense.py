"""Gram matrices by their upper triangles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from whence.linalg.dense import add_upper_gram, gram, mirrored


@pytest.mark.parametrize(("rows", "width"), [(5, 400), (70, 801), (40, 20), (9, 385)])
def test_gram_matrices_by_their_upper_triangles(rows: int, width: int, set_sizes: Callable[..., None]) -> None:
    set_sizes(rows=32)
    x = torch.randn(rows, width, dtype=torch.float64)
    assert_close(gram(x), x.mT @ x, 1e-12)
    frame = torch.full((width + 3, width + 3), 7.0, dtype=torch.float64)
    add_upper_gram(x, frame[1:-2, 1:-2])
    assert_close(mirrored(frame[1:-2, 1:-2]), x.mT @ x + 7, 1e-12)
    assert bool((frame[0] == 7).all())
    assert bool((frame[:, -1] == 7).all())


def test_gradients_that_underflow_are_no_error() -> None:
    """A deep network whose first layers get gradients of 1e-20: their factors hold the smallest numbers there are."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(8, 16), nn.ReLU()]
    for _ in range(60):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, 3))
    x, y = torch.randn(40, 8), torch.randint(3, (40,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    smallest = min(float(s.tensors()["grads"].abs().max()) for s in posterior.curvature.structures)
    assert smallest < torch.finfo(torch.float32).tiny, "nothing underflows"
    assert bool(torch.isfinite(posterior.predict(x).logit_cov).all())
    assert sum(row.variance_share for row in posterior.where(x).layers) == pytest.approx(1)
