"""The posterior of the profile, if the prior that was tuned for predictions is too strong for one."""

from __future__ import annotations

import warnings

from whence.engine.batches import Inputs
from whence.errors import Notice, WhenceError
from whence.numerals import percent
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import Relative
from whence.where.one_pass import shares
from whence.where.shares import Shares

LEAST = 0.1  # share of the prior variance that the data must explain for a profile


def profiled_posterior(posterior: Laplace, found: Shares, some: Inputs) -> tuple[Laplace, str]:
    """The posterior to profile, and a sentence if it is not the one that predicts, whose shares were ``found``.

    Tuning may choose a prior so strong that all shares are those of the prior. Then the prior that the evidence prefers
    is used, if it explains more of ``some`` inputs.
    """
    if _explained(found) >= LEAST:
        return posterior, ""
    other = weaker_posterior(posterior)
    if _explained(shares(other, some)) < LEAST:
        return posterior, (
            f"The prior is so strong that training explains less than {percent(LEAST)} of the variance, so shares are "
            "those of the prior."
        )
    was, now = (p.prior.describe() for p in (posterior, other))
    return other, (
        f"Under the prior that was tuned for predictions ({was}) training explains less than {percent(LEAST)} of the "
        f"variance. The profile therefore uses the prior that the evidence prefers ({now})."
    )


def weaker_posterior(posterior: Laplace) -> Laplace:
    """The posterior under the prior that the evidence prefers, or under the default one."""
    plain = posterior.with_data_scale(1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # it is not used for prediction
            return plain.tune()
    except WhenceError:
        return plain.with_prior(Relative() if isinstance(posterior.prior_precision, Relative) else 1.0)


def _explained(found: Shares) -> float:
    return 1 - float(found.variance.sum() / found.prior.sum())
