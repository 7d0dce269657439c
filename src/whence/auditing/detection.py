"""Which detector of novel inputs to use: measured where there is out-of-distribution data, recommended where not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.data import read_examples
from whence.auditing.detector_choice import BY_LAYER, compared, label_of, recommended
from whence.engine.batches import Inputs, take
from whence.errors import MissingExtra, NotDefined, notice
from whence.posteriors.laplace.posterior import Laplace
from whence.report.record.common import Estimate
from whence.report.record.sections import Detector, DetectorChoice
from whence.where.combined import PARTS, Combined, combine, known_scores
from whence.where.detectors import scores_of_novelty, table_of
from whence.where.novelty import Novelty, Reference, reference_of
from whence.where.novelty_prior import unexplained_by_layer
from whence.where.plain_detectors import PlainDetectors

TRAINED = 5_000  # training inputs for the other detectors
SAME = 16  # inputs by which a reference is recognised
Scores = dict[str, Tensor]  # by detector, [N] each


@dataclass(frozen=True)
class Detection:
    """What the section says about detectors."""

    rows: tuple[Detector, ...] | None
    choice: DetectorChoice
    flagged: Mapping[str, float] = field(default_factory=dict)  # by set, by the combination


def detection(context: Context, sets: Mapping[str, Novelty], level: float) -> Detection:
    """Scores of every detector for the profiled inputs; AUROCs and the winner where there is ``ood``."""
    scores = {name: _scores(context, name, found) for name, found in sets.items()}
    together = _with_plain(context, scores)
    flagged = {name: float(found.flag(level).double().mean()) for name, found in together.items()}
    usual = next(name for name in BY_LAYER if name in scores["test"])
    images, missing = _has_images(context), plain_of(context).why_not
    if "ood" not in scores:
        return Detection(None, recommended(usual, scores["test"], images, missing), flagged)
    table = table_of([scores["test"], scores["ood"]], context.seed)
    rows = [
        Detector(row.detector, label_of(row.detector), auroc, fpr95)
        for row in table.rows
        if (auroc := Estimate.of(row.auroc)) and (fpr95 := Estimate.of(row.fpr95))
    ]
    choice = compared(usual, rows, scores, images, context.rules.novelty_poor, missing)
    return Detection(tuple(rows), choice, flagged)


def _has_images(context: Context) -> bool:
    """Whether inputs are images, for which there are measurements."""
    inputs = context.need("test").inputs
    return isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.dim() >= 3


# Scores


def flag_level(size: int) -> float:
    """The p-value up to which an input is flagged: 1%, or the least that ``size`` reference inputs allow, rounded up to
    two digits."""
    least = 1 / (size + 1)
    scale = 10.0 ** (1 - math.floor(math.log10(least)))
    return max(0.01, math.ceil(least * scale) / scale)


def _scores(context: Context, name: str, found: Novelty) -> Scores:
    """What the posterior says about the profiled inputs of a set."""
    scores = scores_of_novelty(found)
    if context.posterior.likelihood.has_labels:
        index = context.profiled_index(name)
        parts = {"entropy": context.uncertainty(name), "mutual_information": context.epistemic(name)}
        scores |= {key: value[index] for key, value in parts.items() if value is not None}
    return scores | {"variance": context.total_variance(name)}


def _with_plain(context: Context, scores: Mapping[str, Scores]) -> dict[str, Combined]:
    """Add the detectors of the plain network to the scores of every set, and all detectors combined, which it returns.

    The combination needs the validation inputs, which other detectors score too.
    """
    plain = plain_of(context)
    for name, found in scores.items():
        found |= plain.scores(context.profiled[name].inputs)
    together = {name: plain.combined(found) for name, found in scores.items()}
    for name, both in together.items():
        if both is not None:
            scores[name]["combined"] = both.score
    return {name: both for name, both in together.items() if both is not None}


@dataclass(frozen=True)
class Plain:
    """The detectors of the plain network, and the scores of validation inputs by the parts of the combination."""

    detectors: PlainDetectors | None = None
    known: Scores | None = None
    why_not: str = ""  # there are no such detectors

    def scores(self, inputs: Inputs) -> Scores:
        return {} if self.detectors is None else self.detectors.scores(inputs)

    def combined(self, found: Mapping[str, Tensor]) -> Combined | None:
        """All detectors together, from the scores of some inputs; None with fewer than two."""
        if self.known is None or len([name for name in PARTS if name in self.known]) < 2:
            return None
        return combine(self.known, found)


def plain_of(context: Context) -> Plain:
    """Made once for all sections."""
    return context.once("plain detectors", lambda: _made(context))


def _made(context: Context) -> Plain:
    posterior = context.posterior.as_laplace("novelty")
    detectors = _plain(context, posterior)
    try:
        detectors.scores(take(context.profiled["test" if context.has("test") else "ood"].inputs, slice(0, 1)))
        return Plain(detectors, _known(context, posterior, detectors))
    except NotDefined as error:
        notice(f"the detectors of the plain network were skipped: {error}")
        return Plain(why_not=str(error))


def combined_p_values(context: Context, inputs: Inputs, found: Novelty) -> Tensor | None:
    """P-values of the combination of detectors for some inputs [N] whose novelty is known; None without it."""
    plain = plain_of(context)
    both = plain.combined({"novelty": found.score, **plain.scores(inputs)}) if plain.known else None
    return None if both is None else both.p_value


def _plain(context: Context, posterior: Laplace) -> PlainDetectors:
    """With training data, where that is possible."""
    train = None if context.train is None else read_examples(context.train, "train", TRAINED)
    try:
        return PlainDetectors(posterior, None if train is None or train.targets is None else train.pair)
    except MissingExtra as error:
        notice(f"the detectors that need training data were skipped: {error}")
    except NotDefined:  # scores() says why
        pass
    return PlainDetectors(posterior, None)


def _known(context: Context, posterior: Laplace, plain: PlainDetectors) -> Scores | None:
    """Scores of validation inputs, each relative to the others; None if there are no such inputs."""
    if not context.has("validation"):
        return None
    for examples in (context.need("validation"), context.profiled["validation"]):
        if _is_of(posterior, context.reference, examples.inputs, len(examples)):
            assert context.reference is not None
            return known_scores(context.reference, plain.scores(examples.inputs))
    inputs = context.profiled["validation"].inputs
    return known_scores(reference_of(posterior, inputs), plain.scores(inputs))


def _is_of(posterior: Laplace, reference: Reference | None, inputs: Any, count: int) -> bool:
    """Whether the reference was made from these inputs."""
    if reference is None or reference.size != count:
        return False
    few = min(SAME, count)
    some, precision = take(inputs, slice(0, few)), reference.precision_for(posterior)
    found, _ = unexplained_by_layer(posterior, some, precision, reference.probes or "exact")
    return torch.allclose(found, reference.unexplained[:few], rtol=1e-3, atol=1e-6)
