"""``whence.hmc`` as a whole: exact posteriors, what it refuses, what it warns of, what it keeps."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.reference import hmc as reference
from whence.errors import BadData, BadFile, BadOption, NotDefined, Notice, TooLarge
from whence.metrics.distance import distance
from whence.posteriors.base import joint_block
from whence.posteriors.hmc import Hmc, hmc
from whence.posteriors.hmc import chains as sampling
from whence.posteriors.hmc import potential as potentials
from whence.posteriors.hmc.diagnostics import effective
from whence.posteriors.hmc.potential import Potential, read

NOISE, PRECISION = 0.3, 2.0


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_data() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 3, generator=seeded(), dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + NOISE * torch.randn(
        30, 1, generator=seeded(1), dtype=torch.float64
    )
    return x, y


def sampled(model: nn.Module, data: Any, **options: Any) -> Hmc:
    """Without its warnings."""
    options = {"chains": 4, "num_samples": 60, "warmup": 60, "progress": False, "generator": seeded(), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return hmc(model, data, **options)


def mlp(inputs: int = 2, outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def labels() -> tuple[Tensor, Tensor]:
    x = torch.randn(25, 2, generator=seeded())
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


@pytest.fixture(scope="module")
def linear() -> Hmc:
    torch.manual_seed(0)
    likelihood = whence.Gaussian(noise=NOISE)
    return sampled(
        nn.Linear(3, 1).double(), linear_data(), likelihood=likelihood, prior_precision=PRECISION, chains=8,
        num_samples=800, warmup=200, kernel="hmc", steps=6, mass="dense",
    )  # fmt: skip


@pytest.fixture(scope="module")
def classifier() -> Hmc:
    return sampled(mlp(), labels(), likelihood="classification", max_depth=4)


# Exactness


def test_linear_regression_is_recovered(linear: Hmc) -> None:
    """Mean and covariance within 4.5 Monte Carlo errors of the exact posterior."""
    x, y = linear_data()
    mean, covariance = reference.linear_regression(x, y, NOISE, PRECISION)
    off = linear.positions - mean[:, 0]
    errors = off.flatten(0, 1).std(0) / effective(off).sqrt()
    assert float((off.flatten(0, 1).mean(0) / errors).abs().max()) < 4.5
    products = torch.einsum("ktp,ktq->ktpq", off, off).flatten(2)
    errors = products.flatten(0, 1).std(0) / effective(products).sqrt()
    assert float(((products.flatten(0, 1).mean(0) - covariance.flatten()) / errors).abs().max()) < 4.5
    assert linear.problems == ()


def test_linear_regression_predicts_as_the_exact_laplace(linear: Hmc) -> None:
    """For a linear model the full Laplace posterior at the optimum is exact: its distance to HMC is sampling error."""
    x, y = linear_data()
    mean, _ = reference.linear_regression(x, y, NOISE, PRECISION)
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(mean[:3].T)
        model.bias.copy_(mean[3])
    options = {"likelihood": whence.Gaussian(noise=NOISE), "prior_precision": PRECISION, "progress": False}
    grid = 3 * torch.randn(20, 3, generator=seeded(5), dtype=torch.float64)
    exact = whence.laplace(model, (x, y), structure="full", **options)
    rough = whence.laplace(model, (x, y), structure="full", **{**options, "prior_precision": 200.0})
    near, far = (distance(p, linear, grid) for p in (exact, rough))
    assert near < 0.02 and near < far / 2
    assert distance(exact, linear, grid, measure="total_variation") < 0.03


@pytest.mark.parametrize("prior", [0.7, whence.Prior(weight=2.0, bias=0.1), {"0": 0.5, "2*": 3.0}, "tensors"])
def test_potential_is_the_negative_log_posterior(prior: Any) -> None:
    model, (x, y) = mlp().double(), labels()
    if prior == "tensors":
        prior = {n: 0.1 + torch.rand(p.shape) for n, p in model.named_parameters()}
    found = sampled(
        model, (x, y), likelihood="classification", prior_precision=prior, num_samples=3, warmup=5, max_depth=3
    )
    for chain, at in ((0, 0), (3, 2)):
        twin = copy.deepcopy(model)
        energy = torch.zeros((), dtype=torch.float64)
        for name, p in twin.named_parameters():
            with torch.no_grad():
                p.copy_(found.draws[name][chain, at])
            precision = found.prior.values[name]
            energy = energy + 0.5 * (precision * p.detach().square()).sum()
        energy = energy + nn.functional.cross_entropy(twin(x.double()), y, reduction="sum").detach()
        torch.testing.assert_close(found.stats["potential"][chain, at], energy)


@pytest.mark.parametrize("chains", [1, 5])
def test_potential_and_gradient_whichever_way(chains: int) -> None:
    """Traced, vectorised and one by one they are the same."""
    network = whence.functional.Network.snapshot(mlp().double())
    x, y = labels()
    whole = read(
        network, whence.engine.batches.Data((x, y), network.device, torch.float64), whence.Categorical(), False
    )
    weights = joint_block(network, list(network.params))
    potential = Potential(
        network, whole, weights, torch.ones(weights.size).double(), torch.zeros(weights.size).double()
    )
    q = torch.randn(chains, weights.size, dtype=torch.float64)
    value, gradient = potential(q)
    assert potential.how == {chains: "traced"}
    for k in range(chains):
        leaf = q[k].clone().requires_grad_()
        one = potential.one(leaf)
        torch.testing.assert_close(value[k], one.detach())
        torch.testing.assert_close(gradient[k], torch.autograd.grad(one, leaf)[0])


def test_chains_that_do_not_fit_together_go_in_pieces(set_sizes: Any) -> None:
    options = {"likelihood": "classification", "num_samples": 2, "warmup": 3, "max_depth": 2}
    together = sampled(mlp(), labels(), **options)
    set_sizes(intermediate=2 * 25 * 4 * 8 * potentials.HELD)
    torch.testing.assert_close(sampled(mlp(), labels(), **options).positions, together.positions)


def test_single_precision_and_a_prior_mean() -> None:
    """A strong prior around 5 holds the weights there."""
    options = {"likelihood": "classification", "prior_precision": 1e4, "prior_mean": 5.0, "kernel": "hmc", "steps": 8}
    found = sampled(mlp(), labels(), dtype=torch.float32, **options)
    assert found.positions.dtype == torch.float32
    assert abs(float(found.positions.mean()) - 5) < 0.02 and 0.008 < float(found.positions[:, 20:].std()) < 0.013


class Stubborn(nn.Module):
    """Cannot be vectorised: it looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (1.0 if self.inner.weight.sum().item() > -1e9 else 2.0)


