"""The Laplace posterior: a Gaussian at the trained weights, with precision s H + Δ."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs
from whence.curvature.blocks import Block
from whence.curvature.checkpoint import EVERY
from whence.curvature.memory import needs
from whence.curvature.plan import Plan
from whence.curvature.record import FitRecord
from whence.curvature.result import Curvature
from whence.errors import BadOption, NotDefined, notice, one_of
from whence.functional import Network, full_precision
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.spectral import Spectral
from whence.posteriors.base import WeightPosterior
from whence.posteriors.block import BlockGaussian
from whence.posteriors.covariance import covariance
from whence.posteriors.decompose import decomposed
from whence.predictive.links import Link
from whence.predictive.predictions import JointPrediction, Prediction
from whence.predictive.sampled import WeightDraws
from whence.priors import BlockPrior, PriorPrecision, Relative, resolve_prior

if TYPE_CHECKING:
    from whence.posteriors.trials import Tuning
    from whence.posteriors.unstructured import Unstructured
    from whence.where.reference import Reference
    from whence.where.table import Where


LOOKED_AT = 64  # training examples on which an untuned posterior is looked at


@dataclass(frozen=True)
class Assigned:
    """Which structure a block got, and why; one entry of ``posterior.structures``."""

    kind: str  # class of the module
    parameters: int
    structure: str
    reason: str  # why it is not the one that was asked for; empty where it is
    memory: int = 0  # bytes of its sums and their decomposition


@dataclass(frozen=True, eq=False)
class Laplace(WeightPosterior):
    """Made by :func:`whence.laplace`. Every method returns something new; the posterior never changes."""

    plan: Plan
    curvature: Curvature
    likelihood: Likelihood  # type: ignore[misc]
    prior: PriorPrecision
    prior_mean: dict[str, Tensor] | float = 0.0
    data_scale: float = 1.0
    damping: str = "exact"
    tuning: Tuning | None = None
    reference: Reference | None = field(default=None, repr=False)  # what novelty is held against, from tuning
    probe: tuple[Inputs, Tensor] | None = field(default=None, repr=False)
    _decompositions: dict[Any, Spectral] = field(default_factory=dict, repr=False)

    # What it is

    @property
    def network(self) -> Network:  # type: ignore[override]
        return self.plan.network

    @property
    def blocks(self) -> list[Block]:
        return self.plan.blocks

    @property
    def record(self) -> FitRecord:
        """Data size, loss, training accuracy and mean confidence of the fit, at the current noise."""
        record = self.curvature.record
        if record.noise is not None and isinstance(self.likelihood, Gaussian) and self.likelihood.noise.dim() == 0:
            return record.with_noise(float(self.likelihood.noise))
        return record

    @property
    def structures(self) -> dict[str, Assigned]:
        """Which block got which structure, and why, by the block's name."""
        whole = {"full": "full", "lowrank": "lowrank"}.get(self.curvature.options.structure)
        whole = "full, inside a mask" if self.curvature.keep is not None else whole
        item = 8 if self.network.dtype == torch.float64 else 4
        bytes_ = {b.name: 0 if whole else needs(b, item).kept for b in self.blocks}
        return {b.name: Assigned(b.kind, b.size, whole or b.structure, b.reason, bytes_[b.name]) for b in self.blocks}

    @property
    def parameters(self) -> int:
        """Number of Bayesian weights."""
        keep = self.curvature.keep
        return len(keep) if keep is not None else sum(b.size for b in self.blocks)

    @property
    def prior_precision(self) -> float | Relative | dict[str, float | Tensor]:
        """What was given or tuned: one number, a :class:`whence.Relative`, or precisions by parameter."""
        return self.prior.given()  # type: ignore[no-any-return]

    def prior_variance(self) -> dict[str, Tensor]:
        """Variance of every weight under the prior, in the parameters' shapes."""
        found = {p.name: self.prior.flat([p]).reciprocal().reshape(p.shape) for b in self.blocks for p in b.params}
        like = self.network.like
        return {n: found[n].to(like) for n in self.names()}

    def resolved(self, given: Any) -> PriorPrecision:
        """What a user may pass as ``prior_precision``, for the blocks of this posterior."""
        return resolve_prior(given, self.blocks, self.network, self.curvature.signals)

    @property
    def scale(self) -> float:
        """What the stored curvature is multiplied by: the data scale, and a noise that was changed since."""
        noise = self.curvature.record.noise
        if noise is None or not isinstance(self.likelihood, Gaussian) or self.likelihood.noise.dim():
            return self.data_scale
        power = 4 if self.curvature.options.curvature == "empirical" else 2
        return self.data_scale * (noise / float(self.likelihood.noise)) ** power

    def gaussians(self) -> Iterator[tuple[BlockGaussian, list[Block]]]:
        """The Gaussian of each block; of all blocks together where the structure is joint."""
        names, keys = decomposed(self)
        size = self.curvature.record.data_size if self.damping == "factored" else None
        for blocks, name, key in zip(self.groups(), names, keys, strict=True):
            spectral = self._decompositions[key]
            if self.curvature.options.offload:
                spectral = spectral.to(self.network.device)
            yield BlockGaussian(name, spectral, self.block_prior(blocks).delta, self.scale, size), blocks

    def groups(self) -> list[list[Block]]:
        """The blocks that have a structure together."""
        return [self.blocks] if self.curvature.joint else [[b] for b in self.blocks]

    def block_prior(self, blocks: list[Block]) -> BlockPrior:
        """The prior of blocks that have a structure together."""
        return self.prior.of(blocks, self.curvature.keep)

    # Weights

    def mean(self) -> dict[str, Tensor]:
        return {n: self.network.params[n].detach().clone() for n in self.names()}

    def names(self) -> list[str]:
        """Bayesian parameters in the network's order."""
        chosen = {p.name for b in self.blocks for p in b.params}
        return [n for n in self.network.params if n in chosen]

    @full_precision()
    def variance(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for gaussian, blocks in self.gaussians():
            found |= {n: v.contiguous() for n, v in self._spread(gaussian.variance(), blocks).items()}
        return {n: found[n] for n in self.names()}

    def _spread(self, native: Tensor, blocks: list[Block]) -> dict[str, Tensor]:
        """A native vector [..., *native] as parameters [..., *shape]; zero outside a mask."""
        if len(blocks) == 1 and self.curvature.keep is None:
            return blocks[0].spread(native)
        flat = native
        if self.curvature.keep is not None:
            total = sum(b.size for b in blocks)
            flat = native.new_zeros(*native.shape[:-1], total)
            flat[..., self.curvature.keep] = native
        pieces = flat.split([b.size for b in blocks], dim=-1)
        return {n: v for b, piece in zip(blocks, pieces, strict=True) for n, v in b.scatter(piece).items()}

    @full_precision()
    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        found: dict[str, Tensor] = {}
        for gaussian, blocks in self.gaussians():
            found.update(self._spread(gaussian.draw(num_samples, generator), blocks))
        means = self.mean()
        return {n: means[n] + found[n].to(means[n].dtype) for n in self.names()}

    @full_precision()
    def covariance(self) -> Tensor:
        return covariance(self)

    # Predictions

    @full_precision()
    def predict(
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: Link = "mc",
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction | JointPrediction:
        """Predict for inputs or a loader.

        ``"linearised"`` (default for outputs [N, C]) pushes the Gaussian through the network's Jacobian and is
        a deterministic function of ``x``: the Monte Carlo link takes ``num_samples`` (256) fixed quasi-random
        points, or random ones if a ``generator`` is passed. ``"sampled"`` (default for dense outputs) averages
        ``num_samples`` (100) weight draws.
        """
        from whence.predictive.dispatch import predict

        if self._untuned:
            notice(
                f"this posterior is not tuned, and its prior precision {self.prior.describe()} makes the network "
                f"underconfident: {self._untuned}. Call .tune(validation_data), or use the default prior, "
                "whence.Relative(), which needs less of it."
            )
        return predict(self, x, method, link, num_samples, generator, joint)

    @functools.cached_property
    def _untuned(self) -> str:
        """Why an isotropic prior that was never tuned should not be predicted with; empty where nothing shows it."""
        from whence.posteriors.tuning import underconfident

        return underconfident(self, LOOKED_AT) if self.tuning is None and self.prior.number is not None else ""

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> WeightDraws:
        """Weight draws as functions x → raw outputs; keep them to use as an ensemble."""
        return WeightDraws(self.network, self.sample(num_samples, generator=generator), self.likelihood)

    def as_module(self, num_samples: int = 20, generator: torch.Generator | None = None) -> nn.Module:
        """A module of ``num_samples`` fixed draws that returns (mean, uncertainty, epistemic)."""
        from whence.predictive.serving import serve

        if self.probe is not None and not isinstance(self.probe[0], Tensor):
            raise NotDefined("as_module() serves networks that take one tensor; use draw() for several inputs.")
        return serve(self.draw(num_samples, generator=generator))

    @full_precision()
    def where(self, x: Any = None, *, measure: Literal["variance", "information"] = "variance") -> Where:
        """Where the uncertainty is: tables of layers, units and weights, with shares for these inputs if given.

        ``measure="information"`` shares out ½ tr(Λ V), the mutual information to second order, instead of tr V.
        """
        from whence.where.table import where

        return where(self, x, measure)

    # Hyperparameters

    @full_precision()
    def log_evidence(self) -> Tensor:
        """log p(D) ≈ s log p(D|θ*) − ½ [(θ*−μ₀)ᵀ Δ (θ*−μ₀) + log det(s H + Δ) − log det Δ], at the trained weights."""
        from whence.posteriors.evidence import log_evidence

        return log_evidence(self)

    def with_prior(self, precision: Any) -> Laplace:
        """The same curvature under another prior: what ``prior_precision`` of :func:`whence.laplace` takes."""
        changed = replace(self, prior=self.resolved(precision), tuning=None)
        decomposed(changed)  # now, so that a prior that the structure cannot have is refused here
        return changed

    def with_data_scale(self, scale: float) -> Laplace:
        """As if the data had been seen ``scale`` times (Ritter's section 3.4: N as a hyperparameter)."""
        if not 0 < scale < float("inf"):
            raise BadOption(f"the data scale must be positive and finite, not {scale}.")
        return replace(self, data_scale=float(scale), tuning=None)

    def with_damping(self, damping: Literal["exact", "factored"]) -> Laplace:
        """The same curvature with the prior added exactly, or to each Kronecker factor (Ritter's eq. 9)."""
        return replace(self, damping=check_damping(damping, self.curvature.options.structure), tuning=None)

    @full_precision()
    def tune(
        self,
        data: Any = None,
        *,
        per_layer: bool = False,
        method: Literal["linearised", "sampled"] = "linearised",
        data_scale: bool | Literal["auto"] = "auto",
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        reference: bool = True,
        progress: bool = True,
    ) -> Laplace:
        """Choose the prior precision (and data scale): by validation data, or without it by the evidence.

        ``data_scale="auto"`` leaves the scale alone unless another one is better on the validation data by more than
        two standard errors; ``True`` takes the best, ``False`` never moves it. The result keeps its trace in
        ``.tuning``, and with validation data the ``.reference`` that novelty is held against (a linearised pass;
        ``reference=False`` leaves it out).
        """
        from whence.posteriors.tuning import tune

        tuned = tune(self, data, per_layer, method, data_scale, num_samples, generator, progress)
        if data is None or not reference:
            return tuned
        from whence.where.keeping import with_reference

        return with_reference(tuned, data)

    # More data

    @full_precision()
    def update(
        self,
        data: Any,
        *,
        process_group: Any = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: float = EVERY,
        progress: bool = True,
    ) -> Laplace:
        """The posterior after more data for the same network: curvature adds up.

        ``process_group``, ``checkpoint`` and ``checkpoint_every`` are as for :func:`whence.laplace`.
        """
        from whence.posteriors.more_data import update

        return update(self, data, progress, checkpoint, checkpoint_every, process_group=process_group)

    # Without structure

    @full_precision()
    def unstructured(
        self,
        data: Any,
        *,
        num_samples: int = 16,
        tolerance: float = 1e-2,
        max_iterations: int = 200,
        preconditioner: Literal["prior", "structure"] = "prior",
        generator: torch.Generator | None = None,
        progress: bool = True,
    ) -> Unstructured:
        """Draws under the same prior, data scale and likelihood with the whole covariance: no structure is assumed.

        ``data`` are the training data, read once for each product with the curvature. Relative errors of the draws'
        outputs on them stay below ``tolerance``. See docs/unstructured.md.
        """
        from whence.posteriors.unstructured.front import unstructured

        return unstructured(self, data, num_samples, tolerance, max_iterations, preconditioner, generator, progress)

    # Keeping

    def save(self, path: str | Path) -> None:
        from whence.io import save

        save(self, path)

    def to(self, *args: Any, **kwargs: Any) -> Laplace:
        """A copy on another device or in another floating-point type."""
        network = self.network.to(*args, **kwargs)
        plan = Plan(network, self.blocks, self.plan.inspection, self.plan.descriptions)
        structures = [s.to(*args, **kwargs) for s in self.curvature.structures]
        if self.curvature.options.offload:
            structures = [s.to("cpu") for s in structures]
        keep = self.curvature.keep
        keep = keep if keep is None else keep.to(network.device)
        signals = {name: s.to(network.device) for name, s in self.curvature.signals.items()}
        curvature = replace(self.curvature, structures=structures, keep=keep, signals=signals)
        mean = self.prior_mean
        mean = mean if isinstance(mean, float) else {n: m.to(network.device) for n, m in mean.items()}
        return replace(self, plan=plan, curvature=curvature, prior_mean=mean, probe=None, _decompositions={})

    def __repr__(self) -> str:
        options = self.curvature.options
        record = self.record
        if self.tuning is None:
            tuned = "not tuned: call .tune(validation_data)"
        else:
            tuned = f"tuned by {self.tuning.criterion}"
        kinds: dict[str, int] = {}
        for row in self.structures.values():
            kinds[row.structure] = kinds.get(row.structure, 0) + 1
        blocks = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        quality = f", training accuracy {record.accuracy:.1%}" if record.accuracy is not None else ""
        return (
            f"Laplace({options.structure}, {options.curvature}; {self.parameters:,} weights in {len(self.blocks)} "
            f"blocks: {blocks}; {self.likelihood!r}; {record.data_size:,.0f} examples{quality}; prior precision "
            f"{self.prior.describe()}, data scale {self.data_scale:.3g}; {tuned})"
        )


def check_damping(damping: str, structure: str) -> str:
    one_of(damping, ("exact", "factored"), "damping")
    if damping == "factored" and structure != "kron":
        raise BadOption(f"damping='factored' (eq. 9) is for structure='kron', not {structure!r}.")
    return damping
