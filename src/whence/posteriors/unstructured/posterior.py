"""A Gaussian posterior over weights that is known by draws from it alone.

Index legend: S draws, N inputs, C outputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs, check_finite, size_of, take, tensors_in
from whence.curvature.jacobian import budget, widened
from whence.curvature.products import forward_bytes, push
from whence.errors import BadOption, NotDefined, one_of
from whence.functional import Network, full_precision
from whence.likelihoods import Gaussian, Likelihood
from whence.posteriors.base import WeightPosterior
from whence.posteriors.covariance import refuse_dense
from whence.posteriors.drawn import DrawnPosterior, State
from whence.predictive.links import predict_draws, predict_gaussian
from whence.predictive.predictions import Prediction
from whence.predictive.sampled import BATCH, WeightDraws
from whence.priors import ByParameter, PriorPrecision
from whence.randomness import Points

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace
    from whence.posteriors.unstructured.gap import Gap

ROOM = 4  # budgets that derivatives of the outputs may take together


@dataclass(frozen=True)
class Solved:
    """How the draws were found."""

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
    """Made by :meth:`whence.Laplace.unstructured`: N(θ*, (s H + Δ)⁻¹), correlations between all weights included."""

    network: Network
    likelihood: Likelihood  # type: ignore[misc]
    deviations: dict[str, Tensor]  # draws less θ*, [S, *shape]
    prior: PriorPrecision
    data_scale: float
    solved: Solved
    groups: dict[str, tuple[str, ...]]  # layer → its parameters
    output_shape: tuple[int, ...]
    parameters: int  # Bayesian weights; under a mask those inside it
    structured: Laplace | None = field(default=None, repr=False)  # that it was made from; files leave it out

    kind: ClassVar[str] = "unstructured"

    # What it is

    def __len__(self) -> int:
        """Number of draws."""
        return len(next(iter(self.deviations.values())))

    def names(self) -> list[str]:
        """Bayesian parameters in the network's order."""
        return [n for n in self.network.params if n in self.deviations]

    def layers(self) -> dict[str, list[str]]:
        """Layer → its Bayesian parameters."""
        return {name: list(params) for name, params in self.groups.items()}

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
        """Relative Monte Carlo standard error of a variance that S draws give: √(2 / S)."""
        return (2 / len(self)) ** 0.5

    # Weights

    def mean(self) -> dict[str, Tensor]:
        return {n: self.network.params[n].detach().clone() for n in self.names()}

    def variance(self) -> dict[str, Tensor]:
        """Mean squared deviation over the draws; see ``variance_error``."""
        return {n: self.deviations[n].square().mean(0) for n in self.names()}

    def covariance(self) -> Tensor:
        """Of the draws: a rank of S at most."""
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

        ``"linearised"`` (default) takes f*(x) ± J(x) z for every draw z: the mean is then exactly f*(x), and the
        covariance of the outputs the mean of J z zᵀ Jᵀ. ``"sampled"`` runs the network at θ* + z.
        """
        chosen = one_of(method or "linearised", ("linearised", "sampled"), "method")
        self._refuse_closed_forms(None, link, joint)
        draws = self.chosen(num_samples, generator)
        with full_precision(), torch.set_grad_enabled(any(t.requires_grad for t in tensors_in(x))):
            if chosen == "sampled":
                return self._functions(draws).predict(x)
            return self._linearised(*self._moved(x, draws))

    def _linearised(self, mean: Tensor, moved: Tensor) -> Prediction:
        if isinstance(self.likelihood, Gaussian) and mean.dim() == 2:
            cov = torch.einsum("snc,snd->ncd", moved, moved) / len(moved)
            return predict_gaussian(self.likelihood, mean, cov, "mc", Points(1), lambda: cov)
        return predict_draws(self.likelihood, mean + torch.cat([moved, -moved]))

    def linearised_outputs(self, x: Any) -> Tensor:
        """f*(x) ± J(x) z of every draw z, [2S, N, …]; differentiable in ``x`` where gradients are on."""
        mean, moved = self._moved(x, self.deviations)
        return mean + torch.cat([moved, -moved])

    def _moved(self, x: Any, draws: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """f*(x) [N, …], and J(x) z of each draw [S, N, …]."""
        means, moved = [], []
        for piece in self.network.pieces(x, BATCH):
            mean, along = moves(self.network, piece, draws)
            means.append(mean)
            moved.append(along)
        return torch.cat(means), torch.cat(moved, dim=1)

    def _functions(self, draws: dict[str, Tensor]) -> WeightDraws:
        params = {n: self.network.params[n].detach() + z for n, z in draws.items()}
        return WeightDraws(self.network, params, self.likelihood)

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """Weight draws as functions x → raw outputs, at most all that are held."""
        return self._functions(self.chosen(num_samples, generator))

    def distance(self, x: Any, structured: Laplace | None = None) -> Gap:
        """How far a structured posterior (default: the one it was made from) is from this one on inputs ``x``."""
        from whence.posteriors.unstructured.gap import gap

        other = structured or self.structured
        if other is None:
            raise NotDefined(
                "a posterior that was read from a file no longer holds the one it was made from; pass it: "
                "unstructured.distance(x, posterior)."
            )
        with full_precision():
            return gap(self, other, x)

    # Keeping

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
            parameters=meta["parameters"] if "parameters" in meta else _moving(found),  # older files lack it
        )

    def to(self, *args: Any, **kwargs: Any) -> Unstructured:
        """A copy on another device or in another floating-point type."""
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
    """The network in float32 at least, without autocast: products in bfloat16 would not converge."""
    if network.autocast is None and network.dtype in (torch.float32, torch.float64):
        return network
    exact = network.to(torch.promote_types(network.dtype, torch.float32))
    exact.autocast = None
    return exact


def _moving(deviations: dict[str, Tensor]) -> int:
    """Weights that any draw moves: those outside a mask stay."""
    return sum(int((v != 0).any(0).sum()) for v in deviations.values())


def moves(network: Network, inputs: Inputs, directions: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """f(x) [N, …] and J(x) v [R, N, …], some directions at a time."""
    count = len(next(iter(directions.values())))
    each = forward_bytes(network, take(inputs, slice(0, 1))) * size_of(inputs)
    step = max(1, min(count, int(ROOM * budget(network.device) // max(each, 1))))
    parts = []
    for start in range(0, count, step):
        mean, moved = push(network, inputs, {n: v[start : start + step] for n, v in directions.items()})
        parts.append(widened(moved))
    check_finite(parts, "the derivatives of the outputs", 0)
    return widened(mean), torch.cat(parts)