def test_what_cannot_be_vectorised_goes_one_by_one() -> None:
    torch.manual_seed(0)
    model, plain = Stubborn().double(), nn.Linear(3, 1).double()
    plain.load_state_dict(model.inner.state_dict())
    options = {"likelihood": whence.Gaussian(noise=NOISE), "chains": 2, "num_samples": 4, "warmup": 5, "max_depth": 3}
    first, second = sampled(model, linear_data(), **options), sampled(plain, linear_data(), **options)
    torch.testing.assert_close(first.positions, second.positions, atol=1e-6, rtol=1e-6)


# Randomness


def test_same_seed_same_bits_and_the_global_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    options = {"likelihood": "classification", "num_samples": 5, "warmup": 10, "max_depth": 3}
    one = sampled(mlp(), labels(), **options)
    torch.set_rng_state(before)
    mlp()  # seeds the global generator, as above
    state = torch.get_rng_state()
    two = sampled(mlp(), labels(), **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.positions, two.positions)
    assert not torch.equal(one.positions, sampled(mlp(), labels(), **options, generator=seeded(1)).positions)


def test_a_chain_is_the_same_however_many_others_run() -> None:
    options = {"likelihood": "classification", "num_samples": 3, "warmup": 5, "max_depth": 4}
    two, four = (sampled(mlp(), labels(), chains=k, **options).positions for k in (2, 4))
    torch.testing.assert_close(four[:2], two, atol=1e-6, rtol=1e-6)


# What it is asked


