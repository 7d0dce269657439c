"""Positive-definite structures. This package is independent of networks."""
