"""SWAG: moments and covariance against a twin that keeps everything, batch normalisation, interruptions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.reference.swag import swag_covariance, swag_moments
from whence.errors import BadData, BadFile, BadOption, TooLarge
from whence.io import load
from whence.likelihoods import Gaussian
from whence.posteriors.swag.batch_norm import batch_norm_statistics, random_inputs
from whence.posteriors.swag.fit import SwagCollector, swag
from whence.training import loop


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(size: int = 80) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 3, dtype=torch.float64, generator=generator(4))
    return x, (x[:, 0] > 0).long()


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double()


def walked(model: nn.Module, steps: int, rank: int) -> tuple[SwagCollector, list[Tensor]]:
    """A random walk of the weights, collected."""
    collector, seen = SwagCollector(model, rank), []
    for step in range(steps):
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p += 0.3 * torch.randn(p.shape, dtype=p.dtype, generator=generator(100 * step + i))
        collector.collect()
        seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return collector, seen


@pytest.mark.parametrize(("steps", "rank"), [(7, 3), (5, 20), (6, 0)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_moments_are_the_twins(steps: int, rank: int, scale: float) -> None:
    model = plain()
    collector, seen = walked(model, steps, rank)
    posterior = collector.posterior("classification", scale=scale)
    mean, diagonal, columns = swag_moments(seen, rank)
    flat = torch.cat([v.flatten() for v in posterior.mean().values()])
    torch.testing.assert_close(flat, mean)
    expected = swag_covariance(diagonal, columns, scale)
    torch.testing.assert_close(posterior.covariance(), expected)
    torch.testing.assert_close(torch.cat([v.flatten() for v in posterior.variance().values()]), expected.diagonal())
    assert posterior.rank == min(rank, steps) and posterior.names() == [n for n, _ in model.named_parameters()]
    assert posterior.layers() == {"0": ["0.weight", "0.bias"], "2": ["2.weight", "2.bias"]}
    torch.testing.assert_close(posterior.with_scale(2.0).covariance(), expected * 2 / scale)


@pytest.mark.parametrize("rank", [3, 0])
def test_drawn_covariance(rank: int) -> None:
    """Entry by entry within five standard errors, also between layers."""
    posterior = walked(plain(), 6, rank)[0].posterior("classification")
    count = 40_000
    sample = posterior.sample(count, generator())
    flat = torch.cat([v.flatten(1) for v in sample.values()], dim=1)
    expected = posterior.covariance()
    scale = expected.diagonal().sqrt()
    error = (torch.cov(flat.T) - expected) / torch.outer(scale, scale)
    assert float(error.abs().max()) < 5 * (2 / count) ** 0.5
    mean = torch.cat([v.flatten() for v in posterior.mean().values()])
    assert float(((flat.mean(0) - mean) / scale).abs().max()) < 5 / count**0.5
    assert torch.equal(posterior.sample(3, generator())["0.weight"], posterior.sample(3, generator())["0.weight"])


def test_float32_does_not_cancel() -> None:
    """Small steps around large weights: the second moment less the squared mean would lose everything."""
    model = nn.Linear(1, 1)
    collector = SwagCollector(model, 0)
    for i in range(10):
        with torch.no_grad():
            model.weight.fill_(1000 + 0.01 * (-1) ** i)
        collector.collect()
    found = collector.posterior("classification").variance()["weight"]
    values = torch.tensor([1000 + 0.01 * (-1) ** i for i in range(10)], dtype=torch.float32).double()
    torch.testing.assert_close(found.double().squeeze(), values.var(correction=0), rtol=1e-4, atol=0)


def test_fit_collects_what_the_training_passes_through() -> None:
    """The same training by hand, epoch by epoch."""
    from whence.likelihoods import Categorical
    from whence.training.losses import MeanNegativeLogLikelihood
    from whence.zoo import train

    model = plain()
    settings = {"epochs": 6, "lr": 0.2, "batch_size": 16, "weight_decay": 0.01, "progress": False, "seed": 3}
    posterior = swag(model, data(), likelihood="classification", every=2, rank=2, **settings)
    seen: list[Tensor] = []

    def note(network: nn.Module, row) -> None:
        if row.epoch % 2 == 0:
            seen.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())

    train(copy.deepcopy(model), data(), loss=MeanNegativeLogLikelihood(Categorical()), callback=note, **settings)
    mean, diagonal, columns = swag_moments(seen, 2)
    torch.testing.assert_close(torch.cat([v.flatten() for v in posterior.mean().values()]), mean)
    torch.testing.assert_close(posterior.covariance(), swag_covariance(diagonal, columns))
    assert posterior.collections == 3 and len(posterior.history) == 6 and posterior.output_shape == (2,)


def test_predictions_are_averages_over_draws() -> None:
    posterior, x = walked(plain(), 6, 3)[0].posterior("classification"), data()[0][:5]
    draws = posterior.draw(12, generator())
    torch.testing.assert_close(
        posterior.predict(x, num_samples=12, generator=generator()).probs, draws.predict(x).probs
    )
    sample, net = posterior.sample(12, generator()), plain()
    outputs = torch.stack([torch.func.functional_call(net, {n: p[s] for n, p in sample.items()}, x) for s in range(12)])
    torch.testing.assert_close(draws.outputs(x), outputs)
    torch.testing.assert_close(draws.predict(x).probs, outputs.softmax(-1).mean(0))
    torch.testing.assert_close(posterior.as_module(12, generator())(x).mean, draws.predict(x).probs)


def test_batch_normalisation_is_made_anew_for_mean_and_draws() -> None:
    x, y = data()
    posterior = walked(normalised(), 5, 3)[0].posterior("classification", (x, y))
    draws = posterior.draw(4, generator())

    def by_hand(weights: dict[str, Tensor]) -> nn.Module:
        net = normalised()
        net.load_state_dict(weights, strict=False)
        hidden = net[0](x)  # the first layer's outputs are what is normalised
        with torch.no_grad():
            net[1].running_mean.copy_(hidden.mean(0))
            net[1].running_var.copy_(hidden.var(0))
        return net.eval()

    for s in range(4):
        net = by_hand({n: p[s] for n, p in draws.params.items() if "running" not in n})
        torch.testing.assert_close(draws.params["1.running_mean"][s], net[1].running_mean)
        torch.testing.assert_close(draws.params["1.running_var"][s], net[1].running_var)
        torch.testing.assert_close(draws[s](x), net(x).detach())
    torch.testing.assert_close(draws.outputs(x)[1:3], draws[1:3].outputs(x))
    torch.testing.assert_close(draws.modules()[2](x), draws[2](x))
    centre = by_hand(posterior.mean())
    torch.testing.assert_close(posterior.network.module(x), centre(x))
    with pytest.raises(BadOption, match="batch normalisation '1' needs"):
        walked(normalised(), 3, 2)[0].posterior("classification")


def test_statistics_are_torchs() -> None:
    """Over several batches: the average that ``update_bn`` takes."""
    from whence.functional import Network

    x, _ = data()
    net = normalised()
    found = batch_norm_statistics(
        Network.snapshot(net), {n: p.detach().unsqueeze(0) for n, p in net.named_parameters()}, x, size=20
    )
    torch.optim.swa_utils.update_bn(list(x.split(20)), net)
    torch.testing.assert_close(found["1.running_mean"][0], net[1].running_mean)
    torch.testing.assert_close(found["1.running_var"][0], net[1].running_var)


def test_kept_inputs_are_bounded_and_of_all_the_data() -> None:
    from whence.functional import Network

    x = torch.arange(3000.0).reshape(-1, 1)
    network = Network.snapshot(nn.Linear(1, 1))
    kept = random_inputs((x, x), network, 0, most=100)
    assert kept.shape == (100, 1) and len(kept.unique()) == 100
    assert float(kept.mean()) == pytest.approx(1500, abs=300) and float(kept.max()) > 2500
    assert torch.equal(kept, random_inputs((x, x), network, 0, most=100))


@pytest.mark.parametrize("make", [plain, normalised])
def test_saved_loaded_moved(make, tmp_path) -> None:
    model, (x, y) = make(), data()
    posterior = swag(model, (x, y), likelihood="classification", epochs=4, lr=0.1, rank=3, progress=False)
    posterior.save(tmp_path / "s.safetensors")
    again = load(tmp_path / "s.safetensors", model)
    torch.testing.assert_close(again.covariance(), posterior.covariance())
    one, two = (p.predict(x, num_samples=5, generator=generator()).probs for p in (again, posterior))
    torch.testing.assert_close(one, two)
    assert again.history == posterior.history and again.output_shape == (2,)
    moved = posterior.to(torch.float32)
    assert moved.covariance().dtype == torch.float32 and moved.predict(x).probs.dtype == torch.float32
    with pytest.raises(BadFile, match="other weights"):
        load(tmp_path / "s.safetensors", make())


def test_nothing_of_the_users_changes() -> None:
    model, (x, y) = normalised(), data()
    model.train()
    model[0].bias.requires_grad_(False)
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    posterior = swag(model, (x, y), likelihood="classification", epochs=3, rank=2, progress=False)
    posterior.predict(x, generator=generator())
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model[0].bias.requires_grad and "0.bias" not in posterior.names()
    assert all(p.grad is None for p in model.parameters())


def test_regression_takes_the_noise_of_the_residuals() -> None:
    x, _ = data()
    y = x[:, :1] + 0.1
    model = nn.Sequential(nn.Linear(3, 1)).double()
    posterior = swag(model, (x, y), likelihood="regression", epochs=3, rank=2, lr=0.05, progress=False)
    residuals = posterior.network.module(x).detach() - y
    assert float(posterior.likelihood.noise) == pytest.approx(float(residuals.square().mean().sqrt()))
    given = swag(model, (x, y), likelihood=Gaussian(0.4), epochs=2, rank=2, lr=0.01, progress=False)
    assert float(given.likelihood.noise) == 0.4


@pytest.mark.parametrize("where", ["in an epoch", "in a collection"])
def test_interrupted_trainings_go_on(where: str, tmp_path, monkeypatch) -> None:
    settings = {"likelihood": "classification", "epochs": 5, "rank": 3, "lr": 0.1, "progress": False}
    model = normalised()
    whole = swag(model, data(), **settings)
    file = tmp_path / "c.safetensors"
    owner, name = (loop, "_epoch") if where == "in an epoch" else (SwagCollector, "collect")
    original, calls = getattr(owner, name), []

    def stops(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(owner, name, stops)
    with pytest.raises(KeyboardInterrupt):
        swag(model, data(), checkpoint=file, **settings)
    monkeypatch.setattr(owner, name, original)
    again = swag(model, data(), checkpoint=file, **settings)
    assert again.collections == 5
    torch.testing.assert_close(again.covariance(), whole.covariance(), rtol=0, atol=0)
    finished = swag(model, data(), checkpoint=file, **settings)
    torch.testing.assert_close(finished.covariance(), whole.covariance(), rtol=0, atol=0)
    with pytest.raises(BadFile, match=r"another network: '0.weight' is \[4, 3\] here and \[5, 3\]"):
        swag(plain(), data(), checkpoint=file, **settings)
    with pytest.raises(BadOption, match="rank=3, not 2"):
        swag(model, data(), checkpoint=file, **(settings | {"rank": 2}))
    with pytest.raises(BadOption, match=r"lr=0.1, not 0.2"):
        swag(model, data(), checkpoint=file, **(settings | {"lr": 0.2}))


def test_refusals(set_sizes) -> None:
    model = plain()
    with pytest.raises(BadOption, match="gives 1 collections"):
        swag(model, data(), likelihood="classification", epochs=3, every=2)
    with pytest.raises(BadOption, match="rank=1"):
        swag(model, data(), likelihood="classification", rank=1)
    with pytest.raises(BadOption, match="scale=0"):
        walked(plain(), 2, 2)[0].posterior("classification", scale=0)
    with pytest.raises(BadOption, match="at least 2 collections"):
        SwagCollector(model).posterior("classification")
    with pytest.raises(BadOption, match="frozen"):
        SwagCollector(plain().requires_grad_(False))
    with pytest.raises(BadOption, match="training residuals"):
        walked(plain(), 2, 2)[0].posterior("regression")
    collector = SwagCollector(model)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(BadData, match="NaN"):
        collector.collect()
    posterior = walked(plain(), 2, 2)[0].posterior("classification")
    set_sizes(dense_covariance=100)
    with pytest.raises(TooLarge, match="sample"):
        posterior.covariance()
