"""The training loop, plain modules in one's own loop, files, and what is refused."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from whence.errors import (
    BadData,
    BadFile,
    BadOption,
    NotConverged,
    NotDefined,
    NothingSelected,
    TooLarge,
    UnsupportedLayer,
)
from whence.functional import Network, weights_hash
from whence.posteriors.variational import ScaleMixture, Variational, VariationalModule, variational
from whence.posteriors.variational.elbo import KlWeight, StepLosses, blundell, make_optimiser
from whence.training import loop


def data(seed: int = 0, n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] + 0.3 * torch.randn(n, generator=gen) > 0).long()


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(net: nn.Module | None = None, given=None, **options) -> Variational:
    settings = {"likelihood": "classification", "epochs": 3, "lr": 0.01, "seed": 1, "progress": False} | options
    return variational(net or model(), given if given is not None else data(), **settings)


def test_learns_and_reports() -> None:
    posterior = fit(epochs=60, lr=0.02, prior_precision=1.0)
    first, last = posterior.history[0], posterior.history[-1]
    assert last.elbo > first.elbo and last.elbo == pytest.approx(-last.nll - last.kl)
    assert [row.kl_weight for row in posterior.history] == [1.0] * 60
    x, y = data()
    assert float((posterior.predict(x, num_samples=20).probs.argmax(1) == y).float().mean()) > 0.85
    assert posterior.output_shape == (2,) and posterior.data_size == 60
    bound = posterior.elbo(data(), 16)
    assert bound.value == pytest.approx(last.elbo, abs=6) and bound.kl == pytest.approx(float(posterior.kl()))
    assert "ELBO" in repr(posterior) and "tempered" not in repr(posterior)
    assert "tempered: KL × 0.5" in repr(fit(kl_weight=0.5))


def test_minibatches_scale_the_likelihood_to_the_data_set() -> None:
    """The mean NLL over an epoch's batches is that of the whole data set, however it is cut."""
    for batch_size in (60, 7):
        row = fit(lr=1e-9, epochs=1, initial_std=1e-6, batch_size=batch_size).history[0]
        x, y = data()
        exact = float(nn.functional.cross_entropy(model()(x), y, reduction="sum").detach())
        assert row.nll == pytest.approx(exact, rel=0.08 if batch_size == 7 else 1e-4)


def test_loaders_pairs_and_mappings_are_read() -> None:
    x, y = data()
    assert fit(given=DataLoader(TensorDataset(x, y), 16, shuffle=True)).data_size == 60
    assert fit(given=[(x[:40], y[:40]), (x[40:], y[40:])]).data_size == 60

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.inner(values)

    assert fit(Named(), [{"values": x, "labels": y}] * 2).data_size == 120


