"""``whence.hmc``: checks the options and runs the chains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import take, tensors_in
from whence.engine.checkpoint import CheckpointFile
from whence.engine.files import digest, digest_of_values
from whence.engine.options import check_interval
from whence.engine.randomness import seed_from, seeded
from whence.errors import BadOption, NotConverged, TooLarge, explains_keywords, notice, one_of, whole_numbers
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Likelihood, LikelihoodName, resolve
from whence.posteriors.base import joint_block, layer_blocks
from whence.posteriors.hmc.chains import Chains, Kernel, SamplerSettings
from whence.posteriors.hmc.diagnostics import problems
from whence.posteriors.hmc.kernels import ChainGenerators, MassKind
from whence.posteriors.hmc.posterior import Hmc, evenly_picked
from whence.posteriors.hmc.potential import Potential, TrainingData, read
from whence.posteriors.laplace.front import check_prior_mean
from whence.priors import Prior, check_prior, resolve_prior
from whence.recording.blocks import Block
from whence.recording.selection import Layers, Mask, selection

LIMIT = 20_000  # parameters
DENSE_LIMIT = 2_000  # parameters, for a dense mass
DRAWS_LIMIT = 2 * 2**30  # bytes of draws
SPREAD = 0.5  # scatter of the starts around the trained weights, in prior standard deviations


@explains_keywords
@torch.inference_mode(False)
def hmc(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    prior_precision: float | Tensor | Prior | Mapping[str, Any] = 1.0,
    prior_mean: float | Mapping[str, Tensor] = 0.0,
    kernel: Literal["nuts", "hmc"] = "nuts",
    chains: int = 4,
    num_samples: int = 1000,
    warmup: int = 1000,
    thin: int = 1,
    target_accept: float = 0.8,
    max_depth: int = 10,
    steps: int = 32,
    step_size: float | None = None,
    mass: Literal["identity", "diag", "dense"] = "diag",
    start: Literal["trained", "prior"] | Mapping[str, Tensor] = "trained",
    layers: Layers = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    limit: int = LIMIT,
    progress: bool = True,
) -> Hmc:
    """Draw from the exact posterior over a small network's weights: the reference for every other posterior.

    The potential energy is the summed negative log likelihood over all of the data, which are kept in memory, plus the
    Gaussian prior's ½ (θ − μ₀)ᵀ Δ (θ − μ₀). All chains move together. Notices report problems of the run.

    Args:
        model: any trained ``nn.Module``. It is copied, and never changed.
        data: the training data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors.
        likelihood: ``"classification"``, ``"binary"``, ``"regression"`` (the noise is the root mean square of the
            trained network's residuals), or a :class:`whence.Likelihood`.
        prior_precision: as for :func:`whence.laplace`: a number, by layer, ``Prior(weight=…, bias=…)``, by weight.
        prior_mean: mean of the prior, a number or tensors by parameter name.
        kernel: ``"nuts"``, or ``"hmc"`` with a fixed number of ``steps``.
        chains: chains that are run at once.
        num_samples: draws that are kept of each chain.
        warmup: transitions before the draws, in which step size and mass are adapted.
        thin: transitions per kept draw.
        target_accept: target acceptance probability of the step size.
        max_depth: largest number of doublings of a NUTS trajectory.
        steps: leapfrog steps of ``"hmc"``.
        step_size: a fixed step size; adapted if None.
        mass: what is adapted: ``"diag"``, ``"dense"`` (up to 2,000 weights), or nothing (``"identity"``).
        start: ``"trained"`` scatters chains around the trained weights by half the prior's standard deviation,
            ``"prior"`` draws them from the prior; tensors by parameter name are scattered likewise, unless they have
            a leading dimension of chains.
        layers: which weights are Bayesian, as for :func:`whence.laplace`; the others stay as trained.
        dtype: in which the chains are computed.
        device: where to compute; by default where the model is.
        generator: randomness; ``None`` is torch's default generator. Each chain is independent of the others.
        checkpoint: a file to which the run is saved every ``checkpoint_every`` seconds (0: after every transition),
            and from which it resumes.
        limit: largest number of weights that is accepted.
        progress: whether to show a progress bar for runs of more than a few seconds.
    """
    moves, adapted = Kernel.parse(kernel, "kernel"), MassKind.parse(mass, "mass")
    whole_numbers(chains=chains, num_samples=num_samples, thin=thin, max_depth=max_depth, steps=steps, limit=limit)
    whole_numbers(0, warmup=warmup)
    check_interval(checkpoint_every, "transition")
    _check_numbers(warmup, target_accept, max_depth, step_size, dtype)
    resolved, estimate = resolve(likelihood)
    check_prior(prior_precision, relative=False)
    centre = check_prior_mean(prior_mean, model)
    network = Network.snapshot(model)
    chosen = selection(layers, network)
    if isinstance(chosen, Mask):
        raise BadOption("HMC needs whole parameters: pass layers as patterns or a predicate, not as a mask.")
    network = network if device is None else network.to(device)
    wide = network.to(dtype)
    refuse_batch_statistics(wide)
    _check_size(sum(p.numel() for p in wide.params.values() if p.requires_grad) if layers is None else 0, limit)
    with seeded(0):  # a fixed order of a shuffling loader, without changing torch's generator
        whole = read(wide, wide.read(data), resolved, estimate)
    few = take(whole.inputs, slice(0, 2))
    wide.find_caches(few)
    network.remember(few)
    names = chosen.resolve(wide, few)
    weights = joint_block(wide, names)
    _check_size(weights.size, limit)
    _check_memory(weights.size, chains, num_samples, adapted, dtype)
    prior = resolve_prior(prior_precision, layer_blocks(wide, names))
    settings = SamplerSettings(
        moves, chains, num_samples, warmup, thin, target_accept, max_depth, steps, step_size, adapted,
        seed_from(generator),
    )  # fmt: skip
    precision = prior.flat(weights.params).to(wide.device, dtype)
    mean = (
        torch.full_like(precision, centre)
        if isinstance(centre, float)
        else weights.gather(_given(centre, weights, "prior_mean", wide))
    )
    potential = Potential(wide, whole, weights, precision, mean)
    run = Chains(potential, _start(start, settings, weights, wide, mean, precision), 1 / precision, settings)
    if not bool(torch.isfinite(run.state.potential).all()):
        raise NotConverged("the potential energy at the start is not finite; use start='trained', or scale the data.")
    file, identity = None, {}
    if checkpoint is not None:
        file = CheckpointFile.at(checkpoint, "HMC run")
        noise = "regression" if estimate else str(whole.likelihood.spec())
        identity = _identity(settings, potential, prior.describe(), noise, seeded_by_user=generator is not None)
    positions, stats = run.run(progress, file, identity, checkpoint_every)
    posterior = Hmc(
        network=network,
        likelihood=whole.likelihood,
        prior=prior,
        prior_mean=mean,
        positions=positions,
        stats=stats,
        settings=settings,
        weights=weights,
        output_shape=tuple(whole.outputs.shape[1:]),
        inputs=evenly_picked(whole.inputs),
        seconds=run.seconds,
    )
    return _with_problems(posterior)


def _with_problems(posterior: Hmc) -> Hmc:
    """Give notices of problems, and return the posterior with them."""
    with torch.no_grad():
        predicted = posterior.predictions().flatten(2)
    found = problems(predicted, posterior.stats, posterior.settings.max_depth)
    for text in found:
        notice(f"hmc: {text}")
    return replace(posterior, problems=found)


def _identity(
    settings: SamplerSettings, potential: Potential, prior: str, likelihood: str, seeded_by_user: bool
) -> dict[str, Any]:
    """Describes the run of a checkpoint. The seed is included only if it was given."""
    identity = asdict(settings) | {
        "network": potential.network.hash,
        "layers": [p.name for p in potential.weights.params],
        "data": _examples(potential.data),
        "prior_precision": prior,
        "prior": digest([potential.precision, potential.mean]),
        "likelihood": likelihood,
    }
    return identity if seeded_by_user else {k: v for k, v in identity.items() if k != "seed"}


def _check_numbers(
    warmup: int, target_accept: float, max_depth: int, step_size: float | None, dtype: torch.dtype
) -> None:
    if not isinstance(target_accept, (int, float)) or not 0 < target_accept < 1:
        raise BadOption(f"target_accept={target_accept!r} is not between 0 and 1; 0.8 is a common choice.")
    if max_depth > 15:
        raise BadOption(f"max_depth={max_depth} means {2**max_depth:,} gradients per draw; the limit is 15.")
    if step_size is not None and not (isinstance(step_size, (int, float)) and 0 < step_size < math.inf):
        raise BadOption(f"step_size={step_size!r} must be positive, or None to adapt it.")
    if step_size is None and warmup == 0:
        raise BadOption("warmup=0 adapts no step size; pass step_size=…, or a warmup.")
    if dtype not in (torch.float32, torch.float64):
        raise BadOption(f"dtype={dtype}: chains are computed in torch.float64 or torch.float32.")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(
            f"HMC was asked for {size:,} weights; its limit is {limit:,}. Each draw may take thousands of gradients "
            "over all of the data, and chains of large networks do not mix. Select few layers "
            "(layers='last'), use whence.laplace or whence.fit_ensemble, or raise limit=."
        )


def _check_memory(size: int, chains: int, num_samples: int, mass: MassKind, dtype: torch.dtype) -> None:
    needed = size * chains * num_samples * dtype.itemsize
    if needed > DRAWS_LIMIT:
        raise TooLarge(
            f"{chains} × {num_samples:,} draws of {size:,} weights need {needed / 2**30:.1f} GiB (limit "
            f"{DRAWS_LIMIT / 2**30:.0f} GiB). Keep fewer: num_samples={num_samples // 10}, thin=10."
        )
    if mass is MassKind.DENSE and size > DENSE_LIMIT:
        raise TooLarge(f"mass='dense' supports up to {DENSE_LIMIT:,} weights, not {size:,}; use mass='diag'.")


def _given(values: Mapping[str, Tensor], weights: Block, what: str, network: Network) -> dict[str, Tensor]:
    """Tensors for every parameter, with or without a leading dimension."""
    found = {}
    for p in weights.params:
        if p.name not in values:
            raise BadOption(f"{what} has no entry for {p.name!r}; pass a tensor for each Bayesian parameter.")
        value = torch.as_tensor(values[p.name]).detach().to(network.device, network.dtype)
        if tuple(value.shape[value.dim() - len(p.shape) :]) != p.shape or value.dim() > len(p.shape) + 1:
            raise BadOption(f"{what} of {p.name!r} has shape {list(value.shape)}, not {list(p.shape)}.")
        found[p.name] = value
    return found


def _start(
    start: str | Mapping[str, Tensor],
    settings: SamplerSettings,
    weights: Block,
    network: Network,
    mean: Tensor,
    precision: Tensor,
) -> Tensor:
    """Start positions of the chains, [K, P]."""
    noise = ChainGenerators(settings.seed, settings.chains, "start").normals(weights.size, mean) * precision.rsqrt()
    if isinstance(start, str):
        if one_of(start, ("trained", "prior"), "start") == "prior":
            return mean + noise
        trained = weights.gather({n: p.detach() for n, p in network.params.items()})
        return trained + SPREAD * noise
    if not isinstance(start, Mapping):
        raise BadOption(f"start is a {type(start).__name__}: pass 'trained', 'prior' or tensors by parameter name.")
    given = _given(start, weights, "start", network)
    leading = {given[p.name].dim() - len(p.shape) for p in weights.params}
    if leading == {0}:
        return weights.gather(given) + SPREAD * noise
    joined = weights.gather(given) if leading == {1} else mean
    if tuple(joined.shape) != (settings.chains, weights.size):
        raise BadOption(
            f"start must contain one tensor per parameter, or one for each of the {settings.chains} chains."
        )
    return joined.clone()


def _examples(data: TrainingData) -> str:
    """A digest of the examples that does not depend on their order, for loaders that shuffle."""
    tensors = [*tensors_in(data.inputs), data.targets]
    if any(t.dim() == 0 or len(t) != len(data) for t in tensors):
        return digest(tensors)
    shapes = [[str(t.dtype), list(t.shape)] for t in tensors]
    plain = [t.detach().cpu() for t in tensors]
    return digest_of_values([shapes, sorted(digest(t[i] for t in plain) for i in range(len(data)))])
