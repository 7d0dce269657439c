"""Several detectors of novel inputs as one score, relative to in-distribution inputs that were not trained on.

Which detector is best depends on what is novel: layers and distances see inputs made of other parts, entropy and energy
see familiar parts that go together as in no class. Each score becomes evidence −log p by its place among the reference
inputs; the sum of evidence is the score of an input (Fisher 1932). It is compared with the reference inputs' own sums,
each computed as if that input were not in the reference, so its p-value is uniform on new in-distribution inputs,
however detectors depend on each other. In reproductions/own/detectors Fisher's sum of many parts did best on novel sets
that had no part in the choice; nearest neighbours are left out because rescaling units changes them.

Index legend: N inputs, n reference inputs, K detectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.where.novelty import Reference, novelty, reference_of
from whence.where.p_values import Combine, combined, conformal, reference_scores, unchanged
from whence.where.plain_detectors import PlainDetectors, bare
from whence.where.with_entropy import flagged

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

PARTS = ("novelty", "plain_entropy", "energy", "mahalanobis_layers")  # rescaling units changes none of them


@dataclass(frozen=True)
class Combined:
    """Made by a :class:`CombinedDetector`. Small p-values: the input differs from the reference."""

    names: tuple[str, ...]  # of the detectors
    score: Tensor  # [N], higher is more novel
    p_value: Tensor  # [N]
    p_values: Tensor  # [N, K], of each detector alone
    size: int  # reference inputs

    def __len__(self) -> int:
        return len(self.score)

    def flag(self, level: float = 0.01) -> Tensor:
        """Whether each input is novel, bool [N]; a fraction ``level`` of new in-distribution inputs is flagged."""
        return flagged(self.p_value, level, self.size)


def combine(known: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Combined:
    """From the scores of the reference inputs, [n] each, and of others, [N] each; of the detectors in both."""
    names = tuple(name for name in PARTS if name in known and name in found)
    if len(names) < 2:
        raise NotDefined(f"a combination takes two detectors or more of {', '.join(PARTS)}; there is {list(names)}.")
    reference, values = (torch.stack([scores[n] for n in names], 1).double() for scores in (known, found))
    score, p_value = combined(reference, values, Combine.FISHER, unchanged)
    return Combined(names, score, p_value, conformal(reference, values), len(reference))


@dataclass(frozen=True)
class CombinedDetector:
    """Made by :func:`whence.combined_detector`; call it with inputs."""

    posterior: Laplace
    reference: Reference
    plain: PlainDetectors
    known: Mapping[str, Tensor]  # scores of the reference inputs, [n] each

    def __call__(self, x: Any) -> Combined:
        x = bare(x)
        score = novelty(self.posterior, x, reference=self.reference).score
        return combine(self.known, {"novelty": score, **self.plain.scores(x)})

    def __repr__(self) -> str:
        names = [name for name in PARTS if name in self.known]
        return f"CombinedDetector({', '.join(names)}; {self.reference.size:,} reference inputs)"


def combined_detector(posterior: Laplace, validation: Any, *, train: Any = None) -> CombinedDetector:
    """A detector of novel inputs that combines those that apply, relative to ``validation`` inputs.

    They must be in distribution and not trained on. The parts: novelty; for class labels the entropy and the energy of
    the plain network; with ``train``, the (inputs, targets) of training, Mahalanobis distances over all layers.
    """
    inputs = bare(validation)
    reference, plain = reference_of(posterior, inputs), PlainDetectors(posterior, train)
    return CombinedDetector(posterior, reference, plain, known_scores(reference, plain.scores(inputs)))


def known_scores(reference: Reference, plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores of the reference inputs: their novelty, each relative to the others, and what is known of them."""
    own, _ = reference_scores(reference.unexplained, reference.unexplained[:0], Combine.GAUSS)
    return {"novelty": own, **plain}
