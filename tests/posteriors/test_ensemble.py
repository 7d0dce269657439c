"""Ensembles: members are the draws; weights are exact; side by side gives what one after the other gives."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from whence.errors import BadData, BadFile, BadOption, NotConverged, Notice, WhenceError
from whence.io import load
from whence.likelihoods import Gaussian, HeteroscedasticGaussian, Poisson
from whence.posteriors.ensembles.fit import fit_ensemble
from whence.posteriors.ensembles.mixture import allotted, shares
from whence.posteriors.ensembles.posterior import Ensemble, ensemble


def small(out: int = 3, width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, out))


def small_double() -> nn.Sequential:
    return small().double()


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


def frozen() -> nn.Sequential:
    net = normalised()
    net[0].requires_grad_(False)
    return net


class Tied(nn.Module):
    """One matrix there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
        self.back.weight = self.there.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back(torch.tanh(self.there(x))))


def zeroed() -> nn.Sequential:
    net = small_double()
    nn.init.zeros_(net[0].weight)
    return net


def broken() -> nn.Module:
    raise RuntimeError("no network today")


def inputs(size: int = 6) -> Tensor:
    return torch.randn(size, 4)


def labelled(size: int = 96) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def weights_of(posterior: Ensemble) -> list[Tensor]:
    return [nn.utils.parameters_to_vector(m.parameters()).detach() for m in posterior.networks()]


def test_probabilities_are_the_mean_of_softmaxes() -> None:
    models, x = [small() for _ in range(4)], inputs()
    prediction = ensemble(models, likelihood="classification").predict(x)
    probs = torch.stack([m(x).softmax(-1) for m in models]).detach()
    torch.testing.assert_close(prediction.probs, probs.mean(0))
    torch.testing.assert_close(prediction.aleatoric, -(probs * probs.log()).sum(-1).mean(0))
    torch.testing.assert_close(prediction.entropy, -(probs.mean(0) * probs.mean(0).log()).sum(-1))
    torch.testing.assert_close(prediction.samples, probs)


def test_different_architectures_and_the_same_agree_with_a_loop() -> None:
    x = inputs()
    for models in ([small(width=w) for w in (3, 8, 20)], [small() for _ in range(3)]):
        out = ensemble(models, likelihood="classification").draw().outputs(x)
        torch.testing.assert_close(out, torch.stack([m(x) for m in models]).detach())


