"""One function for each picture. They draw what they are given; nothing is computed beyond the layout."""

from whence.report.figures.attacked import robustness
from whence.report.figures.compared import (
    compare_agreement,
    compare_layers,
    compare_metrics,
    compare_rejection,
    compare_reliability,
    compare_uncertainty,
)
from whence.report.figures.curves import pruning, slices, spectrum, track
from whence.report.figures.layers import activations, compare_shares, distributions, sensitivity, shares
from whence.report.figures.maps import classes, curvature
from whence.report.figures.scores import entropies, reliability, risk_coverage
from whence.report.figures.weights import magnitude, units, weight_maps

__all__ = [
    "activations",
    "classes",
    "compare_agreement",
    "compare_layers",
    "compare_metrics",
    "compare_rejection",
    "compare_reliability",
    "compare_shares",
    "compare_uncertainty",
    "curvature",
    "distributions",
    "entropies",
    "magnitude",
    "pruning",
    "reliability",
    "risk_coverage",
    "robustness",
    "sensitivity",
    "shares",
    "slices",
    "spectrum",
    "track",
    "units",
    "weight_maps",
]
