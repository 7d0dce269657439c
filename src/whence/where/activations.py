"""How much each layer's output spreads under draws of the weights, beside its spread over inputs.

Index legend: S draws, N inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.curvature.blocks import owner_of
from whence.errors import BadOption
from whence.functional import arguments, call_with
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.base import WeightPosterior

MOST = 512  # inputs that take part


class Watch:
    """Outputs of some modules, while it is open."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self.modules, self.seen = modules, {}  # type: ignore[var-annotated]
        self.handles: list[Any] = []

    def __enter__(self) -> Watch:
        for name, module in self.modules.items():
            self.handles.append(module.register_forward_hook(self._keep(name)))
        return self

    def _keep(self, name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor):
                self.seen[name] = value.detach()

        return hook

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def layer_modules(posterior: WeightPosterior) -> dict[str, nn.Module]:
    """The modules that own Bayesian weights, by dotted name, in order."""
    owners = dict.fromkeys(owner_of(name) for name in posterior.names())
    return {name: posterior.network.module.get_submodule(name) for name in owners if name}


@torch.no_grad()
def activations(
    posterior: WeightPosterior, x: Any, num_samples: int = 20, generator: torch.Generator | None = None
) -> Table:
    """One row for each layer: spread of its output under draws, spread over inputs, and their ratio.

    Root mean squares over inputs and features of the standard deviation over draws, and of that over inputs of the mean
    over draws. Draws move all layers together, so that a layer also shows what reaches it from below.
    """
    if num_samples < 2:
        raise BadOption(f"num_samples={num_samples}: a spread needs two draws at least.")
    network = posterior.network
    inputs = next(iter(network.pieces(x, MOST)))
    args, kwargs = arguments(inputs)
    draws = posterior.sample(num_samples, generator=generator)
    modules = layer_modules(posterior)
    sums: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for s in range(num_samples):
        with Watch(modules) as watch:
            call_with(network.module, {name: values[s] for name, values in draws.items()}, args, kwargs)
        for name, value in watch.seen.items():
            value = value.double()
            sums[name] = sums[name] + value if name in sums else value
            squares[name] = squares[name] + value.square() if name in squares else value.square()
    spread, over_inputs = [], []
    for name in sums:
        mean = sums[name] / num_samples
        variance = (squares[name] / num_samples - mean.square()).clamp(min=0) * num_samples / (num_samples - 1)
        spread.append(float(variance.mean().sqrt()))
        over_inputs.append(float(mean.var(0, correction=1 if len(mean) > 1 else 0).mean().sqrt()))
    ratio = [a / b if b else float("inf") for a, b in zip(spread, over_inputs, strict=True)]
    return Table({"name": list(sums), "spread": spread, "over_inputs": over_inputs, "ratio": ratio})