def test_same_seed_same_bits_and_the_global_state_is_left_alone() -> None:
    loader = DataLoader(TensorDataset(*data()), 16, shuffle=True)
    net = model()
    before = torch.random.get_rng_state()
    a, b = fit(net, loader), fit(net, loader)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a.mean()[n], b.mean()[n]) for n in a.names())
    c = fit(net, loader, seed=None, generator=torch.Generator().manual_seed(4))
    d = fit(net, loader, seed=None, generator=torch.Generator().manual_seed(4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(c.mean()["0.weight"], d.mean()["0.weight"])
    assert not torch.equal(a.mean()["0.weight"], c.mean()["0.weight"])


def test_the_model_is_left_alone() -> None:
    net = model().train()
    net[0].weight.requires_grad_(False)
    before = weights_hash(net)
    posterior = fit(net)
    assert weights_hash(net) == before and net.training and not net[0].weight.requires_grad
    assert all(p.grad is None for p in net.parameters()) and not net._forward_hooks
    assert posterior.names() == ["0.bias", "2.weight", "2.bias"]  # frozen weights are not random
    held = posterior.mean()["2.weight"].clone()
    with torch.no_grad():
        net[2].weight.zero_()
    assert torch.equal(posterior.mean()["2.weight"], held)
    with pytest.raises(AttributeError):
        posterior.family = "alpha"


def test_layers_chosen_by_the_user() -> None:
    assert fit(layers="last").names() == ["2.weight", "2.bias"]
    chosen = fit(layers=["0"])
    assert chosen.layers() == {"0": ["0.weight", "0.bias"]}
    assert torch.equal(chosen.network.params["2.weight"], model()[2].weight)
    with pytest.raises(NothingSelected):
        fit(layers=["nothing"])
    with pytest.raises(BadOption, match="mask"):
        fit(layers={"0.weight": torch.ones(8, 3, dtype=torch.bool)})


def test_warm_up_blundell_and_temperature_are_reported() -> None:
    warm = fit(epochs=4, kl_schedule=2, batch_size=20)
    assert [round(r.kl_weight, 3) for r in warm.history] == [0.333, 0.833, 1.0, 1.0]
    for row in fit(epochs=2, kl_schedule="blundell", batch_size=20, kl_weight=0.25).history:
        assert row.kl_weight == pytest.approx(0.25)
    for steps in (1, 2, 7, 2000):
        assert sum(blundell(i, steps) for i in range(steps)) == pytest.approx(1)
    assert blundell(0, 3) == pytest.approx(4 / 7) and blundell(2, 3) == pytest.approx(1 / 7)
    assert KlWeight(1.0, "blundell").at(0, 0, 3) == pytest.approx(12 / 7)


def test_early_stopping_goes_back_to_the_best() -> None:
    given = (*data(1, 30),)
    posterior = fit(epochs=40, lr=0.3, validation=given, patience=2)
    rows = list(posterior.history)
    assert len(rows) < 40 and posterior.best_epoch is not None
    values = [r.validation for r in rows]
    assert min(values) == values[posterior.best_epoch - 1] and len(rows) == posterior.best_epoch + 2


def test_checkpoint_resumes_to_the_same_bits(tmp_path, monkeypatch) -> None:
    whole = fit(epochs=4)
    path = tmp_path / "state.safetensors"

    class Broken(Exception):
        pass

    real, calls = loop._epoch, []

    def breaks(*args):
        calls.append(1)
        if len(calls) == 3:
            raise Broken
        return real(*args)

    monkeypatch.setattr(loop, "_epoch", breaks)
    with pytest.raises(Broken):
        fit(epochs=4, checkpoint=path)
    monkeypatch.undo()
    resumed = fit(epochs=4, checkpoint=path)
    assert all(torch.equal(whole.mean()[n], resumed.mean()[n]) for n in whole.names())
    assert [r.elbo for r in whole.history] == [r.elbo for r in resumed.history]


def test_checkpoint_of_something_else_is_refused(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    fit(epochs=2, checkpoint=path)
    with pytest.raises(BadFile, match="another network"):
        fit(model(5), epochs=2, checkpoint=path)
    with pytest.raises(BadFile, match="another network"):
        fit(nn.Sequential(nn.Linear(3, 2)), epochs=2, checkpoint=path)
    with pytest.raises(BadOption, match=r"lr=0\.01, not 0\.02"):
        fit(epochs=2, lr=0.02, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadFile, match="cannot be used: it is not a readable"):
        fit(epochs=2, checkpoint=path)
    with pytest.raises(BadFile, match="folder"):
        fit(epochs=2, checkpoint=tmp_path / "missing" / "state")


@pytest.mark.parametrize("family", ["mean_field", "alpha", "matrix_normal", "low_rank"])
def test_saved_and_loaded(tmp_path, family: str) -> None:
    net = model()
    prior = ScaleMixture(0.5, 1.0, 0.1) if family == "alpha" else {"0": 2.0, "2": torch.tensor(3.0)}
    posterior = fit(net, family=family, rank=2, prior_precision=prior)
    posterior.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", net)
    assert isinstance(again, Variational) and repr(again) == repr(posterior)
    gen = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    x = data()[0]
    assert torch.equal(again.predict(x, num_samples=5, generator=gen()).probs,
                       posterior.predict(x, num_samples=5, generator=gen()).probs)  # fmt: skip
    assert again.history == posterior.history and float(again.kl(50, gen())) == float(posterior.kl(50, gen()))
    with pytest.raises(BadFile):
        whence.load(tmp_path / "p.safetensors", model(7))


def test_moved_copies_and_serving() -> None:
    posterior = fit()
    double = posterior.to(torch.float64)
    assert double.mean()["0.weight"].dtype == torch.float64 and posterior.mean()["0.weight"].dtype == torch.float32
    x = data()[0]
    torch.testing.assert_close(double.variance()["0.weight"].float(), posterior.variance()["0.weight"])
    served = posterior.as_module(4, torch.Generator().manual_seed(0))(x)
    assert served.mean.shape == (60, 2)
    assert posterior.predict(DataLoader(TensorDataset(*data()), 16), num_samples=3).probs.shape == (60, 2)
    assert posterior.predict(x, method="linearised").probs.shape == (60, 2)


def test_own_loop() -> None:
    x, y = data()
    net = model()
    module = VariationalModule(net, prior_precision=1.0, estimator="flipout")
    optimiser = torch.optim.Adam(module.parameters(), 0.02)
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(module(x), y, reduction="sum") + module.kl()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    posterior = Variational.of(module, whence.Categorical())
    held = copy.deepcopy(posterior.mean())
    with torch.no_grad():
        next(iter(module.mean().values())).zero_()
    assert torch.equal(posterior.mean()["0.weight"], held["0.weight"])
    again = VariationalModule(net)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.eval()(x), module.eval()(x))
    assert torch.equal(module(x), module(x))  # evaluation mode: at the mean
    with pytest.raises(BadOption, match="Categorical"):
        Variational.of(module, "classification")
    with pytest.raises(BadData, match="VariationalModule"):
        Variational.of(net, whence.Categorical())


def test_dropout_and_batch_norm_stay_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    module = VariationalModule(net, initial_std=1e-8).train()
    x = data()[0]
    torch.testing.assert_close(module(x).detach(), net.eval()(x).detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(module.model[1].running_mean, torch.zeros(8))


def test_a_kl_that_became_nan_is_named() -> None:
    module = VariationalModule(model())
    with torch.no_grad():
        module.variational_blocks()[2].scale.fill_(math.nan)
    losses = StepLosses(module, 1, 3, "")
    for step in range(8):
        losses.add(torch.tensor([0.0, math.nan if step == 7 else 1.0]))
    with pytest.raises(NotConverged, match=r"KL of layer '2' became nan at step 8 of epoch 4"):
        losses.read()
    with pytest.raises(NotConverged, match="step"):
        fit(lr=1e6, epochs=30)


def test_a_step_that_is_not_finite_changes_nothing_though_nobody_looked() -> None:
    """On a GPU losses are looked at late: the parameters must still be those of the step that failed."""
    module = VariationalModule(model())
    optimiser, losses = make_optimiser(module, 1e-3, 1e-3), StepLosses(module, 1, 0, "")

    def step(factor: float) -> None:
        kl = module.kl()
        optimiser.found_inf = losses.add(torch.stack([torch.zeros(()), kl.detach() * factor]))  # type: ignore[attr-defined]
        optimiser.zero_grad(set_to_none=True)
        (kl * factor).backward()
        optimiser.step()

    def state() -> list[torch.Tensor]:
        return [p.detach().clone() for p in module.blocks.parameters()]

    start = state()
    step(1.0)
    before = state()
    assert not any(torch.equal(a, b) for a, b in zip(start, before, strict=True))
    for factor in (math.nan, 1.0):
        step(factor)
        assert all(torch.equal(a, b) for a, b in zip(state(), before, strict=True))
    with pytest.raises(NotConverged, match="at step 2 of epoch 1"):
        losses.read()
    assert losses.steps == 1 and math.isfinite(losses.kl)


def test_layers_that_cannot_be_converted_are_refused_by_name() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)
            self.kept = [self.inner.weight]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.kept[0], self.inner.bias)

    with pytest.raises(UnsupportedLayer, match=r"inner.*inner\.weight"):
        fit(Hidden())
    table = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(UnsupportedLayer, match="Embedding '0' has max_norm"):
        VariationalModule(table)
    sparse = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(UnsupportedLayer, match="sparse"):
        VariationalModule(sparse)
    assert VariationalModule(sparse, layers=["2"]).names == ["2.weight", "2.bias"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = nn.Sequential(torch.jit.script(nn.Linear(3, 4)), nn.Linear(4, 2))
    with pytest.raises(UnsupportedLayer, match="'0' is scripted"):
        VariationalModule(scripted)
    batch = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(UnsupportedLayer, match="'1'"):
        fit(batch)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"family": "matrixnormal"}, "matrix_normal"), ({"estimator": "locale"}, "local"), ({"start": "zero"}, "start"),
        ({"family": "matrix_normal", "estimator": "flipout"}, "independent"), ({"initial_std": 0}, "initial_std"),
        ({"epochs": 0}, "epochs"), ({"lr": -1}, "lr"), ({"lr_std": math.nan}, "lr_std"), ({"rank": 0}, "rank"),
        ({"kl_schedule": "cyclic"}, "warm-up"), ({"patience": 3}, "validation"), ({"prior_precision": -2}, "positive"),
        ({"seed": 1, "generator": torch.Generator()}, "not both"), ({"num_samples": 0}, "num_samples"),
        ({"batch_size": 2.5}, "batch_size"), ({"lr_schedule": "linear"}, "cosine"), ({"kl_weight": -1}, "kl_weight"),
        ({"likelihood": "classes"}, "classification"),
    ],
)  # fmt: skip
def test_bad_options(options, match: str) -> None:
    with pytest.raises(BadOption, match=match):
        fit(**options)


