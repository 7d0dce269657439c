"""Prior precision and data scale, chosen by validation data or by the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from whence.engine.batches import Data, Inputs, opened, size_of, take
from whence.engine.contexts import full_precision
from whence.engine.memory import remembered
from whence.errors import BadOption, notice, one_of
from whence.likelihoods import Gaussian
from whence.linalg.gaussian import Damping
from whence.posteriors.laplace.description import Trial, Tuning
from whence.posteriors.laplace.drawn_losses import DRAWS, NODES
from whence.posteriors.laplace.evidence import best_dense, best_noise, best_precision, log_evidence
from whence.posteriors.laplace.joint_evidence import is_dense
from whence.posteriors.laplace.same_data import Overlap
from whence.posteriors.laplace.search import ScaleSearch, Search, level
from whence.predictive.collected import CollectedPredictions
from whence.predictive.dispatch import Method, predict
from whence.predictive.linearised_draws import Choice, Probes, check_probes, directions_for, pairs_for
from whence.predictive.predictions import Prediction

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

LOOKED_AT = 64  # training examples on which an untuned posterior is checked
LESS = 0.01  # confidence below accuracy by less than this is ignored
ROUNDS = 300  # alternations of prior and noise
ABOVE = 4.0  # times the training residuals, beyond which a noise chosen by the evidence is doubted
PRIORS = 50  # prior precisions that a search on validation data tries, about
ScaleChoice = bool | Literal["auto"]


@dataclass(frozen=True)
class Tuned:
    """A tuned posterior, and the search that found it; None if the evidence did."""

    posterior: Laplace
    search: Search | None = None

    def prediction(self, inputs: Inputs) -> Prediction | None:
        """The linearised prediction of all validation inputs, if the search kept what it needs."""
        if self.search is None or self.search.drawn is not None:
            return None
        if directions_for(self.posterior, inputs, Probes.AUTO, None) is not None:
            return None
        with full_precision():
            found = self.search.validation.moments(self.posterior)
            if found is None:
                return None
            collected = CollectedPredictions(self.posterior, inputs)
            for moments in found:
                collected.add(moments)
            return collected.prediction()


@full_precision()
@torch.inference_mode(False)
def tuned_by(
    posterior: Laplace,
    data: Any,
    per_layer: bool = False,
    method: str = "linearised",
    data_scale: ScaleChoice = "auto",
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
    reference: bool = True,
    probes: Any = "auto",
) -> Tuned:
    """See :meth:`whence.posteriors.laplace.posterior.Laplace.tune`."""
    chosen = Method.parse(method, "method")
    if not isinstance(data_scale, bool):
        one_of(data_scale, ("auto",), "data_scale (True, False or 'auto')")
    columns = check_probes(probes)
    if data is None:
        drawn = num_samples is not None or generator is not None or columns is not Probes.AUTO
        if chosen is not Method.LINEARISED or drawn:
            raise BadOption(
                "without validation data the evidence is maximised, which draws nothing: method, num_samples, probes "
                "and generator do not apply. Pass validation data, or omit them."
            )
        if data_scale is True:
            raise BadOption("the evidence cannot choose the data scale; pass validation data, or omit data_scale.")
        return Tuned(_by_evidence(posterior, per_layer))
    network, data = posterior.network, opened(data, "validation")
    loader = network.read(data, "validation")
    loader.require_passes(2, "tuning")
    directions = _directions(posterior, loader, chosen, columns, num_samples)
    overlap = Overlap(posterior)
    overlap.watch(loader)
    search = Search(posterior, loader, chosen, ScaleSearch(data_scale), directions, num_samples, generator, progress)
    tuned = search.run(per_layer)
    overlap.say()
    if not reference:
        return Tuned(tuned, search)
    from whence.where.novelty import with_reference

    return Tuned(with_reference(tuned, data, search.validation.traces), search)


def _directions(
    posterior: Laplace, data: Data, method: Method, probes: Probes | int, num_samples: int | None
) -> int | None:
    """Number of directions of the linearised network; None if all outputs are differentiated, or weights drawn."""
    if method is not Method.LINEARISED:
        if probes is not Probes.AUTO:
            raise BadOption(f"probes={probes!r} is for the linearised predictive; for weight draws pass num_samples.")
        return None
    wanted = DRAWS // 2 if num_samples is None else pairs_for(num_samples)
    choice, batches = Choice(posterior, wanted, "tune()", NODES, PRIORS), data.length()
    asked = choice.asked(probes, num_samples)
    if asked is not None or probes is Probes.EXACT or choice.few or not batches:
        return asked
    first = next(iter(data)).inputs
    return choice.by_cost(first, size_of(first) * batches)


def _by_evidence(posterior: Laplace, per_layer: bool) -> Laplace:
    """Maximise the evidence over the prior, and over the noise of a Gaussian likelihood."""
    if posterior.damping is Damping.FACTORED:
        raise BadOption("the evidence is not defined for damping='factored'; pass validation data to tune().")
    trials = []
    noisy = isinstance(posterior.likelihood, Gaussian) and posterior.likelihood.noise.dim() == 0
    tuned = best = posterior
    last = top = float(log_evidence(posterior))
    together = per_layer and is_dense(posterior)
    for _ in range(ROUNDS if noisy and not together else 1):
        tuned = best_dense(tuned, noisy) if together else best_precision(tuned, per_layer)
        if noisy and not together:
            tuned = best_noise(tuned)
        score = float(log_evidence(tuned))
        trials.append(Trial(_mean_factor(tuned, posterior), tuned.data_scale, -score))
        best, top = (tuned, score) if score >= top else (best, top)
        if abs(score - last) < 1e-9 * (abs(score) + 1):
            break
        last = score
    tuned = replace(best, tuning=Tuning("evidence", trials, top))
    _warn_if_harmful(tuned)
    if noisy:
        _warn_if_noise_is_unknown(tuned)
    return tuned


def _mean_factor(tuned: Laplace, start: Laplace) -> float:
    """Geometric mean of the change of precision."""
    return math.exp(level(tuned) - level(start))


def _warn_if_harmful(posterior: Laplace) -> None:
    """Give a notice if the prior chosen by the evidence makes the network underconfident."""
    found = underconfident(posterior)
    if found:
        notice(
            f"the prior that the evidence chose makes the network underconfident: {found}. Tune on validation data "
            "instead: posterior.tune(validation_data)."
        )


def _warn_if_noise_is_unknown(posterior: Laplace) -> None:
    """Give a notice if the curvature counts nearly as many effective parameters as there are targets.

    At the maximum of the evidence σ² = SSE / (n − γ), so γ near n gives a noise far above the residuals.
    """
    record, likelihood = posterior.record, posterior.likelihood
    residual = math.sqrt(record.squares / max(record.targets, 1))
    if not isinstance(likelihood, Gaussian) or float(likelihood.noise) <= ABOVE * residual or residual == 0:
        return
    noise = float(likelihood.noise)
    gamma = sum(float(g.effective_parameters()) for g, _ in posterior.gaussians())
    notice(
        f"the evidence chose the noise {noise:.3g}, {noise / residual:.0f} times the training residuals, because this "
        f"curvature counts {gamma:,.0f} effective parameters for {record.targets:,.0f} targets. Tune on validation "
        "data instead: posterior.tune(validation_data); or use structure='full', or posterior.function_space(data), "
        "which cannot count more than there are."
    )


def say_if_untuned(posterior: Laplace) -> None:
    """Warn before a prediction with an isotropic prior that was never tuned and makes the network underconfident."""
    if why := untuned(posterior):
        notice(
            f"this posterior is not tuned, and its prior precision {posterior.prior.describe()} makes the network "
            f"underconfident: {why}. Call .tune(validation_data), or use the default prior, whence.Relative(), which "
            "depends less on tuning."
        )


@remembered
def untuned(posterior: Laplace) -> str:
    """Why predictions with an untuned isotropic prior are poor; empty if they are not."""
    isotropic = posterior.tuning is None and posterior.prior.number is not None
    return underconfident(posterior, LOOKED_AT) if isotropic else ""


def underconfident(posterior: Laplace, examples: int | None = None) -> str:
    """Confidence below accuracy on training data, in words; empty if it is not, or if this is unknown."""
    accuracy = posterior.record.accuracy
    if accuracy is None or posterior.probe is None or len(posterior.record.output_shape) != 1:
        return ""
    inputs = posterior.probe[0] if examples is None else take(posterior.probe[0], slice(0, examples))
    prediction: Any = predict(posterior, inputs, "linearised", "mc", None, None, False)
    confidence = float(prediction.confidence.mean())
    if confidence >= accuracy - LESS:
        return ""
    return f"mean confidence {confidence:.1%} on training data that it classifies with {accuracy:.1%} accuracy"
