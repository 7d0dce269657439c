"""What every posterior can be asked, whatever it was inferred by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.predictive.predictions import JointPrediction, Prediction


class Posterior(ABC):
    """A distribution over functions; nothing that is asked of it changes it."""

    likelihood: Likelihood

    @abstractmethod
    def predict(
        self,
        x: Any,
        *,
        method: Any = None,
        link: Any = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction | JointPrediction:
        """The prediction for inputs or a loader; what a posterior cannot answer is refused with ``NotDefined``."""

    @abstractmethod
    def where(self, x: Any = None, *, measure: Any = "variance") -> Any:
        """Where in the network the uncertainty is, as far as that has a meaning for this posterior."""

    @abstractmethod
    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> Sequence[Callable[[Any], Tensor]]:
        """Functions x → raw outputs."""

    @abstractmethod
    def as_module(self, num_samples: int = 20, generator: torch.Generator | None = None) -> nn.Module:
        """An ``nn.Module`` for serving."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write it to one safetensors file."""

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> Posterior:
        """A copy on another device or in another floating-point type."""


class WeightPosterior(Posterior):
    """A posterior over weights."""

    network: Network  # the snapshot that it was made of

    @abstractmethod
    def names(self) -> list[str]:
        """Bayesian parameters in the network's order."""

    @abstractmethod
    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameter name → draws [S, *shape]."""

    @abstractmethod
    def mean(self) -> dict[str, Tensor]:
        """Parameter name → mean."""

    @abstractmethod
    def variance(self) -> dict[str, Tensor]:
        """Parameter name → marginal variance."""

    def prior_variance(self) -> dict[str, Tensor]:
        """Parameter name → variance under the prior; refused where there is no Gaussian prior."""
        raise NotDefined(f"a {type(self).__name__} has no Gaussian prior over its weights.")

    @abstractmethod
    def covariance(self) -> Tensor:
        """Dense, in the order of ``torch.nn.utils.parameters_to_vector``."""
