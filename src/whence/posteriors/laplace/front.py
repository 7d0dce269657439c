"""``whence.laplace``: options checked once and turned into objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from whence.copies import is_sharded
from whence.curvature.fit import fit
from whence.curvature.options import RANK, CurvatureKind, FitOptions, LabelDraws, Sharing
from whence.curvature.signals import Signals
from whence.engine.batches import opened
from whence.engine.contexts import full_precision, outer_autocast
from whence.engine.options import Execution
from whence.engine.randomness import seed_from
from whence.engine.ranks import Ranks, on_all_ranks
from whence.errors import BadOption, explains_keywords, notice
from whence.functional import Network
from whence.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LikelihoodName,
    Poisson,
    resolve,
)
from whence.linalg.gaussian import Damping
from whence.linalg.structures import StructureKind
from whence.posteriors.laplace.on_ranks import comparable, open_checkpoint, refuse_part, signature, tuned_alike
from whence.posteriors.laplace.posterior import Laplace
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    Prediction,
    RegressionPrediction,
)
from whence.priors import RELATIVE, Prior, PriorPrecision, Relative, check_prior, resolve_prior
from whence.recording.blocks import MAX_FACTOR
from whence.recording.plan import Plan
from whence.recording.selection import Layers, Mask, selection


class LaplaceOptions(TypedDict, total=False):
    """Keywords of :func:`laplace` beside ``likelihood``; see there."""

    structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"]
    curvature: Literal["auto", "ggn", "mc", "empirical", "kfra", "hessian"]
    layers: Layers
    prior_precision: float | Relative | Tensor | Prior | Mapping[str, Any]
    prior_mean: float | Mapping[str, Tensor]
    validation: Any
    sharing: Literal["expand", "reduce"]
    damping: Literal["exact", "factored"]
    draws: int
    rank: int
    passes: int
    data_size: int | None
    max_factor: int
    autocast: torch.dtype | None
    device: torch.device | str | None
    process_group: Any
    execution: Execution | None
    generator: torch.Generator | None
    progress: bool
    offload: bool | None
    cuda_graphs: bool | None
    checkpoint: str | Path | None
    checkpoint_every: float | None


@overload
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Literal["classification"] | Categorical,
    **options: Unpack[LaplaceOptions],
) -> Laplace[ClassificationPrediction]: ...
@overload
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Literal["binary"] | Bernoulli,
    **options: Unpack[LaplaceOptions],
) -> Laplace[BinaryPrediction]: ...
@overload
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Literal["regression", "heteroscedastic"] | Gaussian | HeteroscedasticGaussian,
    **options: Unpack[LaplaceOptions],
) -> Laplace[RegressionPrediction]: ...
@overload
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Literal["poisson"] | Poisson,
    **options: Unpack[LaplaceOptions],
) -> Laplace[CountPrediction]: ...
@overload
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    **options: Unpack[LaplaceOptions],
) -> Laplace[Prediction]: ...
@explains_keywords
@torch.inference_mode(False)
@full_precision()
@on_all_ranks
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"] = "kron",
    curvature: Literal["auto", "ggn", "mc", "empirical", "kfra", "hessian"] = "auto",
    layers: Layers = None,
    prior_precision: float | Relative | Tensor | Prior | Mapping[str, Any] = RELATIVE,
    prior_mean: float | Mapping[str, Tensor] = 0.0,
    validation: Any = None,
    sharing: Literal["expand", "reduce"] = "expand",
    damping: Literal["exact", "factored"] = "exact",
    draws: int = 1,
    rank: int = RANK,
    passes: int = 1,
    data_size: int | None = None,
    max_factor: int = MAX_FACTOR,
    autocast: torch.dtype | None = None,
    device: torch.device | str | None = None,
    process_group: Any = None,
    execution: Execution | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
    offload: bool | None = None,
    cuda_graphs: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float | None = None,
) -> Laplace:
    """Turn a trained network into a Gaussian posterior over its weights, without training it again.

    Args:
        model: any trained ``nn.Module``. It is copied, and never changed.
        data: the training data: a ``DataLoader``, a data set (of torch, or of Hugging Face), a re-iterable of batches,
            a list of examples, or a pair of tensors.
        likelihood: ``"classification"``, ``"binary"``, ``"regression"`` (the noise is the root mean square of the
            training residuals), ``"heteroscedastic"``, ``"poisson"``, ``"gaussian:0.3"`` (noise 0.3), or a
            :class:`whence.Likelihood`.
        structure: how the curvature is kept: by Kronecker factors of each layer (``"kron"``), the same with exact
            eigenvalues (``"ekfac"``), its diagonal, a dense block for each layer, all of it (``"full"``), or its
            leading eigenpairs (``"lowrank"``).
        curvature: exact Gauss–Newton over all outputs (``"ggn"``), sampled Fisher (``"mc"``), empirical Fisher,
            KFRA, or the exact Hessian; ``"auto"`` is exact up to 100 outputs and sampled beyond.
        layers: which weights are Bayesian: ``None`` all, ``"last"``, glob patterns on module names, a predicate
            ``(name, parameter) -> bool``, or a boolean mask (see :func:`whence.subnetwork`; needs ``"full"``).
        prior_precision: ``Relative(τ)``, relative to the signal that each weight carries, so that nothing depends on
            how the network is scaled; or one number for all weights, a mapping from layer names to numbers,
            ``Prior(weight=…, bias=…)``, or a mapping from parameter names to tensors (for ``"kron"`` and ``"ekfac"``
            a product of one number for each output and one for each input).
        prior_mean: mean of the prior, a number or tensors by parameter name; it enters the evidence.
        validation: data to tune prior precision and data scale on at once.
        sharing: for weights that are used at several positions (convolution, sequences): Kronecker factors of the
            positions (``"expand"``) or of their mean and sum (``"reduce"``).
        damping: how the prior enters a Kronecker block: exactly, or ``"factored"`` as in Ritter's eq. 9.
        draws: label draws for each example of the sampled Fisher.
        rank: eigenpairs that ``"lowrank"`` keeps.
        passes: passes over (randomly augmented) data, averaged back to one data set.
        data_size: examples that the curvature counts, if not those that are read.
        max_factor: rows of a Kronecker factor beyond which its diagonal is kept (a vocabulary head's, for one);
            ``posterior.structures`` says where.
        autocast: the type in which forward and backward passes compute where torch's autocast allows, such as
            ``torch.bfloat16``; ``None`` is what the calling context has on. Sums are in float32 all the same.
        device: where to compute; by default where the model is.
        process_group: a torch process group (or True for the default one); each of its ranks passes its own part of
            the data, and all get the posterior of the whole. Examples that a ``DistributedSampler`` repeats count once.
        execution: how it is run, see :class:`whence.Execution`: offloading, CUDA graphs, checkpoints.
        generator: randomness of the sampled Fisher; ``None`` is torch's default generator.
        progress: whether a fit of more than some seconds shows a progress bar.
        offload, cuda_graphs, checkpoint, checkpoint_every: deprecated; pass ``execution``.
    """
    resolved, estimate = resolve(likelihood)
    earlier = {"offload": offload, "cuda_graphs": cuda_graphs, "checkpoint": checkpoint}
    options = FitOptions(
        StructureKind.parse(structure, "structure"),
        CurvatureKind.parse(curvature, "curvature"),
        Sharing.parse(sharing, "sharing"),
        LabelDraws(0, draws),
        rank,
        passes,
        data_size,
        progress,
        estimate,
        max_factor=max_factor,
        execution=Execution.of(execution, **earlier, checkpoint_every=checkpoint_every),
    )
    chosen_damping = Damping.checked(damping, options.structure)
    data, validation = opened(data, "data"), opened(validation, "validation")
    _check(options)
    check_prior(prior_precision)
    mean = check_prior_mean(prior_mean, model)
    ranks: Ranks = process_group
    file = open_checkpoint(options.execution, generator is not None, ranks)
    ranks.agree({"a sharded network": is_sharded(model)}, "copying the network")
    network = Network.snapshot(model)
    if device is not None:
        network = network.to(device)
    network.autocast = autocast or outer_autocast(network.device)
    if validation is not None:
        network.read(validation, "validation").require_passes(2, "tuning")
        refuse_part(validation, ranks, "validation")
    chosen = selection(layers, network)
    if isinstance(chosen, Mask) and options.structure is not StructureKind.FULL:
        raise BadOption(f"a mask holds a full covariance: pass structure='full', not {structure!r}.")
    loader = network.read(data)
    ranks.check_device(network.device)
    given = {"prior_precision": comparable(prior_precision), "prior_mean": comparable(prior_mean), "damping": damping}
    given |= {"validation": validation is not None, "checkpoint": file is not None}
    ranks.agree(signature(network, data, resolved, options) | given, "comparing networks and options")

    def prior_of(plan: Plan, signals: Signals) -> PriorPrecision:
        return resolve_prior(prior_precision, plan.blocks, plan.network, signals)

    seed = partial(seed_from, generator)
    found = fit(network, loader, resolved, chosen, options, seed=seed, prior=prior_of, ranks=ranks, checkpoint=file)
    prior = prior_of(found.plan, found.curvature.signals)
    for note in prior.notes:
        notice(note)
    posterior = Laplace.make(
        found.plan,
        found.curvature,
        found.likelihood,
        prior,
        ranks.sharing(),
        prior_mean=_prior_mean(mean, network),
        damping=chosen_damping,
        probe=found.probe,
    )
    if validation is not None:
        posterior = tuned_alike(posterior.tune(validation, progress=progress and ranks.rank == 0), ranks)
    if file is not None:
        ranks.synchronise("completing the fit")
        file.remove()
    return posterior


def _check(options: FitOptions) -> None:
    """Refuse options that are out of range or do not go together; say which ones do not apply."""
    structure, rank, most = options.structure, options.rank, options.max_factor
    _check_counts(
        draws=options.draws.count, rank=rank, passes=options.passes, data_size=options.data_size, max_factor=most
    )
    if options.sharing is Sharing.REDUCE and not structure.factored:
        raise BadOption(f"sharing='reduce' applies only to structure='kron' and 'ekfac', not to {structure!r}.")
    if rank != RANK and structure is not StructureKind.LOWRANK:
        notice(f"rank={rank} applies only to structure='lowrank', not to {structure!r}.")
    if most != MAX_FACTOR and not structure.factored:
        notice(f"max_factor={most} applies only to structure='kron' and 'ekfac', not to {structure!r}.")


def _check_counts(**counts: float | None) -> None:
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadOption(f"{name}={value} must be a whole number, at least 1.")


def check_prior_mean(mean: float | Mapping[str, Tensor], model: nn.Module) -> float | Mapping[str, Tensor]:
    """A finite number, or finite tensors for parameters that the model has."""
    if not isinstance(mean, Mapping):
        if not isinstance(mean, (int, float)) or not math.isfinite(mean):
            raise BadOption(f"prior_mean must be a finite number or a mapping to tensors, not {mean!r}.")
        return float(mean)
    known = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    for name, value in mean.items():
        if name not in known:
            raise BadOption(f"prior_mean names {name!r}, which the network does not have.")
        if not bool(torch.isfinite(value).all()):
            raise BadOption(f"prior_mean of {name!r} must be finite.")
    return mean


def _prior_mean(mean: float | Mapping[str, Tensor], network: Network) -> float | dict[str, Tensor]:
    if isinstance(mean, float):
        return mean
    selected = [n for n, p in network.params.items() if p.requires_grad]
    missing = [n for n in selected if n not in mean]
    if missing:
        raise BadOption(f"prior_mean says nothing of {missing[0]!r}; pass a tensor for each Bayesian parameter.")
    for n in selected:
        if mean[n].shape != network.params[n].shape:
            raise BadOption(
                f"prior_mean of {n!r} has shape {list(mean[n].shape)}, not {list(network.params[n].shape)}."
            )
    return {n: mean[n].detach().to(network.device, torch.float64).clone() for n in selected}
