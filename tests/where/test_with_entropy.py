"""Novelty and entropy as one score: valid p-values, a slow twin, and both kinds of novel inputs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.priors.networks import inputs, made
from tests.priors.test_rescaling import rescaled
from tests.reference import novelty as slow
from tests.where.novel import trained
from whence.errors import BadOption
from whence.where.novelty import novelty, reference_of
from whence.where.with_entropy import RULE, plain_entropy, with_entropy

REFERENCE, FRESH = 1_500, 1_500


def dependent(size: int, g: torch.Generator, correlation: float, ties: bool) -> tuple[Tensor, Tensor]:
    """Novelty like a likelihood ratio, entropy like that of a confident network; ``ties``: much of it is exactly 0."""
    common, one, other = torch.randn(3, size, generator=g, dtype=torch.float64)
    a, b = (math.sqrt(abs(correlation)) * common * sign + math.sqrt(1 - abs(correlation)) * own
            for own, sign in ((one, 1), (other, math.copysign(1, correlation))))  # fmt: skip
    entropy = torch.sigmoid(2 * b - 6) * math.log(10)
    return a.clamp(min=0).square(), torch.where(entropy < 0.005, 0.0, entropy) if ties else entropy


@pytest.mark.parametrize("correlation", [0.0, 0.7, -0.7])
@pytest.mark.parametrize("ties", [False, True])
def test_p_values_of_fresh_inputs_hold_however_the_two_depend(correlation: float, ties: bool) -> None:
    """Averaged over 100 references; ties make a test that flags less, never more."""
    g = torch.Generator().manual_seed(11)
    rates = {level: [] for level in (0.01, 0.05, 0.2, 0.5)}
    for _ in range(100):
        novel, entropy = dependent(500, g, correlation, ties)
        found = with_entropy((novel[:200], entropy[:200]), (novel[200:], entropy[200:]))
        for level, rate in rates.items():
            rate.append(float(found.flag(level).double().mean()))
    for level, rate in rates.items():
        error = float(np.std(rate)) / math.sqrt(len(rate))
        assert np.mean(rate) < level + 4 * error, (level, np.mean(rate))
        if not ties:
            assert np.mean(rate) > math.floor(level * 201) / 201 - 4 * error - 0.003, (level, np.mean(rate))


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_p_values_of_a_network_are_uniform(name: str) -> None:
    posterior, draw = trained(name)
    reference = reference_of(posterior, draw(REFERENCE, 1))
    both = novelty(posterior, draw(FRESH, 2)[0], reference=reference).with_entropy
    assert both is not None and both.size == REFERENCE
    bound = math.sqrt(-math.log(0.01 / 2) / 2) * math.sqrt(1 / REFERENCE + 1 / FRESH)
    for p in (both.p_value, both.entropy_p_value):
        assert slow.kolmogorov_smirnov(p.numpy()) < bound
    assert 0.003 < float(both.flag(0.01).double().mean()) < 0.025
    with pytest.raises(BadOption, match=r"level=1e-05 is not in 0\.00067\.\.1"):
        both.flag(1e-5)


@pytest.mark.parametrize("ties", [False, True])
def test_the_twin_agrees(ties: bool) -> None:
    g = torch.Generator().manual_seed(5)
    known, found = dependent(80, g, 0.4, ties), dependent(40, g, 0.4, ties)
    found[0][0], found[1][1] = 40.0, 2.3  # beyond all of the reference
    both = with_entropy(known, found)
    score, p = slow.with_entropy(*(v.numpy() for pair in (known, found) for v in pair))
    assert_close(both.score, torch.from_numpy(score), 1e-9)
    assert_close(both.p_value, torch.from_numpy(p), 1e-14)
    assert RULE.value == slow.RULE


def test_either_of_the_two_is_enough() -> None:
    """Inputs far out in one of the two are found, though the other says nothing."""
    g = torch.Generator().manual_seed(6)
    novel, entropy = dependent(1_000, g, 0.3, False)
    fresh = dependent(100, g, 0.3, False)
    for found in ((fresh[0] + 30, fresh[1]), (fresh[0], fresh[1].clamp(min=2.2))):
        assert float(with_entropy((novel, entropy), found).p_value.median()) < 0.01


def test_the_entropy_is_that_of_the_plain_network() -> None:
    posterior, draw = trained("mlp")
    x, _ = draw(9, 3)
    reference = reference_of(posterior, draw(150, 1))
    found = novelty(posterior, x, reference=reference)
    with torch.no_grad():
        p = posterior.network.module(x).double().softmax(1)
    wanted = -(p * p.log()).sum(1)
    assert found.entropy is not None and found.with_entropy is not None
    assert_close(found.entropy, wanted, 1e-5)
    other = novelty(posterior.with_prior(50.0), x, reference=reference).with_entropy
    assert other is not None
    assert_close(other.score, found.with_entropy.score, 1e-5)  # neither the prior nor its entropy enters
    frame = found.to_pandas()
    assert {"entropy", "score_with_entropy", "p_value_with_entropy"} <= set(frame.columns)
    assert "if entropy counts too" in str(found)


def test_labels_of_one_output_have_an_entropy_and_numbers_have_none() -> None:
    logits = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
    p = logits.sigmoid()
    wanted = -(p * p.log() + (1 - p) * (1 - p).log()).sum(1)
    assert_close(plain_entropy(whence.Bernoulli(), logits), wanted, 1e-12)
    assert plain_entropy(whence.Gaussian(), logits) is None
    assert plain_entropy(whence.Categorical(), torch.zeros(2, 3, 4, 4)) is None
    x = torch.randn(120, 2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = whence.laplace(model, (x, x[:, :1]), likelihood=whence.Gaussian(noise=0.1), progress=False)
    found = novelty(posterior, x[:7], reference=x)
    assert found.entropy is None and found.with_entropy is None and "entropy" not in found.to_pandas().columns


def test_tuning_and_files_keep_the_entropy_of_the_reference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(260, 4).double(), torch.randint(3, (260,))
    posterior = whence.laplace(model, (x[:100], y[:100]), likelihood="classification", progress=False)
    posterior = posterior.tune((x[100:], y[100:]), progress=False)
    direct = reference_of(posterior, x[100:])
    assert posterior.reference is not None and posterior.reference.entropy is not None and direct.entropy is not None
    assert_close(posterior.reference.entropy, direct.entropy, 1e-9)
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    wanted, found = (novelty(p, x[:9]).with_entropy for p in (posterior, loaded))
    assert wanted is not None and found is not None and torch.equal(found.p_value, wanted.p_value)


@pytest.mark.parametrize("name", ["relu", "batch norm"])
def test_rescaling_the_network_changes_nothing(name: str) -> None:
    model = made(name, 0)
    x = inputs(name, 220, 0)
    with torch.no_grad():
        y = model(x).argmax(1)
    scores = []
    for one in (model, rescaled(model, 1)):
        posterior = whence.laplace(one, (x[:80], y[:80]), likelihood="classification", progress=False)
        found = novelty(posterior, x[200:], reference=x[80:200]).with_entropy
        assert found is not None
        scores.append(found.score)
    assert_close(scores[0], scores[1], 1e-6)
