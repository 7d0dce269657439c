"""Moments of the weights along a training (Maddox et al. 2019, algorithm 1)."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.copies import copy_module, unwrap
from whence.engine.checkpoint import COLLECTION, CheckpointFile
from whence.errors import BadData, BadOption
from whence.functional import Network
from whence.likelihoods import Likelihood, resolve
from whence.posteriors.ensembles.build import guarded
from whence.posteriors.ensembles.loss import residual_noise
from whence.posteriors.swag.norm import kept_inputs, norm_layers, renewed

if TYPE_CHECKING:
    from whence.posteriors.swag.posterior import Swag


class SwagCollector:
    """Collects from a network that you train yourself: ``collect()`` after each epoch, ``posterior(…)`` at the end.

    With the n-th weights θₙ: θ̄ₙ = θ̄ₙ₋₁ + (θₙ − θ̄ₙ₋₁) / n; the second moment by Welford's update, in float64; and the
    last ``rank`` deviations θₙ − θ̄ₙ.
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 or rank == 1:
            raise BadOption(f"rank={rank} must be 0 (a diagonal covariance) or a whole number, at least 2.")
        if not isinstance(model, nn.Module):
            raise BadData(f"the model must be a torch.nn.Module, not a {type(model).__name__}.")
        self.model, self.rank, self.count = unwrap(model), rank, 0
        free = {n: p for n, p in self.model.named_parameters() if p.requires_grad and p.is_floating_point()}
        if not free:
            raise BadOption("all parameters are frozen, so there is nothing to collect; call requires_grad_(True).")
        self.mean: dict[str, Tensor] = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in free.items()}
        self.squares: dict[str, Tensor] = {n: torch.zeros_like(m) for n, m in self.mean.items()}  # Σ (θ − θ̄)²
        self.deviations: dict[str, list[Tensor]] = {n: [] for n in free}

    @torch.no_grad()
    def collect(self) -> None:
        """Take the weights as they are now."""
        params = dict(self.model.named_parameters())
        self.count += 1
        for name, mean in self.mean.items():
            theta = params[name].detach()
            if not bool(torch.isfinite(theta).all()):
                raise BadData(f"the parameter {name!r} holds NaN or infinite values at collection {self.count}.")
            before = theta.double() - mean
            mean += before / self.count
            after = theta.double() - mean
            self.squares[name] += before * after
            if self.rank:
                self.deviations[name] = [*self.deviations[name], after.to(theta.dtype)][-self.rank :]

    def posterior(
        self,
        likelihood: Likelihood | str,
        data: Any = None,
        *,
        scale: float = 1.0,
        seed: int = 0,
        history: list[Any] | None = None,
    ) -> Swag:
        """The posterior so far. ``data`` is needed for batch normalisation, and for ``"regression"``."""
        from whence.posteriors.swag.posterior import Swag

        if self.count < 2:
            raise BadOption(f"a spread of weights needs at least 2 collections, and there is {self.count}.")
        check_scale(scale)
        resolved, estimate = resolve(likelihood)
        layers = norm_layers(self.model)
        if data is None and layers:
            raise BadOption(
                f"the batch normalisation {layers[0]!r} needs statistics made anew for averaged weights; pass data=…."
            )
        if data is None and estimate:
            raise BadOption("likelihood='regression' takes the noise from training residuals; pass data=….")
        start = Network.snapshot(self.model)
        network = at_mean(start, {n: m.to(start.params[n].dtype) for n, m in self.mean.items()})
        with guarded():  # a loader that shuffles draws from torch's own generator
            inputs = kept_inputs(data, network, seed) if layers else None
            if inputs is not None:
                put_statistics(network, inputs)
            shape = None if data is None else output_shape(network, kept_inputs(data, network, seed, 1))
            found = residual_noise([network], data) if estimate else resolved
        return Swag(
            network=network,
            start=start,
            likelihood=found,
            diagonal={n: (s / self.count).to(start.params[n].dtype) for n, s in self.squares.items()},
            deviations={n: torch.stack(d) for n, d in self.deviations.items()} if self.rank else {},
            scale=float(scale),
            collections=self.count,
            inputs=inputs,
            output_shape=shape,
            history=tuple(history or ()),
        )

    # Interrupted trainings

    def write(self, path: Path, meta: dict[str, Any]) -> None:
        """Everything collected so far, beside the checkpoint of the training."""
        tensors = {f"mean.{n}": m for n, m in self.mean.items()} | {f"squares.{n}": s for n, s in self.squares.items()}
        if self.rank:
            tensors |= {f"deviations.{n}": torch.stack(d) for n, d in self.deviations.items() if d}
        CheckpointFile(path, COLLECTION).write(tensors, meta | {"count": self.count, "rank": self.rank})

    def read(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """The inverse of :meth:`write`."""
        self.count = meta["count"]
        for name, mean in self.mean.items():
            mean.copy_(tensors[f"mean.{name}"])
            self.squares[name].copy_(tensors[f"squares.{name}"])
            if self.rank and self.count:
                like = dict(self.model.named_parameters())[name]
                self.deviations[name] = list(tensors[f"deviations.{name}"].to(like.device))


def check_scale(scale: Any) -> float:
    """A positive number."""
    scale = scale.item() if isinstance(scale, Tensor) and scale.numel() == 1 else scale
    if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < float(scale) < float("inf"):
        raise BadOption(f"scale={scale!r} must be a number, positive and finite.")
    return float(scale)


def at_mean(start: Network, mean: dict[str, Tensor]) -> Network:
    """A copy of the network with the mean weights."""
    network = Network(copy_module(start.module).eval())
    network.select([n for n, p in start.params.items() if p.requires_grad])
    network.autocast = start.autocast
    network.overwrite(mean)
    return network


def put_statistics(network: Network, inputs: Any) -> None:
    """Batch-normalisation statistics of the network's own weights, in place."""
    own = {n: p.detach().unsqueeze(0) for n, p in network.params.items()}
    buffers = dict(network.module.named_buffers())
    for name, value in renewed(network, own, inputs).items():
        buffers[name].copy_(value[0])


def output_shape(network: Network, one: Any) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(network(one).shape[1:])
