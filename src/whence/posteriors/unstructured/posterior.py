"""A Gaussian posterior over weights that is represented by draws.

Index legend: S draws, N inputs, C outputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs
from whence.engine.contexts import full_precision
from whence.engine.follow import is_followed
from whence.engine.randomness import Points
from whence.errors import BadOption, NotDefined, explains_keywords
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood
from whence.posteriors.base import LayerStructure, Summary, WeightPosterior, layer_structures
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.laplace.covariance import refuse_dense
from whence.predictive.dispatch import Method
from whence.predictive.linearised_draws import LinearisedDraws
from whence.predictive.links import OutputGaussian, predict_draws, predict_gaussian
from whence.predictive.predictions import Prediction
from whence.predictive.sampled import WeightDraws
from whence.predictive.sources import Antithetic, Source
from whence.priors import ByParameter, PriorPrecision

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace
    from whence.posteriors.unstructured.distance import StructureDistance


@dataclass(frozen=True)
class Solved:
    """Statistics of the solver."""

    iterations: int  # products with the curvature, each a pass over the data
    tolerance: float
    residuals: tuple[float, ...]  # of each draw: a bound on its relative error over the training outputs
    effective: tuple[float, ...]  # zᵀ s H z of each draw; their mean estimates the effective parameters
    converged: bool
    examples: int
    preconditioner: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Unstructured(DrawnPosterior, WeightPosterior):
    """Made by :meth:`whence.Laplace.unstructured`: N(θ*, (s H + Δ)⁻¹), including correlations between all weights."""

    network: Network
    likelihood: Likelihood
    deviations: dict[str, Tensor]  # draws minus θ*, [S, *shape]
    prior: PriorPrecision
    data_scale: float
    solved: Solved
    groups: dict[str, tuple[str, ...]]  # layer → its parameters
    output_shape: tuple[int, ...]
    parameters: int = 0  # number of Bayesian weights; with a mask, of those inside it
    structured: Laplace | None = field(default=None, repr=False)  # the posterior it was made from; not saved

    kind: ClassVar[str] = "unstructured"

    # Description

    def __len__(self) -> int:
        """Number of draws."""
        return len(next(iter(self.deviations.values())))

    def names(self) -> list[str]:
        return [n for n in self.network.params if n in self.deviations]

    def layers(self) -> dict[str, list[str]]:
        return {name: list(params) for name, params in self.groups.items()}

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return layer_structures(self.network, self.layers(), lambda _: "draws")

    @property
    def default_draws(self) -> int:  # type: ignore[override]
        """The number of stored draws."""
        return len(self)

    @property
    def default_method(self) -> Literal["linearised", "sampled"]:
        return "linearised"

    def summary(self) -> Summary:
        given = self.prior_precision
        return Summary(
            prior_precision=given if isinstance(given, float) else None,
            prior=self.prior.describe(),
            data_scale=self.data_scale,
            examples=self.solved.examples,
        )

    @property
    def prior_precision(self) -> float | dict[str, float | Tensor]:
        """One number if all weights share it, else by parameter."""
        return self.prior.given()  # type: ignore[no-any-return]

    def prior_variance(self) -> dict[str, Tensor]:
        return self.prior.variances(self.mean())

    @property
    def effective_parameters(self) -> tuple[float, float]:
        """γ = tr[s H (s H + Δ)⁻¹] with its standard error, from the draws: E[zᵀ s H z] = γ."""
        found = torch.tensor(self.solved.effective, dtype=torch.float64)
        error = found.std() / len(found) ** 0.5 if len(found) > 1 else float("nan")
        return float(found.mean()), float(error)

    @property
    def variance_error(self) -> float:
        """Relative Monte Carlo standard error of a variance from S draws: √(2 / S)."""
        return (2 / len(self)) ** 0.5

    # Weights

    def variance(self) -> dict[str, Tensor]:
        """Mean squared deviation over the draws; see ``variance_error``."""
        return {n: self.deviations[n].square().mean(0) for n in self.names()}

    def covariance(self) -> Tensor:
        """The covariance of the draws, of rank at most S."""
        size = sum(v[0].numel() for v in self.deviations.values())
        refuse_dense(size)
        flat = torch.cat([self.deviations[n].reshape(len(self), -1) for n in self.names()], dim=1)
        return flat.mT @ flat / len(flat)

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """``num_samples`` of the draws: the first, or chosen at random with a ``generator``; at most all."""
        chosen = self.chosen(num_samples, generator)
        return {n: self.network.params[n].detach() + z for n, z in chosen.items()}

    def chosen(self, count: int | None, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Deviations of ``count`` of the draws (None: all)."""
        if count is not None and count < 1:
            raise BadOption(f"num_samples={count} is not positive.")
        if count is None or count >= len(self):
            return self.deviations
        if generator is None:
            return {n: v[:count] for n, v in self.deviations.items()}
        order = torch.randperm(len(self), generator=generator, device=generator.device)[:count]
        return {n: v[order.to(v.device)] for n, v in self.deviations.items()}

    # Predictions

    @explains_keywords
    def predict(  # type: ignore[override]
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction:
        """Predict for inputs or a loader, with all draws or ``num_samples`` of them.

        ``"linearised"`` (default) uses f*(x) ± J(x) z for every draw z: the mean is then exactly f*(x), and the
        covariance of the outputs the mean of J z zᵀ Jᵀ. ``"sampled"`` runs the network at θ* + z.
        """
        chosen = Method.parse(method or self.default_method, "method")
        self._refuse_closed_forms(None, link, joint)
        draws = self.chosen(num_samples, generator)
        with full_precision(), torch.set_grad_enabled(is_followed(x)):
            if chosen is Method.SAMPLED:
                return self._functions(draws).predict(x)
            return self._linearised(*self._linearised_draws(draws).moved(x))

    def _linearised(self, mean: Tensor, moved: Tensor) -> Prediction:
        if isinstance(self.likelihood, Gaussian) and mean.dim() == 2:
            cov = torch.einsum("snc,snd->ncd", moved, moved) / len(moved)
            return predict_gaussian(self.likelihood, OutputGaussian(mean, cov, Points(1)))
        return predict_draws(self.likelihood, mean + torch.cat([moved, -moved]))

    def _linearised_draws(self, directions: dict[str, Tensor]) -> LinearisedDraws:
        return LinearisedDraws(self.network, directions, self.likelihood)

    def _functions(self, draws: dict[str, Tensor]) -> WeightDraws:
        params = {n: self.network.params[n].detach() + z for n, z in draws.items()}
        return WeightDraws(self.network, params, self.likelihood)

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """Weight draws as functions x → raw outputs, at most the stored ones."""
        return self._functions(self.chosen(num_samples, generator))

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        if Method.parse(method or self.default_method, "method") is Method.SAMPLED:
            return super().sources(method, num_samples, generator)
        return [Antithetic(self._linearised_draws(self.chosen(num_samples, generator)))]

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        """All stored draws, or ``num_samples`` of them."""
        from whence.posteriors.serving import linearised_outputs

        if method is Method.SAMPLED:
            return super().served_outputs(method, num_samples or len(self), generator, example)
        return linearised_outputs(self.network, self.chosen(num_samples, generator), self.likelihood, example)

    @property
    def example(self) -> Inputs | None:
        return None if self.structured is None else self.structured.example

    def distance(self, x: Any, structured: Laplace | None = None) -> StructureDistance:
        """How far a structured posterior (default: the one it was made from) is from this one on inputs ``x``."""
        from whence.posteriors.unstructured.distance import distance_between

        other = structured or self.structured
        if other is None:
            raise NotDefined(
                "a posterior loaded from a file does not include the one it was made from; pass it: "
                "unstructured.distance(x, posterior)."
            )
        with full_precision():
            return distance_between(self, other, x)

    # Saving

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    def state(self) -> State:
        tensors = {f"deviations.{n}": v for n, v in self.deviations.items()}
        tensors |= {f"prior.{n}": v for n, v in self.prior.values.items() if isinstance(v, Tensor)}
        meta = {
            "solved": asdict(self.solved),
            "prior": {n: None if isinstance(v, Tensor) else v for n, v in self.prior.values.items()},
            "data_scale": self.data_scale,
            "groups": [[name, list(params)] for name, params in self.groups.items()],
            "output_shape": list(self.output_shape),
            "parameters": self.parameters,
        }
        return State(meta, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Unstructured:
        network, meta = exact(Network.snapshot(models[0])), state.meta
        head = "deviations."
        found = {k[len(head) :]: v for k, v in state.tensors.items() if k.startswith(head)}
        network.select(list(found))
        solved: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["solved"].items()}
        return cls(
            network=network,
            likelihood=likelihood,
            deviations={n: v.to(network.device, network.params[n].dtype) for n, v in found.items()},
            prior=ByParameter({n: state.tensors[f"prior.{n}"] if v is None else v for n, v in meta["prior"].items()}),
            data_scale=meta["data_scale"],
            solved=Solved(**solved),
            groups={name: tuple(params) for name, params in meta["groups"]},
            output_shape=tuple(meta["output_shape"]),
            parameters=meta["parameters"] if "parameters" in meta else _changed_weights(found),  # not in older files
        )

    def to(self, *args: Any, **kwargs: Any) -> Unstructured:
        """A copy on another device or in another floating-point dtype."""
        return replace(
            self,
            network=self.network.to(*args, **kwargs),
            deviations={n: v.to(*args, **kwargs) for n, v in self.deviations.items()},
            structured=None if self.structured is None else self.structured.to(*args, **kwargs),
        )

    def __repr__(self) -> str:
        effective, error = self.effective_parameters
        found = "" if self.solved.converged else f" (NOT below {self.solved.tolerance:g})"
        return (
            f"Unstructured({len(self)} draws of {self.parameters:,} weights; {self.likelihood!r}; prior precision "
            f"{self.prior.describe()}, data scale {self.data_scale:.3g}; {self.solved.iterations} products, residual "
            f"{max(self.solved.residuals):.2g}{found}; {effective:.4g} ± {error:.2g} effective parameters)"
        )


def exact(network: Network) -> Network:
    """The network in at least float32, without autocast: products in bfloat16 would not converge."""
    if network.autocast is None and network.dtype in (torch.float32, torch.float64):
        return network
    exact = network.to(torch.promote_types(network.dtype, torch.float32))
    exact.autocast = None
    return exact


def _changed_weights(deviations: dict[str, Tensor]) -> int:
    """Number of weights that any draw changes: those outside a mask are fixed."""
    return sum(int((v != 0).any(0).sum()) for v in deviations.values())
