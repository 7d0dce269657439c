"""Per-example gradients of whatever no layer rule explains: exact, and as slow as that is."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from whence.batches import Inputs, size_of, take
from whence.curvature.capture import densified, gradients
from whence.errors import is_out_of_memory
from whence.functional import Network, differentiable


class PerExample:
    """Rows Σ_c column[k, c] ∂f_c / ∂θ for each example, by vmap or, where that fails, one by one."""

    def __init__(self, network: Network, names: list[str]) -> None:
        self.network, self.names = network, names
        self.vectorised = True

    def rows(self, inputs: Inputs, columns: Tensor, create_graph: bool = False) -> dict[str, Tensor]:
        """Columns [K, N, *outputs] → parameter name → [K, N, *shape]."""
        with differentiable(self.network):
            if self.vectorised and not create_graph:
                try:
                    return self._vectorised(inputs, columns)
                except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                    if is_out_of_memory(error):
                        raise
                    self.vectorised = False
            return self._one_by_one(inputs, columns, create_graph)

    def _vectorised(self, inputs: Inputs, columns: Tensor) -> dict[str, Tensor]:
        params = {name: self.network.params[name].detach() for name in self.names}

        def one(x: Any, cotangents: Tensor) -> dict[str, Tensor]:
            def f(p: dict[str, Tensor]) -> Tensor:
                return self.network.functional(p, _expand(x)).squeeze(0)

            pull = torch.func.vjp(f, params)[1]
            return torch.func.vmap(pull)(cotangents)[0]

        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = torch.func.vmap(one)(inputs, columns.transpose(0, 1))
        return {name: value.detach().transpose(0, 1) for name, value in found.items()}

    def _one_by_one(self, inputs: Inputs, columns: Tensor, create_graph: bool) -> dict[str, Tensor]:
        params = [self.network.params[name] for name in self.names]
        per_example: list[list[Tensor]] = []
        for n in range(size_of(inputs)):
            outputs = self.network(take(inputs, slice(n, n + 1)))
            grads = gradients(self.network, outputs, params, columns[:, n : n + 1], create_graph)
            per_example.append(
                [
                    p.new_zeros(len(columns), *p.shape) if g is None else densified(g)
                    for p, g in zip(params, grads, strict=True)
                ]
            )
        return {name: torch.stack([row[i] for row in per_example], 1) for i, name in enumerate(self.names)}


def _expand(x: Any) -> Any:
    """Put the example dimension back that vmap took away."""
    if isinstance(x, Tensor):
        return x.unsqueeze(0)
    if isinstance(x, dict):
        return {key: _expand(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_expand(value) for value in x)
    return x
