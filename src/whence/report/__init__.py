"""What whence found, for people to look at: figures. They need ``whence[report]``."""

from whence.report.figures.curves import pruning, slices, spectrum, track
from whence.report.figures.layers import activations, compare_shares, distributions, sensitivity, shares
from whence.report.figures.maps import classes, curvature
from whence.report.figures.scores import entropies, reliability, risk_coverage
from whence.report.figures.weights import magnitude, units, weight_maps

__all__ = [
    "activations",
    "classes",
    "compare_shares",
    "curvature",
    "distributions",
    "entropies",
    "magnitude",
    "pruning",
    "reliability",
    "risk_coverage",
    "sensitivity",
    "shares",
    "slices",
    "spectrum",
    "track",
    "units",
    "weight_maps",
]
