"""Draws of the linearised network: dense outputs and many outputs, beside dense Jacobians and exact moments."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.reference.directions import losses_of_directions
from tests.where.test_question import fitted, jacobian
from whence.errors import BadOption, NotDefined, Notice, TooLarge
from whence.predictive.linearised_draws import LinearisedDraws, linearised_draws


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("name", ["map", "tokens", "numbers"])
def test_moments_are_those_of_the_jacobian(name: str, structure: str) -> None:
    """Mean exactly f*; covariance J Σ Jᵀ, within what 4,000 directions can tell."""
    posterior, x = fitted(name, structure)
    rows = jacobian(posterior, x).flatten(1, -2)
    cov = rows @ posterior.covariance() @ rows.mT
    draws = linearised_draws(posterior, 4000)
    mean, moved = draws.moved(x)
    torch.testing.assert_close(mean, posterior.network(x).detach())
    flat = moved.flatten(2)
    found = torch.einsum("snc,snd->ncd", flat, flat) / len(flat)
    variance = cov.diagonal(dim1=-2, dim2=-1)
    error = ((variance.unsqueeze(-1) * variance.unsqueeze(-2) + cov.square()) / 4000).sqrt()  # Isserlis
    assert float(((found - cov).abs() / error.clamp(min=1e-12)).max()) < 5.5


def test_a_map_is_predicted_pixel_by_pixel() -> None:
    """Beside exact Gaussians of the logits of single pixels, by many points."""
    posterior, x = fitted("map", "block")
    found = posterior.predict(x, method="linearised", num_samples=6000)
    assert found.probs.shape == (3, 4, 3, 4) and found.entropy.shape == (3, 3, 4)
    torch.testing.assert_close(found.logit_mean, posterior.network(x).detach())
    rows = jacobian(posterior, x).movedim(1, -2)  # [N, H, W, C, P]
    cov = rows @ posterior.covariance() @ rows.mT
    root = torch.linalg.cholesky(cov + 1e-12 * torch.eye(4, dtype=torch.float64))
    noise = torch.randn(20_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = found.logit_mean.movedim(1, -1)
    wanted = (logits + torch.einsum("nhwcd,sd->snhwc", root, noise)).softmax(-1).mean(0)
    torch.testing.assert_close(found.probs.movedim(1, -1), wanted, atol=0.02, rtol=0)
    torch.testing.assert_close(found.entropy - found.aleatoric, found.epistemic)
    assert found.samples.shape == (6000, 3, 4, 3, 4)


@pytest.mark.parametrize("name", ["map", "tokens", "numbers"])
def test_dense_outputs_are_predicted_linearised_by_default(name: str) -> None:
    """A deterministic function of the inputs, also as the source of attacks and mixtures."""
    posterior, x = fitted(name, "kron")
    found, again = posterior.predict(x), posterior.predict(x, method="linearised")
    values = (found.mean, again.mean) if name == "numbers" else (found.probs, again.probs)
    torch.testing.assert_close(*values, rtol=0, atol=0)
    (source,) = posterior.sources(num_samples=10)
    drawn = torch.cat([outputs() for outputs, _ in source.parts(x, False, 2)])  # pairs of each chunk stand together
    wanted = linearised_draws(posterior, 5).outputs(x)
    torch.testing.assert_close(drawn.sort(0).values, wanted.sort(0).values)
    weights = torch.cat([w for _, w in source.parts(x, False, 2)])
    torch.testing.assert_close(weights.exp(), torch.full((10,), 0.1, dtype=torch.float64))


def test_numbers_have_the_variance_of_the_jacobian() -> None:
    posterior, x = fitted("numbers", "full")
    found = posterior.predict(x, method="linearised", probes=4000)
    rows = jacobian(posterior, x)
    wanted = ((rows @ posterior.covariance()) * rows).sum(-1)
    torch.testing.assert_close(found.mean, posterior.network(x).detach())
    torch.testing.assert_close(found.epistemic, wanted, rtol=0.12, atol=1e-9)
    low, high = found.interval(0.9)
    assert bool((low < found.mean).all()) and bool((found.mean < high).all())


def test_it_is_a_fixed_function_of_the_input_and_follows_a_generator() -> None:
    posterior, x = fitted("map")
    whole = posterior.predict(x, method="linearised").probs
    torch.testing.assert_close(posterior.predict(x[1:2], method="linearised").probs[0], whole[1])
    torch.testing.assert_close(posterior.predict([x[:2], x[2:]], method="linearised").probs, whole)
    seeded = [posterior.predict(x, method="linearised", generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    torch.testing.assert_close(seeded[0].probs, seeded[1].probs)
    assert not torch.allclose(seeded[0].probs, seeded[2].probs)
    draws = linearised_draws(posterior, 3)
    torch.testing.assert_close(torch.stack([draw(x) for draw in draws]), draws.outputs(x))


def test_many_outputs_by_cost(set_sizes: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 120)).double()
    x, y = torch.randn(50, 4, dtype=torch.float64), torch.randint(120, (50,))
    posterior = whence.laplace(net, (x, y), likelihood="classification", progress=False)
    exact = posterior.predict(x)
    set_sizes(exact=1)
    with pytest.warns(Notice, match=r"64 draws of the linearised network instead of differentiating all 120 outputs"):
        found = posterior.predict(x)
    torch.testing.assert_close(found.logit_mean, exact.logit_mean)
    many = posterior.predict(x, probes=3000)
    torch.testing.assert_close(many.probs, exact.probs, atol=0.01, rtol=0)
    torch.testing.assert_close(many.logit_cov, exact.logit_cov, atol=0.12 * float(exact.logit_cov.max()), rtol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(posterior.predict(x, probes="exact").probs, exact.probs)
        torch.testing.assert_close(posterior.predict(x, num_samples=80).probs.sum(1), torch.ones(50).double())
    with pytest.warns(Notice, match="64 draws of the linearised network"):
        torch.testing.assert_close(posterior.predict([x[:30], x[30:]]).probs, found.probs)
    few = whence.laplace(nn.Linear(4, 60), (x.float(), y % 60), likelihood="classification", progress=False)
    assert few.predict(x.float()).probs.shape == (50, 60), "fewer outputs than draws cost are exact, without a notice"


@pytest.mark.parametrize("name", ["map", "tokens", "numbers"])
def test_dense_outputs_are_tuned(name: str) -> None:
    """The score is the loss of the directions that it says, and the best of all that were tried."""
    posterior, _ = fitted(name)
    x = {"tokens": torch.randint(7, (20, 4))}.get(name, torch.randn(20, 1, 3, 4, dtype=torch.float64))
    outputs = posterior.network(x).detach()
    classes = outputs.argmax(-1 if name == "tokens" else 1)
    y = outputs + 0.3 * torch.randn_like(outputs) if name == "numbers" else classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        tuned = posterior.tune((x, y), data_scale=False, progress=False)
    assert tuned.tuning.method == "linearised" and tuned.reference is not None
    assert tuned.tuning.score <= min(t.score for t in tuned.tuning.trials) + 1e-4
    mean, moved = linearised_draws(tuned, 10, torch.Generator().manual_seed(0)).moved(x)
    by_hand = losses_of_directions(tuned.likelihood, mean, moved, tuned.likelihood.check(mean, y), 64).mean()
    assert abs(tuned.tuning.score - float(by_hand)) < 1e-8


def test_what_cannot_be_asked() -> None:
    posterior, x = fitted("map")
    with pytest.raises(NotDefined, match="dense outputs is by draws"):
        posterior.predict(x, method="linearised", probes="exact")
    with pytest.raises(BadOption, match="for weight draws pass num_samples"):
        posterior.predict(x, method="sampled", probes=8)
    with pytest.raises(BadOption, match="must be 'auto', 'exact'"):
        posterior.predict(x, method="linearised", probes=1)
    with pytest.raises(BadOption, match="both say how many"):
        posterior.predict(x, method="linearised", probes=4, num_samples=9)
    numbers, x = fitted("numbers")
    with pytest.raises(NotDefined, match="covariance of the outputs"):
        _ = numbers.predict(x, method="linearised").covariance
    classes, x = fitted("classes")
    with pytest.raises(BadOption, match="probes=4 is for link='mc'"):
        classes.predict(x, link="probit", probes=4)


def test_draws_are_not_kept_from_piece_to_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = fitted("map")
    alive: list[Any] = []
    plain = LinearisedDraws.predict_moved

    def watched(self: LinearisedDraws, mean: Tensor, moved: Tensor) -> Any:
        alive.append(weakref.ref(moved))
        return plain(self, mean, moved)

    monkeypatch.setattr(LinearisedDraws, "predict_moved", watched)
    posterior.predict([x[:1]] * 6, method="linearised")
    gc.collect()
    assert len(alive) == 6 and sum(ref() is not None for ref in alive) == 0


def test_directions_that_memory_does_not_hold_are_drawn_again(monkeypatch: pytest.MonkeyPatch, set_sizes: Any) -> None:
    """The prediction is the same; one direction that does not fit is refused."""
    posterior, x = fitted("tokens", "kron")
    each = 8 * posterior.parameters
    set_sizes(directions_drawn=3 * each)
    whole = posterior.predict(x, num_samples=16)
    free = 10 * each
    monkeypatch.setattr("whence.predictive.directions.available", lambda _: free)
    drawn: list[int] = []
    deviations = type(posterior).deviations

    def noted(self: Any, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        drawn.append(count)
        return deviations(self, count, generator)

    monkeypatch.setattr(type(posterior), "deviations", noted)
    again = posterior.predict(x, num_samples=16)
    assert drawn == [3, 3, 2]
    torch.testing.assert_close(again.probs, whole.probs)
    torch.testing.assert_close(again.epistemic, whole.epistemic)
    free = 5 * each
    with pytest.raises(TooLarge, match=r"one direction of .* weights takes .* layers="):
        posterior.predict(x, num_samples=16)


def test_variational_and_swag_posteriors_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1))
    data: tuple[Tensor, Tensor] = (torch.randn(20, 1, 3, 3), torch.randint(3, (20, 3, 3)))
    found = whence.variational(net, data, likelihood="classification", epochs=2, seed=0, progress=False)
    prediction = found.predict(data[0], method="linearised")
    assert prediction.probs.shape == (20, 3, 3, 3)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(20, 3, 3))
