"""Attention computed by a fused kernel, and written out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import whence
from benchmarks.large_networks import gpt2
from whence.errors import Notice
from whence.likelihoods import Categorical
from whence.recording import plan


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def test_fused_attention_gives_the_same_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2(True, 16).double()
    text = torch.randint(211, (4, 17))
    data, options = (text[:, :-1], text[:, 1:]), {"likelihood": Categorical(class_dim=-1), "curvature": "mc"}
    found = quietly(model, data, generator=torch.Generator().manual_seed(0), **options)
    forward = plan.forward
    monkeypatch.setattr(plan, "forward", lambda network, inputs, fused, *more: forward(network, inputs, False, *more))
    plain = quietly(model, data, generator=torch.Generator().manual_seed(0), **options)
    for a, b in zip(found.curvature.structures, plain.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            torch.testing.assert_close(value, b.tensors()[key], rtol=1e-9, atol=1e-12)
