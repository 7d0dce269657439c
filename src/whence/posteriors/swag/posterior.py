"""SWAG: a Gaussian with the moments of the weights during training (Maddox et al. 2019).

Index legend: S draws, P weights, K collected deviations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, to_device
from whence.engine.randomness import normal
from whence.errors import BadFile, BadOption
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import LayerStructure, by_owner, layer_structures
from whence.posteriors.drawn import State
from whence.posteriors.gaussian import Covariance, GaussianPosterior
from whence.posteriors.laplace.covariance import refuse_dense
from whence.posteriors.stored_inputs import from_tensors, to_tensors
from whence.posteriors.swag.batch_norm import batch_norm_statistics
from whence.predictive.sampled import WeightDraws
from whence.predictive.serving import Logits
from whence.training.checkpoint import part_of, prefixed


@dataclass(frozen=True, eq=False)
class Swag(GaussianPosterior):
    """Made by :func:`whence.swag`: N(θ̄, s ½ (diag(θ²̄ − θ̄²) + D Dᵀ / (K − 1))); with rank 0, N(θ̄, s diag(θ²̄ − θ̄²))."""

    network: Network  # at the mean weights, with their batch-normalisation statistics
    start: Network  # the initial network; identifies it in files
    likelihood: Likelihood
    diagonal: dict[str, Tensor]  # θ²̄ − θ̄²
    deviations: dict[str, Tensor]  # D, [K, *shape]; empty for rank 0
    scale: float = 1.0  # s
    collections: int = 0
    inputs: Inputs = field(default=None, repr=False)  # for batch-normalisation statistics of draws
    output_shape: tuple[int, ...] | None = None
    history: tuple[Any, ...] = field(default=(), repr=False)

    kind: ClassVar[str] = "swag"
    at_trained_weights: ClassVar[bool] = False
    default_draws: ClassVar[int] = 30  # type: ignore[misc]

    @property
    def rank(self) -> int:
        """Number of deviations kept."""
        return len(next(iter(self.deviations.values()))) if self.deviations else 0

    def names(self) -> list[str]:
        return [n for n in self.network.params if n in self.diagonal]

    def layers(self) -> dict[str, list[str]]:
        return by_owner(self.names())

    @property
    def structures(self) -> dict[str, LayerStructure]:
        form = f"diagonal and rank {self.rank}" if self.rank else "diagonal"
        return layer_structures(self.network, self.layers(), lambda _: form)

    def _factors(self) -> tuple[float, float]:
        """Factors of the diagonal and of D Dᵀ (eq. 1 of Maddox et al. and the text below it)."""
        if not self.rank:
            return self.scale, 0.0
        return 0.5 * self.scale, 0.5 * self.scale / (self.rank - 1)

    def variance(self) -> dict[str, Tensor]:
        own, shared = self._factors()
        found = {n: own * self.diagonal[n].clamp(min=0) for n in self.names()}
        if self.rank:
            found = {n: v + shared * self.deviations[n].square().sum(0) for n, v in found.items()}
        return found

    def parts_of_covariance(self) -> Covariance:
        own, shared = self._factors()
        columns = {n: shared**0.5 * self.deviations[n] for n in self.names()} if self.rank else {}
        return Covariance({n: own * self.diagonal[n].clamp(min=0) for n in self.names()}, columns=columns)

    def covariance(self) -> Tensor:
        size = sum(d.numel() for d in self.diagonal.values())
        refuse_dense(size)
        own, shared = self._factors()
        total = torch.diag(own * torch.cat([self.diagonal[n].clamp(min=0).flatten() for n in self.names()]))
        if self.rank:
            columns = torch.cat([self.deviations[n].flatten(1) for n in self.names()], dim=1)  # [K, P]
            total = total + shared * columns.mT @ columns
        return total

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """θ̄ + √(s/2) Σ_diag^½ z₁ + √(s / 2(K − 1)) D z₂ (Maddox et al., eq. 1)."""
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        own, shared = self._factors()
        like = self.network.like
        found: dict[str, Tensor] = {}
        common = normal((num_samples, self.rank), like, generator)  # z₂, the same for all weights
        for name, mean in self.mean().items():
            noise = normal((num_samples, *mean.shape), like, generator).to(mean.dtype)
            found[name] = mean + (own * self.diagonal[name].clamp(min=0)).sqrt() * noise
            if self.rank:
                low = torch.einsum("sk,k...->s...", common.to(mean.dtype), self.deviations[name])
                found[name] = found[name] + shared**0.5 * low
        return found

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> SwagDraws:
        """Weight draws as functions x → raw outputs, each with its own batch-normalisation statistics."""
        params = self.sample(num_samples, generator=generator)
        if self.inputs is not None:
            params = params | batch_norm_statistics(self.network, params, self.inputs)
        return SwagDraws(self.network, params, self.likelihood)

    @property
    def example(self) -> Inputs | None:
        return self.inputs

    def with_scale(self, scale: float) -> Swag:
        """A copy with another scale of the covariance."""
        return replace(self, scale=check_scale(scale))

    def networks(self) -> list[nn.Module]:
        return [self.start.module]

    def state(self) -> State:
        inputs, kind = to_tensors(self.inputs)
        if self.inputs is not None and kind is None:
            raise BadFile("the inputs stored for batch normalisation are nested, so this posterior cannot be saved.")
        meta = {
            "scale": self.scale,
            "collections": self.collections,
            "inputs": kind,
            "output_shape": None if self.output_shape is None else list(self.output_shape),
            "history": list(self.history),
        }
        own = {"mean": self.mean(), "diagonal": self.diagonal, "deviations": self.deviations, "inputs": inputs}
        return State(meta, prefixed(**own, buffer=dict(self.network.module.named_buffers())))

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Swag:
        start = Network.snapshot(models[0])
        tensors = to_device(state.tensors, start.device, start.dtype)
        network, buffers = at_mean(start, part_of(tensors, "mean")), part_of(tensors, "buffer")
        for name, buffer in network.module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
        meta, shape = state.meta, state.meta["output_shape"]
        return cls(
            network=network,
            start=start,
            likelihood=likelihood,
            diagonal=part_of(tensors, "diagonal"),
            deviations=part_of(tensors, "deviations"),
            scale=meta["scale"],
            collections=meta["collections"],
            inputs=from_tensors(part_of(tensors, "inputs"), meta["inputs"]),
            output_shape=None if shape is None else tuple(shape),
            history=tuple(meta["history"]),
        )

    def to(self, *args: Any, **kwargs: Any) -> Swag:
        network = self.network.to(*args, **kwargs)

        def moved(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {n: v.to(*args, **kwargs) for n, v in values.items()}

        return replace(
            self,
            network=network,
            start=self.start.to(*args, **kwargs),
            diagonal=moved(self.diagonal),
            deviations=moved(self.deviations),
            inputs=to_device(self.inputs, network.device, network.dtype),
        )

    def __repr__(self) -> str:
        size = sum(d.numel() for d in self.diagonal.values())
        norm = "" if self.inputs is None else "; batch-normalisation statistics recomputed for each draw"
        return (
            f"Swag({size:,} weights, {self.collections} collections, rank {self.rank}, scale {self.scale:g}; "
            f"{self.likelihood!r}{norm})"
        )


class SwagDraws(WeightDraws):
    """Weight draws with their own buffers."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SwagDraws(self.network, {n: p[index] for n, p in self.params.items()}, self.likelihood)
        return super().__getitem__(index)

    def modules(self) -> list[nn.Module]:
        found: list[nn.Module] = []
        for s in range(len(self)):
            module = copy_module(self.network.module)
            own = dict(module.named_parameters()) | dict(module.named_buffers())
            with torch.no_grad():
                for name, values in self.params.items():
                    own[name].copy_(values[s])
            module.requires_grad_(False).eval()
            found.append(Logits(module).eval() if self.network.returns_object else module)
        return found


def at_mean(start: Network, mean: dict[str, Tensor]) -> Network:
    """A copy of the network with the mean weights."""
    network = Network(copy_module(start.module).eval())
    network.select([n for n, p in start.params.items() if p.requires_grad])
    network.autocast = start.autocast
    network.overwrite(mean)
    return network


def check_scale(scale: Any) -> float:
    """Check that the scale is a positive number."""
    scale = scale.item() if isinstance(scale, Tensor) and scale.numel() == 1 else scale
    if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < float(scale) < float("inf"):
        raise BadOption(f"scale={scale!r} must be a positive, finite number.")
    return float(scale)
