"""SWAG: a Gaussian with the moments of the weights along a training (Maddox et al. 2019).

Index legend: S draws, P weights, K collected deviations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.batches import Inputs, tensors_in, to_device
from whence.copies import copy_module
from whence.errors import BadFile, BadOption, NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import WeightPosterior
from whence.posteriors.covariance import refuse_dense
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.swag.collect import at_mean, check_scale
from whence.posteriors.swag.norm import renewed
from whence.predictive.sampled import WeightDraws
from whence.predictive.serving import Logits


@dataclass(frozen=True, eq=False)
class Swag(DrawnPosterior, WeightPosterior):
    """Made by :func:`whence.swag`: N(θ̄, s ½ (diag(θ²̄ − θ̄²) + D Dᵀ / (K − 1))); with rank 0, N(θ̄, s diag(θ²̄ − θ̄²))."""

    network: Network  # at the mean weights, with batch-normalisation statistics of their own
    start: Network  # that a file belongs to
    likelihood: Likelihood  # type: ignore[misc]
    diagonal: dict[str, Tensor]  # θ²̄ − θ̄²
    deviations: dict[str, Tensor]  # D, [K, *shape]; empty for rank 0
    scale: float = 1.0  # s
    collections: int = 0
    inputs: Inputs = field(default=None, repr=False)  # for batch-normalisation statistics of draws
    output_shape: tuple[int, ...] | None = None
    history: tuple[Any, ...] = field(default=(), repr=False)

    kind: ClassVar[str] = "swag"
    default_draws: ClassVar[int] = 30

    @property
    def rank(self) -> int:
        """Deviations that are kept."""
        return len(next(iter(self.deviations.values()))) if self.deviations else 0

    def names(self) -> list[str]:
        """Bayesian parameters in the network's order."""
        return [n for n in self.network.params if n in self.diagonal]

    def layers(self) -> dict[str, list[str]]:
        """Layer → its Bayesian parameters, in the network's order."""
        found: dict[str, list[str]] = {}
        for name in self.names():
            found.setdefault(name.rpartition(".")[0] or name, []).append(name)
        return found

    def _factors(self) -> tuple[float, float]:
        """What the diagonal and D Dᵀ are multiplied by (eq. 1 of Maddox et al. and the text below it)."""
        if not self.rank:
            return self.scale, 0.0
        return 0.5 * self.scale, 0.5 * self.scale / (self.rank - 1)

    def mean(self) -> dict[str, Tensor]:
        return {n: self.network.params[n].detach().clone() for n in self.names()}

    def variance(self) -> dict[str, Tensor]:
        own, shared = self._factors()
        found = {n: own * self.diagonal[n].clamp(min=0) for n in self.names()}
        if self.rank:
            found = {n: v + shared * self.deviations[n].square().sum(0) for n, v in found.items()}
        return found

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
        device = self.network.device

        def normal(*shape: int) -> Tensor:
            place = device if generator is None else generator.device
            return torch.randn(shape, generator=generator, device=place, dtype=self.network.dtype).to(device)

        found: dict[str, Tensor] = {}
        common = normal(num_samples, self.rank)  # z₂, the same for all weights
        for name, mean in self.mean().items():
            noise = normal(num_samples, *mean.shape).to(mean.dtype)
            found[name] = mean + (own * self.diagonal[name].clamp(min=0)).sqrt() * noise
            if self.rank:
                low = torch.einsum("sk,k...->s...", common.to(mean.dtype), self.deviations[name])
                found[name] = found[name] + shared**0.5 * low
        return found

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> SwagDraws:
        """Weight draws as functions x → raw outputs, each with batch-normalisation statistics of its own."""
        params = self.sample(num_samples, generator=generator)
        if self.inputs is not None:
            params = params | renewed(self.network, params, self.inputs)
        return SwagDraws(self.network, params, self.likelihood)

    def as_module(self, num_samples: int = 20, generator: torch.Generator | None = None) -> nn.Module:
        if self.inputs is not None and not isinstance(self.inputs, Tensor):
            raise NotDefined("as_module() serves networks that take one tensor; use draw() for several inputs.")
        return super().as_module(num_samples, generator)

    def with_scale(self, scale: float) -> Swag:
        """The same with the covariance at another scale."""
        return replace(self, scale=check_scale(scale))

    def networks(self) -> list[nn.Module]:
        return [self.start.module]

    def state(self) -> State:
        tensors = {f"mean.{n}": m for n, m in self.mean().items()}
        tensors |= {f"diagonal.{n}": d for n, d in self.diagonal.items()}
        tensors |= {f"deviations.{n}": d for n, d in self.deviations.items()}
        tensors |= {f"buffer.{n}": b for n, b in self.network.module.named_buffers()}
        kind = _kind(self.inputs)
        tensors |= {f"inputs.{i}": t for i, t in enumerate(tensors_in(self.inputs))}
        meta = {
            "scale": self.scale,
            "collections": self.collections,
            "inputs": kind,
            "output_shape": None if self.output_shape is None else list(self.output_shape),
            "history": list(self.history),
        }
        return State(meta, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Swag:
        start = Network.snapshot(models[0])
        groups: dict[str, dict[str, Tensor]] = {k: {} for k in ("mean", "diagonal", "deviations", "buffer", "inputs")}
        for key, value in state.tensors.items():
            group, _, name = key.partition(".")
            floats = value.to(start.device, start.dtype if value.is_floating_point() else None)
            groups[group][name] = floats
        network = at_mean(start, groups["mean"])
        for name, buffer in network.module.named_buffers():
            if name in groups["buffer"]:
                buffer.copy_(groups["buffer"][name])
        meta, shape = state.meta, state.meta["output_shape"]
        return cls(
            network=network,
            start=start,
            likelihood=likelihood,
            diagonal=groups["diagonal"],
            deviations=groups["deviations"],
            scale=meta["scale"],
            collections=meta["collections"],
            inputs=_inputs(meta["inputs"], groups["inputs"]),
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
        norm = "" if self.inputs is None else "; batch-normalisation statistics made anew for each draw"
        return (
            f"Swag({size:,} weights, {self.collections} collections, rank {self.rank}, scale {self.scale:g}; "
            f"{self.likelihood!r}{norm})"
        )


class SwagDraws(WeightDraws):
    """Weight draws that bring buffers with them."""

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


def _kind(inputs: Inputs) -> Any:
    """What the kept inputs are made of, as plain values: None, "tensor", a number of them, or their names."""
    if inputs is None:
        return None
    if isinstance(inputs, Tensor):
        return "tensor"
    flat = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
    if not all(isinstance(t, Tensor) for t in flat):
        raise BadFile("the inputs kept for batch normalisation are nested; such a posterior cannot be saved.")
    return list(inputs) if isinstance(inputs, dict) else len(flat)


def _inputs(kind: Any, tensors: dict[str, Tensor]) -> Inputs:
    """The inverse of :func:`_kind`."""
    flat = [tensors[str(i)] for i in range(len(tensors))]
    if kind is None:
        return None
    if kind == "tensor":
        return flat[0]
    return dict(zip(kind, flat, strict=True)) if isinstance(kind, list) else tuple(flat)
