"""Positive-definite structures. Nothing here knows of networks."""
