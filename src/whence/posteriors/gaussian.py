"""Gaussians over weights that do not come from a curvature: the base of variational and SWAG posteriors.

The covariance is Σ = diag(v) + ⊕_b (L_U L_Uᵀ ⊗ L_V L_Vᵀ) + C Cᵀ: independent weights, Kronecker pairs of single weight
matrices, and columns over all weights. The linearised predictive is J Σ Jᵀ, block by block as for a Laplace
posterior, plus one forward-mode product per column.

Index legend: N examples, K outputs, R columns, E pairs, O outputs and D inputs of a layer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, take
from whence.engine.contexts import full_precision
from whence.engine.options import Execution
from whence.engine.randomness import Points, seed_from
from whence.errors import NotDefined, explains_keywords
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral, KroneckerSpectral
from whence.linalg.structures import BlockStructure, StructureKind
from whence.posteriors.base import WeightPosterior
from whence.posteriors.drawn import DrawnPosterior
from whence.predictive.dispatch import Method, linearised_prediction
from whence.predictive.links import LINK_POINTS, LinkName
from whence.predictive.predictions import JointPrediction, Prediction
from whence.predictive.sources import Linearised, Source
from whence.recording.blocks import Block, MatrixForm, assign
from whence.recording.plan import Plan

SEEN = 4  # number of inputs for inspecting the network


@dataclass(frozen=True)
class Pair:
    """Cov = U ⊗ V of a weight matrix with its bias, by the roots of U and V."""

    names: tuple[str, ...]
    form: MatrixForm
    left: Tensor  # L_U, [E, O, O]
    right: Tensor  # L_V, [E, D, D]


@dataclass(frozen=True)
class Covariance:
    """The three parts of Σ; see the module docstring."""

    variance: Mapping[str, Tensor]  # v by parameter, for parameters that are in no pair
    pairs: tuple[Pair, ...] = ()
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # Cᵀ by parameter, [R, *shape]


@dataclass(frozen=True)
class Linearisable:
    """A network and a Gaussian over its weights, in the form that :mod:`whence.predictive.linearised` needs."""

    plan: Plan
    likelihood: Likelihood
    parts: tuple[BlockGaussian, ...]  # one for each block of the plan
    columns: Mapping[str, Tensor]
    output_shape: tuple[int, ...]
    draw: Callable[[int, torch.Generator | None], dict[str, Tensor]] = field(repr=False)

    joint = False
    keep = None
    execution = Execution(cuda_graphs=False)
    default_method: Literal["linearised"] = "linearised"

    @property
    def network(self) -> Network:
        return self.plan.network

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.plan.blocks

    @property
    def parameters(self) -> int:
        return sum(b.size for b in self.blocks)

    def deviations(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {n: w - self.network.params[n].detach() for n, w in self.draw(num_samples, generator).items()}

    def gaussians(self) -> Iterator[tuple[BlockGaussian, Sequence[Block]]]:
        return ((part, [block]) for part, block in zip(self.parts, self.blocks, strict=True))


class GaussianPosterior(DrawnPosterior, WeightPosterior):
    """A Gaussian over the weights of one network that predicts by draws or by linearisation at its mean."""

    @abstractmethod
    def parts_of_covariance(self) -> Covariance:
        """The non-zero parts of Σ."""

    @explains_keywords
    @full_precision()
    def predict(  # type: ignore[override]
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: LinkName | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
        probes: Literal["auto", "exact"] | int = "auto",
    ) -> Prediction | JointPrediction:
        """Predict for inputs or a loader.

        ``"sampled"`` (default) averages ``num_samples`` draws of the weights. ``"linearised"`` pushes the Gaussian
        through the network's Jacobian at the mean; ``link``, ``joint`` and ``probes`` are as for
        :meth:`whence.Laplace.predict`.
        """
        if Method.parse(method or Method.SAMPLED, "method") is Method.SAMPLED:
            return super().predict(x, link=link, num_samples=num_samples, generator=generator, joint=joint)  # type: ignore[arg-type]
        first = next(self.network.pieces(x, SEEN))
        return linearised_prediction(self.linearisable(first), x, link or "mc", num_samples, generator, joint, probes)

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        if Method.parse(method or Method.SAMPLED, "method") is Method.SAMPLED:
            return super().sources(method, num_samples, generator)
        points = Points(num_samples or LINK_POINTS, None if generator is None else seed_from(generator))
        return [Linearised(self.network, lambda x: self.linearisable(x[:SEEN].detach()), points)]

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        from whence.posteriors.serving import gaussian_outputs

        def deviations(count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
            return {n: w - self.network.params[n].detach() for n, w in self.sample(count, generator).items()}

        return gaussian_outputs(self, deviations, method, num_samples, generator, example)

    def _refuse_closed_forms(self, method: Any, link: Any, joint: bool) -> None:
        """Refuse link and joint without method='linearised'."""
        asked = f"link={link!r}" if link is not None else "joint=True" if joint else ""
        if asked:
            raise NotDefined(
                f"{asked} needs the Gaussian over outputs of method='linearised'; a {type(self).__name__} predicts by "
                f"draws by default. Pass method='linearised', or omit {asked.partition('=')[0]}."
            )

    def linearisable(self, inputs: Inputs) -> Linearisable:
        """The posterior as block Gaussians, for a network that was inspected on these inputs."""
        given = self.parts_of_covariance()
        with torch.no_grad():
            shape = tuple(self.network(take(inputs, slice(0, 1))).shape[1:])
        plan = Plan.make(self.network, self.names(), inputs, self.likelihood.shift_invariant)
        pairs = {pair.names: pair for pair in given.pairs}
        whole, single = assign(plan.blocks, StructureKind.KRON), assign(plan.blocks, StructureKind.DIAG)
        blocks, parts = [], []
        for factored, plain in zip(whole, single, strict=True):
            pair = pairs.pop(tuple(p.name for p in plain.params), None)
            if pair is None:
                missing = [p.name for p in plain.params if p.name not in given.variance]
                if missing:
                    raise NotDefined(_unmatched(missing[0]))
                blocks.append(plain)
                parts.append(_diagonal(plain, given.variance))
            else:
                if not _same_order(factored.form, pair.form):
                    raise NotDefined(_unmatched(pair.names[0]))
                blocks.append(replace(factored, structure=BlockStructure.KRON, thin_outputs=False, thin_inputs=False))
                parts.append(_kronecker(factored.name, pair))
        plan = replace(plan, blocks=tuple(blocks))
        return Linearisable(plan, self.likelihood, tuple(parts), given.columns, shape, self.sample)


def _same_order(one: MatrixForm | None, other: MatrixForm) -> bool:
    """Whether both pack weights in the same order; the kernel matters only if inputs come first."""
    if one is None or one.native != other.native or one.inputs_first != other.inputs_first:
        return False
    return one.bias == other.bias and (not one.inputs_first or one.kernel == other.kernel)


def _unmatched(name: str) -> str:
    return (
        f"the linearised predictive of matrix-normal weights needs layers that are used as one matrix; {name!r} is "
        "not. Predict with method='sampled', or use family='mean_field'."
    )


def _diagonal(block: Block, variance: Mapping[str, Tensor]) -> BlockGaussian:
    """Σ = diag(v), represented by precision 1 relative to 1 / v."""
    flat = block.gather(variance)
    return BlockGaussian(block.name, DiagonalSpectral(torch.zeros_like(flat), inverse=flat), 1.0, 1.0)


def _kronecker(name: str, pair: Pair) -> BlockGaussian:
    """Σ = B Bᵀ with B = L_U ⊗ L_V, represented by precision 1 in the basis B."""
    values = pair.left.new_zeros(pair.form.native)
    return BlockGaussian(name, KroneckerSpectral(values, pair.left, pair.right), 1.0, 1.0)
