"""Distances between predictions, held against closed forms and brute force."""

from __future__ import annotations

import copy
import importlib
import math
import pickle

import pytest
import torch

import whence
from whence.errors import BadData, BadOption, NotDefined, TooLarge
from whence.metrics.distance import Distance, distance, empirical, total_variation, wasserstein
from whence.metrics.regression import NormalForecast
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    OutputPrediction,
    RegressionPrediction,
)

file = importlib.import_module("whence.metrics.distance")  # the package has a function of the same name


def normal(mean: list[float], variance: list[float]) -> RegressionPrediction:
    centre, spread = (torch.tensor(v, dtype=torch.float64).unsqueeze(1) for v in (mean, variance))
    return RegressionPrediction(centre, spread / 2, spread / 2)


def mixture(seed: int, draws: int = 40, inputs: int = 4, noise: float = 0.3) -> RegressionPrediction:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(draws, inputs, 1, generator=generator, dtype=torch.float64) * (1 + seed)
    aleatoric = torch.full((inputs, 1), noise**2, dtype=torch.float64)
    return RegressionPrediction(samples.mean(0), aleatoric, samples.var(0, correction=0), samples)


def density(prediction: RegressionPrediction, at: torch.Tensor) -> torch.Tensor:
    """Of the target, [G, N], one component after the other."""
    if prediction.samples is None:
        return torch.distributions.Normal(prediction.mean[:, 0], prediction.std[:, 0]).log_prob(at[:, None]).exp()
    noise = prediction.aleatoric[:, 0].sqrt()
    parts = [torch.distributions.Normal(s[:, 0], noise).log_prob(at[:, None]).exp() for s in prediction.samples]
    return torch.stack(parts).mean(0)


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.5, 3.0, 30.0])
def test_two_normals_of_one_width(shift: float) -> None:
    """TV = 2 Φ(|Δμ| / 2σ) − 1, W₁ = |Δμ|."""
    sigma = 1.7
    a, b = normal([2.0, -5.0], [sigma**2] * 2), normal([2.0 + shift, -5.0 - shift], [sigma**2] * 2)
    expected = 2 * torch.special.ndtr(torch.tensor(shift / (2 * sigma), dtype=torch.float64)) - 1
    torch.testing.assert_close(total_variation(a, b).values, expected.expand(2, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(wasserstein(a, b).values, torch.full((2, 1), shift).double(), atol=1e-9, rtol=1e-9)


def test_two_normals_of_two_widths() -> None:
    """W₁ = |σ − τ| E|Z|; TV by the two crossings of the densities."""
    s, t = 1.0, 2.5
    a, b = normal([0.0], [s**2]), normal([0.0], [t**2])
    torch.testing.assert_close(
        float(wasserstein(a, b, resamples=0)), (t - s) * math.sqrt(2 / math.pi), rtol=1e-5, atol=0
    )
    cross = math.sqrt(2 * math.log(t / s) / (1 / s**2 - 1 / t**2))
    phi = torch.special.ndtr
    expected = 2 * (phi(torch.tensor(cross / s).double()) - phi(torch.tensor(cross / t).double()))
    torch.testing.assert_close(total_variation(a, b, resamples=0).values[0, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("first", "second"), [(mixture(0), mixture(1)), (mixture(1, 7), normal([0.0] * 4, [2.0] * 4))])
def test_mixtures_against_brute_force(first: RegressionPrediction, second: RegressionPrediction) -> None:
    at = torch.linspace(-15, 15, 60_001, dtype=torch.float64)
    off = density(first, at) - density(second, at)
    step = at[1] - at[0]
    variation, transport = off.abs().sum(0) * step / 2, (off.cumsum(0) * step).abs().sum(0) * step
    torch.testing.assert_close(total_variation(first, second).values[:, 0], variation, atol=2e-4, rtol=0)
    torch.testing.assert_close(wasserstein(first, second).values[:, 0], transport, atol=1e-4, rtol=1e-4)


def test_wasserstein_is_the_distance_of_quantiles() -> None:
    """Of draws of the mixtures, sorted."""
    first, second = mixture(0, inputs=1), mixture(1, inputs=1)
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for p in (first, second):
        pick = torch.randint(len(p.samples), (400_000,), generator=generator)
        noise = torch.randn(400_000, generator=generator, dtype=torch.float64) * p.aleatoric.sqrt().item()
        drawn.append((p.samples[pick, 0, 0] + noise).sort().values)
    brute = (drawn[0] - drawn[1]).abs().mean()
    assert abs(float(wasserstein(first, second, resamples=0)) - float(brute)) < 0.01


def test_empirical_distributions_of_unequal_size() -> None:
    a, b = torch.randn(6, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    same = empirical(a.repeat_interleave(2, 0), b.repeat_interleave(3, 0))  # twelve each: sorted pairs
    expected = (a.repeat_interleave(2, 0).sort(0).values - b.repeat_interleave(3, 0).sort(0).values).abs().mean(0)
    torch.testing.assert_close(empirical(a, b), expected)
    torch.testing.assert_close(same, expected)


def test_it_is_a_distance() -> None:
    a, b, c = mixture(0), mixture(1), mixture(2, noise=0.5)
    for measure in (total_variation, wasserstein):
        ab, ba, ac, cb = (measure(p, q, resamples=0).values for p, q in ((a, b), (b, a), (a, c), (c, b)))
        torch.testing.assert_close(ab, ba)
        assert bool((ab <= ac + cb + 1e-6).all())
        assert float(measure(a, a, resamples=0)) < 1e-12


def test_classes() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    q = torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    found = total_variation(ClassificationPrediction(p, p.log()), ClassificationPrediction(q, q.log()))
    torch.testing.assert_close(found.values, torch.tensor([0.6, 1.0]).double(), atol=1e-7, rtol=0)
    assert float(found) == pytest.approx(0.8) and 0 <= found.low <= found.high <= 1
    with pytest.raises(NotDefined, match="total_variation"):
        wasserstein(ClassificationPrediction(p, p), ClassificationPrediction(q, q))
    binary = total_variation(BinaryPrediction(p, p), BinaryPrediction(q, q), resamples=0)
    torch.testing.assert_close(binary.values, (p.double() - q.double()).abs())


def test_counts() -> None:
    def counts(rates: list[float]) -> CountPrediction:
        samples = torch.tensor(rates, dtype=torch.float64).reshape(-1, 1, 1)
        return CountPrediction(samples.mean(0), samples.var(0, correction=0), samples)

    k = torch.arange(200, dtype=torch.float64)
    mass = [
        torch.stack([(k * math.log(r) - r - torch.lgamma(k + 1)).exp() for r in rates]).mean(0)
        for rates in ([2.0, 5.0], [4.0])
    ]
    a, b = counts([2.0, 5.0]), counts([4.0])
    assert float(total_variation(a, b, resamples=0)) == pytest.approx(float((mass[0] - mass[1]).abs().sum() / 2))
    off = (mass[0] - mass[1]).cumsum(0).abs().sum()
    assert float(wasserstein(a, b, resamples=0)) == pytest.approx(float(off))
    with pytest.raises(BadData, match="counts"):
        wasserstein(a, normal([1.0], [1.0]))


def test_raw_outputs_have_a_wasserstein_distance_only() -> None:
    samples = torch.randn(50, 3, 2, dtype=torch.float64)
    a = OutputPrediction(samples.mean(0), samples.var(0), samples)
    b = OutputPrediction(samples.mean(0) + 1.5, samples.var(0), samples + 1.5)
    torch.testing.assert_close(wasserstein(a, b).values, torch.full((3, 2), 1.5).double())
    with pytest.raises(NotDefined, match="no density"):
        total_variation(a, b)


def test_a_distance_is_an_estimate_with_values() -> None:
    found = wasserstein(normal([0.0, 0.0, 0.0], [1.0] * 3), normal([1.0, 2.0, 3.0], [1.0] * 3))
    assert isinstance(found, float) and float(found) == pytest.approx(2.0)
    assert found.low < 2 < found.high and found.count == 3 and found.name == "wasserstein"
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert isinstance(other, Distance) and other == found and torch.equal(other.values, found.values)


def test_many_outputs_and_float32() -> None:
    a = RegressionPrediction(torch.zeros(5, 2), torch.ones(5, 2), torch.ones(5, 2))
    b = RegressionPrediction(torch.ones(5, 2), torch.ones(5, 2), torch.ones(5, 2))
    found = wasserstein(a, b)
    assert found.values.shape == (5, 2) and float(found) == pytest.approx(1.0, abs=1e-6)


@whence.Posterior.register
class Fixed:
    """A posterior that predicts N(shift, 1)."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def predict(self, x: torch.Tensor, *, num_samples: int | None = None, generator: object = None) -> object:
        return normal([self.shift] * len(x), [1.0] * len(x))


def test_posteriors_on_a_grid() -> None:
    x = torch.zeros(7, 1)
    assert float(distance(Fixed(1.0), Fixed(3.0), x)) == pytest.approx(2.0)
    assert float(distance(Fixed(1.0), Fixed(3.0).predict(x), x)) == pytest.approx(2.0)
    near = distance(Fixed(1.0), Fixed(1.1), x, measure="total_variation")
    assert near.name == "total_variation" and 0 < near < 0.1
    with pytest.raises(BadData, match="pass x"):
        distance(Fixed(1.0), Fixed(2.0))
    with pytest.raises(BadOption, match="wasserstein"):
        distance(Fixed(1.0), Fixed(2.0), x, measure="wassertein")  # type: ignore[arg-type]


def test_predictions_for_other_inputs_are_refused() -> None:
    with pytest.raises(BadData, match="same inputs"):
        wasserstein(normal([0.0], [1.0]), normal([0.0, 1.0], [1.0, 1.0]))
    with pytest.raises(BadData, match="pass posterior"):
        wasserstein(3, normal([0.0], [1.0]))
    p = torch.full((2, 3), 1 / 3)
    with pytest.raises(BadData, match="cannot be compared"):
        total_variation(ClassificationPrediction(p, p), normal([0.0], [1.0]))


def normals(means: list[float], stds: list[float]) -> NormalForecast:
    """One element, components of one weight."""
    m, s = (torch.tensor(v, dtype=torch.float64).unsqueeze(1) for v in (means, stds))
    return NormalForecast(m.mean(0), s.mean(0), m, s.square())


def quadrature(first: NormalForecast, second: NormalForecast) -> tuple[float, float]:
    """Both distances by trapezoids on points that crowd around every mean at every width."""
    m, s = torch.cat([first.means, second.means]), torch.cat([first.variances, second.variances]).sqrt()
    away = torch.linspace(-12, 12, 6001, dtype=torch.float64)
    at = (m.reshape(-1, 1) + s.reshape(-1, 1) * away).flatten().unique()

    def of(given: NormalForecast, what: str) -> torch.Tensor:
        normal = torch.distributions.Normal(given.means, given.variances.sqrt())
        return (normal.log_prob(at).exp() if what == "density" else normal.cdf(at)).mean(0)

    density, cdf = ((of(first, w) - of(second, w)).abs() for w in ("density", "cdf"))
    return float(torch.trapezoid(density, at) / 2), float(torch.trapezoid(cdf, at))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (([0.0, 0.0], [1e-3, 10.0]), ([0.003, 0.0], [1e-3, 10.0])),
        (([0.0, 0.0], [1e-2, 10.0]), ([0.03, 0.0], [1e-2, 10.0])),
        (([0.0, 0.0], [1e-6, 1e4]), ([1e-6, 5e3], [2e-6, 1e4])),
        (([-3.0, 7.0, 900.0], [1e-4, 0.3, 50.0]), ([-3.0, 6.9, 1000.0, 5.0], [3e-4, 0.2, 40.0, 1e-3])),
        (([0.0], [1e-5]), ([0.0], [100.0])),
        (([0.0, 1e4, 2e4], [1.0, 1.0, 1.0]), ([0.5, 1e4, 3e4], [1.0, 1.0, 1.0])),
    ],
)
def test_widths_that_differ_a_lot(first: tuple[list[float], ...], second: tuple[list[float], ...]) -> None:
    a, b = normals(*first), normals(*second)
    variation, transport = quadrature(a, b)
    assert float(file._variation(a, b)) == pytest.approx(variation, abs=3e-5)
    assert float(file._transport(a, b)) == pytest.approx(transport, rel=1e-5)
    assert float(file._variation(b, a)) == pytest.approx(float(file._variation(a, b)), abs=1e-12)


def test_a_narrow_pair_within_wide_ones() -> None:
    """Half of both mixtures is the same, so TV is half that of the others: Φ(1.5) − ½."""
    found = file._variation(normals([0, 0], [1e-3, 10]), normals([0.003, 0], [1e-3, 10]))
    assert float(found) == pytest.approx(0.4331927987, abs=1e-6)


def test_equal_widths_stay_accurate() -> None:
    for shift in torch.linspace(0.01, 8, 60).tolist():
        found = float(file._variation(normals([0.3], [1.3]), normals([0.3 + shift], [1.3])))
        assert found == pytest.approx(math.erf(shift / 2.6 / math.sqrt(2)), abs=3e-5)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    means, widths = (torch.randn(2, 100, generator=generator, dtype=torch.float64) * 9 for _ in range(2))
    a, b = (normals(m.tolist(), w.exp().clamp(1e-6, 1e3).tolist()) for m, w in zip(means, widths, strict=True))
    whole = file._variation(a, b), file._transport(a, b)
    held = []
    reached = file._reached

    def watched(*given: torch.Tensor) -> object:
        for rows, points in reached(*given, at_once=2**15):
            held.append(len(rows))
            yield rows, points

    monkeypatch.setattr(file, "_reached", watched)
    torch.testing.assert_close((file._variation(a, b), file._transport(a, b)), whole, rtol=1e-9, atol=1e-12)
    variances = torch.cat([a.variances, b.variances])
    points = len(file._grid(torch.cat([a.means, b.means])[:, 0], variances[:, 0].sqrt()))
    assert points < 200 * 300 and max(held) <= max(2**15, points)


def counted(rates: torch.Tensor) -> CountPrediction:
    samples = rates.double().unsqueeze(-1)
    return CountPrediction(samples.mean(0), samples.var(0, correction=0), samples)


def test_counts_each_on_a_grid_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of very different size; held against sums over all counts."""
    generator = torch.Generator().manual_seed(0)
    first, second = ((torch.rand(3, 8, generator=generator) * 9).exp() for _ in range(2))
    first[:, 0] = 0.0
    k = torch.arange(12_000, dtype=torch.float64)
    log = torch.lgamma(k + 1)
    masses = [
        (torch.xlogy(k, r.double().unsqueeze(-1)) - r.double().unsqueeze(-1) - log).exp().mean(0)
        for r in (first, second)
    ]
    off = masses[0] - masses[1]
    held = []
    covered = file._covered
    monkeypatch.setattr(file, "_covered", lambda *given: held.append(len(covered(*given))) or covered(*given))
    a, b = counted(first), counted(second)
    torch.testing.assert_close(total_variation(a, b).values[:, 0], off.abs().sum(-1) / 2, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(wasserstein(a, b).values[:, 0], off.cumsum(-1).abs().sum(-1), atol=1e-6, rtol=1e-7)
    assert max(held) < 12_000 and min(held) < 12_000 / 4


def test_large_counts_are_cheap_until_they_are_too_large() -> None:
    a, b = (counted(torch.full((1, 2), rate, dtype=torch.float64)) for rate in (1e8, 1e8 + 500))
    assert float(wasserstein(a, b, resamples=0)) == pytest.approx(500, rel=1e-4)
    expected = math.erf(500 / 2 / 1e4 / math.sqrt(2))
    assert float(total_variation(a, b, resamples=0)) == pytest.approx(expected, rel=1e-3)
    huge = counted(torch.full((1, 2), 1e13))
    for measure in (total_variation, wasserstein):
        with pytest.raises(TooLarge, match=r"rates up to 1e\+13 needs up to .* counts of one element .limit 4,194,304"):
            measure(huge, b)
