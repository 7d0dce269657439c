"""Posterior draws without a structured covariance, and the distance of a structured posterior from them."""

from whence.posteriors.unstructured.distance import StructureDistance
from whence.posteriors.unstructured.posterior import Unstructured

__all__ = ["StructureDistance", "Unstructured"]
