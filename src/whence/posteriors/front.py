"""``whence.laplace``: options checked once and turned into objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.batches import Data
from whence.curvature.columns import Draws
from whence.curvature.fit import fit
from whence.curvature.options import SUPPORTED, Options
from whence.curvature.selection import Layers, Mask, selection
from whence.errors import BadOption, one_of
from whence.functional import Network
from whence.likelihoods import Likelihood, resolve
from whence.posteriors.laplace import Laplace, check_damping
from whence.priors import Prior, PriorPrecision, check_numbers
from whence.randomness import seed_from

CURVATURES = ("auto", "ggn", "mc", "empirical", "kfra", "hessian")


@torch.inference_mode(False)
def laplace(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
    structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"] = "kron",
    curvature: Literal["auto", "ggn", "mc", "empirical", "kfra", "hessian"] = "auto",
    layers: Layers = None,
    prior_precision: float | Tensor | Prior | Mapping[str, Any] = 1.0,
    prior_mean: float | Mapping[str, Tensor] = 0.0,
    validation: Any = None,
    sharing: Literal["expand", "reduce"] = "expand",
    damping: Literal["exact", "factored"] = "exact",
    draws: int = 1,
    rank: int = 64,
    passes: int = 1,
    data_size: int | None = None,
    device: torch.device | str | None = None,
    process_group: Any = None,
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
        prior_precision: one number, a mapping from layer names to numbers, ``Prior(weight=…, bias=…)``, or a mapping
            from parameter names to tensors (``"diag"``, ``"block"`` and ``"full"`` only).
        prior_mean: mean of the prior, a number or tensors by parameter name; it enters the evidence.
        validation: data to tune prior precision and data scale on at once.
        sharing: for weights that are used at several positions (convolution, sequences): Kronecker factors of the
            positions (``"expand"``) or of their mean and sum (``"reduce"``).
        damping: how the prior enters a Kronecker block: exactly, or ``"factored"`` as in Ritter's eq. 9.
        draws: label draws for each example of the sampled Fisher.
        rank: eigenpairs that ``"lowrank"`` keeps.
        passes: passes over (randomly augmented) data, averaged back to one data set.
        data_size: examples that the curvature counts, if not those that are read.
        device: where to compute; by default where the model is.
        process_group: a torch process group; each of its ranks passes its own part of the data, and all get the
            posterior of the whole.
        generator: randomness of the sampled Fisher; ``None`` is torch's default generator.
        progress: whether a fit of more than some seconds shows a progress bar.
    """
    one_of(structure, SUPPORTED, "structure")
    one_of(curvature, CURVATURES, "curvature")
    one_of(sharing, ("expand", "reduce"), "sharing")
    check_damping(damping, structure)
    _check_counts(draws=draws, rank=rank, passes=passes, data_size=data_size)
    if sharing == "reduce" and structure not in ("kron", "ekfac"):
        raise BadOption(f"sharing='reduce' is for structure='kron' and 'ekfac', not {structure!r}.")
    resolved, estimate = resolve(likelihood)
    check_numbers(prior_precision)
    mean = check_prior_mean(prior_mean, model)
    network = Network.snapshot(model)
    if device is not None:
        network = network.to(device)
    if validation is not None:
        Data(validation, network.device, network.dtype, "validation").require_passes(2, "tuning")
    chosen = selection(layers, network)
    if isinstance(chosen, Mask) and structure != "full":
        raise BadOption(f"a mask holds a full covariance: pass structure='full', not {structure!r}.")
    options = Options(structure, curvature, sharing, Draws(0, draws), rank, passes, data_size, progress, estimate)
    loader = Data(data, network.device, network.dtype)
    result = fit(network, loader, resolved, chosen, options, lambda: seed_from(generator), process_group)
    posterior = Laplace(
        plan=result.plan,
        curvature=result.curvature,
        likelihood=result.likelihood,
        prior=PriorPrecision.make(prior_precision, result.plan.blocks),
        prior_mean=_prior_mean(mean, network),
        damping=damping,
        probe=result.probe,
    )
    for gaussian, _ in posterior.gaussians():
        _ = gaussian.precision  # decomposed now, so that a bad block is named here and not at the first prediction
    return posterior if validation is None else posterior.tune(validation, progress=progress)


def _check_counts(**counts: int | None) -> None:
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