def test_classification(classifier: Hmc) -> None:
    x, _ = labels()
    prediction = classifier.predict(x)
    assert prediction.probs.shape == (25, 3) and prediction.probs.dtype == torch.float32
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)
    assert classifier.output_shape == (3,) and classifier.parameters == 27
    assert classifier.names() == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert classifier.layers() == {"0": ["0.weight", "0.bias"], "2": ["2.weight", "2.bias"]}
    assert classifier.draws["0.weight"].shape == (4, 60, 4, 2) and classifier.prior_precision == 1.0
    assert "4 chains × 60 draws" in repr(classifier)
    with pytest.raises(NotDefined, match="permuted"):
        classifier.mean()


def test_draws_are_picked_from_all_chains(classifier: Hmc) -> None:
    numbered = torch.arange(240.0).reshape(4, 60, 1).expand(4, 60, 27)
    classifier = replace(classifier, positions=numbered)

    def rows(draws: Any) -> list[int]:
        return classifier.weights.gather(draws.params)[:, 0].long().tolist()

    picked = rows(classifier.draw(10))
    assert len(set(picked)) == 10 and {r // 60 for r in picked} == {0, 1, 2, 3}
    assert picked == rows(classifier.draw(10))
    assert rows(classifier.draw(10, seeded(1))) == rows(classifier.draw(10, seeded(1))) != picked
    assert rows(classifier.draw(1000)) == list(range(240))
    with pytest.raises(BadOption, match="num_samples=0"):
        classifier.draw(0)
    x, _ = labels()
    torch.testing.assert_close(classifier.draw(3)[1](x), classifier.draw(3).outputs(x)[1])


def test_serving(classifier: Hmc) -> None:
    x, _ = labels()
    served = classifier.as_module(8)(x)
    torch.testing.assert_close(served[0], classifier.predict(x, num_samples=8).probs)


def test_save_and_load(classifier: Hmc, tmp_path: Path) -> None:
    classifier.save(tmp_path / "hmc.safetensors")
    loaded = whence.load(tmp_path / "hmc.safetensors", mlp())
    assert isinstance(loaded, Hmc) and torch.equal(loaded.positions, classifier.positions)
    x, _ = labels()
    assert torch.equal(loaded.predict(x).probs, classifier.predict(x).probs)
    assert loaded.settings == classifier.settings and loaded.problems == classifier.problems
    assert all(torch.equal(v, loaded.stats[n]) for n, v in classifier.stats.items())
    assert torch.equal(loaded.inputs, classifier.inputs) and repr(loaded) == repr(classifier)
    with pytest.raises(BadFile, match="other weights"):
        whence.load(tmp_path / "hmc.safetensors", nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)))


def test_to_another_type(classifier: Hmc) -> None:
    x, _ = labels()
    double = classifier.to(torch.float64)
    assert double.predict(x).probs.dtype == torch.float64
    torch.testing.assert_close(double.predict(x).probs.float(), classifier.predict(x).probs)


def test_the_model_is_left_as_it_was() -> None:
    model = mlp().train()
    before = copy.deepcopy(model.state_dict())
    for p in model[0].parameters():
        p.requires_grad_(False)
    posterior = sampled(model, labels(), likelihood="classification", num_samples=4, warmup=10, max_depth=3)
    assert posterior.names() == ["2.weight", "2.bias"] and model.training
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("likelihood", ["regression", "binary", whence.Poisson(), whence.HeteroscedasticGaussian()])
def test_other_likelihoods(likelihood: Any) -> None:
    x = torch.randn(12, 2)
    wide = isinstance(likelihood, whence.HeteroscedasticGaussian)
    model, y = mlp(2, 2 if wide else 1), (x[:, :1] > 0).float()
    posterior = sampled(model, (x, y), likelihood=likelihood, num_samples=4, warmup=10, kernel="hmc", steps=4)
    assert torch.isfinite(posterior.predict(x).epistemic).all()
    if likelihood == "regression":
        rms = (model(x) - y).detach().square().mean().sqrt()
        assert float(posterior.likelihood.noise) == pytest.approx(float(rms), rel=1e-6)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.a(left) + self.b(right)


