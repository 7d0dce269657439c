"""Where, asked of the real posteriors: shares against a direct Monte Carlo estimate, and what is refused."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import whence
from whence.errors import NotDefined


@functools.cache
def made(name: str) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(120, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    model = network()
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    model.eval()
    common: dict[str, Any] = {"likelihood": "classification"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = {
            "variational": lambda: whence.variational(model, (x, y), epochs=20, seed=0, progress=False, **common),
            "swag": lambda: whence.swag(model, (x, y), epochs=12, lr=0.05, seed=0, progress=False, **common),
            "dropout": lambda: whence.dropout(model, **common),
            "ensemble": lambda: whence.ensemble([model, network().eval()], **common),
            "hmc": lambda: whence.hmc(
                model, (x, y), chains=2, num_samples=10, warmup=10, kernel="hmc", steps=5, progress=False, **common
            ),
        }
        return makers[name](), x


def spread(outputs: Tensor) -> Tensor:
    """Σₓ Σ_c of the variance of centred logits over draws."""
    values = outputs.double()
    return (values - values.mean(-1, keepdim=True)).var(0).sum()


@pytest.mark.parametrize("name", ["variational", "swag"])
def test_shares_agree_with_a_direct_estimate_within_its_error(name: str) -> None:
    posterior, x = made(name)
    where = posterior.where(x)
    mean = posterior.mean()
    module = posterior.network.module
    repeats = []
    for seed in range(6):
        draws = posterior.sample(200, generator=torch.Generator().manual_seed(100 + seed))

        def run(names: list[str], draws: dict[str, Tensor] = draws) -> Tensor:
            with torch.no_grad():
                found = [
                    functional_call(module, {n: draws[n][s] if n in names else mean[n] for n in mean}, (x,))
                    for s in range(200)
                ]
            return spread(torch.stack(found))

        whole = run(list(mean))
        repeats.append(torch.stack([run(names) / whole for names in posterior.layers().values()]))
    direct, noise = torch.stack(repeats).mean(0), torch.stack(repeats).std(0) / 6**0.5
    for row, value, error in zip(where.layers, direct.tolist(), noise.tolist(), strict=True):
        assert abs(row.variance_share - value) < 4 * (row.variance_share_error**2 + error**2) ** 0.5
    assert where.interaction == pytest.approx(1 - sum(row.variance_share for row in where.layers))
    assert [row.name for row in where.layers] == ["0", "3", "5"]


def test_dropout_is_asked_by_site() -> None:
    posterior, x = made("dropout")
    where = posterior.where(x)
    (row,) = where.layers
    assert (row.name, row.kind) == ("2", "dropout")
    assert row.variance_share == pytest.approx(1.0)
    assert where.interaction == pytest.approx(0.0)
    for ask in (where.weights, where.units):
        with pytest.raises(NotDefined, match="masks"):
            ask("0")


@pytest.mark.parametrize("name", ["ensemble", "hmc"])
def test_members_have_activations_and_the_rest_is_refused(name: str) -> None:
    posterior, x = made(name)
    where = posterior.where(x)
    assert list(where.activations["name"]) == ["0", "3", "5", "output"]
    assert all(row.variance_share is None for row in where.layers)
    for ask in (where.weights, where.units):
        with pytest.raises(NotDefined, match="no common weight coordinates"):
            ask("0")


@pytest.mark.parametrize("by", ["snr", "identified", "magnitude", "random"])
def test_a_variational_posterior_can_be_pruned(by: str) -> None:
    posterior, _ = made("variational")
    pruned = whence.prune(posterior, 0.5, by=by)
    weights = [m.weight for m in pruned if isinstance(m, nn.Linear)]
    assert sum(int((w == 0).sum()) for w in weights) == round(0.5 * sum(w.numel() for w in weights))
    if by == "snr":
        mean, variance = posterior.mean(), posterior.variance()
        names = ["0.weight", "3.weight", "5.weight"]
        ratio = torch.cat([(mean[n].abs() / variance[n].sqrt()).flatten() for n in names])
        gone = torch.cat([(w == 0).flatten() for w in weights])
        assert float(ratio[gone].max()) <= float(ratio[~gone].min())
        kept = torch.cat([mean[n].flatten() for n in names])
        assert torch.equal(torch.cat([w.flatten() for w in weights])[~gone], kept[~gone])


def test_criteria_without_a_meaning_are_refused() -> None:
    posterior, x = made("variational")
    with pytest.raises(NotDefined, match="no curvature"):
        whence.prune(posterior, 0.5, by="saliency")
    swag, _ = made("swag")
    with pytest.raises(NotDefined, match="no prior precision"):
        whence.prune(swag, 0.5, by="identified")
    y = torch.zeros(len(x), dtype=torch.long)
    assert {row.by for row in whence.prune_curve(swag, (x, y), fractions=(0.0,), progress=False).rows} == {
        "snr",
        "magnitude",
        "random",
    }
