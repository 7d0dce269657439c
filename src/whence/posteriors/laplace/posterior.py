"""The Laplace posterior: a Gaussian at the trained weights, with precision s H + Δ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack, cast, overload

import torch
from torch import Tensor, nn

from whence.curvature.jvp import shifted
from whence.curvature.result import Curvature, FitRecord
from whence.engine.batches import Inputs
from whence.engine.contexts import full_precision
from whence.engine.options import Execution
from whence.engine.ranks import WorkSharing
from whence.errors import BadOption, explains_keywords
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.gaussian import BlockGaussian, Damping
from whence.linalg.spectral import Spectral
from whence.posteriors.base import LayerStructure, Summary
from whence.posteriors.laplace import description
from whence.posteriors.laplace.covariance import covariance, deviations, variances
from whence.posteriors.laplace.decompose import belongs_to, group_name, spectra_of
from whence.posteriors.laplace.from_training_data import FromTrainingData
from whence.predictive.dispatch import Method, predict
from whence.predictive.linearised_draws import LinearisedDraws
from whence.predictive.links import LinkName, PredictOptions
from whence.predictive.predictions import JointPrediction, P_co
from whence.predictive.sampled import FunctionDraws, WeightDraws
from whence.predictive.sources import Drawn, Source, linearised_source
from whence.priors import BlockPrior, PriorPrecision, Relative, resolve_prior
from whence.recording.blocks import Block
from whence.recording.plan import Plan

if TYPE_CHECKING:
    from whence.posteriors.laplace.description import Tuning
    from whence.where.novelty import Reference
    from whence.where.where import Where


@dataclass(frozen=True, eq=False)
class Laplace(FromTrainingData[P_co]):
    """Made by :func:`whence.laplace`. Every method returns something new; the posterior never changes."""

    kind: ClassVar[str] = "laplace"
    has_curvature: ClassVar[bool] = True
    default_draws: ClassVar[int] = 100  # type: ignore[misc]

    plan: Plan
    curvature: Curvature
    likelihood: Likelihood
    prior: PriorPrecision
    spectra: tuple[Spectral, ...] = field(repr=False)  # decompositions relative to the prior; see :meth:`make`
    prior_mean: dict[str, Tensor] | float = 0.0
    data_scale: float = 1.0
    damping: Damping = Damping.EXACT
    tuning: Tuning | None = None
    reference: Reference | None = field(default=None, repr=False)  # for novelty, from tuning
    probe: tuple[Inputs, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        assert belongs_to(self.spectra, self.curvature, self.prior), "use under(), which decomposes for another prior"

    @classmethod
    def make(
        cls,
        plan: Plan,
        curvature: Curvature,
        likelihood: Likelihood,
        prior: PriorPrecision,
        sharing: WorkSharing | None = None,
        **more: Any,
    ) -> Laplace:
        """With the curvature decomposed now, so that a bad block is named here and not at the first prediction."""
        start = time.perf_counter()
        spectra = spectra_of(curvature, prior, plan.network.device, sharing=sharing)
        posterior = cls(plan, curvature, likelihood, prior, spectra, **more)
        for gaussian, _ in posterior.gaussians():
            _ = gaussian.precision
        seconds = {**curvature.seconds, "decomposition": time.perf_counter() - start}
        return replace(posterior, curvature=replace(curvature, seconds=seconds))

    # What it is

    @property
    def network(self) -> Network:  # type: ignore[override]
        return self.plan.network

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.plan.blocks

    columns: ClassVar[dict[str, Tensor]] = {}  # the whole covariance is in the blocks

    @property
    def joint(self) -> bool:
        return self.curvature.joint

    @property
    def keep(self) -> Tensor | None:
        return self.curvature.keep

    @property
    def execution(self) -> Execution:
        return self.curvature.options.execution

    @property
    def record(self) -> FitRecord:
        """Data size, loss, training accuracy and mean confidence of the fit, at the current noise."""
        record = self.curvature.record
        noise = self.likelihood.number if isinstance(self.likelihood, Gaussian) else None
        return record if record.noise is None or noise is None else record.with_noise(noise)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.record.output_shape

    @property
    def default_method(self) -> Literal["linearised", "sampled"]:
        return "linearised"

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    def layers(self) -> dict[str, list[str]]:
        return {b.name: [p.name for p in b.params] for b in self.blocks}

    def as_laplace(self, what: str) -> Self:
        return self

    def summary(self) -> Summary:
        return description.summary(self)

    def fingerprint(self) -> str:
        return description.fingerprint(self)

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return description.structures(self)

    @property
    def parameters(self) -> int:
        """Number of Bayesian weights."""
        return sum(b.size for b in self.blocks) if self.keep is None else len(self.keep)

    @property
    def prior_precision(self) -> float | Relative | dict[str, float | Tensor]:
        """What was given or tuned: one number, a :class:`whence.Relative`, or precisions by parameter."""
        return self.prior.given()  # type: ignore[no-any-return]

    def prior_variance(self) -> dict[str, Tensor]:
        """Variance of every weight under the prior, in the parameters' shapes."""
        return self.prior.variances(self.mean())

    def resolved(self, given: Any) -> PriorPrecision:
        """What a user may pass as ``prior_precision``, for the blocks of this posterior."""
        return resolve_prior(given, self.blocks, self.network, self.curvature.signals)

    @property
    def scale(self) -> float:
        """What the stored curvature is multiplied by: the data scale, and a noise that was changed since."""
        noise = self.curvature.record.noise
        now = self.likelihood.number if isinstance(self.likelihood, Gaussian) else None
        if noise is None or now is None:
            return self.data_scale
        return self.data_scale * (noise / now) ** self.curvature.options.curvature.noise_power

    def gaussians(self) -> Iterator[tuple[BlockGaussian, Sequence[Block]]]:
        """The Gaussian of each block; of all blocks together where the structure is joint."""
        return ((self.gaussian(i), blocks) for i, blocks in enumerate(self.curvature.groups))

    def gaussian(self, group: int) -> BlockGaussian:
        blocks, spectral = self.curvature.groups[group], self.spectra[group]
        spectral = spectral.to(self.network.device) if self.execution.offload else spectral
        size = self.curvature.record.data_size if self.damping is Damping.FACTORED else None
        return BlockGaussian(group_name(blocks), spectral, self.block_prior(blocks).delta, self.scale, size)

    def block_prior(self, blocks: Sequence[Block]) -> BlockPrior:
        """The prior of blocks that have a structure together."""
        return self.prior.of(blocks, self.curvature.keep)

    def under(self, prior: PriorPrecision) -> Self:
        """The same under another prior; decomposed again only where that has another shape."""
        return replace(self, prior=prior, spectra=spectra_of(self.curvature, prior, self.network.device, self.spectra))

    # Weights

    @full_precision()
    def variance(self) -> dict[str, Tensor]:
        return variances(self)

    @full_precision()
    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        means = self.mean()
        return {n: means[n] + v for n, v in deviations(self, num_samples, generator).items()}

    def deviations(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draws minus the mean, by parameter, [S, *shape]."""
        return deviations(self, num_samples, generator)

    @full_precision()
    def covariance(self) -> Tensor:
        return covariance(self)

    # Predictions

    @overload  # type: ignore[override]
    def predict(self, x: Any, *, joint: Literal[False] = False, **options: Unpack[PredictOptions]) -> P_co: ...
    @overload
    def predict(self, x: Any, *, joint: Literal[True], **options: Unpack[PredictOptions]) -> JointPrediction: ...
    @explains_keywords
    @full_precision()
    def predict(
        self,
        x: Any,
        *,
        method: Literal["linearised", "sampled"] | None = None,
        link: LinkName = "mc",
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
        probes: Literal["auto", "exact"] | int = "auto",
    ) -> P_co | JointPrediction:
        """Predict for inputs or a loader.

        ``"linearised"`` (the default) pushes the Gaussian through the network's Jacobian and is a deterministic
        function of ``x``: the Monte Carlo link takes ``num_samples`` (256) fixed quasi-random points, or random ones
        if a ``generator`` is passed. For dense outputs, and where differentiating all outputs takes too long, it takes
        ``num_samples`` (64) draws of the linearised network; ``probes`` is ``"exact"`` or half that number: directions
        in weight space. ``"sampled"`` averages weight draws (100).
        """
        from whence.posteriors.laplace.tuning import say_if_untuned

        say_if_untuned(self)
        return cast("P_co", predict(self, x, method, link, num_samples, generator, joint, probes))

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> FunctionDraws:
        """Weight draws as functions x → raw outputs (of a refined posterior, of the linear model)."""
        if self.network.shift is not None:
            return LinearisedDraws(self.network, self.deviations(num_samples, generator), self.likelihood, alone=True)
        return self.weight_draws(num_samples, generator)

    def weight_draws(self, num_samples: int, generator: torch.Generator | None) -> WeightDraws:
        return WeightDraws(self.network, self.sample(num_samples, generator=generator), self.likelihood)

    def sources(
        self,
        method: str | None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        share: float = 1.0,
    ) -> list[Source]:
        """``share`` is the posterior's weight in a mixture."""
        if Method.parse(method or self.default_method, "method") is Method.LINEARISED:
            return [linearised_source(self, num_samples, generator, share)]
        draws = self.draw(num_samples or self.default_draws, generator=generator)
        return [Drawn(draws, self.network, share=share)]

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        from whence.posteriors.serving import gaussian_outputs

        return gaussian_outputs(self, self.deviations, method, num_samples, generator, example)

    @explains_keywords
    @full_precision()
    def where(
        self,
        x: Any = None,
        *,
        measure: Literal["variance", "information"] = "variance",
        probes: Literal["auto", "exact"] | int = "auto",
        at: Any = None,
    ) -> Where:
        """Where the uncertainty is: tables of layers, units and weights, with shares for these inputs if given.

        ``measure="information"`` shares out ½ tr(Λ V), the mutual information to second order, instead of tr V.
        ``probes``: random columns in output space, instead of all outputs of an input, with standard errors; ``"auto"``
        is exact unless that takes too long. ``at`` selects targets by index or boolean mask, such as a pixel of a map.
        """
        from whence.where.where import where_laplace

        return where_laplace(self, x, measure, probes, at)

    # Hyperparameters

    @full_precision()
    def log_evidence(self) -> Tensor:
        """log p(D) ≈ s log p(D|θ*) − ½ [(θ*−μ₀)ᵀ Δ (θ*−μ₀) + log det(s H + Δ) − log det Δ], at the trained weights."""
        from whence.posteriors.laplace.evidence import log_evidence

        return log_evidence(self)

    def with_prior(self, precision: Any) -> Self:
        """The same curvature under another prior: what ``prior_precision`` of :func:`whence.laplace` takes."""
        return replace(self.under(self.resolved(precision)), tuning=None)

    def with_data_scale(self, scale: float) -> Self:
        """As if the data had been seen ``scale`` times (Ritter's section 3.4: N as a hyperparameter)."""
        if not 0 < scale < float("inf"):
            raise BadOption(f"the data scale must be positive and finite, not {scale}.")
        return replace(self, data_scale=float(scale), tuning=None)

    def with_noise(self, noise: float) -> Self:
        """The same curvature under a Gaussian likelihood with another standard deviation."""
        if not isinstance(self.likelihood, Gaussian) or self.likelihood.number is None:
            raise BadOption(f"with_noise is for a Gaussian with one noise, not for {self.likelihood!r}.")
        return replace(self, likelihood=Gaussian(noise), tuning=None)

    def with_damping(self, damping: Literal["exact", "factored"]) -> Self:
        """The same curvature with the prior added exactly, or to each Kronecker factor (Ritter's eq. 9)."""
        return replace(self, damping=Damping.checked(damping, self.curvature.options.structure), tuning=None)

    @explains_keywords
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
        probes: Literal["auto", "exact"] | int = "auto",
    ) -> Self:
        """Choose the prior precision (and data scale): by validation data, or without it by the evidence.

        ``data_scale="auto"`` leaves the scale alone unless another one is better by more than two standard errors;
        ``True`` takes the best, ``False`` never moves it. ``probes``: how many random directions replace many outputs.
        The result keeps its trace in ``.tuning``, and with validation data the ``.reference`` for novelty.
        """
        from whence.posteriors.laplace.tuning import tuned_by

        options = (per_layer, method, data_scale, num_samples, generator, progress, reference, probes)
        return cast("Self", tuned_by(self, data, *options).posterior)

    # More data

    @explains_keywords
    @full_precision()
    def update(
        self,
        data: Any,
        *,
        process_group: Any = None,
        execution: Execution | None = None,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        checkpoint_every: float | None = None,
    ) -> Self:
        """The posterior after more data for the same network: curvature adds up.

        ``process_group`` and the checkpoint of ``execution`` are as for :func:`whence.laplace`.
        """
        from whence.posteriors.laplace.more_data import update

        execution = Execution.of(execution, checkpoint=checkpoint, checkpoint_every=checkpoint_every)
        return cast("Self", update(self, data, progress, execution, process_group=process_group))

    # Keeping

    def save(self, path: str | Path) -> None:
        from whence.io import save

        save(self, path)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """A copy on another device or in another floating-point type."""
        network, mean = shifted(self.network.to(*args, **kwargs), self.network.shift), self.prior_mean
        curvature = self.curvature.to(network.device, *args, **kwargs)
        same = network.dtype == self.network.dtype
        spectra = tuple(s if self.execution.offload else s.to(network.device) for s in self.spectra) if same else ()
        return replace(
            self,
            plan=Plan(network, self.blocks, self.plan.inspection, self.plan.descriptions),
            curvature=curvature,
            spectra=spectra_of(curvature, self.prior, network.device, spectra),
            prior_mean=mean if isinstance(mean, float) else {n: m.to(network.device) for n, m in mean.items()},
            probe=None,
        )

    def __repr__(self) -> str:
        return description.one_line(self)
