"""What the linearised predictive asks of a posterior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from whence.engine.options import Execution
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.linalg.gaussian import BlockGaussian
from whence.recording.blocks import Block
from whence.recording.plan import Plan


class GaussianWeights(Protocol):
    """Σ = ⊕ Σ_b + C Cᵀ at the weights of a network."""

    @property
    def plan(self) -> Plan: ...
    @property
    def network(self) -> Network: ...
    @property
    def likelihood(self) -> Likelihood: ...
    @property
    def blocks(self) -> Sequence[Block]: ...
    @property
    def parameters(self) -> int: ...
    @property
    def output_shape(self) -> tuple[int, ...]: ...

    @property
    def joint(self) -> bool:
        """Whether all blocks share one Gaussian."""

    @property
    def keep(self) -> Tensor | None:
        """Positions of the weights inside a mask."""

    @property
    def execution(self) -> Execution: ...

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """Cᵀ by parameter, [R, *shape]; empty if there is no such part."""

    @property
    def default_method(self) -> Literal["linearised", "sampled"]: ...

    def gaussians(self) -> Iterator[tuple[BlockGaussian, Sequence[Block]]]:
        """Σ_b of each block; of all blocks together where they are joint."""

    def deviations(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draws minus the mean, by parameter, [S, *shape]."""
