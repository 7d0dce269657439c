"""Attributions beside finite differences, an explicit embedding, and Captum."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.contract.posteriors import MAKE, NEW, made
from whence.errors import BadOption, NotDefined, Notice

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.Notice")


def classifier(dtype: torch.dtype = torch.float64) -> tuple[whence.Laplace, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x = torch.randn(60, 4, dtype=dtype)
    return whence.laplace(net, (x, x[:, 0].gt(0).long()), likelihood="classification", progress=False), x[:5]


@pytest.mark.parametrize("of", ["epistemic", "aleatoric", "total"])
def test_the_gradient_is_that_of_finite_differences(of: str) -> None:
    posterior, x = classifier()
    found = posterior.attribute(x, of=of, method="gradient").values

    def u(at: Tensor) -> Tensor:
        prediction = posterior.predict(at)
        return prediction.entropy if of == "total" else getattr(prediction, of)

    for i in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[i] = 1e-5
        torch.testing.assert_close(found[:, i], (u(x + step) - u(x - step)) / 2e-5, rtol=1e-5, atol=1e-8)


def test_integrated_gradients_add_up_and_know_their_baseline() -> None:
    posterior, x = classifier()
    found = posterior.attribute(x, steps=200)
    assert float(found.residual.abs().max()) < 1e-4 * float((found.uncertainty - found.at_baseline).abs().max())
    torch.testing.assert_close(found.uncertainty, posterior.predict(x).epistemic)
    other = posterior.attribute(x, steps=200, baseline=x.mean(0))
    torch.testing.assert_close(other.at_baseline, posterior.predict(x.mean(0, keepdim=True)).epistemic.expand(5))
    same = posterior.attribute(x, baseline=x, steps=4)
    assert float(same.values.abs().max()) == 0
    with pytest.raises(BadOption, match="baseline has shape"):
        posterior.attribute(x, baseline=torch.zeros(3))


def test_what_the_network_ignores_has_no_part() -> None:
    x = classifier()[1]
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * torch.tensor([1.0, 1, 0, 1], dtype=x.dtype))

    data = (torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,)))
    values = whence.laplace(Blind(), data, likelihood="classification", progress=False).attribute(x).values
    assert float(values[:, 2].abs().max()) == 0 < float(values.abs().max())


def test_it_is_the_same_in_pieces(set_sizes: Any) -> None:
    posterior, x = classifier()
    whole = posterior.attribute(x, steps=4)
    set_sizes(intermediate=1)
    torch.testing.assert_close(posterior.attribute(x, steps=4).values, whole.values)
    loader = [x[:2], x[2:]]
    torch.testing.assert_close(posterior.attribute(loader, steps=4).values, whole.values)


def test_outputs_are_selected() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double(), torch.randn(30, 3).double()
    posterior = whence.laplace(net, (x, torch.randn(30, 2).double()), likelihood="regression", progress=False)
    both, first, second = (posterior.attribute(x[:4], at=at, steps=8).values for at in (None, 0, 1))
    torch.testing.assert_close(both, first + second)
    with pytest.raises(BadOption, match="does not select"):
        posterior.attribute(x[:4], at=2)
    with pytest.raises(BadOption, match="one uncertainty"):
        classifier()[0].attribute(NEW.double(), at=0)


@pytest.mark.parametrize("name", MAKE)
def test_every_posterior_answers(name: str) -> None:
    posterior = made(name)
    before = posterior.predict(NEW, generator=torch.Generator().manual_seed(0)).probs
    found = posterior.attribute(NEW, steps=64)
    again = posterior.attribute(NEW, steps=64)
    torch.testing.assert_close(found.values, again.values)
    scale = float((found.uncertainty - found.at_baseline).abs().max())
    assert float(found.residual.abs().max()) < 0.05 * scale
    assert torch.equal(before, posterior.predict(NEW, generator=torch.Generator().manual_seed(0)).probs)


class Words(nn.Module):
    """Ids, or with ``embedded`` the embedding itself, so that both can be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 5), nn.Embedding(6, 5)
        self.mix, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rest(self.words(ids))

    def rest(self, e: Tensor) -> Tensor:
        e = e + self.places(torch.arange(e.shape[1]))
        return self.head(torch.tanh(self.mix(e)).mean(1))


class Embedded(nn.Module):
    def __init__(self, words: Words) -> None:
        super().__init__()
        self.words = words

    def forward(self, e: Tensor) -> Tensor:
        return self.words.rest(e)


