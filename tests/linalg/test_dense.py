"""Gram matrices by their upper triangles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
