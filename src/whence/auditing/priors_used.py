"""Under which prior the results of an audit are: predictions, the profile and novelty may each have their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from whence.auditing.context import Context
from whence.numerals import percent
from whence.posteriors.laplace.posterior import Laplace
from whence.report.record.audit import PriorUsed
from whence.where.novelty_prior import LEFT, with_novelty_prior

PREDICTIONS = (
    "predictions and what is computed from them: uncertainty, the part from weights, calibration, deferral, prediction "
    "sets or intervals and, where they are on this page, attribution, pruning with its criteria, and detectors by the "
    "uncertainty of predictions"
)
PROFILE = (
    "profile, sensitivity to the prior, the table of the layers (with identified, effective parameters, signal to "
    "noise and standard deviations), weight maps, and the shares of single inputs"
)
NOVELTY = "novelty by layer, its p-values, and its part in the combination of detectors, where there is one"
TUNED = {
    "validation data": "tuned on the validation data",
    "evidence": "preferred by the evidence",
    "nothing": "as it was given, not tuned",
}


def priors_used(context: Context) -> Iterator[PriorUsed]:
    """One row for each prior; none for posteriors that are not Laplace approximations."""
    if not context.posterior.has_curvature:
        return
    posterior, profile = (p.as_laplace("the priors") for p in (context.posterior, context.profile_posterior))
    own = profile is not posterior
    results = PREDICTIONS if own else f"{PREDICTIONS}; {PROFILE}"
    yield _row("predictions", posterior, TUNED[posterior.summary().tuned_on], results)
    if own:
        yield _row("profile", profile, "preferred by the evidence", PROFILE)
    reference = context.reference if context.wants_shares else None
    if reference is not None:
        weak = with_novelty_prior(posterior, reference.precision_for(posterior))
        chosen = f"chosen for each layer so that {percent(LEFT)} of the training data’s curvature stays unexplained"
        yield _row("novelty", weak, chosen, NOVELTY)


def _row(of: Literal["predictions", "profile", "novelty"], posterior: Laplace, chosen: str, results: str) -> PriorUsed:
    return PriorUsed(of, posterior.prior.describe(), posterior.scale, chosen, results)
