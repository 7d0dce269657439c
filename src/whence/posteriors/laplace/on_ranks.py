"""Fitting and tuning on the ranks of a process group: what must agree, and a common result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.distributed_data import dealing, sampler_of
from whence.engine.files import digest
from whence.engine.options import Execution
from whence.engine.ranks import Ranks
from whence.engine.stages import FitCheckpoint, of_rank
from whence.errors import BadOption
from whence.functional import Network
from whence.likelihoods import Likelihood

if TYPE_CHECKING:
    from whence.curvature.options import FitOptions
    from whence.posteriors.laplace.posterior import Laplace

SAME_SCORE = 1e-3  # relative difference of validation scores that rounding may cause


def signature(network: Network, data: Any, likelihood: Likelihood, options: FitOptions) -> dict[str, Any]:
    """The values that must agree between ranks, in the order in which differences are reported."""
    chosen = {k: v for k, v in options.to_dict().items() if k not in ("progress", "first", "draws")}
    return {
        "the network": {n: f"{list(p.shape)} {p.dtype}" for n, p in network.params.items()},
        "the frozen parameters": [n for n, p in network.params.items() if not p.requires_grad],
        "the hash of the weights": network.hash[:12],
        "the device": network.device.type,
        "autocast": str(network.autocast),
        "likelihood": repr(likelihood),
        **chosen,
        "draws": options.draws.count,
        "the data's sampler": dealing(data),
        "the version of torch": ".".join(torch.__version__.split(".")[:2]),
    }


def comparable(value: Any) -> Any:
    """A value that can be compared across ranks: tensors by their bytes."""
    if isinstance(value, Tensor):
        return f"tensor {digest([value])}"
    if isinstance(value, Mapping):
        return {str(k): comparable(v) for k, v in value.items()}
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def open_checkpoint(execution: Execution, seed_given: bool, ranks: Ranks) -> FitCheckpoint | None:
    """The requested checkpoint, with one file per rank."""
    if execution.checkpoint is None:
        return None
    path = of_rank(execution.checkpoint, ranks.rank, ranks.size)
    return FitCheckpoint(path, execution.checkpoint_every, seed_given=seed_given)


def refuse_part(data: Any, ranks: Ranks, name: str) -> None:
    """Refuse data that are split between ranks where every rank needs all of them."""
    if not ranks.alone and sampler_of(data) is not None:
        raise BadOption(
            f"{name} uses a DistributedSampler, but every rank needs all of the data: pass a loader without one."
        )


def tuned_alike(posterior: Laplace, ranks: Ranks) -> Laplace:
    """A tuned posterior with rank 0's prior and data scale, after checking that all had the same validation data."""
    if ranks.alone:
        return posterior
    assert posterior.tuning is not None
    scores = ranks.synchronise("tuning", posterior.tuning.score)
    for rank, score in enumerate(scores):
        if abs(score - scores[0]) > SAME_SCORE * (abs(scores[0]) + 1e-12):
            ranks.differ(
                f"the validation score is {score:.6g} on rank {rank} and {scores[0]:.6g} on rank 0; give every rank "
                "the same validation data"
            )
    mine = (posterior.prior.given(), posterior.data_scale, posterior.tuning)
    given, scale, tuning = ranks.broadcast(mine, 0, "tuning")
    return replace(posterior.under(posterior.resolved(given)), data_scale=scale, tuning=tuning)
