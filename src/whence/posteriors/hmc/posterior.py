"""The posterior as draws of Hamiltonian Monte Carlo.

Index legend: K chains, T draws of each, P parameters, S draws, N examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.batches import Inputs, size_of, take, to_device
from whence.errors import BadOption, NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.hmc.diagnostics import Diagnostics
from whence.posteriors.hmc.potential import Layout
from whence.posteriors.hmc.run import Settings
from whence.predictive.sampled import WeightDraws
from whence.priors import ByParameter, PriorPrecision

PROBES = 64  # training inputs that are kept for diagnostics


@dataclass(frozen=True, eq=False)
class Hmc(DrawnPosterior):
    """Made by :func:`whence.hmc`. Every method returns something new; the posterior never changes.

    Draws have no common weight coordinates, since hidden units may be permuted from one to another: there is no
    mean or variance of a weight to be had, only predictions.
    """

    kind: ClassVar[str] = "hmc"
    default_draws: ClassVar[int] = 1000

    network: Network
    likelihood: Likelihood  # type: ignore[misc]
    prior: PriorPrecision
    prior_mean: Tensor  # [P]
    positions: Tensor = field(repr=False)  # [K, T, P]
    stats: dict[str, Tensor] = field(repr=False)  # [K, T]: potential, energy, accept, divergent, depth, leapfrogs, step
    settings: Settings
    output_shape: tuple[int, ...]
    inputs: Inputs = field(default=None, repr=False)  # some of the training inputs, for diagnostics
    problems: tuple[str, ...] = ()  # what the run warned of
    seconds: float = 0.0
    layout: Layout = field(default=Layout(()), repr=False)

    def names(self) -> list[str]:
        """Bayesian parameters in the network's order."""
        return [p.name for p in self.layout.params]

    def layers(self) -> dict[str, list[str]]:
        """Layer → its Bayesian parameters."""
        found: dict[str, list[str]] = {}
        for name in self.names():
            found.setdefault(name.rpartition(".")[0] or name, []).append(name)
        return found

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    @property
    def parameters(self) -> int:
        """Number of Bayesian weights."""
        return self.layout.size

    @property
    def prior_precision(self) -> float | dict[str, float | Tensor]:
        """One number if all weights share it, else by parameter."""
        return self.prior.given()  # type: ignore[no-any-return]

    @property
    def draws(self) -> dict[str, Tensor]:
        """Parameter name → draws [K, T, *shape]."""
        return self.layout.split(self.positions)

    # Predictions

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """``num_samples`` of the draws: evenly from all chains, or at random with a ``generator``; at most all."""
        return self._functions(self._chosen(num_samples, generator))

    def _functions(self, flat: Tensor) -> WeightDraws:
        """Draws [S, P] as functions."""
        params = self.layout.split(flat.to(self.network.device, self.network.dtype))
        return WeightDraws(self.network, params, self.likelihood)

    def _chosen(self, count: int, generator: torch.Generator | None) -> Tensor:
        if count < 1:
            raise BadOption(f"num_samples={count} is not positive.")
        chains, each = self.positions.shape[:2]
        flat = self.positions.flatten(0, 1)
        if count >= len(flat):
            return flat
        if generator is not None:
            order = torch.randperm(len(flat), generator=generator, device=generator.device)[:count]
            return flat[order.to(flat.device)]
        picked = []
        for chain in range(chains):
            share = count // chains + (chain < count % chains)
            places = ((torch.arange(share, dtype=torch.float64) + (chain + 0.5) / chains) * each / max(share, 1)).long()
            picked.append(self.positions[chain, places.to(flat.device)])
        return torch.cat(picked)

    def predictions(self, x: Any = None) -> Tensor:
        """What every draw predicts for inputs (default: kept training inputs), [K, T, N, …].

        Probabilities for labels, raw outputs otherwise.
        """
        if x is None and self.inputs is None:
            raise NotDefined("no training inputs were kept with this posterior; pass x.")
        outputs = self._functions(self.positions.flatten(0, 1)).outputs(self.inputs if x is None else x)
        if self.likelihood.task == "classification":
            dim = getattr(self.likelihood, "class_dim", 1)
            outputs = outputs.softmax(dim if dim < 0 else dim + 1)
        elif self.likelihood.task == "binary":
            outputs = outputs.sigmoid()
        return outputs.unflatten(0, self.positions.shape[:2])

    # How far it can be trusted

    def diagnostics(self, x: Any = None, *, weights: bool = False) -> Diagnostics:
        """R-hat and effective sample sizes of the predictions for ``x`` and of the potential energy, by ArviZ.

        ``x`` defaults to training inputs. ``weights`` adds those of every weight; hidden units permute between
        chains, so these need not be good.
        """
        from whence.posteriors.hmc.diagnostics import diagnostics

        return diagnostics(self, x, weights)

    def to_arviz(self, x: Any = None) -> Any:
        """An ArviZ ``InferenceData`` (from ArviZ 1 on a ``DataTree``): weights, predictions, sampler statistics."""
        from whence.posteriors.hmc.diagnostics import to_arviz

        return to_arviz(self, x)

    # Keeping

    def to(self, *args: Any, **kwargs: Any) -> Hmc:
        """A copy on another device or in another floating-point type; the draws keep theirs."""
        network = self.network.to(*args, **kwargs)
        device = network.device
        return replace(
            self,
            network=network,
            positions=self.positions.to(device),
            stats={n: v.to(device) for n, v in self.stats.items()},
            prior_mean=self.prior_mean.to(device),
            inputs=to_device(self.inputs, device, network.dtype),
        )

    def state(self) -> State:
        prior = {n: None if isinstance(v, Tensor) else v for n, v in self.prior.values.items()}
        kept, kind = _named(self.inputs)
        meta = {
            "settings": asdict(self.settings),
            "names": self.names(),
            "output_shape": list(self.output_shape),
            "prior": prior,
            "problems": list(self.problems),
            "seconds": self.seconds,
            "inputs": kind,
        }
        tensors = {"positions": self.positions, "prior_mean": self.prior_mean}
        tensors |= {f"stats.{n}": v for n, v in self.stats.items()}
        tensors |= {f"prior.{n}": v for n, v in self.prior.tensors().items()}
        tensors |= {f"inputs.{n}": v for n, v in kept.items()}
        return State(meta, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Hmc:
        network = Network.snapshot(models[0])
        meta, device = state.meta, network.device

        def part(name: str) -> dict[str, Tensor]:
            return {k[len(name) + 1 :]: v.to(device) for k, v in state.tensors.items() if k.startswith(name + ".")}

        values = {n: state.tensors[f"prior.{n}"] if v is None else v for n, v in meta["prior"].items()}
        return cls(
            network=network,
            likelihood=likelihood,
            prior=ByParameter(values),
            prior_mean=state.tensors["prior_mean"].to(device),
            positions=state.tensors["positions"].to(device),
            stats=part("stats"),
            settings=Settings(**meta["settings"]),
            output_shape=tuple(meta["output_shape"]),
            inputs=_unnamed(part("inputs"), meta["inputs"]),
            problems=tuple(meta["problems"]),
            seconds=meta["seconds"],
            layout=Layout.of(network, meta["names"]),
        )

    def __repr__(self) -> str:
        chains, each, size = self.positions.shape
        doubt = f", {len(self.problems)} warnings: see .problems" if self.problems else ""
        return (
            f"Hmc({self.settings.kernel}, {chains} chains × {each} draws, {size:,} weights, {self.likelihood!r}, "
            f"prior precision {self.prior.describe()}{doubt})"
        )


def some(inputs: Inputs, count: int = PROBES) -> Inputs:
    """Inputs evenly picked from all of them."""
    total = size_of(inputs)
    return take(inputs, torch.linspace(0, total - 1, min(count, total)).round().long())


def _named(inputs: Inputs) -> tuple[dict[str, Tensor], str | None]:
    """Inputs as tensors by name for a file, and what they were; nothing where they are nested."""
    if isinstance(inputs, Tensor):
        return {"0": inputs}, "tensor"
    if isinstance(inputs, Mapping) and all(isinstance(v, Tensor) for v in inputs.values()):
        return {str(k): v for k, v in inputs.items()}, "mapping"
    if isinstance(inputs, (tuple, list)) and all(isinstance(v, Tensor) for v in inputs):
        return {str(i): v for i, v in enumerate(inputs)}, "tuple"
    return {}, None


def _unnamed(tensors: dict[str, Tensor], kind: str | None) -> Inputs:
    if kind == "tensor":
        return tensors["0"]
    if kind == "tuple":
        return tuple(tensors[str(i)] for i in range(len(tensors)))
    return tensors if kind == "mapping" else None
