"""Gaussian priors: given precisions, and precisions relative to the signal in the network."""

from whence.priors.precision import BlockPrior, ByParameter, Prior, PriorPrecision
from whence.priors.relative import RELATIVE, Relative, RelativePrecision
from whence.priors.resolve import check_prior, resolve_prior

__all__ = [
    "RELATIVE",
    "BlockPrior",
    "ByParameter",
    "Prior",
    "PriorPrecision",
    "Relative",
    "RelativePrecision",
    "check_prior",
    "resolve_prior",
]
