"""The posterior of Hamiltonian Monte Carlo, represented by draws.

Index legend: K chains, T draws of each, P parameters, S draws, N examples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, size_of, take, to_device
from whence.errors import BadOption, NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import (
    PERMUTED,
    LayerStructure,
    Summary,
    by_owner,
    joint_block,
    layer_structures,
)
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.hmc.chains import SamplerSettings
from whence.posteriors.hmc.diagnostics import Diagnostics, diagnostics, to_arviz
from whence.posteriors.stored_inputs import from_tensors, to_tensors
from whence.predictive.links import predict_draws
from whence.predictive.sampled import WeightDraws
from whence.priors import ByParameter, PriorPrecision
from whence.recording.blocks import Block
from whence.training.checkpoint import part_of, prefixed

if TYPE_CHECKING:
    from whence.where.where import Where

PROBES = 64  # training inputs that are kept for diagnostics


@dataclass(frozen=True, eq=False)
class Hmc(DrawnPosterior):
    """Made by :func:`whence.hmc`. Immutable: methods return new objects.

    Draws have no common weight coordinates, since hidden units may be permuted between draws: there is no
    mean or variance of a weight, only predictions.
    """

    kind: ClassVar[str] = "hmc"
    default_draws: ClassVar[int] = 1000  # type: ignore[misc]

    network: Network
    likelihood: Likelihood
    prior: PriorPrecision
    prior_mean: Tensor  # [P]
    positions: Tensor = field(repr=False)  # [K, T, P]
    stats: dict[str, Tensor] = field(repr=False)  # [K, T]: potential, energy, accept, divergent, depth, leapfrogs, step
    settings: SamplerSettings
    weights: Block = field(repr=False)  # all weights as one vector [P]
    output_shape: tuple[int, ...]
    inputs: Inputs = field(default=None, repr=False)  # some of the training inputs, for diagnostics
    problems: tuple[str, ...] = ()  # problems that were reported for the run
    seconds: float = 0.0

    def names(self) -> list[str]:
        return [p.name for p in self.weights.params]

    def layers(self) -> dict[str, list[str]]:
        return by_owner(self.names())

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    @property
    def snapshots(self) -> tuple[Network, ...]:
        return (self.network,)

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return layer_structures(self.network, self.layers(), lambda _: "draws")

    @property
    def parameters(self) -> int:
        return self.weights.size

    @property
    def no_weights(self) -> str:
        return PERMUTED.format(members="draws of a chain")

    def _where(self, x: Any) -> Where:
        from whence.where.sampled import where_members

        return where_members(self, x)

    def summary(self) -> Summary:
        given = self.prior_precision
        return Summary(prior_precision=given if isinstance(given, float) else None, prior=self.prior.describe())

    @property
    def prior_precision(self) -> float | dict[str, float | Tensor]:
        """One number if all weights share it, else by parameter."""
        return self.prior.given()  # type: ignore[no-any-return]

    @property
    def draws(self) -> dict[str, Tensor]:
        """Parameter name → draws [K, T, *shape]."""
        return self.weights.scatter(self.positions)

    # Predictions

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """``num_samples`` of the draws: evenly spaced over all chains, or random with a ``generator``; at most all."""
        return self._functions(self._chosen(num_samples, generator))

    def _functions(self, flat: Tensor) -> WeightDraws:
        """Draws [S, P] as functions."""
        params = self.weights.scatter(flat.to(self.network.device, self.network.dtype))
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
        """Predictions of every draw for inputs (default: stored training inputs), [K, T, N, …].

        Probabilities for labels, raw outputs otherwise.
        """
        if x is None and self.inputs is None:
            raise NotDefined("this posterior has no stored training inputs; pass x.")
        outputs = self._functions(self.positions.flatten(0, 1)).outputs(self.inputs if x is None else x)
        if self.likelihood.has_labels:
            outputs = predict_draws(self.likelihood, outputs).samples  # type: ignore[union-attr, assignment]
        return outputs.unflatten(0, self.positions.shape[:2])

    # Diagnostics

    def diagnostics(self, x: Any = None, *, weights: bool = False) -> Diagnostics:
        """R-hat and effective sample sizes of the predictions for ``x`` and of the potential energy, by ArviZ.

        ``x`` defaults to training inputs. ``weights`` adds every weight; hidden units permute between
        chains, so these need not be good.
        """
        return diagnostics(self, x, weights)

    def to_arviz(self, x: Any = None) -> Any:
        """An ArviZ ``InferenceData`` (from ArviZ 1 on a ``DataTree``): weights, predictions, sampler statistics."""
        return to_arviz(self, x)

    # Saving

    def to(self, *args: Any, **kwargs: Any) -> Hmc:
        """A copy on another device or in another floating-point dtype; the draws keep their dtype."""
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
        inputs, kind = to_tensors(self.inputs)
        meta = {
            "settings": asdict(self.settings),
            "names": self.names(),
            "output_shape": list(self.output_shape),
            "prior": self.prior.spec(),
            "problems": list(self.problems),
            "seconds": self.seconds,
            "inputs": kind,
        }
        tensors = prefixed(stats=self.stats, prior=self.prior.tensors(), inputs=inputs)
        return State(meta, tensors | {"positions": self.positions, "prior_mean": self.prior_mean})

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Hmc:
        network = Network.snapshot(models[0])
        meta, tensors = state.meta, {k: v.to(network.device) for k, v in state.tensors.items()}
        values = {n: state.tensors[f"prior.{n}"] if v is None else v for n, v in meta["prior"].items()}
        return cls(
            network=network,
            likelihood=likelihood,
            prior=ByParameter(values),
            prior_mean=tensors["prior_mean"],
            positions=tensors["positions"],
            stats=part_of(tensors, "stats"),
            settings=SamplerSettings(**meta["settings"]),
            output_shape=tuple(meta["output_shape"]),
            inputs=from_tensors(part_of(tensors, "inputs"), meta["inputs"]),
            problems=tuple(meta["problems"]),
            seconds=meta["seconds"],
            weights=joint_block(network, meta["names"]),
        )

    def __repr__(self) -> str:
        chains, each, size = self.positions.shape
        doubt = f", {len(self.problems)} warnings: see .problems" if self.problems else ""
        return (
            f"Hmc({self.settings.kernel}, {chains} chains × {each} draws, {size:,} weights, {self.likelihood!r}, "
            f"prior precision {self.prior.describe()}{doubt})"
        )


def evenly_picked(inputs: Inputs, count: int = PROBES) -> Inputs:
    """``count`` evenly spaced inputs."""
    total = size_of(inputs)
    return take(inputs, torch.linspace(0, total - 1, min(count, total)).round().long())
