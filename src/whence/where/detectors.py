"""The detectors of novel inputs that are in use today, beside novelty: a score for each input, higher = more novel.

Index legend: N inputs, n training inputs, C outputs, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, NotDefined, need
from whence.metrics import Estimate, detection
from whence.metrics.tables import text
from whence.where.features import Features, bare, features_of
from whence.where.novelty import novelty
from whence.where.shares import shares

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace
    from whence.where.reference import Reference

NEIGHBOURS = 50
PAIRS = 2**24  # distances that are held at once


def max_probability(logits: Tensor) -> Tensor:
    """1 − the largest probability of the plain network (Hendrycks & Gimpel 2017)."""
    return 1 - logits.double().softmax(1).amax(1)


def energy(logits: Tensor) -> Tensor:
    """−log Σ exp of the logits (Liu et al. 2020, at temperature 1)."""
    return -logits.double().logsumexp(1)


@dataclass(frozen=True)
class Mahalanobis:
    """Class means and the shared covariance of training features (Lee et al. 2018)."""

    means: Tensor  # [C, D]
    precision: Tensor  # [D, D], pseudo-inverse

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor | None) -> Mahalanobis:
        """Labels of ``None``: one class."""
        features = features.double()
        index = (
            torch.zeros(len(features), dtype=torch.long) if labels is None else labels.unique(return_inverse=True)[1]
        )
        classes = int(index.max()) + 1
        counts = torch.bincount(index, minlength=classes).double().unsqueeze(1)
        means = features.new_zeros(classes, features.shape[1]).index_add(0, index, features) / counts
        centred = features - means[index]
        covariance = centred.mT @ centred / len(features)
        return cls(means, torch.linalg.pinv(covariance, rtol=1e-10, hermitian=True))

    def __call__(self, features: Tensor) -> Tensor:
        """The squared distance from the nearest class, [N]."""
        features = features.double()
        turned = features @ self.precision
        cross = turned @ self.means.mT  # [N, C]
        own = (turned * features).sum(1, keepdim=True)
        return (own - 2 * cross + (self.means @ self.precision * self.means).sum(1)).amin(1).clamp(min=0)


@dataclass(frozen=True)
class Neighbours:
    """Distance from the k-th nearest training input, features scaled to length 1 (Sun et al. 2022)."""

    train: Tensor  # [n, D], on the device where distances are taken
    k: int

    @classmethod
    def fit(cls, features: Tensor, k: int = NEIGHBOURS, device: torch.device | str = "cpu") -> Neighbours:
        if not 1 <= k <= len(features):
            raise BadOption(f"k={k} is not in 1..{len(features)}, the number of training inputs.")
        return cls(unit(features).to(device), k)

    def __call__(self, features: Tensor) -> Tensor:
        lengths = self.train.square().sum(1)
        found = []
        for piece in unit(features).split(max(1, PAIRS // len(self.train))):
            near = piece.to(self.train.device)
            away = torch.addmm(lengths, near, self.train.mT, alpha=-2)  # ‖b‖² − 2 aᵀb, [N, n]
            kth = away.topk(self.k, dim=1, largest=False).values[:, -1] + near.square().sum(1)
            found.append(kth.clamp(min=0).sqrt().cpu())
        return torch.cat(found)


def unit(features: Tensor) -> Tensor:
    """Scaled to length 1."""
    return torch.nn.functional.normalize(features.double(), dim=1)


@dataclass(frozen=True)
class Trained:
    """What the detectors that need training data keep of it."""

    last: Mahalanobis
    layers: dict[str, Mahalanobis]
    neighbours: Neighbours

    @classmethod
    def fit(cls, features: Features, classes: bool, device: torch.device, k: int = NEIGHBOURS) -> Trained:
        labels = features.targets if classes else None
        return cls(
            Mahalanobis.fit(features.last, labels),
            {name: Mahalanobis.fit(values, labels) for name, values in features.layers.items()},
            Neighbours.fit(features.last, min(k, len(features.last)), device if device.type == "cuda" else "cpu"),
        )

    def scores(self, features: Features) -> dict[str, Tensor]:
        missing = set(self.layers) - set(features.layers)
        if missing:
            raise BadData(f"the layer {min(missing)!r} was not called, or not with these inputs along its first axis.")
        every = torch.stack([distance(features.layers[name]) for name, distance in self.layers.items()])
        return {
            "mahalanobis": self.last(features.last),
            "mahalanobis_layers": every.sum(0),
            "neighbours": self.neighbours(features.last),
        }


def detectors(posterior: Laplace, x: Any, *, train: Any = None, reference: Any = None) -> dict[str, Tensor]:
    """The score of every detector that is defined here, [N] each.

    - ``novelty``: the combined score of :func:`whence.novelty`, if there is a reference;
    - ``entropy`` and ``mutual_information`` of the posterior's prediction; ``variance``, the sum of the variances of
      outputs (logits centred) that its weights cause;
    - ``max_probability`` (1 − it) and ``energy`` of the plain network, for classification;
    - with ``train``, the (inputs, targets) it was trained on: ``mahalanobis`` and ``neighbours`` of the last features,
      ``mahalanobis_layers``, summed over the outputs of all layers.
    """
    return _Detectors(posterior, train, reference).scores(x)


class _Detectors:
    """All detectors, with training data read once."""

    def __init__(self, posterior: Laplace, train: Any, reference: Any) -> None:
        self.posterior, self.reference = posterior, reference
        if reference is None:
            self.reference = getattr(posterior, "reference", None)
        self.classes = posterior.likelihood.task in ("classification", "binary")
        self.trained: Trained | None = None
        if train is not None:
            features = features_of(posterior, train, targets=True)
            self.trained = Trained.fit(features, self.classes, posterior.network.device)

    def scores(self, x: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        x = bare(x)
        if self.reference is not None:
            found["novelty"] = novelty(self.posterior, x, reference=self.reference).score
        found |= _of_prediction(self.posterior, x)
        features = features_of(self.posterior, x)
        if self.posterior.likelihood.task == "classification":
            found |= {"max_probability": max_probability(features.logits), "energy": energy(features.logits)}
        if self.trained is not None:
            found |= self.trained.scores(features)
        return found


def _of_prediction(posterior: Laplace, x: Any) -> dict[str, Tensor]:
    """Entropy, mutual information and variance, where the prediction has them."""
    found = {}
    if posterior.likelihood.task in ("classification", "binary"):
        prediction = posterior.predict(x)
        for name, field in (("entropy", "entropy"), ("mutual_information", "epistemic")):
            value: Tensor = getattr(prediction, field)
            found[name] = value.double().cpu().reshape(len(value), -1).sum(1)
    return found | {"variance": shares(posterior, x).total}


@dataclass(frozen=True)
class DetectorRow:
    """How well one detector tells outside from inside."""

    detector: str
    auroc: Estimate
    fpr95: Estimate


@dataclass(frozen=True)
class DetectorTable:
    """Made by :func:`whence.compare_detectors`; the best AUROC comes first."""

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
        rows = []
        for row in self.rows:
            cells: dict[str, Any] = {"detector": row.detector}
            for name, value in (("auroc", row.auroc), ("fpr95", row.fpr95)):
                cells |= {name: float(value), f"{name}_low": value.low, f"{name}_high": value.high}
            rows.append(cells)
        return need("pandas", "pandas").DataFrame(rows)

    def __str__(self) -> str:
        rows = [[row.detector, str(row.auroc), str(row.fpr95)] for row in self.rows]
        return f"{self.inside:,} inputs inside, {self.outside:,} outside\n{text(('detector', 'AUROC', 'FPR95'), rows)}"


def compare_detectors(
    posterior: Laplace, inside: Any, outside: Any, *, train: Any, reference: Reference | Any = None
) -> DetectorTable:
    """AUROC and FPR95 of every detector for in-distribution test inputs and others.

    ``inside`` must be neither training data nor reference.
    """
    every = _Detectors(posterior, train, reference)
    if every.reference is None:
        raise NotDefined("novelty needs a reference: tune on validation data, or pass reference=validation_inputs.")
    within, beyond = every.scores(inside), every.scores(outside)
    rows = []
    for name, values in within.items():
        found = detection(values, beyond[name])
        rows.append(DetectorRow(name, found["auroc"], found["fpr95"]))
    rows.sort(key=lambda row: -row.auroc)
    first = next(iter(within))
    return DetectorTable(tuple(rows), len(within[first]), len(beyond[first]))
