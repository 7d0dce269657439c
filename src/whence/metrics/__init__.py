"""Metrics of predictions, each with an interval.

Every metric returns an :class:`Estimate`: a float with ``low`` and ``high``. Keywords of all of them:

- ``mask``: True where an element counts; in the shape of the targets, or one for each example;
- ``weights``: a non-negative weight for each element;
- ``groups``: whole numbers; elements of one group are resampled together. Default: those of one example;
- ``resamples=1000`` of the bootstrap (0: no interval), ``level=0.95``, ``seed=0``.

Of metrics of labels also:

- ``class_weights``: C numbers; multiply the weight of an element by that of its true class;
- ``ignore_index=-100``: targets that do not count;
- ``class_dim=1``: where the classes lie in a tensor of probabilities.
"""

from whence.metrics.calibration import Reliability, classwise_ece, ece, mce, reliability
from whence.metrics.classification import accuracy, brier
from whence.metrics.deferral import Deferral, defer
from whence.metrics.detection import aupr, auroc, detection, fpr95
from whence.metrics.distance import Distance, distance, total_variation, wasserstein
from whence.metrics.estimate import Estimate
from whence.metrics.evaluate import Scores, evaluate
from whence.metrics.loss import nll
from whence.metrics.regression import coverage, crps, interval_score, mae, rmse, width
from whence.metrics.selective import RiskCoverage, aurc, risk_coverage, selective_accuracy

__all__ = [
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
    "brier",
    "classwise_ece",
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
    "reliability",
    "risk_coverage",
    "rmse",
    "selective_accuracy",
    "total_variation",
    "wasserstein",
    "width",
]
