"""Dropout in place leaves the user's inputs alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.posteriors.dropout import dropout


class Shared(nn.Module):
    """Drops out its input, and a weight that all examples share."""

    def __init__(self, inplace: bool, always: bool = False) -> None:
        super().__init__()
        self.d, self.w, self.always = nn.Dropout(0.3, inplace=inplace), nn.Parameter(torch.ones(1, 4)), always

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, True, inplace=self.d.inplace) if self.always else self.d(x)
        return F.linear(x, F.dropout(self.w, 0.1, self.training))


@pytest.mark.parametrize("always", [False, True])
def test_in_place_dropout_of_the_inputs_is_that_of_a_copy(always: bool) -> None:
    x = torch.ones(5, 4)
    found = []
    for inplace in (False, True):
        posterior = dropout(Shared(inplace, always), likelihood="binary")
        generator = torch.Generator().manual_seed(0)
        found.append(posterior.draw(200, generator=generator).outputs(x))
        assert torch.equal(x, torch.ones(5, 4))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert 3.4 < float(found[0].mean()) < 4.6


@pytest.mark.parametrize("always", [False, True])
def test_in_place_dropout_leaves_the_users_inputs(always: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d, self.last = nn.Dropout(0.3, inplace=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.dropout(x, 0.3, True, inplace=True) if always else self.d(x))

    x = torch.randn(6, 4)
    before = x.clone()
    posterior = dropout(Net(), likelihood="classification")
    for count in (1, 2):
        posterior.predict(x, num_samples=count)
        assert torch.equal(x, before)
    draws = posterior.draw(3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws[1](x), draws.outputs(x)[1])
    torch.testing.assert_close(draws[1](x), draws[1](x), rtol=0, atol=0)
    for module in draws.modules():
        module(x)
    posterior.as_module(2)(x)
    assert torch.equal(x, before)
    leaf = x.clone().requires_grad_()
    draws[0](leaf).sum().backward()
    assert leaf.grad is not None