def test_batches_of_mappings_and_layers(tmp_path: Path) -> None:
    x, y = labels()
    batches = [{"left": x[i : i + 10], "right": x[i : i + 10] ** 2, "labels": y[i : i + 10]} for i in (0, 10, 20)]
    model = TwoInputs()
    posterior = sampled(
        model, batches, likelihood="classification", layers="last", num_samples=4, warmup=10, max_depth=3
    )
    assert posterior.names() == ["b.weight", "b.bias"]
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    assert set(loaded.inputs) == {"left", "right"}
    torch.testing.assert_close(loaded.predictions(), posterior.predictions())


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_starts(kernel: str) -> None:
    model, options = mlp(), {"likelihood": "classification", "num_samples": 2, "warmup": 0, "step_size": 1e-6}
    options |= {"kernel": kernel, "max_depth": 2, "steps": 2, "mass": "identity"}
    given = {n: torch.randn(4, *p.shape) for n, p in model.named_parameters()}
    exact = sampled(model, labels(), start=given, **options)
    for name, value in given.items():
        torch.testing.assert_close(exact.draws[name][:, 0], value.double(), atol=1e-4, rtol=0)
    centre = {n: v[0] + 100 for n, v in given.items()}
    near = sampled(model, labels(), start=centre, **options).positions[:, 0]
    spread = near - torch.cat([v.flatten() for v in centre.values()])
    assert 0.3 < float(spread.std()) < 0.7 and not torch.equal(spread[0], spread[1])
    prior = sampled(model, labels(), start="prior", prior_precision=0.01, **options).positions[:, 0]
    assert 8 < float(prior.std()) < 12


# Checkpoints


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "likelihood": "classification",
        "num_samples": 4,
        "warmup": 12,
        "thin": 2,
        "mass": "dense",
        "max_depth": 3,
    }
    whole = sampled(mlp(), labels(), **options)
    advance, count = sampling.Chains.advance, 0

    def stop(self: sampling.Chains) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise KeyboardInterrupt
        advance(self)

    path = tmp_path / "run.safetensors"
    for _ in range(2):  # interrupted once in warm-up; then to the end
        monkeypatch.setattr(sampling.Chains, "advance", stop)
        try:
            resumed = sampled(mlp(), labels(), checkpoint=path, checkpoint_every=0, **options)
        except KeyboardInterrupt:
            assert path.is_file()
    assert torch.equal(resumed.positions, whole.positions)
    assert all(torch.equal(v, resumed.stats[n]) for n, v in whole.stats.items())
    with pytest.raises(BadOption, match="warmup=12, not 13"):
        sampled(mlp(), labels(), checkpoint=path, **{**options, "warmup": 13})
    x, y = labels()
    with pytest.raises(BadFile, match="data="):
        sampled(mlp(), (x + 1, y), checkpoint=path, **options)
    path.write_bytes(b"nonsense")
    with pytest.raises(BadFile, match="cannot be used: it is not a readable"):
        sampled(mlp(), labels(), checkpoint=path, **options)


# What it warns of and refuses


def warned(model: nn.Module, data: Any, **options: Any) -> str:
    with pytest.warns(Notice) as caught:
        posterior = hmc(model, data, progress=False, generator=seeded(), **options)
    words = [str(w.message) for w in caught if issubclass(w.category, Notice)]
    assert words == [f"hmc: {text}" for text in posterior.problems]
    assert all(w.filename == __file__ for w in caught)
    return " ".join(words)


def test_bad_runs_say_so() -> None:
    data = (torch.linspace(-1, 1, 8).unsqueeze(1), torch.linspace(-1, 1, 8).unsqueeze(1) ** 3)
    options = {"likelihood": whence.Gaussian(noise=0.05), "chains": 4}
    text = warned(mlp(1, 1), data, num_samples=30, warmup=0, step_size=1e-3, max_depth=3, mass="identity", **options)
    assert "R-hat of the predictions" in text and "effective sample size" in text
    assert "stopped at max_depth=3" in text and "Raise max_depth" in text
    text = warned(mlp(1, 1), data, num_samples=30, warmup=0, step_size=3.0, mass="identity", **options)
    assert "divergence" in text and "target_accept" in text
    text = warned(mlp(1, 1), data, num_samples=2, warmup=0, step_size=0.01, max_depth=2, **options)
    assert "too few to judge" in text


