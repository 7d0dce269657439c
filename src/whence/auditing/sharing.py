"""Which posterior the profile is of: the tuned one, unless its prior drowns what the data say."""

from __future__ import annotations

import warnings
from typing import Any

from whence.errors import Notice, WhenceError
from whence.priors import Relative
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
        other = posterior.with_data_scale(1.0).with_prior(_one(posterior))
    if _explained(other, inputs) < LEAST:
        return posterior, (
            f"The prior is so strong that the data explain less than {LEAST:.0%} of the variance: shares repeat those "
            "of the prior."
        )
    was, now = (p.prior.describe() for p in (posterior, other))
    return other, (
        f"Predictions are best under a prior so strong (precision {was}) that the data explain less than {LEAST:.0%} "
        f"of its variance. The profile uses the prior that the evidence prefers (precision {now})."
    )


def _explained(posterior: Any, inputs: Any) -> float:
    found = shares(posterior, inputs)
    return 1 - float(found.variance.sum() / found.prior.sum())


def _one(posterior: Any) -> float | Relative:
    """A precision of 1, of the same kind of prior."""
    return Relative() if isinstance(posterior.prior_precision, Relative) else 1.0
