"""Losses by draws while tuning: at any data scale, interpolated between priors, with few passes."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.reference.directions import losses_of_directions
from tests.where.test_question import fitted
from whence.errors import BadOption, NotDefined, Notice, TooLarge
from whence.posteriors.laplace import drawn_losses
from whence.posteriors.laplace.drawn_losses import (
    DECADE,
    DrawnLosses,
    LinearisedLosses,
    WeightLosses,
    interpolation,
    scaled_prior,
)
from whence.posteriors.laplace.validation import Validation
from whence.predictive.linearised_draws import linearised_draws

STRUCTURES = ["kron", "diag", "full", "lowrank", "ekfac", "block"]


def losses_for(posterior: Any, data: Any, method: str) -> DrawnLosses:
    validation = Validation(posterior.network.read(data, "validation"), progress=False)
    if method == "sampled":
        return WeightLosses(validation, 6, seed=3)
    return LinearisedLosses(validation, 6, 32, seed=3)


def labels(posterior: Any, x: Tensor) -> Tensor:
    return torch.randint(4, (len(x), 3, 4), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["linearised", "sampled"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_losses_at_other_data_scales_are_those_of_the_scaled_posterior(method: str, structure: str) -> None:
    """Draws under V(δ, s) are those under V(δ / s, 1), divided by √s."""
    posterior, x = fitted("map", structure)
    drawn = losses_for(posterior, (x, labels(posterior, x)), method)
    logs = [-1.0, 0.0, 2.5]
    for s, found in zip(logs, drawn.losses(posterior, 0.0, logs), strict=True):
        direct = replace(scaled_prior(posterior, s), data_scale=posterior.data_scale * math.exp(s))
        torch.testing.assert_close(found, drawn.losses(direct, 0.0, [0.0])[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["map", "tokens", "numbers", "classes", "labels"])
def test_losses_are_those_of_the_directions(name: str) -> None:
    posterior, x = fitted(name)
    outputs = posterior.network(x).detach()
    y = {
        "map": outputs.argmax(1),
        "tokens": outputs.argmax(-1),
        "classes": outputs.argmax(1),
        "labels": (outputs > 0).double(),
    }.get(name, outputs + 0.3)
    drawn = losses_for(posterior, (x, y), "linearised")
    r = 0.7
    found = drawn.losses(posterior, r, [0.0, 1.0])
    under = scaled_prior(posterior, r)
    mean, moved = linearised_draws(under, 6, torch.Generator().manual_seed(3)).moved(x)
    targets = posterior.likelihood.check(mean, y)
    for s, losses in zip((0.0, 1.0), found, strict=True):
        wanted = losses_of_directions(posterior.likelihood, mean, moved, targets, 32, math.exp(s))
        torch.testing.assert_close(losses, wanted, rtol=1e-9, atol=1e-11)
    assert drawn.mean_variance(posterior, r) == pytest.approx(float((moved**2).mean()))


# Interpolation between priors


def worst(nodes: list[float], r: float) -> float:
    """Largest relative error of (λ + e^r)^-½ over eigenvalues λ from 1e-20 to 1e20."""
    values = torch.logspace(-20, 20, 4001, dtype=torch.float64)
    weights = interpolation(nodes, r)
    found = sum(w * (values + math.exp(node)).rsqrt() for w, node in zip(weights, nodes, strict=True))
    return float((found * (values + math.exp(r)).sqrt() - 1).abs().max())


@pytest.mark.parametrize(("step", "limit"), [(1.0, 0.02), (0.5, 0.001)])
def test_the_inverse_root_is_interpolated_for_every_eigenvalue(step: float, limit: float) -> None:
    nodes = [k * step * DECADE for k in range(-3, 5)]
    assert max(worst(nodes, r * step * DECADE) for r in (0.01, 0.25, 0.5, 0.75, 0.99)) < limit
    assert worst(nodes, nodes[3]) < 1e-3, "at a node itself"


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("prior", [1.0, whence.Relative(1.0)], ids=["isotropic", "relative"])
def test_interpolated_derivatives_are_those_of_the_prior_between(structure: str, prior: Any) -> None:
    posterior, x = fitted("map", structure)
    if isinstance(prior, whence.Relative) and structure in ("ekfac", "lowrank"):
        pytest.skip("these take another shape of prior only when they are fitted")
    posterior = posterior.with_prior(prior)
    drawn = losses_for(posterior, (x, labels(posterior, x)), "linearised")
    assert isinstance(drawn, LinearisedLosses)
    drawn.begin(posterior)
    for k in range(-4, 5):
        drawn.make_exact(k * DECADE / 2)
    r = 0.3 * DECADE
    found = torch.cat([some.moved for some in drawn._at(posterior, r)], 1)
    wanted = torch.cat([some.moved for some in drawn._computed(posterior, r)], 1)
    assert not torch.equal(found, wanted), "not interpolated"
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3
    drawn.make_exact(r)
    torch.testing.assert_close(torch.cat([some.moved for some in drawn._at(posterior, r)], 1), wanted)


# tune()


def many_outputs(classes: int = 120) -> tuple[Any, tuple[Tensor, Tensor]]:
    """A trained network of many classes, and validation data."""
    torch.manual_seed(0)
    centres = torch.randn(classes, 6, dtype=torch.float64)
    y = torch.arange(480) % classes
    x = centres[y] + 0.5 * torch.randn(480, 6, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, classes)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:240]), y[:240]).backward()
        optimiser.step()
    posterior = whence.laplace(model, (x[:240], y[:240]), likelihood="classification", progress=False)
    return posterior, (x[240:360], y[240:360])


def passes_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of directions of each set that is drawn while tuning."""
    counted: list[int] = []
    plain = linearised_draws

    def noted(posterior: Any, count: int, generator: torch.Generator | None = None) -> Any:
        counted.append(count)
        return plain(posterior, count, generator)

    monkeypatch.setattr(drawn_losses, "linearised_draws", noted)
    return counted


