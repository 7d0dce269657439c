"""SWAG: a Gaussian fitted to the iterates of stochastic gradient descent (Maddox et al. 2019)."""

from whence.posteriors.swag.fit import SwagCollector, swag
from whence.posteriors.swag.posterior import Swag

__all__ = ["Swag", "SwagCollector", "swag"]
