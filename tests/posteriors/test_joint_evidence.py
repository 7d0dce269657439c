"""The evidence under one dense curvature of all layers: its maximum is that of a slow twin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.likelihoods import Gaussian
from whence.posteriors.laplace.evidence import best_precision, log_evidence
from whence.posteriors.laplace.joint_evidence import is_dense

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.Notice")


def fitted(curvature: Literal["ggn", "empirical"] = "ggn", prior: float | whence.Relative = 2.0) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator).double()
    y = x[:, :1].sin() + 0.2 * torch.randn(60, 1, generator=generator).double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return whence.laplace(
        model, (x, y), likelihood="regression", structure="full", curvature=curvature, prior_precision=prior,
        progress=False,
    )  # fmt: skip


def twin(posterior: Any) -> float:
    """The largest evidence over the precision of each layer and the noise, by autograd through log det (s H + Δ)."""
    known, count = float(posterior.likelihood.noise), posterior.record.targets
    power = posterior.curvature.options.curvature.noise_power
    matrix = posterior.curvature.structures[0].matrix.double()
    params = [p for b in posterior.blocks for p in b.params]
    theta = torch.cat([posterior.mean()[p.name].double().reshape(-1) for p in params])
    start = posterior.prior.flat(params)
    layer = torch.cat([torch.full((b.size,), i) for i, b in enumerate(posterior.blocks)])
    free = torch.zeros(len(posterior.blocks) + 1, dtype=torch.float64, requires_grad=True)

    def evidence() -> Tensor:
        delta, noise = start * free[:-1].exp()[layer], known * free[-1].exp()
        fit = -0.5 * posterior.record.squares / noise**2 - count * (noise.log() + 0.5 * math.log(2 * math.pi))
        scaled = matrix * (known / noise) ** power
        occam = (delta * theta.square()).sum() + torch.logdet(scaled + torch.diag(delta)) - delta.log().sum()
        return fit - 0.5 * occam

    optimiser = torch.optim.LBFGS([free], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -evidence()
        loss.backward()
        return loss

    assert float(evidence().detach()) == pytest.approx(float(log_evidence(posterior)), rel=1e-8)
    optimiser.step(closure)
    return float(evidence().detach())


@pytest.mark.parametrize(("curvature", "prior"), [("ggn", 2.0), ("empirical", 2.0), ("ggn", whence.Relative(1.0))])
def test_the_maximum_is_that_of_the_twin(curvature: Literal["ggn", "empirical"], prior: Any) -> None:
    posterior = fitted(curvature, prior)
    assert is_dense(posterior)
    tuned = posterior.tune(per_layer=True, progress=False)
    top = float(log_evidence(tuned))
    assert top == pytest.approx(twin(posterior), abs=1e-5)
    noise = float(tuned.likelihood.noise)
    for factor in (0.97, 1.03):
        assert float(log_evidence(replace(tuned, likelihood=Gaussian(noise * factor)))) < top
    for block in tuned.blocks:
        for factor in (0.9, 1.1):
            moved = {p.name: factor if p in block.params else 1.0 for b in tuned.blocks for p in b.params}
            assert float(log_evidence(tuned.under(tuned.prior.scaled_by(moved)))) < top


def test_precisions_alone_end_at_mackays_fixed_point() -> None:
    posterior = fitted()
    tuned = best_precision(posterior, per_layer=True)
    assert tuned.likelihood == posterior.likelihood
    variance, mean = tuned.variance(), tuned.mean()
    for block in tuned.blocks:
        delta = tuned.prior.flat(list(block.params))[0]
        flat = block.gather(variance).double()
        squares = sum(float(mean[p.name].double().square().sum()) for p in block.params)
        assert float(delta) * squares == pytest.approx(float((1 - delta * flat).sum()), rel=1e-5)


def test_a_layer_that_changes_nothing_is_left_inside_the_bounds() -> None:
    """Its weights are 0 and its curvature too: the evidence is flat, and nothing becomes infinite."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    x, y = torch.randn(20, 2).double(), torch.randn(20, 1).double()
    tuned = whence.laplace(
        model, (x, y), likelihood="regression", structure="full", prior_precision=1.0, progress=False
    ).tune(per_layer=True, progress=False)
    values = torch.cat(
        [v.reshape(-1) if isinstance(v, Tensor) else torch.tensor([v]) for v in tuned.prior.values.values()]
    )
    assert bool(torch.isfinite(values).all()) and float(values.min()) > 0
    assert math.isfinite(float(log_evidence(tuned)))
