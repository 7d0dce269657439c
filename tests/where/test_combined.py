"""All detectors as one score: valid p-values, a slow twin, and what it needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.reference import novelty as slow
from tests.where.novel import trained
from whence.errors import NotDefined
from whence.where.combined import PARTS, combine
from whence.where.detectors import detectors


def dependent(size: int, g: torch.Generator) -> dict[str, Tensor]:
    """Scores that share a factor, on different scales and with different tails."""
    common, alone = torch.randn(size, generator=g), torch.randn(len(PARTS), size, generator=g)
    values = (0.6 * common + 0.8 * alone).double()
    scales = (lambda v: v.clamp(min=0).square(), lambda v: torch.sigmoid(2 * v - 4), lambda v: 8 * v - 20,
              lambda v: (2 + v / 4).exp())  # fmt: skip
    return {name: scale(v) for name, scale, v in zip(PARTS, scales, values, strict=True)}


def test_p_values_of_fresh_inputs_hold_however_detectors_depend() -> None:
    """Averaged over 100 references."""
    g = torch.Generator().manual_seed(2)
    rates: dict[float, list[float]] = {level: [] for level in (0.01, 0.05, 0.2, 0.5)}
    for _ in range(100):
        every = dependent(500, g)
        found = combine({n: v[:200] for n, v in every.items()}, {n: v[200:] for n, v in every.items()})
        for level, rate in rates.items():
            rate.append(float(found.flag(level).double().mean()))
    for level, rate in rates.items():
        error = float(np.std(rate)) / math.sqrt(len(rate))
        wanted = math.floor(level * 201) / 201
        assert abs(np.mean(rate) - wanted) < 4 * error + 0.003, (level, np.mean(rate))


def test_p_values_of_a_network_are_uniform() -> None:
    posterior, draw = trained("mlp")
    detector = whence.combined_detector(posterior, draw(1_000, 1), train=draw(300, 0))
    found = detector(draw(1_000, 2)[0])
    assert found.names == PARTS and len(found) == 1_000 and found.p_values.shape == (1_000, 4)
    bound = math.sqrt(-math.log(0.01 / 2) / 2) * math.sqrt(2 / 1_000)
    assert slow.kolmogorov_smirnov(found.p_value.numpy()) < bound
    assert 0.002 <= float(found.flag(0.01).double().mean()) < 0.025
    assert repr(detector).endswith("1,000 reference inputs)")


def test_the_twin_agrees() -> None:
    g = torch.Generator().manual_seed(4)
    known, found = dependent(60, g), dependent(30, g)
    for values in found.values():
        values[0] = values.amax() * 3 + 10  # beyond all of the reference
    both = combine(known, found)
    own, scores = slow.summed([known[n].numpy() for n in PARTS], [found[n].numpy() for n in PARTS])
    assert_close(both.score, torch.from_numpy(scores), 1e-9)
    p = torch.tensor([slow.p_value(own, float(s)) for s in scores], dtype=torch.float64)
    assert_close(both.p_value, p, 1e-14)
    assert float(both.p_value[0]) == 1 / 61


def test_one_detector_that_sees_it_is_enough() -> None:
    g = torch.Generator().manual_seed(5)
    known, fresh = dependent(1_000, g), dependent(100, g)
    for name in ("energy", "mahalanobis_layers"):
        far = fresh | {name: fresh[name] + 20 * known[name].std()}
        assert float(combine(known, far).p_value.median()) < 0.01


def test_its_parts_are_those_that_apply() -> None:
    posterior, draw = trained("mlp")
    x = draw(9, 3)[0]
    assert whence.combined_detector(posterior, draw(150, 1))(x).names == ("novelty", "plain_entropy", "energy")
    torch.manual_seed(0)
    inputs = torch.randn(120, 2)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    pair = (inputs, inputs[:, :1])
    numbers = whence.laplace(model, pair, likelihood=whence.Gaussian(noise=0.1), progress=False)
    found = whence.combined_detector(numbers, inputs, train=pair)(inputs[:5])
    assert found.names == ("novelty", "mahalanobis_layers")
    with pytest.raises(NotDefined, match=r"takes two detectors or more .* there is \['novelty'\]"):
        whence.combined_detector(numbers, inputs)(inputs[:5])


def test_detectors_offer_it_if_the_inputs_of_the_reference_are_there() -> None:
    posterior, draw = trained("mlp")
    x, validation, train = draw(9, 3)[0], draw(150, 1), draw(300, 0)
    found = detectors(posterior, x, train=train, reference=validation)
    wanted = whence.combined_detector(posterior, validation, train=train)(x)
    assert_close(found["combined"], wanted.score, 1e-6)
    known = whence.reference_of(posterior, validation)
    assert "combined" not in detectors(posterior, x, train=train, reference=known)
    table = whence.compare_detectors(posterior, draw(80, 4), x, train=train, reference=validation)
    assert "combined" in {row.detector for row in table.rows}
