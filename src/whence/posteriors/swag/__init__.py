"""SWAG: a Gaussian from the way of stochastic gradient descent (Maddox et al. 2019)."""

from whence.posteriors.swag.collect import SwagCollector
from whence.posteriors.swag.fit import swag
from whence.posteriors.swag.posterior import Swag

__all__ = ["Swag", "SwagCollector", "swag"]
