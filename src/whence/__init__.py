"""whence: how uncertain is a trained network, and where in it does the uncertainty sit?"""

import importlib
from typing import TYPE_CHECKING, Any

from whence import errors
from whence._version import __version__
from whence.curvature.selection import subnetwork
from whence.io import load
from whence.likelihoods import (
    Bernoulli,
    Categorical,
    Custom,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)
from whence.posteriors.base import Posterior, WeightPosterior
from whence.posteriors.front import laplace
from whence.posteriors.laplace import Laplace
from whence.posteriors.more_data import merge
from whence.priors import Prior

if TYPE_CHECKING:
    from whence import metrics, zoo

__all__ = [
    "Bernoulli",
    "Categorical",
    "Custom",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Likelihood",
    "Poisson",
    "Posterior",
    "Prior",
    "WeightPosterior",
    "__version__",
    "errors",
    "laplace",
    "load",
    "merge",
    "metrics",
    "subnetwork",
    "zoo",
]


def __getattr__(name: str) -> Any:
    """Rooms that are entered only when asked for."""
    if name in ("metrics", "zoo"):
        return importlib.import_module(f"whence.{name}")
    raise AttributeError(f"module 'whence' has no attribute {name!r}")