def test_many_outputs_are_tuned_by_directions_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the loss that differentiating all outputs finds, judged without directions."""
    posterior, validation = many_outputs()
    counted = passes_of(monkeypatch)
    exact = posterior.tune(validation, progress=False, data_scale=False, num_samples=16, reference=False)
    assert not counted, "differentiating is cheaper than many passes"
    found = posterior.tune(validation, progress=False, probes=16)
    assert set(counted) == {16} and len(counted) <= 26
    rows, y = torch.arange(len(validation[1])), validation[1]
    losses = [
        float(-some.predict(validation[0], probes="exact").probs[rows, y].log().mean())
        for some in (found, exact, posterior.with_prior(whence.Relative(1e3)))
    ]
    assert losses[0] - losses[1] < 0.02 < losses[2] - losses[1], "another prior is clearly worse"
    counted.clear()
    monkeypatch.setattr("whence.predictive.linearised.available", lambda _: 10_000)
    with pytest.warns(Notice, match=r"tune\(\) uses 20 draws of the linearised network instead of differentiating"):
        by_itself = posterior.tune(validation, progress=False, reference=False)
    assert set(counted) == {10} and math.isfinite(by_itself.tuning.score)


def test_many_outputs_of_a_convolution_are_tuned_by_directions(monkeypatch: pytest.MonkeyPatch, set_sizes: Any) -> None:
    """Their rows would be weighted anew for every prior, which costs more than the directions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, 40))
    x, y = torch.randn(60, 1, 8, 8), torch.randint(40, (60,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", curvature="mc", progress=False)
    counted = passes_of(monkeypatch)
    posterior.tune((x, y), progress=False, data_scale=False, reference=False)
    assert not counted, "quick in any case"
    set_sizes(exact=1)
    with pytest.warns(Notice, match=r"tune\(\) uses 20 draws .* all 40 outputs; probes='exact' takes about \d+ times"):
        posterior.tune((x, y), progress=False, data_scale=False, reference=False)
    assert set(counted) == {10}


def test_what_memory_does_not_keep_is_computed_again(monkeypatch: pytest.MonkeyPatch, set_sizes: Any) -> None:
    posterior, validation = many_outputs()
    kept = posterior.tune(validation, progress=False, probes=8, data_scale=False)
    set_sizes(drawn_validation=1000)
    counted = passes_of(monkeypatch)
    found = posterior.tune(validation, progress=False, probes=8, data_scale=False)
    assert len(counted) > 26, "every prior has a pass of its own"
    assert found.tuning.score == pytest.approx(kept.tuning.score, abs=1e-3)


def test_layers_are_tuned_by_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, validation = many_outputs()
    counted = passes_of(monkeypatch)
    one = posterior.tune(validation, progress=False, probes=8, data_scale=False)
    each = posterior.tune(validation, progress=False, probes=8, data_scale=False, per_layer=True)
    assert counted and each.tuning.score <= one.tuning.score + 1e-9


def test_what_probes_cannot_ask() -> None:
    posterior, x = fitted("map")
    data = (x, labels(posterior, x))
    with pytest.raises(NotDefined, match=r"tune\(\) of dense outputs is by draws of the linearised network"):
        posterior.tune(data, probes="exact", progress=False)
    with pytest.raises(BadOption, match="for weight draws pass num_samples"):
        posterior.tune(data, method="sampled", probes=8, progress=False)
    with pytest.raises(BadOption, match="both say how many"):
        posterior.tune(data, num_samples=20, probes=8, progress=False)
    with pytest.raises(BadOption, match="must be 'auto', 'exact'"):
        posterior.tune(data, probes=1, progress=False)
    with pytest.raises(BadOption, match="method, num_samples, probes and generator do not apply"):
        posterior.tune(probes=8)


def test_outputs_too_large_to_differentiate_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU what memory does not hold is not tried, since the process would be killed."""
    posterior, validation = many_outputs()
    monkeypatch.setattr("whence.predictive.linearised.available", lambda _: 10_000)
    with pytest.raises(TooLarge, match=r"differentiating 120 outputs or columns .* probes="):
        posterior.predict(validation[0], probes="exact")
    with pytest.warns(Notice, match=r"predict\(\) uses 64 draws"):
        prediction = posterior.predict(validation[0])
    assert bool((prediction.probs.sum(1) - 1).abs().max() < 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.predict(validation[0], probes=6)
