"""What a review found in the variational posterior and in HMC, each with the case that showed it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence.errors import BadData, BadFile, BadOption, NotConverged, Notice
from whence.posteriors.hmc import Hmc, hmc
from whence.posteriors.hmc import run as runs
from whence.posteriors.variational import ScaleMixture, Variational, VariationalModule, variational


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] + 0.3 * torch.randn(n, generator=gen) > 0).long()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(net: nn.Module | None = None, given: Any = None, **options: Any) -> Variational:
    settings = {"likelihood": "classification", "epochs": 2, "lr": 0.01, "seed": 0, "progress": False} | options
    return variational(net or model(), data() if given is None else given, **settings)


def sampled(net: nn.Module, given: Any, **options: Any) -> Hmc:
    settings = {"likelihood": "classification", "chains": 2, "num_samples": 4, "warmup": 4, "max_depth": 3} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return hmc(net, given, progress=False, generator=torch.Generator().manual_seed(0), **settings)


class Bare(nn.Module):
    """With two parameters of its own beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.zeros(2))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale + self.shift


# Checkpoints


def test_a_variational_checkpoint_is_of_its_data(tmp_path: Path) -> None:
    (x, y), path = data(), tmp_path / "state"
    first = fit(checkpoint=path)
    again = fit(checkpoint=path, given=(x.clone(), y.clone()))
    assert all(torch.equal(v, again.mean()[n]) for n, v in first.mean().items())
    for other in ((-x, y), (x, 1 - y), (-x, 1 - y), DataLoader(TensorDataset(x, y), 20), [(x, y)]):
        with pytest.raises(BadFile, match="other training data") as caught:
            fit(checkpoint=path, given=other)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadFile, match="60 training examples, not of 50"):
        fit(checkpoint=path, given=(x[:50], y[:50]))
    with pytest.raises(BadFile, match="other validation data"):
        fit(checkpoint=path, validation=(x, y))


def test_a_variational_checkpoint_of_a_loader_or_of_batches(tmp_path: Path) -> None:
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), 20, shuffle=True)
    first = fit(checkpoint=tmp_path / "loader", given=loader)
    again = fit(checkpoint=tmp_path / "loader", given=DataLoader(TensorDataset(x, y), 20, shuffle=True))
    assert all(torch.equal(v, again.mean()[n]) for n, v in first.mean().items())
    with pytest.raises(BadFile, match="other training data"):
        fit(checkpoint=tmp_path / "loader", given=DataLoader(TensorDataset(x, y), 30))
    fit(checkpoint=tmp_path / "list", given=[(x.numpy(), y.numpy())])
    fit(checkpoint=tmp_path / "list", given=[(x.numpy(), y.numpy())])
    with pytest.raises(BadFile, match="other training data"):
        fit(checkpoint=tmp_path / "list", given=[(-x.numpy(), y.numpy())])


def test_a_checkpoint_that_knows_no_data_is_refused(tmp_path: Path) -> None:
    import json

    path = tmp_path / "state"
    fit(checkpoint=path)
    with safe_open(str(path), "pt") as file:
        meta = json.loads(file.metadata()["whence"])
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    del meta["data"], meta["validation"]
    save_file(tensors, str(path), metadata={"whence": json.dumps(meta)})
    with pytest.raises(BadFile, match="does not say which data"):
        fit(checkpoint=path)


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("own", [False, True])
def test_an_hmc_run_on_a_shuffling_loader_goes_on(
    likelihood: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data()
    net = nn.Linear(3, 2 if likelihood == "classification" else 1)
    targets = y if likelihood == "classification" else x[:, :1] + torch.randn(60, 1)
    generator = torch.Generator().manual_seed(3) if own else None  # moves on from pass to pass

    def loader(inputs: Tensor = x) -> DataLoader[Any]:
        return DataLoader(TensorDataset(inputs, targets), 20, shuffle=True, generator=generator)

    path = tmp_path / "run"
    monkeypatch.setattr(runs, "EVERY", 0.0)
    first = sampled(net, loader(), likelihood=likelihood, checkpoint=path)
    again = sampled(net, loader(), likelihood=likelihood, checkpoint=path)
    assert torch.equal(first.positions, again.positions)
    with pytest.raises(BadFile, match=r"other examples: data= is not the same") as caught:
        sampled(net, loader(x + 1), likelihood=likelihood, checkpoint=path)
    assert len(str(caught.value).replace(str(path), "")) < 130
    with pytest.raises(BadFile, match="other examples"):  # the same inputs and targets, in other pairs
        sampled(net, (x, targets.roll(1, 0)), likelihood=likelihood, checkpoint=path)
    with torch.no_grad():
        net.weight.add_(1)
    with pytest.raises(BadFile, match="another network"):
        sampled(net, loader(), likelihood=likelihood, checkpoint=path)


def test_hmc_leaves_the_generator_of_torch_alone() -> None:
    loader = DataLoader(TensorDataset(*data()), 20, shuffle=True)
    net = model()
    draws = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        draws.append(sampled(net, loader).positions)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*draws)  # whatever torch's generator was at