def test_bad_data_and_noise() -> None:
    x, y = data()
    with pytest.raises(BadData, match="NaN"):
        fit(given=(x * math.nan, y))
    with pytest.raises(BadData, match="one-shot"):
        fit(given=iter([(x, y)]))
    with pytest.raises(BadData, match="out of range"):
        fit(given=(x, y + 5))
    for bad in ({"pi": 1.5}, {"sigma1": 0.0}, {"sigma2": math.inf}):
        with pytest.raises(BadOption):
            ScaleMixture(**bad)
    target = x[:, :2] * 2
    net = model()
    posterior = fit(net, (x, target), likelihood="regression")
    rms = float((net(x) - target).detach().square().mean().sqrt())
    assert float(posterior.likelihood.noise) == pytest.approx(rms, rel=1e-5)
    with pytest.raises(BadOption, match="noise"):
        fit(net, (x, target), likelihood="regression", start="scratch")


def test_dense_covariance_has_a_limit(set_sizes) -> None:
    posterior = fit(epochs=1)
    set_sizes(dense_covariance=1000)
    with pytest.raises(TooLarge, match="50 weights"):
        posterior.covariance()


def test_signal_to_noise_and_prior() -> None:
    posterior = fit(prior_precision=whence.Prior(weight=2.0, bias=0.5))
    snr, mean, var = posterior.signal_to_noise(), posterior.mean(), posterior.variance()
    torch.testing.assert_close(snr["0.weight"], mean["0.weight"].abs() / var["0.weight"].sqrt())
    assert posterior.prior_precision == {"0.weight": 2.0, "0.bias": 0.5, "2.weight": 2.0, "2.bias": 0.5}
    mixed = fit(prior_precision=ScaleMixture(), kl_draws=2)
    with pytest.raises(NotDefined):
        _ = mixed.prior_precision
    assert math.isfinite(float(mixed.kl())) and fit(prior_precision=2.0).prior_precision == 2.0


def test_network_is_at_the_mean() -> None:
    posterior = fit(epochs=5)
    assert isinstance(posterior.network, Network)
    for name, value in posterior.mean().items():
        assert torch.equal(posterior.network.params[name], value)
    assert weights_hash(posterior.networks()[0]) == weights_hash(model())
