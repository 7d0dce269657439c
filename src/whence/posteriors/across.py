"""A posterior across the ranks of a process group: what they must have in common, and one answer for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.checkpoint import EVERY, Checkpoint, of_rank
from whence.curvature.distributed import Ranks
from whence.curvature.distributed_data import dealing, sampler_of
from whence.engine.files import digest
from whence.errors import BadOption
from whence.functional import Network
from whence.likelihoods import Likelihood

if TYPE_CHECKING:
    from whence.curvature.options import Options
    from whence.posteriors.laplace import Laplace

SAME_SCORE = 1e-3  # relative difference of validation scores that rounding may cause


def signature(network: Network, data: Any, likelihood: Likelihood, options: Options) -> dict[str, Any]:
    """What ranks are compared by, in the order in which a difference is said."""
    chosen = {k: v for k, v in asdict(options).items() if k not in ("progress", "first", "draws")}
    return {
        "the network": {n: f"{list(p.shape)} {p.dtype}" for n, p in network.params.items()},
        "what is frozen": [n for n, p in network.params.items() if not p.requires_grad],
        "the hash of the weights": network.hash[:12],
        "the device": network.device.type,
        "autocast": str(network.autocast),
        "likelihood": repr(likelihood),
        **chosen,
        "draws": options.draws.count,
        "the data's sampler": dealing(data),
        "the version of torch": ".".join(torch.__version__.split(".")[:2]),
    }


def plain(value: Any) -> Any:
    """A value that can be compared across ranks: tensors by their bytes."""
    if isinstance(value, Tensor):
        return f"tensor {digest([value])}"
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def open_checkpoint(path: str | Path | None, every: float, seed_given: bool, ranks: Ranks) -> Checkpoint | None:
    """The front door's ``checkpoint``: a file for each rank."""
    if path is None:
        if every != EVERY:
            raise BadOption(f"checkpoint_every={every} has no meaning without checkpoint=….")
        return None
    return Checkpoint(of_rank(path, ranks.rank, ranks.size), every, seed_given=seed_given)


def refuse_part(data: Any, ranks: Ranks, name: str) -> None:
    """All ranks need all of it."""
    if not ranks.alone and sampler_of(data) is not None:
        raise BadOption(
            f"{name} comes through a DistributedSampler, and every rank needs all of it: pass a loader without one."
        )


def tuned_alike(posterior: Laplace, ranks: Ranks) -> Laplace:
    """A tuned posterior with rank 0's prior and data scale, after a look at whether all saw the same data."""
    if ranks.alone:
        return posterior
    assert posterior.tuning is not None
    scores = ranks.meet("tuning", posterior.tuning.score)
    for rank, score in enumerate(scores):
        if abs(score - scores[0]) > SAME_SCORE * (abs(scores[0]) + 1e-12):
            ranks.differ(
                f"the validation data score {score:.6g} on rank {rank} and {scores[0]:.6g} on rank 0; give every rank "
                "the same validation data"
            )
    mine = (posterior.prior.given(), posterior.data_scale, posterior.tuning)
    given, scale, tuning = ranks.broadcast(mine, 0, "tuning")
    return replace(posterior, prior=posterior.resolved(given), data_scale=scale, tuning=tuning)
