"""The Gaussian process that a linearised network is, given a subset of the training data."""

from whence.posteriors.function_space.posterior import FunctionSpace

__all__ = ["FunctionSpace"]
