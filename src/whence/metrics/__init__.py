"""Metrics of predictions, each with an interval.

Every metric returns an :class:`Estimate`: a float with ``low`` and ``high``. Keywords of all of them:

- ``mask``: True for elements to score; in the shape of the targets, or one per example;
- ``weights``: a non-negative weight per element;
- ``groups``: integers; elements of one group are resampled together. Default: one group per example;
- ``resamples=1000`` bootstrap resamples (0: no interval), ``level=0.95``, ``seed=0``.

Metrics of class labels also take:

- ``class_weights``: C numbers; the weight of an element is multiplied by that of its true class;
- ``ignore_index=-100``: targets that are not scored;
- ``class_dim=1``: the dimension of the classes in a tensor of probabilities.
"""

from whence.metrics.calibration import Reliability, classwise_ece, ece, mce, reliability
from whence.metrics.classification import accuracy, brier
from whence.metrics.conformal import Conformal, conformal
from whence.metrics.detection import aupr, auroc, auroc_difference, detection, fpr95
from whence.metrics.distance import Distance, distance, total_variation, wasserstein
from whence.metrics.evaluate import Scores, evaluate, nll
from whence.metrics.intervals import Estimate
from whence.metrics.pit import pit
from whence.metrics.r_squared import r2
from whence.metrics.regression import coverage, crps, interval_score, mae, rmse, width
from whence.metrics.selective import Deferral, RiskCoverage, aurc, defer, risk_coverage, selective_accuracy

__all__ = [
    "Conformal",
    "Deferral",
    "Distance",
    "Estimate",
    "Reliability",
    "RiskCoverage",
    "Scores",
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "auroc_difference",
    "brier",
    "classwise_ece",
    "conformal",
    "coverage",
    "crps",
    "defer",
    "detection",
    "distance",
    "ece",
    "evaluate",
    "fpr95",
    "interval_score",
    "mae",
    "mce",
    "nll",
    "pit",
    "r2",
    "reliability",
    "risk_coverage",
    "rmse",
    "selective_accuracy",
    "total_variation",
    "wasserstein",
    "width",
]
