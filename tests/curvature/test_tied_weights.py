"""Weights that several calls share: their diagonal, call by call where it is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import whence
from tests.tied_language_model import Tied, language_data, quietly
from whence.errors import Notice
from whence.likelihoods import Categorical


def test_the_diagonal_of_a_tied_weight_call_by_call(set_sizes: Callable[..., None]) -> None:
    """Both calls apart, the head's position by position: in another network the two are two weights."""
    tied, apart = Tied(True).double(), Tied(False).double()
    apart.load_state_dict(tied.state_dict())
    x, y = language_data()
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical"}
    set_sizes(call_by_call=50, dense_block=50)
    with pytest.warns(Notice, match=r"embedding \(Embedding\) got a smaller structure: .* tied .* call by call"):
        found = whence.laplace(tied, (x, y), progress=False, **options)
    assert found.structures["embedding"].structure == "diag"

    embedded = quietly(apart, (x, y), structure="diag", layers=["embedding"], **options)
    wanted = embedded.curvature.structures[0].values.reshape(11, 5).clone()
    features = torch.tanh(apart.middle(apart.embedding(x) + apart.positions(torch.arange(6)))).detach()
    g = (F.linear(features, apart.head.weight).softmax(-1) - F.one_hot(y, 11)).detach()
    for n in range(len(x)):
        for t in range(x.shape[1]):
            wanted += torch.outer(g[n, t], features[n, t]).square()
    names = [b.name for b in found.blocks]
    got = found.curvature.structures[names.index("embedding")].values.reshape(11, 5)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_summing_call_by_call_is_exact_for_an_output_layer() -> None:
    """With all draws of the labels written out, mixed terms of positions vanish: E[(Σ_t g a)²] = Σ_t E[(g a)²]."""
    p, a = torch.rand(2, 3, dtype=torch.float64).softmax(-1), torch.randn(2, 4, dtype=torch.float64)
    before, after = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            g = p - F.one_hot(torch.tensor([i, j]), 3)
            weight = p[0, i] * p[1, j]
            before += weight * (g.mT @ a).square()
            after += weight * (g.square().mT @ a.square())
    torch.testing.assert_close(before, after)


def test_tied_weights_of_a_requested_diagonal(set_sizes: Callable[..., None]) -> None:
    model = Tied(True).double()
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical", "structure": "diag"}
    exact = quietly(model, language_data(), **options)
    set_sizes(call_by_call=50)
    found = quietly(model, language_data(), **options)
    assert exact.structures["embedding"].reason == ""
    assert "without cross terms" in found.structures["embedding"].reason
    assert exact.curvature.structures[0].values.shape == found.curvature.structures[0].values.shape
