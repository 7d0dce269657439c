"""Variational fits that diverge or end in their warm-up, bare parameters by their own names, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whence.errors import BadData, BadOption, NotConverged, Notice
from whence.posteriors.hmc import Hmc, hmc
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
