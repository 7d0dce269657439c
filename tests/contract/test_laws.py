"""What every posterior owes, whatever it was inferred by."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.contract.posteriors import MAKE, NEW, X, Y, generator, made, models, network
from whence.errors import NotDefined

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.Notice")
every = pytest.mark.parametrize("name", MAKE)
LAPLACE = [name for name in MAKE if name.startswith("laplace ") and name != "laplace ensemble"]
OTHERS = [name for name in MAKE if name not in LAPLACE]


def probs(posterior: Any, **how: Any) -> torch.Tensor:
    return posterior.predict(NEW, generator=generator(), **how).probs


@every
def test_predictions_are_distributions_and_repeat_with_the_generator(name: str) -> None:
    posterior = made(name)
    first, again = probs(posterior), probs(posterior)
    assert first.shape == (6, 3) and torch.allclose(first.sum(-1), torch.ones(6), atol=1e-5)
    assert torch.equal(first, again)
    prediction = posterior.predict(NEW, generator=generator())
    total = prediction.aleatoric + prediction.epistemic
    torch.testing.assert_close(prediction.entropy, total, rtol=1e-4, atol=1e-5)
    assert bool((prediction.epistemic > -1e-5).all())


@every
def test_a_file_gives_the_same_prediction(name: str, tmp_path: Path) -> None:
    posterior = made(name)
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    again = whence.load(path, models(name))
    assert type(again) is type(posterior)
    torch.testing.assert_close(probs(again), probs(posterior), rtol=1e-5, atol=1e-6)


@every
def test_there_and_back_gives_the_same_prediction(name: str) -> None:
    posterior = made(name)
    wide = posterior.to(torch.float64)
    found = wide.predict(NEW.double(), generator=generator()).probs
    assert found.dtype == torch.float64
    torch.testing.assert_close(probs(wide.to(torch.float32)), probs(posterior), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(probs(posterior), made(name).predict(NEW, generator=generator()).probs)


@every
def test_a_sampled_prediction_is_the_mean_over_draws(name: str) -> None:
    posterior = made(name)
    count = 5
    draws = posterior.draw(count, generator=generator())
    outputs = torch.stack([draw(NEW) for draw in draws])
    assert outputs.shape == (count, 6, 3)
    found = posterior.predict(NEW, method="sampled", num_samples=count, generator=generator()).probs
    torch.testing.assert_close(found, outputs.softmax(-1).mean(0), rtol=1e-4, atol=1e-5)


@every
def test_the_users_network_is_untouched(name: str) -> None:
    posterior = made(name)
    before = {k: v.clone() for k, v in network().state_dict().items()}
    model = network().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior.predict(NEW, generator=generator())
        posterior.where(NEW)
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@every
def test_a_module_can_be_served(name: str) -> None:
    module = made(name).as_module(4, generator=generator())
    assert isinstance(module, torch.nn.Module)
    mean, uncertainty, epistemic = module(NEW)
    assert mean.shape == (6, 3) and len(uncertainty) == len(epistemic) == 6
    assert not any(p.requires_grad and p.grad is not None for p in module.parameters())


@every
def test_its_answer_to_where_has_layers_and_a_short_repr(name: str) -> None:
    posterior = made(name)
    found = posterior.where(NEW)
    assert found.layers and all(row.name for row in found.layers)
    assert next(iter(found.to_pandas().columns)) == "name"
    assert len(repr(posterior)) < 600


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p.predict(NEW, joint=True),
        lambda p: p.where(NEW, measure="information"),
        lambda p: p.where(NEW).by_input(),
        lambda p: p.where(NEW).connections("0"),
        lambda p: p.where(NEW).report("page.html"),
        lambda p: p.where(NEW).sensitivity(),
        lambda p: p.where(NEW).spectrum,
        lambda p: p.where(NEW).plot_shares(),
        lambda p: p.where(NEW).slices((X, Y)),
    ],
    ids=["joint", "measure", "by_input", "connections", "report", "sensitivity", "spectrum", "plot", "slices"],
)
def test_what_it_cannot_answer_is_refused_with_the_reason(name: str, ask: Any) -> None:
    with pytest.raises(NotDefined, match=r"Laplace|Gaussian"):
        ask(made(name))


@pytest.mark.parametrize("name", [n for n in OTHERS if n != "laplace ensemble"])
def test_links_are_for_gaussians_over_outputs(name: str) -> None:
    with pytest.raises(NotDefined, match="Leave link out"):
        made(name).predict(NEW, link="probit")


@every
def test_what_does_not_exist_is_no_riddle(name: str) -> None:
    with pytest.raises(AttributeError):
        made(name).where(NEW).no_such_table  # noqa: B018
