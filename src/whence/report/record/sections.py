"""The sections of an audit about the inside of the network and single inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from whence.report.record.common import (
    Count,
    Estimate,
    Grid,
    Label,
    LayerName,
    Nested,
    Number,
    Numbers,
    Sentence,
    Sentences,
    SetName,
)
from whence.report.record.dense import DenseMaps, Token


@dataclass(frozen=True)
class Shares:
    """A layer's share of the predictive variance; ``share_low`` and ``share_high`` are its extremes with
    the prior precision divided by ten, unchanged, and times ten (test data). ``share_error`` is the standard error of
    a share that is estimated, by random directions of the outputs or by draws."""

    variance_share: Number
    prior_share: Number
    explained: Number
    share_low: float | None = None
    share_high: float | None = None
    share_error: float | None = None
    explained_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A row of the layer table."""

    name: LayerName
    kind: str
    parameters: int | None
    std: Number
    identified: Number
    identified_q05: Number
    identified_q50: Number
    identified_q95: Number
    effective_parameters: Number
    signal_to_noise: Number
    curvature: float | None = None
    relative_curvature: float | None = None
    disagreement: Number
    structure: str
    test: Shares | None
    ood: Shares | None


@dataclass(frozen=True)
class Node:
    """A part of the network in the profile."""

    id: str
    parent: str | None
    level: Literal["network", "layer", "unit", "group"]
    label: Label
    weights: Count
    layer: LayerName | None
    unit: int | None

    @property
    def is_layer(self) -> bool:
        return self.level == "layer"

    @property
    def is_unit(self) -> bool:
        return self.level == "unit"


@dataclass(frozen=True)
class View:
    """Shares for some inputs, one per node; those of children sum to their parent's."""

    key: str
    kind: Literal["set", "difference", "prior", "class", "input"]
    label: str
    inputs: Count
    variance: Number
    share: Numbers
    prior_share: Numbers
    explained: Numbers

    @property
    def is_novel(self) -> bool:
        """Whether it is of the out-of-distribution inputs."""
        return self.kind == "set" and self.key == "ood"


@dataclass(frozen=True)
class NegativeShare:
    """A node whose share in a view is below zero."""

    id: str
    view: str
    share: Number


@dataclass(frozen=True)
class Profile:
    """Where the predictive variance comes from; in ``nodes`` parents come before children."""

    measure: Literal["variance"]
    note: Sentence
    prior_precision: Number
    residual: Number
    nodes: tuple[Node, ...]
    views: tuple[View, ...]
    negative: tuple[NegativeShare, ...]
    words: Sentences
    prior: str | None = None
    outputs: int | None = None  # of one input, over which variances are summed
    columns: int | None = None  # random directions of the outputs of an input that stand in for all of them


@dataclass(frozen=True)
class Sensitivity:
    """A layer's share with the prior precision multiplied by a factor."""

    factor: Number
    name: LayerName
    variance_share: Number
    explained: Number


@dataclass(frozen=True)
class Tile:
    """Weights at their positions, of one unit or of all."""

    label: str
    unit: int | None
    weight: Grid
    std: Grid
    identified: Grid


@dataclass(frozen=True)
class WeightMap:
    """Maps of a layer's weights."""

    layer: LayerName
    parameter: Label
    kind: Literal["pixels", "filters", "matrix"]
    height: Count
    width: Count
    note: Sentence
    tiles: tuple[Tile, ...]
    magnitudes: bool | None = None  # whether "weight" holds mean magnitudes of neighbours


class Probability(NamedTuple):
    """Probability of one class."""

    name: str
    value: Number


class Feature(NamedTuple):
    """Value of one column of a table."""

    name: str
    value: Number


class LayerShare(NamedTuple):
    """A layer's share of one input's variance."""

    name: LayerName
    share: Number


@dataclass(frozen=True)
class PredictedNumber:
    """Mean and standard deviation of one output."""

    mean: Number
    std: Number


