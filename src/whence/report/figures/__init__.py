"""One function per figure. They draw tables and records, and compute only the layout."""

from whence.report.figures.comparison import (
    compare_agreement,
    compare_layers,
    compare_metrics,
    compare_rejection,
    compare_reliability,
    compare_uncertainty,
)
from whence.report.figures.curves import (
    entropies,
    pruning,
    reliability,
    risk_coverage,
    robustness,
    slices,
    spectrum,
    track,
    variational,
)
from whence.report.figures.film import film
from whence.report.figures.inputs import attribution
from whence.report.figures.layers import activations, classes, compare_shares, distributions, sensitivity, shares
from whence.report.figures.network import feature_maps, network
from whence.report.figures.weights import curvature, magnitude, units, weight_maps

__all__ = [
    "activations",
    "attribution",
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
    "feature_maps",
    "film",
    "magnitude",
    "network",
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
    "variational",
    "weight_maps",
]