def test_the_size_limit_says_what_it_is_and_why() -> None:
    large = nn.Sequential(nn.Linear(2, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 3))
    with pytest.raises(
        TooLarge, match=r"92,103 weights; its limit is 20,000\. Each draw may take .* gradients .*limit="
    ):
        hmc(large, labels(), likelihood="classification")
    with pytest.raises(TooLarge, match="limit is 100"):
        hmc(large, labels(), likelihood="classification", layers=["0"], limit=100)
    found = sampled(large, labels(), likelihood="classification", layers="last", num_samples=4, warmup=5, max_depth=3)
    assert found.parameters == 903


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kernel": "nut"}, BadOption, "Did you mean 'nuts'"),
        ({"mass": "full"}, BadOption, "unknown mass"),
        ({"chains": 0}, BadOption, "chains=0"),
        ({"num_samples": 1.5}, BadOption, "num_samples=1.5"),
        ({"warmup": -1}, BadOption, "warmup=-1"),
        ({"warmup": 0}, BadOption, "step_size"),
        ({"target_accept": 1.0}, BadOption, "target_accept=1.0"),
        ({"checkpoint_every": -1}, BadOption, r"checkpoint_every=-1 must be a number of seconds, 0 \(after every tran"),
        ({"max_depth": 20}, BadOption, "max_depth=20"),
        ({"step_size": -1.0}, BadOption, "step_size=-1.0"),
        ({"dtype": torch.float16}, BadOption, "float64 or torch.float32"),
        ({"prior_precision": -1.0}, BadOption, "prior precision"),
        ({"prior_mean": {"x": torch.zeros(1)}}, BadOption, "does not have"),
        ({"start": "zero"}, BadOption, "unknown start"),
        ({"start": 3}, BadOption, "start is a int"),
        ({"start": {"0.weight": torch.zeros(4, 2)}}, BadOption, "has no entry for '0.bias'"),
        ({"likelihood": "classify"}, BadOption, "classification"),
        ({"layers": "9"}, whence.errors.NothingSelected, "matches no module"),
        ({"layers": torch.ones(27, dtype=torch.bool)}, BadOption, "mask"),
        ({"num_samples": 10**8}, TooLarge, "GiB"),
        ({"checkpoint": "/nowhere/at/all"}, BadFile, "folder"),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        hmc(mlp(), labels(), **{"likelihood": "classification", "progress": False, **options})


def test_bad_data() -> None:
    x, y = labels()
    with pytest.raises(BadData, match="NaN"):
        hmc(mlp(), (x * torch.nan, y), likelihood="classification")
    with pytest.raises(BadData, match="cannot be joined"):
        hmc(nn.Linear(2, 3), [(x[:3], y[:3]), (x[:3].unsqueeze(1), y[:3])], likelihood="classification")
    model = nn.Linear(2, 1)
    with pytest.raises(BadOption, match="fits its data exactly"):
        hmc(model, (x, model(x).detach()), likelihood="regression")


# ArviZ


def test_diagnostics_by_arviz(linear: Hmc) -> None:
    arviz = pytest.importorskip("arviz")
    grid = torch.randn(5, 3, dtype=torch.float64)
    found = linear.diagnostics(grid, weights=True)
    assert found.predictions.rhat.shape == (5, 1) and found.rhat < 1.02 and found.ess > 400
    assert found.divergences == 0 and found.bfmi.shape == (8,) and set(found.weights) == {"weight", "bias"}
    assert [r["name"] for r in found.rows()] == ["predictions", "potential", "weight", "bias"]
    assert "R-hat" in str(found) and linear.diagnostics().predictions.rhat.shape == (30, 1)
    tree = linear.to_arviz(grid)
    assert tree["posterior"]["weight"].shape == (8, 800, 1, 3)
    assert tree["posterior"]["predictions"].shape == (8, 800, 5, 1)
    assert {"lp", "energy", "diverging", "tree_depth"} <= set(tree["sample_stats"])
    assert len(arviz.summary(tree, var_names=["bias"])) == 1


def test_diagnostics_need_inputs(classifier: Hmc) -> None:
    with pytest.raises(NotDefined, match="pass x"):
        replace(classifier, inputs=None).predictions()


def test_without_arviz(linear: Hmc, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(whence.errors.MissingExtra, match=r"whence\[hmc\]"):
        linear.diagnostics()
