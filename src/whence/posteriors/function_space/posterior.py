"""The Gaussian process prior of a linearised network, conditioned on a subset of the training data.

Under the prior θ ~ N(θ*, Δ⁻¹) the outputs f*(x) + J(x) (θ − θ*) are a Gaussian process with the kernel
k(x, x') = J(x) Δ⁻¹ J(x')ᵀ (Khan et al. 2019; Immer et al. 2021, eq. 12). With the roots R_n of the loss curvature of M
examples stacked in U = (R_nᵀ J_n) Δ^{-1/2}, [r, P], the posterior covariance is

    Σ = Δ^{-1/2} [I − Uᵀ (I + U Uᵀ)⁻¹ U] Δ^{-1/2} = (H_M + Δ)⁻¹,

so that only r × r matrices are decomposed, and no weight is taken to be independent of another. All in float64.

Index legend: S draws, N inputs, C outputs, M examples, K columns of each, r = M K, P weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.curvature.jvp import tangents
from whence.engine.batches import Inputs, to_device
from whence.engine.contexts import full_precision
from whence.engine.follow import is_followed
from whence.engine.memory import chunks, sizes
from whence.engine.randomness import Points, normal, seed_from
from whence.errors import BadFile, BadOption, NotDefined, explains_keywords
from whence.functional import Network, differentiable
from whence.likelihoods import Likelihood
from whence.posteriors.base import LayerStructure, Summary, WeightPosterior, layer_structures
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.function_space import moments
from whence.posteriors.function_space.features import Linearised
from whence.posteriors.function_space.subset import Subset
from whence.posteriors.laplace.covariance import refuse_dense
from whence.posteriors.stored_inputs import from_tensors, to_tensors
from whence.predictive.dispatch import Method, check_count
from whence.predictive.linearised import piece_size
from whence.predictive.linearised_draws import LinearisedDraws, pairs_for
from whence.predictive.links import LINK_POINTS, Link, LinkName
from whence.predictive.predictions import JointPrediction, Prediction
from whence.predictive.sampled import WeightDraws
from whence.predictive.sources import Antithetic, Drawn, GaussianOutputs, Source
from whence.priors import ByParameter, PriorPrecision
from whence.recording.backward import gradients
from whence.recording.plan import Plan

if TYPE_CHECKING:
    from whence.where.where import Where


@dataclass(frozen=True)
class Fit:
    """What the evidence needs of the training data, and where the posterior comes from."""

    examples: int  # M
    data_size: float  # training examples that they stand for
    loss: float  # of all training data, times the data scale
    squares: float  # (θ* − μ₀)ᵀ Δ (θ* − μ₀)
    data_scale: float


@dataclass(frozen=True, eq=False)
class FunctionSpace(DrawnPosterior, WeightPosterior):
    """Made by :meth:`whence.Laplace.function_space`: N(θ*, (H_M + Δ)⁻¹) with all correlations, by its kernel."""

    plan: Plan
    likelihood: Likelihood
    prior: PriorPrecision
    subset: Subset
    root: Tensor = field(repr=False)  # L, the Cholesky factor of I + K, [r, r]
    fit: Fit
    output_shape: tuple[int, ...]

    kind: ClassVar[str] = "function_space"

    @classmethod
    def of(
        cls, plan: Plan, likelihood: Likelihood, prior: PriorPrecision, inputs: Inputs, columns: Tensor, fit: Fit
    ) -> FunctionSpace:
        """Given training inputs and the roots of their curvature [K, M, *outputs]."""
        subset = Subset.of(Linearised.of(plan, prior), inputs, columns)
        gram = subset.gram()
        root = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
        return cls(plan, likelihood, prior, subset, root, fit, tuple(columns.shape[2:]))

    # Description

    @property
    def network(self) -> Network:  # type: ignore[override]
        return self.plan.network

    @property
    def linear(self) -> Linearised:
        return self.subset.linear

    def layers(self) -> dict[str, list[str]]:
        return {b.name: [p.name for p in b.params] for b in self.plan.blocks}

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return layer_structures(self.network, self.layers(), lambda _: "kernel of examples")

    @property
    def default_method(self) -> Literal["linearised", "sampled"]:
        return "linearised"

    @property
    def effective_parameters(self) -> float:
        """γ = tr[K (I + K)⁻¹]."""
        inverse = torch.linalg.solve_triangular(self.root, torch.eye(len(self.root)).to(self.root), upper=False)
        return len(self.root) - float(inverse.square().sum())

    def log_evidence(self) -> Tensor:
        """log p(D|θ*) − ½ [(θ* − μ₀)ᵀ Δ (θ* − μ₀) + log det(I + K)], in float64."""
        log_det = 2 * self.root.diagonal().log().sum().cpu()
        return torch.tensor(-self.fit.loss, dtype=torch.float64) - 0.5 * (self.fit.squares + log_det)

    def summary(self) -> Summary:
        return Summary(
            structure="function space",
            curvature="ggn",
            prior_precision=self.prior.number,
            prior=self.prior.describe(),
            data_scale=self.fit.data_scale,
            log_evidence=float(self.log_evidence()),
            examples=self.fit.data_size,
        )

    # Solving with I + K

    def whitened(self, rows: Tensor) -> Tensor:
        """rows L⁻ᵀ for rows [..., r]."""
        flat = rows.reshape(-1, rows.shape[-1])
        return torch.linalg.solve_triangular(self.root, flat.mT, upper=False).mT.reshape(rows.shape)

    def solved(self, rows: Tensor) -> Tensor:
        """rows (I + K)⁻¹."""
        flat = rows.reshape(-1, rows.shape[-1])
        return torch.cholesky_solve(flat.mT, self.root).mT.reshape(rows.shape)

    def together(self, inputs: Inputs) -> int:
        """Inputs at a time."""
        outputs = self.output_shape[0]
        kernels = sizes().one_tensor(self.network.device) // (8 * outputs * self.subset.size)
        most = piece_size(self.linear, inputs, columns=outputs)  # type: ignore[arg-type]
        return max(1, min(most, kernels))

    # Weights

    def prior_variance(self) -> dict[str, Tensor]:
        return self.prior.variances(self.mean())

    @full_precision()
    @torch.no_grad()
    def deviations(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draws z = ε − Δ⁻¹ J̃ᵀ (I + K)⁻¹ (J̃ ε + ε'), ε ~ N(0, Δ⁻¹) (Matheron's rule): by parameter, [S, *shape].

        With J̃ = R_nᵀ J_n of the examples.
        """
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        variances = self.prior_variance()
        z = {name: normal((num_samples, *v.shape), v, generator) * v.sqrt().to(v) for name, v in variances.items()}
        seen = [
            torch.einsum("sm...,km...->smk", tangents(self.network, inputs, z)[1].double(), columns.double())
            for inputs, columns in self.subset.pieces()
        ]
        noisy = torch.cat(seen, 1).flatten(1)  # [S, r]
        noisy = noisy + normal(noisy.shape, noisy, generator)
        solved = self.solved(noisy).unflatten(1, (-1, len(self.subset.columns)))  # [S, M, K]
        for name, back in self._pulled(solved).items():
            z[name] = z[name] - variances[name] * back
        return z

    def _pulled(self, weights: Tensor) -> dict[str, Tensor]:
        """J̃ᵀ v for v [S, M, K], by parameter."""
        names = self.names()
        params, start = [self.network.params[n] for n in names], 0
        total = {n: p.new_zeros(len(weights), *p.shape) for n, p in zip(names, params, strict=True)}
        for inputs, columns in self.subset.pieces():
            some = weights[:, start : start + columns.shape[1]]
            start += columns.shape[1]
            with differentiable(self.network):
                outputs = self.network(inputs)
                sent = torch.einsum("smk,km...->sm...", some, columns.double()).to(outputs.dtype)
                back = gradients(self.network, outputs, params, sent, False)
            for name, found in zip(names, back, strict=True):
                total[name] += 0 if found is None else found
        return total

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {n: self.network.params[n].detach() + z for n, z in self.deviations(num_samples, generator).items()}

    def variance(self) -> dict[str, Tensor]:
        """Δ^{-1/2} [1 − diag(Uᵀ (I + K)⁻¹ U)] Δ^{-1/2}."""
        found: dict[str, Tensor] = {}
        for place, (block, scaling) in enumerate(zip(self.plan.blocks, self.linear.scalings, strict=True)):
            rows = self._rows(place)
            explained = torch.cat(
                [self.whitened(rows[:, some].mT).square().sum(1) for some in _parts(rows, self.network.device)]
            )
            found |= block.scatter(scaling.flat.square() * (1 - explained))
        return {n: found[n].to(self.network.params[n].dtype) for n in self.names()}

    def covariance(self) -> Tensor:
        """Δ^{-1/2} [I − Uᵀ (I + K)⁻¹ U] Δ^{-1/2}, dense."""
        refuse_dense(self.parameters)
        rows = torch.cat([self._rows(place) for place in range(len(self.plan.blocks))], 1)
        half = torch.cat([scaling.flat for scaling in self.linear.scalings])
        solved = self.whitened(rows.mT) * half.unsqueeze(1)  # [P, r]
        found = torch.diag(half.square()) - solved @ solved.mT
        order = self._order()
        return found[order][:, order].to(self.network.dtype)

    def _rows(self, place: int) -> Tensor:
        """U of one block, [r, P_b]."""
        return torch.cat([piece[place].rows().flatten(0, 1) for piece in self.subset.each()])

    def _order(self) -> Tensor:
        """Positions in the blocks' order of the weights in the network's order."""
        start, places = 0, {}
        for block in self.plan.blocks:
            for param in block.params:
                places[param.name] = torch.arange(start, start + param.numel)
                start += param.numel
        return torch.cat([places[n] for n in self.names()]).to(self.network.device)

    # Predictions

    @explains_keywords
    @full_precision()
    @torch.inference_mode(False)
    def predict(  # type: ignore[override]
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: LinkName = "mc",
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction | JointPrediction:
        """Predict for inputs or a loader, as :meth:`whence.Laplace.predict` does.

        ``"linearised"`` (default) is the Gaussian process itself; outputs that are no vector are predicted by draws of
        it. ``"sampled"`` runs the network at drawn weights.
        """
        check_count(num_samples)
        chosen, linked = Method.parse(method or self.default_method, "method"), Link.parse(link, "link")
        if chosen is Method.SAMPLED:
            asked: Any = {"link": None if linked is Link.MC else link, "joint": joint}
            return super().predict(x, num_samples=num_samples, generator=generator, **asked)
        x = self.network.only_inputs(x)
        if joint:
            if linked is not Link.MC or num_samples is not None:
                raise BadOption("link and num_samples do not apply to a joint prediction, which is over the outputs.")
            return moments.joint(self, x)
        if len(self.output_shape) != 1:
            with torch.set_grad_enabled(is_followed(x)):
                return self._linearised_draws(num_samples, generator).predict(x)
        return moments.predicted(self, x, linked, self._points(num_samples, generator))

    def _points(self, num_samples: int | None, generator: torch.Generator | None) -> Points:
        return Points(num_samples or LINK_POINTS, None if generator is None else seed_from(generator))

    def _linearised_draws(self, num_samples: int | None, generator: torch.Generator | None) -> LinearisedDraws:
        generator = torch.Generator(self.network.device).manual_seed(0) if generator is None else generator
        return LinearisedDraws(self.network, self.deviations(pairs_for(num_samples), generator), self.likelihood)

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """Weight draws as functions x → raw outputs."""
        return WeightDraws(self.network, self.sample(num_samples, generator), self.likelihood)

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        if Method.parse(method or self.default_method, "method") is Method.SAMPLED:
            return [Drawn(self.draw(num_samples or self.default_draws, generator=generator), self.network)]
        if len(self.output_shape) != 1:
            return [Antithetic(self._linearised_draws(num_samples, generator))]
        points = self._points(num_samples, generator)
        return [GaussianOutputs(self.network, partial(moments.moments_of, self), self.together, points)]

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        from whence.posteriors.serving import gaussian_outputs

        return gaussian_outputs(self, self.deviations, method, num_samples, generator, example)

    @property
    def example(self) -> Inputs | None:
        return self.subset.inputs

    def _refuse_closed_forms(self, method: Any, link: Any, joint: bool) -> None:
        if link is not None or joint:
            raise NotDefined("link and joint need the Gaussian over outputs of method='linearised'.")

    def _where(self, x: Any) -> Where:
        from whence.where.function_space import where_function_space

        return where_function_space(self, x)

    # Keeping

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    def state(self) -> State:
        inputs, kind = to_tensors(self.subset.inputs)
        if kind is None:
            raise BadFile("the inputs of the examples are nested, so this posterior cannot be saved.")
        tensors = {f"inputs.{n}": t for n, t in inputs.items()} | {"columns": self.subset.columns}
        tensors |= {f"prior.{n}": v for n, v in self.prior.values.items() if isinstance(v, Tensor)}
        meta = {
            "inputs": kind,
            "fit": asdict(self.fit),
            "prior": {n: None if isinstance(v, Tensor) else v for n, v in self.prior.values.items()},
        }
        return State(meta, tensors)

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> FunctionSpace:
        network, meta = Network.snapshot(models[0]), state.meta
        network.select(list(meta["prior"]))
        prior = ByParameter({n: state.tensors[f"prior.{n}"] if v is None else v for n, v in meta["prior"].items()})
        head = "inputs."
        found = {k[len(head) :]: v for k, v in state.tensors.items() if k.startswith(head)}
        inputs = to_device(from_tensors(found, meta["inputs"]), network.device, network.dtype)
        plan = Plan.make(network, list(meta["prior"]), inputs, likelihood.shift_invariant)
        columns = state.tensors["columns"].to(network.device)
        return cls.of(plan, likelihood, prior, inputs, columns, Fit(**meta["fit"]))

    def to(self, *args: Any, **kwargs: Any) -> FunctionSpace:
        """A copy on another device or in another floating-point type."""
        network = self.network.to(*args, **kwargs)
        plan = Plan(network, self.plan.blocks, self.plan.inspection, self.plan.descriptions)
        inputs = to_device(self.subset.inputs, network.device, network.dtype)
        columns = self.subset.columns.to(network.device)
        return self.of(plan, self.likelihood, self.prior, inputs, columns, self.fit)

    def __repr__(self) -> str:
        return (
            f"FunctionSpace({self.fit.examples:,} examples for {self.fit.data_size:,.0f}, kernel of "
            f"{len(self.root):,} rows; {self.parameters:,} weights; {self.likelihood!r}; prior precision "
            f"{self.prior.describe()}, data scale {self.fit.data_scale:.3g})"
        )


def _parts(rows: Tensor, device: torch.device) -> Sequence[slice]:
    """Columns at a time of a matrix [r, P]."""
    return list(chunks(rows.shape[1], 8 * 2 * len(rows), device))
