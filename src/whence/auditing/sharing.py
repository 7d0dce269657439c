"""Which posterior the profile is of: the tuned one, unless its prior drowns what the data say."""

from __future__ import annotations

import warnings
from typing import Any

from whence.errors import Notice, WhenceError
from whence.where.shares import shares

TRIED = 200  # inputs that decide
LEAST = 0.1  # of the prior's variance that the data must explain


def profile_posterior(posterior: Any, inputs: Any) -> tuple[Any, str]:
    """The posterior, and a sentence where it is not the one that predicts.

    Tuning is for prediction, and may choose a prior so strong that all shares repeat it. Then the one that the
    evidence prefers is taken.
    """
    if _explained(posterior, inputs) >= LEAST:
        return posterior, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # it is not used for prediction
            other = posterior.with_data_scale(1.0).tune()
    except WhenceError:
        other = posterior.with_prior(1.0)
    if _explained(other, inputs) < LEAST:
        return posterior, (
            f"The prior is so strong that the data explain less than {LEAST:.0%} of the variance: shares repeat those "
            "of the prior."
        )
    was, now = (_shown(p.prior_precision) for p in (posterior, other))
    return other, (
        f"Predictions are best with a prior so strong ({was}) that the data explain less than {LEAST:.0%} of the "
        f"variance it leaves; the profile is drawn under the one that the evidence prefers ({now})."
    )


def _explained(posterior: Any, inputs: Any) -> float:
    found = shares(posterior, inputs)
    return 1 - float(found.variance.sum() / found.prior.sum())


def _shown(precision: Any) -> str:
    return f"precision {precision:.3g}" if isinstance(precision, float) else "one for each layer"