class Scaled(nn.Module):
    """Two of them print alike and differ in what no state holds."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def test_members_that_only_look_alike() -> None:
    models, x = [Scaled(1.0), Scaled(5.0)], inputs()
    out = ensemble(models, likelihood="classification").draw().outputs(x)
    torch.testing.assert_close(out, torch.stack([m(x) for m in models]).detach())


@pytest.mark.parametrize("weights", [[0.5, 0.25, 0.25], [0.123, 0.456, 0.421], [1, 0, 0]])
def test_weights_are_exact(weights: list[float]) -> None:
    models, x = [small() for _ in range(3)], inputs()
    w = torch.tensor(weights) / sum(weights)
    prediction = ensemble(models, likelihood="classification", weights=weights).predict(x)
    probs = torch.stack([m(x).softmax(-1) for m in models]).detach()
    torch.testing.assert_close(prediction.probs, torch.einsum("m,mnc->nc", w, probs))
    torch.testing.assert_close(prediction.aleatoric, torch.einsum("m,mn->n", w, -(probs * probs.log()).sum(-1)))
    torch.testing.assert_close(prediction.samples.mean(0), prediction.probs, atol=0.01, rtol=0)
    outputs = torch.stack([m(x) for m in models]).detach()
    off = outputs - torch.einsum("m,mnc->nc", w, outputs)
    torch.testing.assert_close(prediction.logit_cov, torch.einsum("m,mnc,mnd->ncd", w, off, off), atol=1e-6, rtol=1e-4)


def test_weighted_regression_by_the_law_of_total_variance() -> None:
    models, x, w = [small(2) for _ in range(3)], inputs(), torch.tensor([0.2, 0.5, 0.3])
    prediction = ensemble(models, likelihood=Gaussian(noise=0.3), weights=w).predict(x)
    outputs = torch.stack([m(x) for m in models]).detach()
    mean = torch.einsum("m,mnk->nk", w, outputs)
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.epistemic, torch.einsum("m,mnk->nk", w, (outputs - mean).square()))
    torch.testing.assert_close(prediction.aleatoric, torch.full_like(mean, 0.09))
    low, high = prediction.interval(0.9)
    below = sum(wm * torch.special.ndtr((low - out) / 0.3) for wm, out in zip(w, outputs, strict=True))
    torch.testing.assert_close(below, torch.full_like(below, 0.05), atol=1e-4, rtol=0)
    assert bool((high > low).all())


@pytest.mark.parametrize("likelihood", [HeteroscedasticGaussian(), Poisson(), "binary"])
def test_weights_that_say_equal_are_equal(likelihood) -> None:
    models, x = [small(2) for _ in range(3)], inputs()
    plain = ensemble(models, likelihood=likelihood).predict(x)
    weighted = ensemble(models, likelihood=likelihood, weights=[2, 2, 2]).predict(x)
    for name in ("probs", "entropy", "mean", "variance", "aleatoric", "epistemic"):
        if hasattr(plain, name):
            torch.testing.assert_close(getattr(weighted, name), getattr(plain, name))
    for a, b in zip(weighted.interval(0.8), plain.interval(0.8), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_draws_in_proportion() -> None:
    posterior = ensemble([small() for _ in range(5)], likelihood="classification")
    g = torch.Generator().manual_seed(0)
    assert posterior.draw().which == posterior.draw(5, g).which == [0, 1, 2, 3, 4]
    fewer = [posterior.draw(2, g).which for _ in range(200)]
    assert all(len(set(w)) == 2 for w in fewer) and {m for w in fewer for m in w} == set(range(5))
    assert sorted(posterior.draw(11, g).which.count(m) for m in range(5)) == [2, 2, 2, 2, 3]
    weights = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    counts = torch.zeros(3)
    for _ in range(2000):
        for m in allotted(weights, 4, g):
            counts[m] += 1
    torch.testing.assert_close(counts / counts.sum(), weights.float(), atol=0.01, rtol=0)
    assert shares(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)) == [2, 1, 1]
    assert sum(shares(torch.tensor([0.123, 0.456, 0.421], dtype=torch.float64), 100)) == 100
    x = inputs()
    some = posterior.draw(3, torch.Generator().manual_seed(1))
    torch.testing.assert_close(some[1](x), posterior.members[some.which[1]].module(x).detach())
    torch.testing.assert_close(some[1:].outputs(x), some.outputs(x)[1:])


def test_served_saved_and_moved(tmp_path) -> None:
    models, x = [small() for _ in range(3)], inputs()
    for weights in (None, [0.5, 0.25, 0.25]):
        posterior = ensemble(models, likelihood="classification", weights=weights)
        torch.testing.assert_close(posterior.as_module()(x).mean, posterior.predict(x).probs)
        posterior.save(tmp_path / "e.safetensors")
        again = load(tmp_path / "e.safetensors", models)
        torch.testing.assert_close(again.predict(x).probs, posterior.predict(x).probs)
        moved = posterior.to(torch.float64)
        torch.testing.assert_close(moved.predict(x).probs.float(), posterior.predict(x).probs)
    with pytest.raises(BadFile, match="3 networks, but 2"):
        load(tmp_path / "e.safetensors", models[:2])
    with pytest.raises(BadFile, match="other weights"):
        load(tmp_path / "e.safetensors", [models[1], models[0], models[2]])


def test_a_snapshot_and_gradients_in_x() -> None:
    models, x = [small() for _ in range(3)], inputs()
    models[0].train()
    posterior = ensemble(models, likelihood="classification")
    before = posterior.predict(x).probs
    with torch.no_grad():
        models[0][0].weight.zero_()
    assert torch.equal(posterior.predict(x).probs, before) and models[0].training
    assert all(p.requires_grad for m in models for p in m.parameters())
    x.requires_grad_()
    posterior.predict(x).entropy.sum().backward()
    assert x.grad is not None and float(x.grad.abs().sum()) > 0


def test_refusals() -> None:
    with pytest.raises(BadData, match=r"\[2\] for one input and member 0 of shape \[3\]"):
        ensemble([small(3), small(2)], likelihood="classification", probe=inputs())
    with pytest.raises(BadData, match=r"\[2\] for one input and member 0 of shape \[3\]"):
        ensemble([small(3), small(2)], likelihood="classification").predict(inputs())
    with pytest.raises(BadData, match=r"dtype torch\.float64"):
        ensemble([small(), small().double()], likelihood="classification")
    with pytest.raises(BadData, match="at least one"):
        ensemble([], likelihood="classification")
    with pytest.raises(BadData, match="takes a list"):
        ensemble(small(), likelihood="classification")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="Gaussian"):
        ensemble([small()], likelihood="regression")  # type: ignore[arg-type]
    for weights in ([1, 2], [1, -1, 1], [0, 0, 0], [1, float("nan"), 1], "abc"):
        with pytest.raises(BadOption, match="weights"):
            ensemble([small()] * 3, likelihood="classification", weights=weights)


# Fitting


@pytest.mark.parametrize("make", [small_double, normalised, frozen, Tied])
@pytest.mark.parametrize("more", [{}, {"clip": 0.05, "weight_decay": 0.01}, {"optimiser": "adam", "lr": 0.01}])
def test_side_by_side_is_one_after_the_other(make, more) -> None:
    settings = {"epochs": 3, "lr": 0.1, "batch_size": 32, "members": 3, "progress": False} | more
    one, two = (
        fit_ensemble(make, labelled(), likelihood="classification", vectorised=v, **settings) for v in (False, True)
    )
    for a, b in zip(one.networks(), two.networks(), strict=True):
        for name, value in a.state_dict().items():
            torch.testing.assert_close(b.state_dict()[name], value, rtol=1e-9, atol=1e-9)
    losses = [[row["loss"] for row in h] for h in one.history], [[row["loss"] for row in h] for h in two.history]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-5, atol=1e-6)
    assert len(one.history) == 3 and one.history[0][-1]["loss"] < one.history[0][0]["loss"]


def test_a_data_set_of_the_zoo() -> None:
    from whence import zoo

    data = zoo.load("two-moons", seed=0)
    settings = {"likelihood": "classification", "members": 2, "epochs": 1, "progress": False}

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))

    assert len(fit_ensemble(make, data.train, vectorised=True, **settings)) == 2
    scored = fit_ensemble(make, data.train, validation=data.test, vectorised=False, **settings)
    assert "validation_loss" in scored.history[0][0]
    with pytest.raises(BadOption, match="evaluated on validation data"):
        fit_ensemble(make, data.train, validation=data.test, vectorised=True, **settings)


def test_members_differ_and_belong_to_their_seeds() -> None:
    settings = {"likelihood": "classification", "epochs": 2, "progress": False}
    state = torch.random.get_rng_state()
    three = weights_of(fit_ensemble(small_double, labelled(), members=3, seed=1, **settings))
    two = weights_of(fit_ensemble(small_double, labelled(), members=2, seed=1, vectorised=False, **settings))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(torch.stack(two), torch.stack(three[:2]), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(three[0], three[1])
    other = weights_of(fit_ensemble(small_double, labelled(), members=1, seed=2, **settings))
    assert not torch.allclose(three[0], other[0])

    def same_start(seed: int = 0) -> nn.Module:
        net = small_double()
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
        seeds.append(seed)
        return net

    seeds: list[int] = []
    shuffled = weights_of(fit_ensemble(same_start, labelled(), members=2, batch_size=16, **settings))
    assert not torch.allclose(shuffled[0], shuffled[1])  # by their shuffles alone
    assert len(set(seeds)) == 2


def test_dropout_is_not_the_same_in_all_members() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3, bias=False)).double()

    def same() -> nn.Module:
        net = make()
        nn.init.zeros_(net[1].weight)
        return net

    x, y = labelled()
    found = fit_ensemble(same, (x[:8], y[:8]), likelihood="classification", epochs=1, batch_size=8, vectorised=True)
    one, two = weights_of(found)[:2]
    assert not torch.allclose(one, two)


def test_regression_takes_the_noise_of_the_residuals() -> None:
    x, _ = labelled()
    y = x[:, :2] + 0.1 * torch.randn(len(x), 2, dtype=torch.float64)
    found = fit_ensemble(
        lambda: small(2).double(), (x, y), likelihood="regression", members=2, epochs=5, progress=False
    )
    residuals = torch.stack([m(x).detach() - y for m in found.networks()])
    assert float(found.likelihood.noise) == pytest.approx(float(residuals.square().mean().sqrt()), rel=1e-6)


def test_loaders_and_what_cannot_be_stacked_fall_back_in_words() -> None:
    x, y = labelled()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    settings = {"likelihood": "classification", "epochs": 1, "members": 2, "progress": False}
    with pytest.warns(Notice, match="one after the other: the data are a loader"):
        one, two = weights_of(fit_ensemble(small_double, loader, **settings))
    assert not torch.allclose(one, two)
    with pytest.raises(BadOption, match="vectorised=True, but the data are a loader"):
        fit_ensemble(small_double, loader, vectorised=True, **settings)
    widths = iter([4, 5, 4, 5])
    with pytest.raises(BadOption, match="member 1 is a different network"):
        fit_ensemble(lambda: small(width=next(widths)).double(), (x, y), vectorised=True, **settings)


def test_interrupted_fits_go_on(tmp_path) -> None:
    settings = {"likelihood": "classification", "epochs": 2, "members": 3, "progress": False}
    whole = weights_of(fit_ensemble(small_double, labelled(), vectorised=False, **settings))
    calls = []

    def counted() -> nn.Module:
        calls.append(1)
        if len(calls) == 3:  # the manifest, member 0, and then
            raise KeyboardInterrupt
        return small_double()

    with pytest.raises(KeyboardInterrupt):
        fit_ensemble(counted, labelled(), vectorised=False, checkpoint=tmp_path / "f", **settings)
    assert (tmp_path / "f" / "member-000.safetensors").exists()
    stamp = (tmp_path / "f" / "member-000.safetensors").stat().st_mtime_ns
    again = fit_ensemble(small_double, labelled(), vectorised=False, checkpoint=tmp_path / "f", **settings)
    assert (tmp_path / "f" / "member-000.safetensors").stat().st_mtime_ns == stamp
    torch.testing.assert_close(torch.stack(weights_of(again)), torch.stack(whole), rtol=0, atol=0)
    assert [len(h) for h in again.history] == [2, 2, 2]
    more = fit_ensemble(small_double, labelled(), checkpoint=tmp_path / "f", **(settings | {"members": 4}))
    torch.testing.assert_close(torch.stack(weights_of(more)[:3]), torch.stack(whole), rtol=0, atol=0)
    _refused_by_name(tmp_path / "f", settings)


def _refused_by_name(folder, settings) -> None:
    with pytest.raises(BadFile, match="another network"):
        fit_ensemble(lambda: small(width=9).double(), labelled(), checkpoint=folder, **settings)
    with pytest.raises(BadFile, match="other training data"):
        fit_ensemble(small_double, labelled(95), checkpoint=folder, **settings)
    with pytest.raises(BadOption, match=r"made with lr=0.05, not 0.1"):
        fit_ensemble(small_double, labelled(), checkpoint=folder, **(settings | {"lr": 0.1}))
    with pytest.raises(BadOption, match=r"checkpoint_every=True must be a number of seconds, 0 \(after every epoch\)"):
        fit_ensemble(small_double, labelled(), checkpoint=folder, checkpoint_every=True, **settings)
    with pytest.raises(BadOption, match=r"made with seed=0, not 7"):
        fit_ensemble(small_double, labelled(), checkpoint=folder, **(settings | {"seed": 7}))
    with pytest.raises(BadFile, match="starts from other weights"):
        fit_ensemble(
            lambda: nn.init.zeros_((n := small_double())[0].weight) is None or n,
            labelled(),
            checkpoint=folder,
            **settings,
        )
    (folder.parent / "g").mkdir()
    (folder.parent / "g" / "thesis.txt").write_text("mine")
    with pytest.raises(BadFile, match="contains other files"):
        fit_ensemble(small_double, labelled(), checkpoint=folder.parent / "g", **settings)
    assert json.loads((folder / "ensemble.json").read_text())["seed"] == 0


def test_side_by_side_goes_on_from_the_middle(tmp_path, monkeypatch) -> None:
    from whence.training import loop

    settings = {"likelihood": "classification", "members": 2, "vectorised": True, "progress": False, "epochs": 4}
    for optimiser in ("sgd", "adam"):
        settings |= {"optimiser": optimiser, "lr": 0.02}
        whole = weights_of(fit_ensemble(normalised, labelled(), **settings))
        original, seen = loop._epoch, []

        def stops(*args, original=original, seen=seen):
            seen.append(args[-1])
            if len(seen) == 3:
                raise KeyboardInterrupt
            return original(*args)

        folder = tmp_path / optimiser
        monkeypatch.setattr(loop, "_epoch", stops)
        with pytest.raises(KeyboardInterrupt):
            fit_ensemble(normalised, labelled(), checkpoint=folder, checkpoint_every=0, **settings)
        again = fit_ensemble(normalised, labelled(), checkpoint=folder, checkpoint_every=0, **settings)
        assert seen == [0, 1, 2, 2, 3]
        torch.testing.assert_close(torch.stack(weights_of(again)), torch.stack(whole), rtol=0, atol=0)
        assert not list(folder.glob("training-*"))
        monkeypatch.setattr(loop, "_epoch", original)


def test_memory_groups_change_nothing(monkeypatch) -> None:
    from whence.posteriors.ensembles import fit as ensemble_fit

    settings = {"likelihood": "classification", "members": 3, "vectorised": True, "progress": False, "epochs": 2}
    whole = weights_of(fit_ensemble(small_double, labelled(), **settings))
    monkeypatch.setattr(ensemble_fit, "group_size", lambda *_: 2)
    parts = weights_of(fit_ensemble(small_double, labelled(), **settings))
    torch.testing.assert_close(torch.stack(parts), torch.stack(whole), rtol=1e-9, atol=1e-9)


def _processes(members: int) -> None:
    settings = {"likelihood": "classification", "members": members, "epochs": 2, "progress": False}
    here = weights_of(fit_ensemble(small_double, labelled(), vectorised=False, **settings))
    there = fit_ensemble(small_double, labelled(), processes=members, **settings)
    torch.testing.assert_close(torch.stack(weights_of(there)), torch.stack(here), rtol=1e-9, atol=1e-9)
    assert [len(h) for h in there.history] == [2] * members


def test_a_process_of_its_own() -> None:
    _processes(1)
    with pytest.raises(BadOption, match="can be pickled"):
        fit_ensemble(lambda: small_double(), labelled(), likelihood="classification", processes=2)


@pytest.mark.slow
def test_one_process_for_each_member() -> None:
    _processes(3)


@pytest.mark.slow
def test_a_process_that_fails_is_named() -> None:
    with pytest.raises(WhenceError, match="member 0 could not be trained: RuntimeError: no network today"):
        fit_ensemble(broken, labelled(), likelihood="classification", members=1, processes=1, progress=False)


def test_fit_refusals() -> None:
    settings = {"likelihood": "classification", "progress": False}
    with pytest.raises(BadOption, match="not a network"):
        fit_ensemble(small(), labelled(), **settings)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="members=0"):
        fit_ensemble(small, labelled(), members=0, **settings)
    with pytest.raises(BadOption, match="training option 'momntum'"):
        fit_ensemble(small, labelled(), momntum=0.9, **settings)
    with pytest.raises(BadOption, match="cannot be combined with processes"):
        fit_ensemble(small, labelled(), processes=2, vectorised=True, **settings)
    x, _ = labelled()
    with pytest.raises(NotConverged, match="member 0 became"):
        fit_ensemble(small_double, (x, 1e6 * x[:, :3]), likelihood="regression", lr=1e6, members=2, progress=False)


def test_the_users_network_from_the_factory_is_copied() -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(small_double())
        return made[-1]

    posterior = fit_ensemble(make, labelled(), likelihood="classification", members=2, epochs=1, progress=False)
    before = copy.deepcopy(weights_of(posterior))
    for model in made:
        for p in model.parameters():
            p.data.zero_()
    torch.testing.assert_close(weights_of(posterior), before, rtol=0, atol=0)
