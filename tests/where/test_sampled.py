"""Where the uncertainty is, by draws: against closed forms, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadOption, NotDefined
from whence.functional import Network
from whence.posteriors.base import WeightPosterior
from whence.posteriors.drawn import DrawnPosterior, State
from whence.predictive.sampled import FunctionDraws, WeightDraws
from whence.where.activations import centred_gram, disagreement, mean_alignment
from whence.where.sampled import weight_shares


@dataclass(frozen=True, eq=False)
class Factorised(DrawnPosterior, WeightPosterior):
    """A Gaussian with given standard deviations around the network's weights."""

    network: Network
    std: dict[str, Tensor]
    likelihood: whence.Likelihood
    prior_precision: float = 1.0
    kind = "factorised"

    def names(self) -> list[str]:
        return list(self.std)

    def layers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.std:
            found.setdefault(name.rpartition(".")[0], []).append(name)
        return found

    def mean(self) -> dict[str, Tensor]:
        return {n: self.network.params[n].detach() for n in self.std}

    def variance(self) -> dict[str, Tensor]:
        return {n: s.square() for n, s in self.std.items()}

    def prior_variance(self) -> dict[str, Tensor]:
        return {n: torch.full_like(s, 1 / self.prior_precision) for n, s in self.std.items()}

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        mean = self.mean()
        return {
            n: mean[n] + s * torch.randn((num_samples, *s.shape), generator=generator, dtype=s.dtype)
            for n, s in self.std.items()
        }

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        return WeightDraws(self.network, self.sample(num_samples, generator), self.likelihood)

    def covariance(self) -> Tensor:
        raise NotImplementedError

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def state(self) -> State:
        raise NotImplementedError

    @classmethod
    def restored(cls, *args: Any) -> Any:
        raise NotImplementedError

    def networks(self) -> list[nn.Module]:
        return [self.network.module]


def factorised(model: nn.Module, likelihood: whence.Likelihood, scale: float = 0.1) -> Factorised:
    torch.manual_seed(1)
    std = {n: scale * (0.5 + torch.rand_like(p)).detach() for n, p in model.named_parameters()}
    return Factorised(Network.snapshot(model), std, likelihood)


