"""The record of a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from whence.likelihoods import TaskKind
from whence.report.record.common import (
    Bins,
    Count,
    Estimate,
    Header,
    LayerName,
    LeftOut,
    Message,
    MetricName,
    Number,
    Numbers,
    RejectionCurve,
    Run,
    Sentence,
    Sentences,
    SetSize,
    TaskName,
)


@dataclass(frozen=True)
class ComparedData:
    """The sets behind a comparison."""

    test: SetSize
    ood: SetSize | None


@dataclass(frozen=True)
class Method:
    """A method. Time and peak memory are of one prediction of the test inputs."""

    name: str
    kind: str
    describe: str
    network: str | None
    parameters: Count
    seconds: Number
    memory: int | None
    draws: int | None


@dataclass(frozen=True)
class MetricOfMethods(MetricName):
    """A metric of every method: its value, whether no other is significantly better, and the paired difference
    from the first method."""

    values: tuple[Estimate | None, ...]
    best: tuple[bool, ...]
    difference: tuple[Estimate | None, ...]
    note: Sentence | None = None  # why a method is not marked as best

    @property
    def is_paired(self) -> bool:
        """Whether it is a mean over inputs, so that methods can be compared input by input."""
        return any(self.difference)


@dataclass(frozen=True)
class UncertaintyOfMethods:
    """The sorted uncertainties of every method."""

    name: str
    label: str
    test: tuple[Numbers, ...]
    ood: tuple[Numbers, ...] | None


@dataclass(frozen=True)
class LayersOfMethods:
    """One row for each method, one column for each layer. None if the method does not have it."""

    names: tuple[LayerName, ...]
    share: tuple[Numbers | None, ...]
    error: tuple[Numbers | None, ...]
    explained: tuple[Numbers | None, ...]
    interaction: Numbers
    activations: tuple[Numbers | None, ...]
    why_not: tuple[Message | None, ...]


@dataclass(frozen=True)
class Agreement:
    """Agreement of the layers' shares: rank correlation, and the share of the variance that would have to shift."""

    methods: tuple[str, ...]
    rho: tuple[Numbers, ...]
    total_variation: tuple[Numbers, ...]


@dataclass(frozen=True)
class Distance:
    """Distance of every method's predictions from the reference's."""

    reference: str
    total_variation: tuple[Estimate | None, ...]
    wasserstein: tuple[Estimate | None, ...]


@dataclass(frozen=True)
class Compared:
    """Several methods on the same data; tuples have one entry for each method."""

    task: TaskName
    classes: tuple[str, ...] | None
    data: ComparedData
    methods: tuple[Method, ...]
    metrics: tuple[MetricOfMethods, ...]
    reliability: tuple[Bins | None, ...] | None
    uncertainty: UncertaintyOfMethods | None
    rejection: tuple[RejectionCurve | None, ...] | None
    layers: LayersOfMethods | None
    agreement: Agreement | None
    distance: Distance | None
    words: Sentences

    @property
    def names(self) -> list[str]:
        """Names of the methods."""
        return [method.name for method in self.methods]

    @property
    def has_labels(self) -> bool:
        """Whether a prediction is right or wrong, so that errors are rates."""
        return TaskKind(self.task).has_labels


@dataclass(frozen=True)
class ComparisonSection(Compared):
    """A comparison inside an audit."""

    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class ComparisonRecord(Compared, Header):
    """The result of whence.compare; lists have one entry per method. Numbers that are not finite are null."""

    schema: Literal["whence.comparison/1"] = field()
    run: Run

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        return self.run.left_out
