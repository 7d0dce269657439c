"""What every posterior owes, whatever it was inferred by."""

from __future__ import annotations

import dataclasses
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.contract.posteriors import MAKE, NEW, X, Y, generator, made, models, network
from whence.errors import NotDefined
from whence.where.layer_rows import LayerRow
from whence.where.where import Where

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


CLOSED: dict[str, Any] = {
    "joint": lambda p: p.predict(NEW, joint=True),
    "measure": lambda p: p.where(NEW, measure="information"),
    "by_input": lambda p: p.where(NEW).by_input(),
    "connections": lambda p: p.where(NEW).connections("0"),
    "report": lambda p: p.where(NEW).report("page.html"),
    "sensitivity": lambda p: p.where(NEW).sensitivity(),
    "spectrum": lambda p: p.where(NEW).spectrum,
    "units": lambda p: p.where(NEW).units("0"),
    "slices": lambda p: p.where(NEW).slices((X, Y)),
    "novelty": lambda p: whence.novelty(p, NEW, reference=(X, Y)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("ask", CLOSED.values(), ids=CLOSED)
def test_what_it_cannot_answer_is_refused_with_the_reason(name: str, ask: Any) -> None:
    if name == "function space" and ask is CLOSED["joint"]:
        pytest.skip("a Gaussian over the outputs of all inputs is what it is")
    with pytest.raises(NotDefined, match=r"Laplace|Gaussian"):
        ask(made(name))


@pytest.mark.parametrize("name", [n for n in OTHERS if n not in ("laplace ensemble", "function space")])
def test_links_are_for_gaussians_over_outputs(name: str) -> None:
    with pytest.raises(NotDefined, match=r"(?i)(omit link|leave link out)"):
        made(name).predict(NEW, link="probit")


@every
def test_what_does_not_exist_is_no_riddle(name: str) -> None:
    with pytest.raises(AttributeError):
        made(name).where(NEW).no_such_table  # noqa: B018


@every
def test_where_has_one_type_and_one_set_of_columns(name: str) -> None:
    found = made(name).where(NEW)
    assert type(found) is Where
    assert list(found.to_pandas().columns) == [f.name for f in dataclasses.fields(LayerRow)]


@every
def test_shares_can_be_drawn_where_there_are_any(name: str) -> None:
    found = made(name).where(NEW)
    if any(row.variance_share is None for row in found.layers):
        with pytest.raises(NotDefined, match="permuted"):
            found.plot_shares()
    else:
        assert len(found.plot_shares().axes) == 2


@every
def test_layers_names_and_structures_agree(name: str) -> None:
    posterior = made(name)
    layers, network = posterior.layers(), posterior.snapshots[0]
    assert sorted(posterior.names()) == sorted(n for names in layers.values() for n in names)
    assert set(posterior.names()) <= set(network.params)
    assert list(posterior.structures) == list(layers)
    for layer, one in posterior.structures.items():
        assert one.parameters == sum(network.params[n].numel() for n in layers[layer]) and one.structure
    whole = sum(p.numel() for p in network.params.values())
    assert posterior.parameters == whole * len(posterior.snapshots)
    assert posterior.output_shape in ((3,), None)


@every
def test_weights_are_there_or_refused_with_the_reason(name: str) -> None:
    posterior = made(name)
    if posterior.over_weights:
        assert posterior.as_weights("this") is posterior and not posterior.no_weights
        mean, sample = posterior.mean(), posterior.sample(2, generator=generator())
        assert list(mean) == posterior.names() == list(posterior.variance())
        assert all(sample[n].shape == (2, *mean[n].shape) for n in mean)
        return
    for ask in (posterior.mean, posterior.variance, posterior.covariance, posterior.sample):
        with pytest.raises(NotDefined, match=r"permuted|masks"):
            ask()
    with pytest.raises(NotDefined, match="pruning needs a posterior over weights"):
        posterior.as_weights("pruning")


@every
def test_only_laplace_is_taken_for_laplace(name: str) -> None:
    posterior = made(name)
    if posterior.has_curvature:
        assert posterior.as_laplace("this") is posterior
    else:
        with pytest.raises(NotDefined, match="the evidence needs the curvature of a Laplace posterior"):
            posterior.as_laplace("the evidence")


@every
def test_sources_average_to_the_prediction(name: str) -> None:
    posterior = made(name)
    with torch.no_grad():
        parts = [part for s in posterior.sources(generator=generator(3)) for part in s.parts(NEW, False, None)]
        probs = sum((logs.exp()[:, None, None] * compute().softmax(-1)).sum(0) for compute, logs in parts)
    wanted = posterior.predict(NEW, generator=generator(3)).probs
    torch.testing.assert_close(probs.to(wanted), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["variational", "swag"])
def test_gaussians_over_weights_predict_linearised_too(name: str) -> None:
    posterior = made(name)
    found = posterior.predict(NEW, method="linearised")
    assert torch.equal(found.probs, posterior.predict(NEW, method="linearised").probs)
    assert posterior.predict(NEW, method="linearised", joint=True).covariance.shape == (18, 18)
    (source,) = posterior.sources("linearised")
    ((compute, _),) = source.parts(NEW, False, None)
    torch.testing.assert_close(compute().softmax(-1).mean(0).to(found.probs), found.probs, rtol=1e-4, atol=1e-5)


@every
def test_a_pickle_goes_through_the_file(name: str) -> None:
    posterior = made(name)
    again = pickle.loads(pickle.dumps(posterior))
    assert type(again) is type(posterior) and again.fingerprint() == posterior.fingerprint()
    one, other = (p.predict(NEW, generator=generator()).probs for p in (posterior, again))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_fingerprints_tell_posteriors_apart() -> None:
    found = [made(name).fingerprint() for name in MAKE if not name.startswith("laplace ") or name == "laplace kron"]
    assert len(set(found)) == len(found)
    kron = made("laplace kron")
    assert kron.with_prior(3.0).fingerprint() != kron.fingerprint()  # type: ignore[attr-defined]


@every
def test_a_summary_has_plain_values(name: str) -> None:
    found = made(name).summary()
    assert all(isinstance(v, (float, int, str, type(None))) for v in dataclasses.asdict(found).values())
    assert found.tuned_on == "nothing"