def linear_chain() -> nn.Module:
    """Linear in each layer, so that a block's variance has a closed form."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()


def exact(posterior: Factorised, x: Tensor, variances: dict[str, Tensor]) -> Tensor:
    """Σₓ tr J_b diag(σ²) J_bᵀ with centred outputs, [B]."""
    params = {n: p.detach() for n, p in posterior.network.params.items()}
    jac = torch.func.jacrev(lambda p: torch.func.functional_call(posterior.network.module, p, (x,)))(params)
    found = []
    for names in posterior.layers().values():
        total = torch.zeros((), dtype=torch.float64)
        for n in names:
            j = jac[n].flatten(2)
            if posterior.likelihood.task == "classification":
                j = j - j.mean(1, keepdim=True)
            total = total + (j.square() * variances[n].flatten()).sum()
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("likelihood", [whence.Categorical(), whence.Gaussian(noise=1.0)], ids=["labels", "numbers"])
def test_shares_by_draws_agree_with_the_closed_form(likelihood: whence.Likelihood) -> None:
    model, x = linear_chain(), torch.randn(20, 3, dtype=torch.float64)
    posterior = factorised(model, likelihood)
    found = weight_shares(posterior, x, num_samples=4000)
    wanted = exact(posterior, x, posterior.variance())
    assert torch.allclose(found.variance, wanted, rtol=0.1)
    together = posterior.draw(4000, torch.Generator().manual_seed(5)).outputs(x)
    if likelihood.task == "classification":
        together = together - together.mean(-1, keepdim=True)
    total = float(together.var(0).sum())
    assert found.total == pytest.approx(total, rel=0.1)
    for share, error, value in zip(found.share, found.error, wanted / total, strict=True):
        assert abs(float(share) - float(value)) < 4 * float(error) + 0.02
    assert found.interaction == pytest.approx(1 - float(wanted.sum()) / total, abs=0.1)


def test_the_error_of_a_share_is_its_spread_over_repetitions() -> None:
    model, x = linear_chain(), torch.randn(5, 3, dtype=torch.float64)
    posterior = factorised(model, whence.Categorical())
    repeats = [weight_shares(posterior, x, 60, torch.Generator().manual_seed(s)) for s in range(150)]
    spread = torch.stack([r.share for r in repeats]).std(0)
    claimed = torch.stack([r.error for r in repeats]).square().mean(0).sqrt()
    assert torch.allclose(spread, claimed, rtol=0.35)


def test_the_table_of_a_weight_posterior() -> None:
    model, x = linear_chain(), torch.randn(8, 3, dtype=torch.float64)
    posterior = factorised(model, whence.Categorical())
    where = posterior.where(x)
    assert [row.name for row in where.layers] == ["0", "1"]
    first = where.layers[0]
    spread = torch.cat([posterior.std[n].flatten() for n in ("0.weight", "0.bias")])
    assert first.std == pytest.approx(float(spread.square().mean().sqrt()))
    assert first.identified == pytest.approx(float((1 - spread.square()).mean()))
    shares = sum(row.variance_share for row in where.layers)
    assert where.interaction == pytest.approx(1 - shares)
    prior = {n: torch.ones_like(s) for n, s in posterior.std.items()}
    ratio = exact(posterior, x, posterior.variance()) / exact(posterior, x, prior)
    assert [row.explained for row in where.layers] == pytest.approx((1 - ratio).tolist(), abs=0.01)
    assert "interaction" in str(where)
    weights = where.weights("1")
    assert torch.allclose(weights["std"][:8], posterior.std["1.weight"].flatten())
    assert list(where.activations["name"]) == ["0", "1"]
    with pytest.raises(NotDefined, match=r"units\(\) needs the curvature"):
        where.units("0")
    with pytest.raises(BadOption, match="where"):
        _ = posterior.where().activations
    assert posterior.where().layers[0].variance_share is None
    assert list(where.to_pandas()["name"]) == ["0", "1"]


class Members(FunctionDraws):
    def __init__(self, models: list[nn.Module]) -> None:
        self.models, self.likelihood = models, whence.Categorical()

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, index: Any) -> Any:
        return self.models[index]

    def outputs(self, x: Any) -> Tensor:
        return torch.stack([m(x) for m in self.models])

    def modules(self) -> list[nn.Module]:
        return self.models


def test_disagreement_does_not_see_permuted_or_turned_units() -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).double()
    turned = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).double()
    q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    with torch.no_grad():
        turned[0].weight.copy_(q @ first[0].weight), turned[0].bias.copy_(q @ first[0].bias)
        turned[1].weight.copy_(first[1].weight @ q.mT), turned[1].bias.copy_(first[1].bias)
    other = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).double()
    x = torch.randn(40, 3, dtype=torch.float64)
    same = disagreement([first, turned], x)
    assert list(same["name"]) == ["0", "1", "output"]
    assert all(abs(value) < 1e-9 for value in same["disagreement"])
    assert all(value > 0.01 for value in disagreement([first, turned, other], x)["disagreement"])
    with pytest.raises(NotDefined, match="two different members"):
        disagreement([first, first], x)
    with pytest.raises(NotDefined, match="at least 3 inputs"):
        disagreement([first, other], x[:1])
    repeated = disagreement([first, other, first, other, first], x)["disagreement"]
    assert repeated == pytest.approx(disagreement([first, other], x)["disagreement"])
    weighted = disagreement([first, turned, other], x, weights=[0.5, 0.5, 0.0])["disagreement"]
    assert all(abs(value) < 1e-9 for value in weighted)


def test_a_layer_that_gives_the_same_for_all_inputs_has_no_disagreement() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2)]
    with torch.no_grad():
        models[1][2].weight.zero_()
    found = disagreement(models, torch.randn(10, 3))
    assert found["disagreement"][0] > 0 and found["disagreement"][1:] == [None, None]


def test_networks_that_give_one_number_or_an_object() -> None:
    torch.manual_seed(0)

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).squeeze(-1)

    class Named(Flat):
        def forward(self, x: Tensor) -> Any:
            return {"logits": self.inner(x)}

    for kind in (Flat, Named):
        posterior = whence.ensemble([kind(), kind()], likelihood=whence.Gaussian(noise=1.0))
        rows = posterior.where(torch.randn(10, 3)).layers
        assert [row.name for row in rows] == ["inner", "output"] and rows[0].disagreement > 0


def test_alignment_is_that_of_its_definition() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 7, dtype=torch.float64)
    centre = torch.eye(30, dtype=torch.float64) - 1 / 30
    k, m = (centre @ (f @ f.mT) @ centre for f in (a, b))
    wanted = float((k * m).sum() / (k.norm() * m.norm()))
    assert mean_alignment([centred_gram(a), centred_gram(b)]) == pytest.approx(wanted)