@dataclass(frozen=True, kw_only=True)
class ShownInput:
    """One of the most uncertain inputs; ``view`` is its key in the profile."""

    set: SetName
    index: Count
    view: str | None
    predicted: str | None
    target: str | None
    correct: bool | None
    uncertainty: Number
    aleatoric: Number
    epistemic: Number
    confidence: Number
    p_value: Number
    probs: tuple[Probability, ...] | None
    prediction: PredictedNumber | None
    pixels: tuple[Any, ...] | None
    row: tuple[Feature, ...] | None
    layers: tuple[LayerShare, ...]
    words: Sentence
    maps: DenseMaps | None = None
    tokens: tuple[Token, ...] | None = None
    more_tokens: int | None = None  # that are not shown
    combined_p_value: Number = None  # of novelty, by the combination of detectors; ``p_value`` is by layer


@dataclass(frozen=True)
class LayerQuantiles:
    """Quantiles of the unexplained fraction in a layer over a set, and the share of inputs that is flagged."""

    name: LayerName
    q05: Number
    q25: Number
    q50: Number
    q75: Number
    q95: Number
    flagged: Number


@dataclass(frozen=True)
class Histogram:
    """Number of values between two edges; ``low`` and ``high`` are the ends of the shares that chance allows."""

    edges: Numbers
    counts: tuple[Count, ...]
    low: Number = None
    high: Number = None


@dataclass(frozen=True)
class NoveltyOfSet:
    """Novelty of the inputs of a set, by layer and overall."""

    key: Literal["reference", "test", "ood"]
    label: str
    inputs: Count
    flagged: Number
    layers: tuple[LayerQuantiles, ...]
    p_values: Histogram | None
    flagged_with_entropy: Number = None  # by novelty and the plain network's entropy together
    flagged_combined: Number = None  # by all detectors together


@dataclass(frozen=True)
class Detector:
    """How well a score separates test inputs from out-of-distribution inputs."""

    name: str
    label: str
    auroc: Estimate
    fpr95: Estimate


@dataclass(frozen=True)
class DetectorChoice:
    """Which detector of novel inputs is recommended; with out-of-distribution data, how it compares with others."""

    recommended: str | None  # its name: the usual one, or the best on these inputs if better beyond chance; or none
    label: str
    usual: str  # what is recommended where nothing is known about novel inputs
    words: Sentences
    limits: Sentences
    best: str | None = None  # the largest AUROC on the out-of-distribution data
    lead: Estimate | None = None  # its AUROC minus that of the next one, paired
    best_other: str | None = None  # the best that does not use novelty by layer
    difference: Estimate | None = None  # AUROC of the usual detector minus that of ``best_other``, paired
    outcome: Literal["better", "worse", "tied"] | None = None  # what the interval of the difference says

    @property
    def is_beaten(self) -> bool:
        """Whether a detector without novelty by layer is better than the usual one, beyond chance."""
        return self.outcome == "worse"


@dataclass(frozen=True)
class Novelty:
    """Novelty of inputs relative to the training data."""

    reference: Count
    names: tuple[LayerName, ...]
    level: Number
    sets: tuple[NoveltyOfSet, ...]
    detectors: tuple[Detector, ...] | None
    words: Sentences
    choice: DetectorChoice | None = None

    @property
    def expected(self) -> float:
        """The share of inputs like the reference that is flagged: p-values are multiples of 1 / (reference + 1)."""
        possible = self.reference + 1
        return math.floor((self.level or 0.0) * possible + 1e-9) / possible


@dataclass(frozen=True)
class PrunedNetwork:
    """The network without some of its weights, and its scores on test data."""

    by: str
    fraction: Number
    sparsity: Number
    parameters: Count
    accuracy: Number
    rmse: Number
    nll: Number
    change: Number = None  # of the accuracy, the error or the log loss, with its 95% interval
    change_low: Number = None
    change_high: Number = None
    examples: int | None = None

    @property
    def estimate(self) -> Estimate | None:
        """The change with its interval."""
        if self.change is None:
            return None
        return Estimate(self.change, self.change_low, self.change_high, 0.95, self.examples or 0)


@dataclass(frozen=True)
class OneAnswer:
    """Always giving the most frequent class of the inputs on which pruned networks are scored."""

    name: str | None
    accuracy: Number


@dataclass(frozen=True)
class Pruning:
    """Performance as weights are pruned, by criterion."""

    rows: tuple[PrunedNetwork, ...]
    words: Sentences
    guess: OneAnswer | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to a question about a profile, in words and numbers."""

    question: Sentence
    words: Sentence
    numbers: Nested
