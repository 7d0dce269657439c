"""Mean and covariance of the outputs of a Gaussian process, and their parts by layer.

V(x) = k(x, x) − k(x, M) W k(M, x) with W = (I + K)⁻¹ = L⁻ᵀ L⁻¹, and k a sum over blocks b. The part of a block is the
covariance share V_b(x) = k_b(x, x) − k_b(x, M) W k(M, x); the parts add up to V.

Index legend: N inputs, C outputs, B blocks, r rows of the training examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from whence.curvature.columns import identity_columns
from whence.engine.batches import Inputs, is_inputs, size_of, take
from whence.engine.memory import readable, sizes
from whence.engine.progress import over_inputs
from whence.engine.randomness import Points
from whence.errors import NotDefined, TooLarge
from whence.posteriors.function_space.features import Features, kernel
from whence.predictive.collected import CollectedPredictions
from whence.predictive.linearised import Moments, record
from whence.predictive.links import Link
from whence.predictive.predictions import JointPrediction, Prediction

if TYPE_CHECKING:
    from whence.posteriors.function_space.posterior import FunctionSpace

PIECE = 2**31  # inputs that are read at a time


class Collected(CollectedPredictions):
    """Predictions of a Gaussian process, piece by piece."""

    def _whole_covariance(self) -> Tensor:
        if self.keeps:
            return self.joined("covariance")
        posterior = cast("FunctionSpace", self.posterior)
        if not is_inputs(self.x):
            raise NotDefined("the covariance of the outputs is too large to keep; predict from a tensor.")
        return torch.cat([moments_of(posterior, inputs).cov for inputs in pieces(posterior, self.x)])


def predicted(posterior: FunctionSpace, x: Any, link: Link, points: Points) -> Prediction:
    collected = Collected(cast("Any", posterior), x, link, points)
    for inputs in over_inputs(pieces(posterior, x), x, "predict"):
        collected.add(moments_of(posterior, inputs))
    return collected.prediction()


def pieces(posterior: FunctionSpace, x: Any) -> Iterator[Inputs]:
    """Inputs in pieces whose features and kernel fit the memory budget."""
    step: int | None = None
    for piece in posterior.network.pieces(x, PIECE):
        if step is None:
            posterior.plan.confirm(piece, thoroughly=True)
            step = posterior.together(piece)
        for start in range(0, size_of(piece), step):
            yield take(piece, slice(start, start + step))


def moments_of(posterior: FunctionSpace, inputs: Inputs) -> Moments:
    """Of one piece: [N, C] and [N, C, C]."""
    outputs, given = featured(posterior, inputs)
    return Moments(outputs, covariance_of(posterior, given).to(outputs.dtype))


def featured(posterior: FunctionSpace, inputs: Inputs, centred: bool = False) -> tuple[Tensor, list[Features]]:
    """Outputs [N, C] and the features of J, or of the Jacobian of outputs minus their mean."""
    outputs, recording, wanted = record(cast("Any", posterior), inputs)
    columns = identity_columns(recording.outputs)
    if centred:
        columns = columns - 1 / columns.shape[-1]
    return outputs, posterior.linear.features(recording.differentiate(columns, create_graph=wanted))


def covariance_of(posterior: FunctionSpace, given: list[Features]) -> Tensor:
    """V of each input, [N, C, C]."""
    own = torch.stack([part.own() for part in given]).sum(0)
    solved = posterior.whitened(posterior.subset.with_inputs(given))  # [N, C, r]
    return own - solved @ solved.mT


def shares(posterior: FunctionSpace, x: Any) -> tuple[Tensor, Tensor]:
    """tr V_b and tr k_b(x, x) of every input and block, [N, B] each; of centred logits for class labels."""
    centred, own, alone = posterior.likelihood.shift_invariant, [], []
    for inputs in pieces(posterior, x):
        _, given = featured(posterior, inputs, centred)
        by_block = list(posterior.subset.by_block(given))  # [N, C, r] each
        solved = posterior.solved(torch.stack(by_block).sum(0))
        prior = torch.stack([part.own().diagonal(dim1=-2, dim2=-1).sum(-1) for part in given], 1)
        alone.append(prior)
        own.append(prior - torch.stack([(part * solved).sum((1, 2)) for part in by_block], 1))
    return torch.cat(own).cpu(), torch.cat(alone).cpu()


def joint(posterior: FunctionSpace, x: Any) -> JointPrediction:
    """One Gaussian over the outputs of all inputs."""
    means, features, solved, size = [], [], [], 0
    for inputs in pieces(posterior, x):
        outputs, given = featured(posterior, inputs)
        size += outputs.numel()
        needed = 8 * (2 * size**2 + size * posterior.subset.size)
        if needed > sizes().joint:
            raise TooLarge(
                f"a joint prediction of these inputs needs more than {readable(needed)} (limit "
                f"{readable(sizes().joint)}). Predict fewer inputs together."
            )
        means.append(outputs)
        features.append(given)
        solved.append(posterior.whitened(posterior.subset.with_inputs(given)).flatten(0, 1))
    mean, rows = torch.cat(means), torch.cat(solved)
    prior = torch.cat(
        [torch.cat([kernel(one, other).flatten(2).flatten(0, 1) for other in features], 1) for one in features]
    )
    return JointPrediction(mean, (prior - rows @ rows.mT).to(mean.dtype))
