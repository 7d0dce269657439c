"""``whence.hmc``: options checked once and turned into objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.batches import Data, take, tensors_in
from whence.curvature.blocks import Block, Param
from whence.curvature.selection import Layers, Mask, selection
from whence.engine.files import digest, digest_of_values
from whence.errors import BadOption, NotConverged, TooLarge, notice, one_of
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Likelihood, resolve
from whence.posteriors.front import check_prior_mean
from whence.posteriors.hmc.checks import problems
from whence.posteriors.hmc.mass import MASSES, MassKind
from whence.posteriors.hmc.posterior import Hmc, some
from whence.posteriors.hmc.potential import Layout, Potential, WholeData, read
from whence.posteriors.hmc.run import Checkpoint, Draws, Run, Settings
from whence.posteriors.hmc.state import Streams
from whence.priors import Prior, PriorPrecision, check_prior, resolve_prior
from whence.randomness import seed_from

LIMIT = 20_000  # parameters
DENSE_LIMIT = 2_000  # parameters that a dense mass is kept for
KEPT_LIMIT = 2 * 2**30  # bytes of draws
SPREAD = 0.5  # of the chains' starts around the trained weights, in standard deviations of the prior


@torch.inference_mode(False)
def hmc(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
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
    mass: MassKind = "diag",
    start: Literal["trained", "prior"] | Mapping[str, Tensor] = "trained",
    layers: Layers = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    checkpoint: str | Path | None = None,
    limit: int = LIMIT,
    progress: bool = True,
) -> Hmc:
    """Draw from the exact posterior over a small network's weights: the reference for every other posterior.

    The potential energy is the summed negative log likelihood over all of the data, which are held at once, plus the
    Gaussian prior's ½ (θ − μ₀)ᵀ Δ (θ − μ₀). All chains move together. A run that cannot be trusted says so in words.

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
        warmup: transitions of each chain before, in which step size and mass are adapted.
        thin: transitions for each draw that is kept.
        target_accept: acceptance probability that the step size is adapted to.
        max_depth: most doublings of a NUTS trajectory.
        steps: leapfrog steps of ``"hmc"``.
        step_size: a fixed step size; adapted where None.
        mass: what is adapted: ``"diag"``, ``"dense"`` (up to 2,000 weights), or nothing (``"identity"``).
        start: ``"trained"`` scatters chains around the trained weights by half the prior's standard deviation,
            ``"prior"`` draws them from the prior; tensors by parameter name are scattered around likewise, or, with
            a leading dimension of chains, taken as they are.
        layers: which weights are Bayesian, as for :func:`whence.laplace`; the others stay as trained.
        dtype: in which the chains are computed.
        device: where to compute; by default where the model is.
        generator: randomness; ``None`` is torch's default generator. A chain is the same however many others run.
        checkpoint: a file that the run is written to now and then, and goes on from.
        limit: most weights that are accepted.
        progress: whether a run of more than some seconds shows a progress bar.
    """
    one_of(kernel, ("nuts", "hmc"), "kernel")
    one_of(mass, MASSES, "mass")
    _check_counts(chains=chains, num_samples=num_samples, thin=thin, max_depth=max_depth, steps=steps, limit=limit)
    _check_rest(warmup, target_accept, max_depth, step_size, dtype)
    resolved, estimate = resolve(likelihood)
    check_prior(prior_precision, relative=False)
    centre = check_prior_mean(prior_mean, model)
    network = Network.snapshot(model)
    chosen = selection(layers, network)
    if isinstance(chosen, Mask):
        raise BadOption("HMC takes whole parameters: pass layers as patterns or a predicate, not as a mask.")
    network = network if device is None else network.to(device)
    wide = network.to(dtype)
    refuse_batch_statistics(wide)
    _check_size(sum(p.numel() for p in wide.params.values() if p.requires_grad) if layers is None else 0, limit)
    with torch.random.fork_rng([]):  # a loader that shuffles gives one order, and leaves torch's generator alone
        torch.default_generator.manual_seed(0)
        whole = read(wide, Data(data, wide.device, dtype), resolved, estimate)
    wide.find_caches(take(whole.inputs, slice(0, 2)))
    layout = Layout.of(wide, chosen.resolve(wide, take(whole.inputs, slice(0, 2))))
    _check_size(layout.size, limit)
    _check_memory(layout.size, chains, num_samples, mass, dtype)
    prior = resolve_prior(prior_precision, _blocks(wide, layout))
    settings = Settings(
        kernel,
        chains,
        num_samples,
        warmup,
        thin,
        target_accept,
        max_depth,
        steps,
        step_size,
        mass,
        seed_from(generator),
    )
    mean = _prior_mean(centre, layout, wide)
    precision = prior.flat(layout.params).to(wide.device, dtype)
    potential = Potential(wide, whole, layout, precision, mean)
    begin = _start(start, settings, layout, wide, mean, precision)
    run = Run(potential, begin, 1 / precision, settings)
    if not bool(torch.isfinite(run.state.potential).all()):
        raise NotConverged("the potential energy at the start is not finite; start='trained', or scale the data.")
    identity = {} if checkpoint is None else _identity(potential, prior, settings, generator, estimate)
    file = None if checkpoint is None else Checkpoint(checkpoint, identity)
    return _judged(network, whole, prior, mean, layout, settings, run.finish(progress, file))


def _judged(
    network: Network,
    whole: WholeData,
    prior: PriorPrecision,
    mean: Tensor,
    layout: Layout,
    settings: Settings,
    drawn: Draws,
) -> Hmc:
    """The posterior, after saying what is wrong with the run."""
    posterior = Hmc(
        network=network,
        likelihood=whole.likelihood,
        prior=prior,
        prior_mean=mean,
        positions=drawn.positions,
        stats=drawn.stats,
        settings=settings,
        output_shape=tuple(whole.outputs.shape[1:]),
        inputs=some(whole.inputs),
        seconds=drawn.seconds,
        layout=layout,
    )
    with torch.no_grad():
        seen = posterior.predictions().flatten(2)
    found = problems(seen, drawn.stats, settings.kernel, settings.max_depth)
    for text in found:
        notice(f"hmc: {text}")
    return replace(posterior, problems=found)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadOption(f"{name}={value} must be a whole number, at least 1.")


def _check_rest(warmup: int, target_accept: float, max_depth: int, step_size: float | None, dtype: torch.dtype) -> None:
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise BadOption(f"warmup={warmup} must be a whole number, at least 0.")
    if not isinstance(target_accept, (int, float)) or not 0 < target_accept < 1:
        raise BadOption(f"target_accept={target_accept!r} is not between 0 and 1; 0.8 is usual.")
    if max_depth > 15:
        raise BadOption(f"max_depth={max_depth} means {2**max_depth:,} gradients for one draw; at most 15.")
    if step_size is not None and not (isinstance(step_size, (int, float)) and 0 < step_size < math.inf):
        raise BadOption(f"step_size={step_size!r} must be positive, or None to have it adapted.")
    if step_size is None and warmup == 0:
        raise BadOption("warmup=0 adapts no step size; pass step_size=…, or a warmup.")
    if dtype not in (torch.float32, torch.float64):
        raise BadOption(f"dtype={dtype}: chains are computed in torch.float64 or torch.float32.")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(
            f"HMC was asked for {size:,} weights; its limit is {limit:,}. Each draw takes up to thousands of gradients "
            "over all of the data, more with every weight, and chains of large networks do not mix. Choose few layers "
            "(layers='last'), take whence.laplace or a fit_ensemble, or raise limit=."
        )


def _check_memory(size: int, chains: int, num_samples: int, mass: str, dtype: torch.dtype) -> None:
    needed = size * chains * num_samples * dtype.itemsize
    if needed > KEPT_LIMIT:
        raise TooLarge(
            f"{chains} × {num_samples:,} draws of {size:,} weights take {needed / 2**30:.1f} GiB (limit "
            f"{KEPT_LIMIT / 2**30:.0f} GiB). Keep fewer: num_samples={num_samples // 10}, thin=10."
        )
    if mass == "dense" and size > DENSE_LIMIT:
        raise TooLarge(f"mass='dense' is for up to {DENSE_LIMIT:,} weights, not {size:,}; use mass='diag'.")


def _blocks(network: Network, layout: Layout) -> list[Block]:
    """Layers as a prior speaks of them."""
    modules = dict(network.module.named_modules())
    found: dict[str, list[Param]] = {}
    for param in layout.params:
        found.setdefault(param.name.rpartition(".")[0] or param.name, []).append(param)
    kinds = {name: type(modules[params[0].name.rpartition(".")[0]]).__name__ for name, params in found.items()}
    return [Block(name, kinds[name], tuple(params), "example") for name, params in found.items()]


def _prior_mean(mean: float | Mapping[str, Tensor], layout: Layout, network: Network) -> Tensor:
    """[P]."""
    if isinstance(mean, float):
        return torch.full((layout.size,), mean, dtype=network.dtype, device=network.device)
    return layout.join(_given(mean, layout, "prior_mean", network))


def _given(values: Mapping[str, Tensor], layout: Layout, what: str, network: Network) -> dict[str, Tensor]:
    """Tensors for every parameter, with or without a leading dimension."""
    found = {}
    for p in layout.params:
        if p.name not in values:
            raise BadOption(f"{what} says nothing of {p.name!r}; pass a tensor for each Bayesian parameter.")
        value = torch.as_tensor(values[p.name]).detach().to(network.device, network.dtype)
        if tuple(value.shape[value.dim() - len(p.shape) :]) != p.shape or value.dim() > len(p.shape) + 1:
            raise BadOption(f"{what} of {p.name!r} has shape {list(value.shape)}, not {list(p.shape)}.")
        found[p.name] = value
    return found


def _start(
    start: str | Mapping[str, Tensor],
    settings: Settings,
    layout: Layout,
    network: Network,
    mean: Tensor,
    precision: Tensor,
) -> Tensor:
    """Where the chains begin, [K, P]."""
    noise = Streams(settings.seed, settings.chains, "start").normals(layout.size, mean) * precision.rsqrt()
    if isinstance(start, str):
        if one_of(start, ("trained", "prior"), "start") == "prior":
            return mean + noise
        trained = layout.join({n: p.detach() for n, p in network.params.items()})
        return trained + SPREAD * noise
    if not isinstance(start, Mapping):
        raise BadOption(f"start is a {type(start).__name__}: pass 'trained', 'prior' or tensors by parameter name.")
    given = _given(start, layout, "start", network)
    leading = {given[p.name].dim() - len(p.shape) for p in layout.params}
    if leading == {0}:
        return layout.join(given) + SPREAD * noise
    joined = layout.join(given) if leading == {1} else mean
    if tuple(joined.shape) != (settings.chains, layout.size):
        raise BadOption(
            f"start must hold one tensor for each parameter, or one for each of the {settings.chains} chains."
        )
    return joined.clone()


def _identity(
    potential: Potential, prior: PriorPrecision, settings: Settings, generator: torch.Generator | None, estimate: bool
) -> dict[str, Any]:
    """What a checkpoint belongs to; the seed only where it was chosen, a noise unless it follows from the data."""
    data = potential.data
    found = asdict(settings)
    if generator is None:
        del found["seed"]
    return {
        **found,
        "network": potential.network.hash,
        "layers": [p.name for p in potential.layout.params],
        "data": _examples(data),
        "prior_precision": prior.describe(),
        "prior": digest([potential.precision, potential.mean]),
        "likelihood": "regression" if estimate else str(data.likelihood.spec()),
    }


def _examples(data: WholeData) -> str:
    """A digest of the examples in whatever order: a loader that shuffles gives the same."""
    tensors = [*tensors_in(data.inputs), data.targets]
    if any(t.dim() == 0 or len(t) != len(data) for t in tensors):
        return digest(tensors)
    shapes = [[str(t.dtype), list(t.shape)] for t in tensors]
    plain = [t.detach().cpu() for t in tensors]
    return digest_of_values([shapes, sorted(digest(t[i] for t in plain) for i in range(len(data)))])
