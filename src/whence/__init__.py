"""whence: how uncertain is a trained network, and where in it does the uncertainty sit?"""

import importlib
from typing import TYPE_CHECKING, Any

from whence import errors
from whence._version import __version__
from whence.engine.options import Execution
from whence.io import load
from whence.likelihoods import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from whence.posteriors.base import Posterior, WeightPosterior
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.more_data import merge
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import Prior, Relative
from whence.recording.selection import subnetwork

if TYPE_CHECKING:
    from whence import metrics, robustness, zoo
    from whence.auditing import Audit, Comparison, Diff, audit, compare, diff
    from whence.curvature.example_gradients import per_example_gradients
    from whence.extras.online_evidence import OnlineEvidence, online_evidence
    from whence.extras.pruning.compact import compact
    from whence.extras.pruning.curve import PruneCurve, prune_curve
    from whence.extras.pruning.masks import prune
    from whence.extras.tracking.track import Track, track
    from whence.posteriors.dropout import Dropout, dropout
    from whence.posteriors.ensembles import Ensemble, LaplaceEnsemble, ensemble, fit_ensemble, laplace_ensemble
    from whence.posteriors.function_space import FunctionSpace
    from whence.posteriors.hmc import Hmc, hmc
    from whence.posteriors.swag import Swag, SwagCollector, swag
    from whence.posteriors.unstructured import Unstructured
    from whence.posteriors.variational import ScaleMixture, Variational, VariationalModule, variational
    from whence.report.record.verdict import VerdictRules
    from whence.where.attribution import Attribution
    from whence.where.combined import combined_detector
    from whence.where.detectors import compare_detectors, detectors
    from whence.where.novelty import Novelty, Reference, novelty, reference_of

__all__ = [
    "Attribution",
    "Audit",
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Custom",
    "Diff",
    "Dropout",
    "Ensemble",
    "Execution",
    "FunctionSpace",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Hmc",
    "Laplace",
    "LaplaceEnsemble",
    "Likelihood",
    "Novelty",
    "OnlineEvidence",
    "Poisson",
    "Posterior",
    "Prior",
    "PruneCurve",
    "Reference",
    "Relative",
    "ScaleMixture",
    "Swag",
    "SwagCollector",
    "Track",
    "Unstructured",
    "Variational",
    "VariationalModule",
    "VerdictRules",
    "WeightPosterior",
    "__version__",
    "audit",
    "combined_detector",
    "compact",
    "compare",
    "compare_detectors",
    "detectors",
    "diff",
    "dropout",
    "ensemble",
    "errors",
    "fit_ensemble",
    "hmc",
    "laplace",
    "laplace_ensemble",
    "load",
    "merge",
    "metrics",
    "novelty",
    "online_evidence",
    "per_example_gradients",
    "prune",
    "prune_curve",
    "reference_of",
    "robustness",
    "subnetwork",
    "swag",
    "track",
    "variational",
    "zoo",
]


_LATER = {
    "Audit": "auditing",
    "Comparison": "auditing",
    "Diff": "auditing",
    "Dropout": "posteriors.dropout",
    "Ensemble": "posteriors.ensembles",
    "LaplaceEnsemble": "posteriors.ensembles",
    "Swag": "posteriors.swag",
    "SwagCollector": "posteriors.swag",
    "fit_ensemble": "posteriors.ensembles",
    "laplace_ensemble": "posteriors.ensembles",
    "FunctionSpace": "posteriors.function_space",
    "Hmc": "posteriors.hmc",
    "hmc": "posteriors.hmc",
    "swag": "posteriors.swag",
    "Unstructured": "posteriors.unstructured",
    "ScaleMixture": "posteriors.variational",
    "Variational": "posteriors.variational",
    "VariationalModule": "posteriors.variational",
    "VerdictRules": "report.record.verdict",
    "audit": "auditing",
    "compare": "auditing",
    "diff": "auditing",
    "dropout": "posteriors.dropout",
    "ensemble": "posteriors.ensembles",
    "per_example_gradients": "curvature.example_gradients",
    "variational": "posteriors.variational",
    "Attribution": "where.attribution",
    "Novelty": "where.novelty",
    "Reference": "where.novelty",
    "combined_detector": "where.combined",
    "compare_detectors": "where.detectors",
    "detectors": "where.detectors",
    "novelty": "where.novelty",
    "reference_of": "where.novelty",
    "OnlineEvidence": "extras.online_evidence",
    "online_evidence": "extras.online_evidence",
    "PruneCurve": "extras.pruning.curve",
    "Track": "extras.tracking.track",
    "compact": "extras.pruning.compact",
    "prune": "extras.pruning.masks",
    "prune_curve": "extras.pruning.curve",
    "track": "extras.tracking.track",
}


def __getattr__(name: str) -> Any:
    """Rooms that are entered only when asked for."""
    if name in ("auditing", "metrics", "robustness", "zoo"):
        return importlib.import_module(f"whence.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"whence.{_LATER[name]}"), name)
    raise AttributeError(f"module 'whence' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names alone."""
    return sorted(__all__)
