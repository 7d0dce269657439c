"""Which dimension counts the examples, and how many examples are looked at to find it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.tied_language_model import Tied, language_data, quietly
from whence.errors import UnsupportedLayer
from whence.likelihoods import Categorical
from whence.recording import layout
from whence.recording.recorder import probe_like


def test_few_examples_are_looked_at_where_outputs_are_large(monkeypatch: pytest.MonkeyPatch, set_sizes: Any) -> None:
    model, data = Tied(True).double(), language_data(8)
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical"}
    wanted = quietly(model, data, **options)
    sizes: list[int] = []
    find = layout._find_layouts

    def noted(found: Any, seen: Any, size: int) -> None:
        sizes.append(size)
        find(found, seen, size)

    monkeypatch.setattr(layout, "_find_layouts", noted)
    for probed, size in ((2**30, 8), (40_000, 5), (1, 2)):
        set_sizes(probes=probed)
        found = quietly(model, data, **options)
        assert [b.source for b in found.blocks] == [b.source for b in wanted.blocks]
        assert sizes.pop() == size
    probe = probe_like(torch.zeros(3, 5), period=7)
    assert torch.equal(probe.flatten()[:7], probe.flatten()[7:14]) and probe.abs().min() > 0


class SequenceFirst(nn.Module):
    """[N, T, D] in, a Linear that sees [T, N, D] with T = N, dead for the first and last example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x.transpose(0, 1)))
        return self.head(h.mean(0))


def test_dead_examples_do_not_hide_the_example_dimension() -> None:
    torch.manual_seed(0)
    model = SequenceFirst().double()
    with torch.no_grad():
        model.inner.bias.fill_(0.0)
    x = torch.randn(8, 8, 3, dtype=torch.float64)
    x[0], x[7] = 0.0, 0.0
    with torch.no_grad():
        model.inner.bias.fill_(-1e-9)
    y = torch.arange(8) % 2
    options = {"likelihood": "classification", "structure": "full", "prior_precision": 1.0}
    together = whence.laplace(model, (x, y), **options)
    alone = whence.laplace(model, [(x[n : n + 1], y[n : n + 1]) for n in range(8)], **options)
    assert_close(together.covariance(), alone.covariance())


def test_a_network_without_a_backward_pass_is_refused_in_words() -> None:
    """A state that is overwritten in evaluation mode, though the gradient needs it."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            state = self.inner(x).exp()
            out = self.head(state)
            state += 1
            return out

    data = torch.randn(6, 3), torch.arange(6) % 2
    with pytest.raises(UnsupportedLayer, match=r"a backward pass .* fails in evaluation mode.*inplace operation"):
        quietly(Stateful(), data, likelihood="classification")


class Unsteady(torch.autograd.Function):
    """x, with a float32 derivative that differs from pass to pass by a percent, as TF32 kernels round on a GPU."""

    passes = itertools.count()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + 0.01 * (next(Unsteady.passes) % 3)) if g.dtype == torch.float32 else g


class Rounded(nn.Module):
    """``half``: half of what reaches the first layer goes around its recorded call."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.first, self.last, self.half = nn.Linear(3, 4), nn.Linear(4, 2), half

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.half:
            h = h + (x.unsqueeze(-2) * self.first.weight).sum(-1)
        return self.last(Unsteady.apply(torch.tanh(h)))


@pytest.mark.parametrize("half", [False, True])
def test_rounding_of_the_gradients_costs_no_rule_and_refuses_no_input(half: bool) -> None:
    """What double precision does not confirm is rounding; what it confirms has no rule."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    posterior = quietly(Rounded(half), (x, y), likelihood="classification", curvature="ggn")
    kinds = {name: found.structure for name, found in posterior.structures.items()}
    assert kinds["last"] == "kron"
    assert (kinds.get("first") == "kron") is not half
    posterior.predict(x)


class OftenOff(nn.Module):
    """A layer over the positions of a sequence whose units are all off for inputs below a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(x)).mean(1))


def test_inputs_that_switch_a_layer_off_are_no_contradiction() -> None:
    """With as many positions as inputs and no gradient, nothing says which dimension counts the inputs."""
    torch.manual_seed(0)
    model = OftenOff().double()
    with torch.no_grad():
        model.mix.weight.copy_(model.mix.weight.abs())
        model.mix.bias.fill_(0.1)
    x = torch.rand(12, 4, 2, dtype=torch.float64)
    posterior = whence.laplace(model, (x, torch.randint(2, (12,))), likelihood="classification", progress=False)
    off = -10 - torch.rand(4, 4, 2, dtype=torch.float64)
    together, alone = posterior.predict(off), [posterior.predict(off[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together.logit_cov, torch.cat([one.logit_cov for one in alone]))
    shares = {row.name: row.variance_share for row in posterior.where(off).layers}
    assert shares["mix"] == 0 and shares["head"] == 1