# Training


@pytest.mark.parametrize("prior", [1.0, ScaleMixture()])
def test_a_low_rank_fit_that_diverges_says_so(prior: Any) -> None:
    with pytest.raises(
        NotConverged, match=r"layer 'all layers together' became nan at step \d+ of epoch \d+\. Lower lr"
    ):
        fit(family="low_rank", lr_std=5.0, epochs=60, batch_size=10, prior_precision=prior)


def test_a_factor_that_cannot_be_had_is_nan() -> None:
    module = VariationalModule(model(), family="low_rank")
    (block,) = module.variational_blocks()
    with torch.no_grad():
        block.raw.fill_(1e18)
    assert bool(torch.isnan(module.kl()) | torch.isinf(module.kl()))


def test_an_unfinished_warm_up_is_said() -> None:
    short = fit(kl_schedule=100)
    assert short.history[-1].kl_weight == pytest.approx(0.02, abs=0.006)
    said = f"tempered: KL × {short.history[-1].kl_weight:.3g}, before the end of a warm-up over 100 epochs"
    assert said in repr(short)
    for options in ({"kl_schedule": 1}, {"kl_schedule": "blundell", "batch_size": 7}, {}):
        assert "tempered" not in repr(fit(**options))
    assert "tempered: KL × 0.5)" in repr(fit(kl_weight=0.5, kl_schedule=1))
    assert "warm-up" in repr(fit(kl_weight=0.5, kl_schedule=9))


def test_the_warm_up_is_said_after_loading(tmp_path: Path) -> None:
    import whence

    posterior = fit(kl_schedule=100)
    posterior.save(tmp_path / "posterior")
    assert repr(whence.load(tmp_path / "posterior", model())) == repr(posterior)


# Names


def test_bare_parameters_go_by_their_own_name() -> None:
    expected = {"scale": ["scale"], "shift": ["shift"], "layer": ["layer.weight", "layer.bias"]}
    posterior = fit(Bare())
    assert posterior.layers() == expected
    assert {b.name: [p.name for p in b.params] for b in posterior.blocks} == expected
    assert [b.kind for b in posterior.blocks] == ["Bare", "Bare", "Linear"]
    assert sampled(Bare(), data()).layers() == expected
    by_layer = fit(Bare(), prior_precision={"scale": 2.0, "shift": 3.0, "layer": 4.0}).prior_precision
    assert by_layer == {"scale": 2.0, "shift": 3.0, "layer.weight": 4.0, "layer.bias": 4.0}
    chains = sampled(Bare(), data(), prior_precision={"scale": 2.0, "shift": 3.0, "layer": 4.0})
    assert chains.prior.values == by_layer
    assert list(VariationalModule(Bare()).kl_by_layer()) == list(expected)


def test_errors_name_a_bare_parameter() -> None:
    net = Bare()
    with torch.no_grad():
        net.shift.fill_(1e30)
    with pytest.raises(NotConverged, match="the KL of layer 'shift' became inf at step 1 of epoch 1"):
        fit(net)


# Typed errors


@pytest.mark.parametrize(
    ("given", "words"),
    [(("a", 1, 1), "pi='a'"), ((0.5, "a", 1), "sigma1='a'"), ((0.5, 1, None), "sigma2=None"), ((2, 1, 1), "pi=2")],
)
def test_a_scale_mixture_of_words(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        ScaleMixture(*given)


@pytest.mark.parametrize("options", [{"target_accept": "a"}, {"step_size": "a"}, {"target_accept": None}])
def test_hmc_options_that_are_no_numbers(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(BadOption, match=f"{name}={value!r}"):
        sampled(model(), data(), **options)


@pytest.mark.parametrize("family", ["mean_field", "alpha", "matrix_normal", "low_rank"])
def test_draws_that_log_prob_cannot_take(family: str) -> None:
    posterior = fit(family=family)
    draws = posterior.sample(4)
    assert posterior.log_prob(draws).shape == (4,)
    for given, words in (
        ({}, "no tensor for '0.weight'"),
        (None, "not a NoneType"),
        (draws | {"2.bias": 3}, "no tensor for '2.bias'"),
        (posterior.mean(), r"shape \[8, 3\]; pass any number of draws of shape \[8, 3\]"),
        (draws | {"0.bias": draws["0.bias"][:2]}, r"different numbers of draws: \[2, 4\]"),
    ):
        with pytest.raises(BadData, match=words):
            posterior.log_prob(given)  # type: ignore[arg-type]