@pytest.mark.parametrize("baseline", [None, 3])
def test_tokens_are_attributed_by_their_embeddings(baseline: int | None) -> None:
    torch.manual_seed(0)
    net, ids, y = Words().double(), torch.randint(9, (30, 6)), torch.randint(3, (30,))
    layers = ["mix", "head"]
    posterior = whence.laplace(net, (ids, y), likelihood="classification", layers=layers, progress=False)
    found = posterior.attribute(ids[:3], steps=16, baseline=baseline)
    assert found.values.shape == (3, 6)
    e = net.words(ids).detach()
    plain = whence.laplace(
        Embedded(net), (e, y), likelihood="classification", layers=[f"words.{n}" for n in layers], progress=False
    )
    base = None if baseline is None else net.words.weight[baseline].detach()
    wanted = plain.attribute(e[:3], steps=16, baseline=base)
    torch.testing.assert_close(found.values, wanted.values.sum(-1), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(found.at_baseline, wanted.at_baseline)
    torch.testing.assert_close(
        posterior.attribute(ids[:3], method="gradient").values,
        (plain.attribute(e[:3], method="gradient").values * e[:3]).sum(-1),
    )


def test_tokens_of_a_posterior_over_the_embedding_too() -> None:
    """Its rows are Bayesian, and the path runs in the embedding all the same."""
    torch.manual_seed(0)
    net, ids, y = Words().double(), torch.randint(9, (30, 6)), torch.randint(3, (30,))
    posterior = whence.laplace(net, (ids, y), likelihood="classification", progress=False)
    found = posterior.attribute(ids[:2], steps=100)
    scale = float((found.uncertainty - found.at_baseline).abs().max())
    assert float(found.residual.abs().max()) < 1e-3 * scale
    torch.testing.assert_close(found.uncertainty, posterior.predict(ids[:2]).epistemic)
    with pytest.warns(Notice, match="the embedding of the tokens is uncertain itself"):
        moved = posterior.attribute(ids[:2], steps=8, baseline=3)
    torch.testing.assert_close(moved.at_baseline, posterior.predict(torch.full_like(ids[:2], 3)).epistemic)


def test_jumps_that_no_number_of_steps_finds_are_told() -> None:
    """The Jacobian of a ReLU network jumps where a unit switches, and with it the linearised variance."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3).double(), torch.randn(40, 1).double()
    for activation, jumps in ((nn.ReLU(), True), (nn.Tanh(), False)):
        net = nn.Sequential(nn.Linear(3, 8), activation, nn.Linear(8, 1)).double()
        posterior = whence.laplace(net, (x, y), likelihood=whence.Gaussian(0.5), progress=False)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            parts = [posterior.attribute(x[:12], steps=steps) for steps in (32, 256)]
        said = [str(one.message) for one in seen if "attributions miss" in str(one.message)]
        apart = (parts[1].uncertainty - parts[1].at_baseline).abs().sum()
        missed = [float(part.residual.abs().sum() / apart) for part in parts]
        assert bool(said) is jumps and (missed[1] > 0.1) is jumps
        assert jumps or missed[1] < missed[0] / 20


def test_one_of_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.tanh(self.a(left)) * self.b(right)

    torch.manual_seed(0)
    left, right = torch.randn(30, 3).double(), torch.randn(30, 2).double()
    posterior = whence.laplace(
        Two().double(), [({"left": left, "right": right}, torch.randint(4, (30,)))], likelihood="classification",
        progress=False,
    )  # fmt: skip
    some = {"left": left[:2], "right": right[:2]}
    assert posterior.attribute(some, to="right", steps=4).values.shape == (2, 2)
    with pytest.raises(BadOption, match="several inputs"):
        posterior.attribute(some)


def test_randomised_weights_change_it() -> None:
    posterior, x = classifier()
    found = posterior.attribute(x, steps=8)
    table = found.sanity_check()
    assert table["randomised"] == ["nothing", "2", "… and 0"] and table["correlation"][0] == 1
    assert min(table["correlation"]) < 0.9
    torch.testing.assert_close(posterior.attribute(x, steps=8).values, found.values)
    with pytest.raises(NotDefined, match="hold their own weights"):
        made("hmc").attribute(NEW, steps=2).sanity_check()


def test_captum_agrees() -> None:
    attr = pytest.importorskip("captum.attr")
    posterior, x = classifier()
    wanted = attr.IntegratedGradients(lambda x: posterior.predict(x).epistemic).attribute(
        x, n_steps=16, method="riemann_middle"
    )
    torch.testing.assert_close(posterior.attribute(x, steps=16).values, wanted)


def test_tables_and_figures() -> None:
    posterior, x = classifier()
    found = posterior.attribute(x, steps=4)
    top = found.top(1, 2, names=["a", "b", "c", "d"])
    largest = found.values[1].abs().argsort(descending=True)[:2].tolist()
    assert top["part"] == ["abcd"[i] for i in largest]
    ax = found.plot(1, names=["a", "b", "c", "d"])
    assert len(ax.patches) == 4 and "epistemic" in ax.get_title()
    with pytest.raises(BadOption, match="index=7"):
        found.plot(7)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(75, 3))
    images = torch.randn(12, 2, 5, 5)
    fitted = whence.laplace(net, (images, torch.randint(3, (12,))), likelihood="classification", progress=False)
    shown = fitted.attribute(images[:2], steps=4)
    torch.testing.assert_close(shown.map, shown.values.sum(1))
    assert [len(ax.images) for ax in shown.plot(0).figure.axes] == [1, 1]
    with pytest.raises(BadOption, match="steps=0"):
        fitted.attribute(images, steps=0)
