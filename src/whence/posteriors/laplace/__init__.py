"""Laplace: a Gaussian at the trained weights, with precision s H + Δ."""

from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.more_data import merge
from whence.posteriors.laplace.posterior import Laplace

__all__ = ["Laplace", "laplace", "merge"]
