"""A language model and a residual network by default, small."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import whence
from benchmarks.large_networks import gpt2, resnet50
from whence.errors import Notice
from whence.likelihoods import Categorical


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def test_a_language_model_by_default(set_sizes: Callable[..., None]) -> None:
    """Every weight of a tied transformer has a posterior, none by the per-example fallback, and it predicts."""
    set_sizes(call_by_call=1000)
    model = gpt2(True, 8)
    text = torch.randint(211, (6, 9))
    likelihood = Categorical(class_dim=-1)
    posterior = quietly(model, [(t[:, :-1], t[:, 1:]) for t in text.split(3)], likelihood=likelihood)
    assert posterior.parameters == sum(p.numel() for p in model.parameters())
    assert all(b.source != "example" for b in posterior.blocks)
    assert posterior.curvature.options.curvature == "mc"
    assert posterior.predict(text[:2, :8], num_samples=3).probs.shape == (2, 8, 211)


def test_a_residual_network_by_default() -> None:
    model = resnet50(True).eval()
    data = [(torch.randn(2, 3, 32, 32), torch.randint(12, (2,))) for _ in range(2)]
    posterior = quietly(model, data, likelihood="classification", curvature="mc")
    assert all(b.source != "example" for b in posterior.blocks)
    assert {b.structure for b in posterior.blocks if "Conv" in b.kind} == {"kron"}
