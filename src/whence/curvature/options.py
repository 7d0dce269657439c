"""How a curvature is computed, and which choices go together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from whence.curvature.blocks import MAX_FACTOR
from whence.curvature.columns import Draws
from whence.errors import BadOption, notice
from whence.likelihoods import Likelihood

SUPPORTED = {
    "full": ("ggn", "mc", "empirical", "hessian"),
    "block": ("ggn", "mc", "empirical", "hessian"),
    "diag": ("ggn", "mc", "empirical", "hessian"),
    "kron": ("ggn", "mc", "empirical", "kfra"),
    "ekfac": ("ggn", "mc", "empirical"),
    "lowrank": ("ggn", "empirical"),
}
RANK = 64
AUTO_OUTPUTS = 100  # exact over the outputs up to here


@dataclass(frozen=True)
class Options:
    """How a curvature is computed."""

    structure: str = "kron"
    curvature: str = "auto"
    sharing: str = "expand"
    draws: Draws = field(default_factory=Draws)
    rank: int = RANK
    passes: int = 1
    data_size: float | None = None
    progress: bool = True
    estimate_noise: bool = False  # of a Gaussian, from the training residuals
    first: int = 0  # number of the first example, for its randomness
    max_factor: int = MAX_FACTOR  # rows of a Kronecker factor beyond which its diagonal is kept
    cuda_graphs: bool = True  # whether batches are replayed as graphs where that pays
    offload: bool = False  # whether curvature and decompositions are kept in main memory


def settle(options: Options, likelihood: Likelihood, outputs: Tensor) -> Options:
    """Turn ``curvature="auto"`` into a choice, and refuse what does not go together."""
    curvature = options.curvature
    if curvature == "auto":
        width = likelihood.flatten(outputs)[0].numel()
        curvature = "ggn" if width <= AUTO_OUTPUTS or options.structure == "lowrank" else "mc"
        if curvature == "mc":
            notice(
                f"the network has {width} outputs for each example, so the curvature is the sampled Fisher "
                f"({options.draws.count} label draw for each example; curvature='ggn' is exact and takes longer)."
            )
    allowed = SUPPORTED[options.structure]
    if curvature not in allowed:
        fits = [s for s, c in SUPPORTED.items() if curvature in c]
        raise BadOption(
            f"structure={options.structure!r} does not go with curvature={curvature!r}. It goes with "
            f"{', '.join(map(repr, allowed))}; {curvature!r} goes with {', '.join(map(repr, fits))}."
        )
    return replace(options, curvature=curvature)


def say_unused_draws(options: Options, likelihood: Likelihood) -> None:
    """Say it if draws were asked for and none are made, or others."""
    if options.draws.count > 1 and options.curvature != "mc":
        own = f" (the likelihood has {likelihood.fisher_draws} of its own)" if likelihood.fisher_draws else ""
        notice(f"draws={options.draws.count} has no part in curvature={options.curvature!r}: it is for 'mc'{own}.")
