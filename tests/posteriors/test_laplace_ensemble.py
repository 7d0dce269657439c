"""Laplace around each member: the mixture made by hand, evidence weights, draws in proportion."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from whence.errors import BadData, BadOption, Notice
from whence.io import load
from whence.posteriors.ensembles.laplace import LaplaceEnsemble, laplace_ensemble
from whence.posteriors.ensembles.posterior import ensemble
from whence.posteriors.laplace.front import laplace


def data(regression: bool = False) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, dtype=torch.float64, generator=g)
    if regression:
        return x, torch.sin(x[:, :1]) + 0.2 * torch.randn(40, 1, dtype=torch.float64, generator=g)
    return x, (x[:, 0] + 0.5 * torch.randn(40, dtype=torch.float64, generator=g) > 0).long()


def networks(regression: bool = False, widths: tuple[int, ...] = (4, 4, 7)) -> list[nn.Module]:
    """Trained a little, with different evidences."""
    (x, y), found = data(regression), []
    for index, width in enumerate(widths):
        torch.manual_seed(index)
        net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1 if regression else 2)).double()
        optimiser = torch.optim.Adam(net.parameters(), 0.05)
        for _ in range(60):
            optimiser.zero_grad()
            loss = (net(x) - y).square().mean() if regression else nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
        found.append(net)
    return found


def made(regression: bool = False, **options) -> LaplaceEnsemble:
    likelihood = "regression" if regression else "classification"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return laplace_ensemble(
            networks(regression), data(regression), likelihood=likelihood, progress=False, **options
        )


def test_weights_are_the_evidence() -> None:
    posterior = made()
    logs = torch.stack([m.log_evidence() for m in posterior.members]).double()
    torch.testing.assert_close(posterior.weights, logs.softmax(0))
    torch.testing.assert_close(posterior.log_evidences(), logs)
    torch.testing.assert_close(posterior.log_evidence(), logs.exp().mean().log())
    one = laplace(networks()[1], data(), likelihood="classification", prior_precision=1.0, progress=False)
    torch.testing.assert_close(one.log_evidence(), logs[1])
    assert made(weights="equal").weights.tolist() == pytest.approx([1 / 3] * 3)


def test_a_sampled_prediction_is_that_of_its_draws() -> None:
    posterior, x = made(weights="equal"), data()[0][:7]
    found = posterior.predict(x, method="sampled", num_samples=48, generator=torch.Generator().manual_seed(2))
    draws = posterior.draw(48, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(found.probs, torch.stack([draw(x).softmax(-1) for draw in draws]).mean(0))
    torch.testing.assert_close(found.probs, posterior.predict(x).probs, atol=0.15, rtol=0)


@pytest.mark.parametrize("weights", ["evidence", "equal"])
def test_classification_is_the_mixture_made_by_hand(weights: str) -> None:
    posterior, x = made(weights=weights), data()[0][:7]
    parts = [m.predict(x) for m in posterior.members]
    prediction = posterior.predict(x)
    w = posterior.weights
    probs = sum(wm * p.probs for wm, p in zip(w, parts, strict=True))
    torch.testing.assert_close(prediction.probs, probs)
    torch.testing.assert_close(prediction.entropy, -(probs * probs.log()).sum(-1))
    torch.testing.assert_close(prediction.aleatoric, sum(wm * p.aleatoric for wm, p in zip(w, parts, strict=True)))
    torch.testing.assert_close(prediction.epistemic, prediction.entropy - prediction.aleatoric)
    mean = sum(wm * p.logit_mean for wm, p in zip(w, parts, strict=True))
    cov = sum(
        wm * (p.logit_cov + torch.einsum("nc,nd->ncd", p.logit_mean - mean, p.logit_mean - mean))
        for wm, p in zip(w, parts, strict=True)
    )
    torch.testing.assert_close(prediction.logit_cov, cov)
    torch.testing.assert_close(prediction.samples.mean(0), probs, atol=0.02, rtol=0)


def test_the_default_is_a_function_of_x_and_probit_has_no_split() -> None:
    posterior, x = made(), data()[0][:5]
    assert torch.equal(posterior.predict(x).probs, posterior.predict(x).probs)
    probit = posterior.predict(x, link="probit")
    parts = [m.predict(x, link="probit").probs for m in posterior.members]
    torch.testing.assert_close(probit.probs, torch.einsum("m,mnc->nc", posterior.weights, torch.stack(parts)))
    with pytest.raises(ValueError, match="needs draws"):
        _ = probit.aleatoric


def test_regression_by_the_law_of_total_variance() -> None:
    posterior, x = made(True, weights="equal"), data(True)[0][:6]
    parts = [m.predict(x) for m in posterior.members]
    noises = [float(m.likelihood.noise) for m in posterior.members]
    assert len(set(noises)) == 3
    prediction = posterior.predict(x)
    mean = torch.stack([p.mean for p in parts]).mean(0)
    second = torch.stack([p.variance + p.mean.square() for p in parts]).mean(0)
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.variance, second - mean.square())
    torch.testing.assert_close(prediction.aleatoric, torch.full_like(mean, sum(s**2 for s in noises) / 3))
    assert float(posterior.likelihood.noise) == pytest.approx((sum(s**2 for s in noises) / 3) ** 0.5)
    low, _ = prediction.interval(0.9)
    below = sum(torch.special.ndtr((low - p.mean) / p.std) for p in parts) / 3
    torch.testing.assert_close(below, torch.full_like(below, 0.05), atol=1e-6, rtol=0)


def test_draws_come_from_members_in_proportion() -> None:
    posterior, x = made(weights="equal").with_weights([0.5, 0.25, 0.25]), data()[0][:4]
    draws = posterior.draw(8, torch.Generator().manual_seed(0))
    assert [len(p) for p in draws.parts] == [4, 2, 2] and len(draws) == 8
    outputs = draws.outputs(x)
    torch.testing.assert_close(torch.stack([f(x) for f in draws]).detach(), outputs)
    torch.testing.assert_close(draws[2:7].outputs(x), outputs[2:7])
    torch.testing.assert_close(draws.predict(x).probs, outputs.softmax(-1).mean(0))
    many = posterior.draw(6000, torch.Generator().manual_seed(0)).outputs(x)
    spread = sum(
        float(w) * (p.logit_cov + p.logit_mean.unsqueeze(-1) * p.logit_mean.unsqueeze(-2))
        for w, p in zip(
            posterior.weights,
            [m.predict(x, method="sampled", num_samples=6000) for m in posterior.members],
            strict=True,
        )
    )
    second = torch.einsum("snc,snd->ncd", many, many) / len(many)
    torch.testing.assert_close(second, spread, rtol=0.15, atol=0.1)
    served = posterior.as_module(8, torch.Generator().manual_seed(0), method="sampled")
    torch.testing.assert_close(served(x).mean, draws.predict(x).probs)


def test_one_heavy_member_is_told() -> None:
    x, y = data()
    good, bad = networks(widths=(4, 4))
    with torch.no_grad():
        bad[2].weight.mul_(-8)
    with pytest.warns(Notice, match=r"member 0 has .* of the weight"):
        laplace_ensemble([good, bad], (x, y), likelihood="classification", progress=False)


def test_tuned_saved_moved(tmp_path) -> None:
    x, _ = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        for regression in (False, True):
            models = networks(regression)
            likelihood = "regression" if regression else "classification"
            posterior = laplace_ensemble(models, data(regression), likelihood=likelihood, progress=False)
            tuned = posterior.tune(data(regression), progress=False)
            assert all(m.tuning is not None for m in tuned.members) and tuned.weighting == "evidence"
            assert torch.equal(tuned.weights, posterior.weights)
            best = posterior.tune(progress=False)
            torch.testing.assert_close(best.weights, best.log_evidences().softmax(0))
            assert bool((best.log_evidences() >= posterior.log_evidences() - 1e-6).all())
            tuned.save(tmp_path / "l.safetensors")
            again = load(tmp_path / "l.safetensors", models)
            torch.testing.assert_close(again.weights, tuned.weights)
            one, two = again.predict(x[:5]), tuned.predict(x[:5])
            torch.testing.assert_close(*(p.variance if regression else p.probs for p in (one, two)))
            assert again.to(torch.float32).members[0].network.dtype == torch.float32
            with pytest.raises(ValueError, match=r"another network|other weights"):
                load(tmp_path / "l.safetensors", models[::-1])


def test_from_an_ensemble_and_nothing_changes() -> None:
    models = networks()
    models[0].train()
    before, state = copy.deepcopy([m.state_dict() for m in models]), torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = laplace_ensemble(
            ensemble(models, likelihood="classification"), data(), likelihood="classification", progress=False
        )
    posterior.predict(data()[0])
    torch.testing.assert_close(posterior.weights, made().weights)
    assert models[0].training and torch.equal(torch.random.get_rng_state(), state)
    for model, then in zip(models, before, strict=True):
        assert all(torch.equal(v, then[k]) for k, v in model.state_dict().items())


def test_refusals() -> None:
    with pytest.raises(BadOption, match="unknown weights 'evidenc'"):
        laplace_ensemble(networks(), data(), likelihood="classification", weights="evidenc")  # type: ignore[arg-type]
    with pytest.raises(BadData, match="pass a list"):
        laplace_ensemble(networks()[0], data(), likelihood="classification")
    other = nn.Sequential(nn.Linear(3, 3)).double()
    with pytest.raises(BadData, match=r"member 1 has outputs of shape \[3\]"):
        laplace_ensemble([networks()[0], other], data(), likelihood="classification", progress=False)
