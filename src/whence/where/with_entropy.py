"""Novelty and the entropy of the plain network as one score, for both kinds of novel inputs.

Layers see inputs that are made of other parts than the training data; entropy sees familiar parts that go together as
in no class. Each of the two becomes a p-value relative to the reference inputs, and the p-values become one score. That
score is compared with the reference inputs' own, each computed as if that input were not in the reference, so its
p-value is uniform on new in-distribution inputs, however the two depend on each other. reproductions/own/detectors
chose the rule, leaving out one novel set in turn.

Index legend: N inputs, n reference inputs, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.batches import bare
from whence.errors import BadOption
from whence.labels import argument_names
from whence.likelihoods import Likelihood
from whence.predictive.links import predict_draws
from whence.where.p_values import Combine, combined, p_value_among, unchanged

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

RULE = Combine.FISHER
BATCH = 256


@dataclass(frozen=True)
class WithEntropy:
    """Novelty and entropy of N inputs as one score."""

    score: Tensor  # [N], higher is more novel
    p_value: Tensor  # [N]
    entropy_p_value: Tensor  # [N], of the entropy alone
    size: int  # reference inputs

    def flag(self, level: float = 0.01) -> Tensor:
        """Whether each input is novel, bool [N]; a fraction ``level`` of new in-distribution inputs is flagged."""
        return flagged(self.p_value, level, self.size)


def flagged(p_value: Tensor, level: float, size: int) -> Tensor:
    """Whether p-values relative to ``size`` reference inputs are at most ``level``."""
    least = 1 / (size + 1)
    if not least <= level < 1:
        raise BadOption(
            f"level={level} is not in {least:.2g}..1: {size} reference inputs allow no smaller "
            "p-value. Use more of them, or a larger level."
        )
    return p_value <= level


def with_entropy(known: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], rule: Combine = RULE) -> WithEntropy:
    """From novelty and entropy of the reference inputs, [n] each, and of others, [N] each."""
    reference, values = (torch.stack(pair, 1).double() for pair in (known, found))  # [n, 2], [N, 2]
    score, p_value = combined(reference, values, rule, unchanged)
    return WithEntropy(score, p_value, p_value_among(known[1], found[1]), len(reference))


def plain_entropy(likelihood: Likelihood, outputs: Tensor | None) -> Tensor | None:
    """The entropy of the plain network's labels [N] from its outputs [N, C]; None for other predictions."""
    if outputs is None or outputs.dim() != 2 or not likelihood.has_labels:
        return None
    predicted: Any = predict_draws(likelihood, outputs.detach().double().cpu()[None])
    entropy: Tensor = predicted.entropy
    return entropy.reshape(len(outputs), -1).sum(1)


def entropy_of_inputs(posterior: Laplace, data: Any) -> Tensor | None:
    """The same of inputs, a loader or a pair, by a forward pass."""
    if not posterior.likelihood.has_labels or len(posterior.output_shape) != 1:
        return None
    network = posterior.network
    inputs = bare(data, argument_names(network.module))
    with torch.no_grad():
        parts = [network(piece) for piece in network.pieces(inputs, BATCH)]
    return plain_entropy(posterior.likelihood, torch.cat(parts))
