"""Common detectors of novel inputs, for comparison with novelty: one score per input, higher is more novel.

Index legend: N inputs, n training inputs, C outputs, D features, O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.errors import NotDefined
from whence.metrics import Estimate, detection
from whence.tables import Table, text
from whence.where.combined import combine, known_scores
from whence.where.novelty import Novelty, Reference, novelty, reference_of
from whence.where.one_pass import shares
from whence.where.plain_detectors import PlainDetectors, bare

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


def detectors(posterior: Laplace, x: Any, *, train: Any = None, reference: Any = None) -> dict[str, Tensor]:
    """The score of every applicable detector, [N] each.

    - ``novelty``: the combined score of :func:`whence.novelty`, if there is a reference; ``novelty_entropy``: together
      with the entropy of the plain network, for labels;
    - ``entropy`` and ``mutual_information`` of the posterior's prediction; ``variance``, the sum of the variances of
      outputs (logits centred) due to the weights;
    - ``plain_entropy``, ``max_probability`` (1 − it) and ``energy`` of the plain network, for classification;
    - with ``train``, the (inputs, targets) of training: ``mahalanobis`` and ``neighbours`` of the last features,
      ``mahalanobis_layers``, summed over the outputs of all layers;
    - ``combined``, the score of :func:`whence.combined_detector`, if ``reference`` are inputs.
    """
    (found,) = _every(posterior, [x], train, reference)
    return found


@dataclass(frozen=True)
class DetectorRow:
    """How well one detector separates outside from inside."""

    detector: str
    auroc: Estimate
    fpr95: Estimate


@dataclass(frozen=True, repr=False)
class DetectorTable:
    """Made by :func:`whence.compare_detectors`; sorted by AUROC."""

    rows: tuple[DetectorRow, ...]
    inside: int  # number of inputs
    outside: int

    def __getitem__(self, detector: str) -> DetectorRow:
        for row in self.rows:
            if row.detector == detector:
                return row
        raise KeyError(detector)

    def to_pandas(self) -> Any:
        """One row for each detector, as a ``pandas.DataFrame``; intervals as columns ``_low`` and ``_high``."""
        columns: dict[str, list[Any]] = {"detector": [row.detector for row in self.rows]}
        for name in ("auroc", "fpr95"):
            found = [getattr(row, name).to_dict() for row in self.rows]
            columns |= {name: [d["value"] for d in found]}
            columns |= {f"{name}_{end}": [d[end] for d in found] for end in ("low", "high")}
        return Table(columns).to_pandas()

    def __repr__(self) -> str:
        rows = [[row.detector, str(row.auroc), str(row.fpr95)] for row in self.rows]
        return f"{self.inside:,} inputs inside, {self.outside:,} outside\n{text(('detector', 'AUROC', 'FPR95'), rows)}"


def compare_detectors(
    posterior: Laplace, inside: Any, outside: Any, *, train: Any, reference: Reference | Any = None
) -> DetectorTable:
    """AUROC and FPR95 of every detector for in-distribution test inputs against others.

    ``inside`` must be neither training data nor reference.
    """
    if posterior.reference is None and reference is None:
        raise NotDefined("novelty needs a reference: tune on validation data, or pass reference=validation_inputs.")
    return table_of(_every(posterior, [inside, outside], train, reference))


def _every(posterior: Laplace, sets: Sequence[Any], train: Any, reference: Any) -> list[dict[str, Tensor]]:
    """Every score of every set; the combination too, if the inputs of the reference are there to be scored."""
    plain = PlainDetectors(posterior, train)
    known: dict[str, Tensor] | None = None
    if reference is not None and not isinstance(reference, Reference):
        inputs = bare(reference)
        reference = reference_of(posterior, inputs)
        known = known_scores(reference, plain.scores(inputs))
    found = []
    for x in map(bare, sets):
        scores = scores_by_posterior(posterior, x, reference) | plain.scores(x)
        found.append(scores if known is None else scores | {"combined": combine(known, scores).score})
    return found


def table_of(scores: Sequence[Mapping[str, Tensor]], seed: int = 0) -> DetectorTable:
    """The table from the scores of every detector, inside and outside."""
    within, beyond = scores
    rows = []
    for name, values in within.items():
        found = detection(values, beyond[name], seed=seed)
        rows.append(DetectorRow(name, found["auroc"], found["fpr95"]))
    rows.sort(key=lambda row: -row.auroc)
    return DetectorTable(tuple(rows), len(within["variance"]), len(beyond["variance"]))


def scores_by_posterior(posterior: Laplace, x: Any, reference: Any = None) -> dict[str, Tensor]:
    """Novelty, entropy, mutual information and variance, as far as they are defined."""
    found: dict[str, Tensor] = {}
    reference = posterior.reference if reference is None else reference
    if reference is not None:
        found |= scores_of_novelty(novelty(posterior, x, reference=reference))
    if posterior.likelihood.has_labels:
        found |= scores_of_prediction(posterior.predict(x))
    return found | {"variance": shares(posterior, x).total}


def scores_of_novelty(found: Novelty) -> dict[str, Tensor]:
    """Novelty alone, and with entropy where that is defined."""
    both = {} if found.with_entropy is None else {"novelty_entropy": found.with_entropy.score}
    return {"novelty": found.score, **both}


def scores_of_prediction(prediction: Any) -> dict[str, Tensor]:
    """Entropy and mutual information of labels."""
    both = {"entropy": prediction.entropy, "mutual_information": prediction.epistemic}
    return {name: value.double().cpu().reshape(len(value), -1).sum(1) for name, value in both.items()}
