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
    from whence.auditing import Audit, audit
    from whence.where.compact import compact
    from whence.where.detectors import compare_detectors, detectors
    from whence.where.novelty import Novelty, novelty
    from whence.where.prune import prune
    from whence.where.prune_curve import PruneCurve, prune_curve
    from whence.where.reference import Reference, reference_of
    from whence.where.track import Track, track

__all__ = [
    "Audit",
    "Bernoulli",
    "Categorical",
    "Custom",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Likelihood",
    "Novelty",
    "Poisson",
    "Posterior",
    "Prior",
    "PruneCurve",
    "Reference",
    "Track",
    "WeightPosterior",
    "__version__",
    "audit",
    "compact",
    "compare_detectors",
    "detectors",
    "errors",
    "laplace",
    "load",
    "merge",
    "metrics",
    "novelty",
    "prune",
    "prune_curve",
    "reference_of",
    "subnetwork",
    "track",
    "zoo",
]


_LATER = {
    "Audit": "auditing",
    "audit": "auditing",
    "Novelty": "where.novelty",
    "Reference": "where.reference",
    "compare_detectors": "where.detectors",
    "detectors": "where.detectors",
    "novelty": "where.novelty",
    "reference_of": "where.reference",
    "PruneCurve": "where.prune_curve",
    "Track": "where.track",
    "compact": "where.compact",
    "prune": "where.prune",
    "prune_curve": "where.prune_curve",
    "track": "where.track",
}


def __getattr__(name: str) -> Any:
    """Rooms that are entered only when asked for."""
    if name in ("auditing", "metrics", "zoo"):
        return importlib.import_module(f"whence.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"whence.{_LATER[name]}"), name)
    raise AttributeError(f"module 'whence' has no attribute {name!r}")
