"""Checks of predicted numbers: coverage at several levels, the probability integral transform, predicted against true.

Index legend: N inputs, M values (inputs times outputs), K outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.auditing.calibration import apart, bias_words, distribution_words
from whence.auditing.context import Context, Kind
from whence.auditing.data import spaced
from whence.metrics import pit, rmse, width
from whence.metrics.conformal import held_share
from whence.metrics.elements import Elements, MetricOptions, elements
from whence.metrics.means import mean
from whence.metrics.pit import PitHistogram, pit_distance, pit_histogram
from whence.numerals import percent, with_interval
from whence.posteriors.laplace.more_data import noise_is_estimated
from whence.predictive.predictions import CountPrediction, RegressionPrediction
from whence.report.formatting import quantity
from whence.report.record.common import Estimate, PlainAndBayesian
from whence.report.record.numbers import LevelCoverage, Noise, NumberChecks, OutputChecks, PitCounts, SpreadBin

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
SHOWN = 4  # outputs
POINTS = 400  # of predicted against true
BINS = 10  # of the transform
GROUPS = 8  # of the predicted standard deviation
IN_GROUP = 20  # inputs, at least
EVEN = 0.01  # relative spread of the standard deviations below which they count as equal


def number_checks(context: Context, predictions: Mapping[Kind, Any], targets: Tensor) -> NumberChecks:
    """``predictions`` of the test inputs."""
    bayesian = predictions[Kind.BAYESIAN]
    y = targets.double().reshape(bayesian.mean.shape)
    members = elements(y.shape, MetricOptions(), torch.device("cpu"))
    values = {kind: pit(one, y, seed=context.seed).cpu() for kind, one in predictions.items()}
    histograms = {kind: pit_histogram(found, len(y), BINS) for kind, found in values.items()}
    coverage = tuple(_coverage(level, predictions, values, y, members) for level in LEVELS)
    columns = bayesian.mean.shape[1] if bayesian.mean.dim() == 2 else 1
    shown = min(columns, SHOWN)
    pit_counts = PitCounts(
        histograms[Kind.PLAIN].edges,
        PlainAndBayesian(histograms[Kind.PLAIN].counts, histograms[Kind.BAYESIAN].counts),
        histograms[Kind.BAYESIAN].low,
        histograms[Kind.BAYESIAN].high,
        _estimate(pit_distance(values[Kind.BAYESIAN], len(y))),
        float(values[Kind.BAYESIAN].mean()),
    )
    outputs = tuple(_output(context, bayesian, y, members, k, columns) for k in range(shown))
    found = NumberChecks(coverage, pit_counts, outputs, columns - shown, (), _noise(context, predictions))
    words = (*_noise_words(found.noise, context.outputs.unit), *_words(found, histograms[Kind.BAYESIAN]))
    return replace(found, words=words)


def _noise(context: Context, predictions: Mapping[Kind, Any]) -> Noise | None:
    """The noise behind each prediction; None if it differs between inputs, or if there are several outputs."""
    found = {kind: _constant_noise(one) for kind, one in predictions.items()}
    plain, bayesian = found[Kind.PLAIN], found[Kind.BAYESIAN]
    if plain is None or bayesian is None:
        return None
    posterior = context.posterior
    estimated = posterior.has_curvature and noise_is_estimated(posterior.as_laplace("the noise"))
    return Noise(plain, bayesian, found.get(Kind.RECALIBRATED), estimated)


def _constant_noise(prediction: Any) -> float | None:
    if not isinstance(prediction, RegressionPrediction) or prediction.mean[0].numel() != 1:
        return None
    noise = prediction.aleatoric.detach().double().cpu().sqrt()
    middle = float(noise.mean())
    return middle if float((noise - middle).abs().max()) <= 1e-4 * middle else None


def _noise_words(noise: Noise | None, unit: str | None) -> Iterator[str]:
    if noise is None:
        return
    source = ", the root mean square of the training residuals" if noise.estimated else ""
    both = quantity(noise.plain, unit) == quantity(noise.bayesian, unit)
    words = f"The noise of the plain network is {quantity(noise.plain, unit)}{source}"
    words = words.replace("plain network is", "plain and of the Bayesian network is") if both else words
    if noise.recalibrated is not None:
        again = f"that of the recalibrated network {quantity(noise.recalibrated, unit)}"
        words += f"; {again}, the root mean square of the validation residuals"
    if not both:
        words += f"; that of the Bayesian network {quantity(noise.bayesian, unit)}"
    yield (
        f"{words}. The Bayesian network adds the variance from its weights: the squares of both standard deviations "
        "add up."
    )


def _estimate(found: Any) -> Estimate:
    made = Estimate.of(found)
    assert made is not None
    return made


def _coverage(
    level: float, predictions: Mapping[Kind, Any], values: Mapping[Kind, Tensor], y: Tensor, members: Elements
) -> LevelCoverage:
    inside = {kind: _inside(one, values[kind], y, level) for kind, one in predictions.items()}
    found = {kind: _estimate(held_share("coverage", which, members)) for kind, which in inside.items()}
    strict = replace(members, options=replace(members.options, level=1 - 0.05 / len(LEVELS)))
    joint = _estimate(held_share("coverage", inside[Kind.BAYESIAN], strict))
    return LevelCoverage(level, found[Kind.PLAIN], found[Kind.BAYESIAN], found.get(Kind.RECALIBRATED), joint)


def _inside(prediction: Any, values: Tensor, y: Tensor, level: float) -> Tensor:
    """Whether the central interval holds the truth, [M]: that is, F(y) is not in its tails."""
    if isinstance(prediction, CountPrediction):  # F jumps at the ends
        low, high = (end.double().cpu() for end in prediction.interval(level))
        return ((low <= y) & (y <= high)).reshape(-1)
    return (values - 0.5).abs() <= level / 2


def _output(context: Context, prediction: Any, y: Tensor, members: Elements, k: int, columns: int) -> OutputChecks:
    """One output; all positions together if outputs are dense."""
    outputs = context.outputs
    centre, std = (
        value.detach().double().cpu() for value in (prediction.mean, prediction.variance.clamp(min=0).sqrt())
    )
    low, high = (end.double().cpu() for end in prediction.interval(0.95))
    if columns > 1:
        y, centre, std, low, high = (value[:, k : k + 1] for value in (y, centre, std, low, high))
        members = elements(y.shape, MetricOptions(), torch.device("cpu"))
    some = spaced(y.numel(), min(POINTS, y.numel()))
    inside = ((low <= y) & (y <= high)).reshape(-1)
    return OutputChecks(
        outputs.names[k],
        outputs.unit_of(k),
        tuple(centre.reshape(-1)[some].tolist()),
        tuple(y.reshape(-1)[some].tolist()),
        _estimate(rmse(centre, y, seed=context.seed)),
        _estimate(held_share("coverage", inside, members)),
        _estimate(width((low, high), y, seed=context.seed)),
        tuple(_spread(centre, std, y, context.seed)),
        _estimate(mean("bias", (centre - y).reshape(-1)[members.keep], members)),
    )


def _spread(centre: Tensor, std: Tensor, y: Tensor, seed: int) -> Iterator[SpreadBin]:
    """Errors by the predicted standard deviation, in groups of equal size; nothing if that hardly differs."""
    if centre.shape[1:].numel() > 1:
        return  # pixels and tokens would be ranked across inputs
    std, off = std.reshape(-1), (centre - y).reshape(-1)
    groups = min(GROUPS, len(std) // IN_GROUP)
    if groups < 2 or float(std.std()) <= EVEN * float(std.mean()):
        return
    for own in std.argsort(stable=True).tensor_split(groups):
        yield SpreadBin(float(std[own].square().mean().sqrt()), _estimate(rmse(off[own], 0 * off[own], seed=seed)))


def _words(found: NumberChecks, histogram: PitHistogram) -> Iterator[str]:
    off = [(apart(row.judged, row.level), row) for row in found.coverage]
    furthest, row = max(off, key=lambda pair: pair[0])
    if furthest > 0:
        share = row.bayesian
        yield (
            f"The Bayesian {percent(row.level)} prediction intervals contain {percent(share.value)} of {share.count:,} "
            f"true values, significantly {'more' if (share.value or 0.0) > row.level else 'fewer'} than "
            f"{percent(row.level)} (corrected for the number of levels)."
        )
    elif not histogram.outside:
        nearest = max(found.coverage, key=lambda row: abs((row.bayesian.value or 0.0) - row.level))
        most = nearest.judged
        yield (
            "All bars of the histogram of F(true value) are within the band that is expected by chance, and no level's "
            f"coverage is off significantly. The one that is off most is {percent(nearest.level)}: "
            f"{percent(most.value)} (simultaneous 95% confidence interval {percent(most.low)} to {percent(most.high)})."
        )
        if (far := found.pit.distance) is not None and far.value is not None and (far.low or 0.0) > 0:
            yield (
                "But the distribution of F(true value) as a whole differs significantly from the uniform one, by up to "
                f"{with_interval(far.value, far.low or 0.0, far.high or 0.0)}."
            )
    said = ""
    if histogram.outside:
        said = distribution_words(found)
        yield (
            f"{histogram.outside} of {len(histogram.counts)} bars of the histogram of F(true value) are outside the "
            "band that contains all bars of a correct predictive distribution with 95% probability. "
            f"{said[0].upper()}{said[1:]}"
        )
    for output in found.outputs:
        words = bias_words(output, output.name if len(found.outputs) > 1 else "")
        if words and words not in said:
            yield f"{words[0].upper()}{words[1:]}."
