"""``whence.laplace``: options checked once and turned into objects."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.curvature.blocks import MAX_FACTOR
from whence.curvature.checkpoint import EVERY
from whence.curvature.columns import Draws
from whence.curvature.distributed import Ranks, together
from whence.curvature.fit import fit
from whence.curvature.options import RANK, SUPPORTED, Options
from whence.curvature.plan import Plan
from whence.curvature.selection import Layers, Mask, selection
from whence.curvature.signals import Signals
from whence.errors import BadOption, notice, one_of
from whence.functional import Network, full_precision, outer_autocast
from whence.likelihoods import Likelihood, resolve
from whence.posteriors.across import open_checkpoint, plain, refuse_part, signature, tuned_alike
from whence.posteriors.decompose import decomposed
from whence.posteriors.laplace import Laplace, check_damping
from whence.priors import RELATIVE, Prior, PriorPrecision, Relative, check_prior, resolve_prior
from whence.randomness import seed_from
from whence.sharded import is_sharded

CURVATURES = ("auto", "ggn", "mc", "empirical", "kfra", "hessian")


@torch.inference_mode(False)
@full_precision()
@together
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
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
    offload: bool = False,
    cuda_graphs: bool = True,
    autocast: torch.dtype | None = None,
    device: torch.device | str | None = None,
    process_group: Any = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> Laplace:
    """Turn a trained network into a Gaussian posterior over its weights, without training it again.

    Args:
        model: any trained ``nn.Module``. It is copied, and never changed.
        data: the training data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors.
        likelihood: ``"classification"``, ``"binary"``, ``"regression"`` (the noise is the root mean square of the
            training residuals), or a :class:`whence.Likelihood`.
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
        cuda_graphs: whether a batch, or a piece of a prediction, may be replayed as a CUDA graph where launching
            kernels is what it costs. A graph is checked once against the plain way; say no for a network that changes
            from call to call.
        offload: whether curvature and decompositions are kept in main memory and come to the device layer by layer.
        autocast: the type in which forward and backward passes compute where torch's autocast allows, such as
            ``torch.bfloat16``; ``None`` is what the calling context has on. Sums are in float32 all the same.
        device: where to compute; by default where the model is.
        process_group: a torch process group (or True for the default one); each of its ranks passes its own part of
            the data, and all get the posterior of the whole. Examples that a ``DistributedSampler`` repeats count once.
        checkpoint: a file that the sums are written to every ``checkpoint_every`` seconds (0: after every batch). A fit
            that was killed goes on from it when called again; it is removed once the fit is complete.
        generator: randomness of the sampled Fisher; ``None`` is torch's default generator.
        progress: whether a fit of more than some seconds shows a progress bar.
    """
    resolved, estimate = resolve(likelihood)
    options = Options(structure, curvature, sharing, Draws(0, draws), rank, passes, data_size, progress, estimate)
    options = replace(options, max_factor=max_factor, offload=offload, cuda_graphs=cuda_graphs)
    _check(options, damping)
    check_prior(prior_precision)
    mean = check_prior_mean(prior_mean, model)
    ranks: Ranks = process_group
    file = open_checkpoint(checkpoint, checkpoint_every, generator is not None, ranks)
    ranks.agree({"a sharded network": is_sharded(model)}, "copying the network")
    network = Network.snapshot(model)
    if device is not None:
        network = network.to(device)
    network.autocast = autocast or outer_autocast(network.device)
    if validation is not None:
        network.read(validation, "validation").require_passes(2, "tuning")
        refuse_part(validation, ranks, "validation")
    chosen = selection(layers, network)
    if isinstance(chosen, Mask) and structure != "full":
        raise BadOption(f"a mask holds a full covariance: pass structure='full', not {structure!r}.")
    loader = network.read(data)
    ranks.check_device(network.device)
    given = {"prior_precision": plain(prior_precision), "prior_mean": plain(prior_mean), "damping": damping}
    given |= {"validation": validation is not None, "checkpoint": checkpoint is not None}
    ranks.agree(signature(network, data, resolved, options) | given, "comparing networks and options")

    def prior_of(plan: Plan, signals: Signals) -> PriorPrecision:
        return resolve_prior(prior_precision, plan.blocks, plan.network, signals)

    result = fit(network, loader, resolved, chosen, options, lambda: seed_from(generator), ranks, file, prior_of)
    posterior = Laplace(
        plan=result.plan,
        curvature=result.curvature,
        likelihood=result.likelihood,
        prior=prior_of(result.plan, result.curvature.signals),
        prior_mean=_prior_mean(mean, network),
        damping=damping,
        probe=result.probe,
    )
    for note in getattr(posterior.prior, "notes", ()):
        notice(note)
    _decompose(posterior, ranks)
    if validation is not None:
        posterior = tuned_alike(posterior.tune(validation, progress=progress and ranks.rank == 0), ranks)
    if file is not None:
        ranks.meet("completing the fit")
        file.remove()
    return posterior


def _decompose(posterior: Laplace, ranks: Ranks) -> None:
    start = time.perf_counter()
    decomposed(posterior, ranks.share())
    for gaussian, _ in posterior.gaussians():
        _ = gaussian.precision  # now, so that a bad block is named here and not at the first prediction
    posterior.curvature.seconds["decomposition"] = time.perf_counter() - start


def _check(options: Options, damping: str) -> None:
    """Refuse options that are unknown or do not go together; say which ones have no part."""
    structure, rank, most = options.structure, options.rank, options.max_factor
    one_of(structure, SUPPORTED, "structure")
    one_of(options.curvature, CURVATURES, "curvature")
    one_of(options.sharing, ("expand", "reduce"), "sharing")
    check_damping(damping, structure)
    _check_counts(
        draws=options.draws.count, rank=rank, passes=options.passes, data_size=options.data_size, max_factor=most
    )
    factored = structure in ("kron", "ekfac")
    if options.sharing == "reduce" and not factored:
        raise BadOption(f"sharing='reduce' is for structure='kron' and 'ekfac', not {structure!r}.")
    if rank != RANK and structure != "lowrank":
        notice(f"rank={rank} has no part in structure={structure!r}: it is for 'lowrank'.")
    if most != MAX_FACTOR and not factored:
        notice(f"max_factor={most} has no part in structure={structure!r}: it is for 'kron' and 'ekfac'.")


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
