"""Answers about pruning as sentences that can be wrong; the question is the proposal's."""

from __future__ import annotations

from reproductions.claims import Claim
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.pruning.tables import BY_STRUCTURE, ONE, PIECES, cells_of, further, has
from reproductions.kniebel2020.stability import CONDITIONS, Condition, over_cells
from reproductions.store import Values

PAIRS: dict[str, list[tuple[str, str, str, tuple[Condition, ...]]]] = {
    "weights": [
        ("what is not identified can go sooner than a random choice", "identified", "random", CONDITIONS),
        ("signal to noise prunes further than magnitude", "snr", "magnitude", CONDITIONS),
        ("saliency prunes further than magnitude", "saliency", "magnitude", BY_STRUCTURE),
        ("signal to noise prunes further with an isotropic prior than with the relative", "snr, isotropic", "snr", ONE),
        ("variational signal to noise prunes further than Laplace's", "snr, variational", "snr", ONE),
        ("variational signal to noise prunes further than magnitude", "snr, variational", "magnitude", ONE),
    ],
    "units": [
        ("what is not identified can go sooner than a random choice", "identified", "random", CONDITIONS),
        ("signal to noise prunes further than magnitude", "snr", "magnitude", CONDITIONS),
        ("saliency prunes further than magnitude", "saliency", "magnitude", BY_STRUCTURE),
        ("the relative curvature prunes further than saliency", "relative_curvature", "saliency", BY_STRUCTURE),
    ],
    "layers": [
        ("what is not identified can go sooner than a random choice", "identified", "random", CONDITIONS),
        ("saliency prunes further than a random choice", "saliency", "random", BY_STRUCTURE),
        ("the relative curvature prunes further than saliency", "relative_curvature", "saliency", BY_STRUCTURE),
    ],
}  # fmt: skip


def claims(units: Values) -> list[Claim]:
    found = []
    for pieces, pairs in PAIRS.items():
        for words, one, other, conditions in pairs:
            cells = has(cells_of(units, pieces), pieces, one)
            if len(cells) > 1:
                more = over_cells(cells, further(pieces, one, other), conditions).times(100)
                text = f"{more.text(1)} points more"
                found.append(Claim(f"{PIECES[pieces]}: {words}", questions.PRUNED, text, more.above()))
    return found
