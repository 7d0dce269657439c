"""Posterior draws without any structure of the covariance, and how far a structured posterior is from them."""

from whence.posteriors.unstructured.gap import Gap
from whence.posteriors.unstructured.posterior import Unstructured

__all__ = ["Gap", "Unstructured"]
