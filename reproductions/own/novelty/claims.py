"""What novelty should do, held against the numbers."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Claim, above, difference, interval, within
from reproductions.own.novelty.tables import by_network
from reproductions.own.priors.tables import TITLES
from reproductions.store import Values

OURS = "novelty, gauss"
RATE, OFF = 0.01, 0.01  # of fresh inputs that are flagged, and by how much it may be off


def claims(units: Values) -> list[Claim]:
    found = []
    for network, each in by_network(units).items():
        if len(each) < 2:
            continue
        ours, energy = (_means(each, detector) for detector in (OURS, "energy"))
        better = difference(ours, energy)
        found.append(Claim(f"{TITLES[network]}: novelty finds novel inputs better than energy", "our expectation",
                           f"AUROC {better.text(3)} more", above(better)))  # fmt: skip
        rate = interval([value["flagged"] - RATE for value in each])
        found.append(Claim(f"{TITLES[network]}: about 1% of fresh test inputs have p ≤ 0.01", "by construction",
                           f"{100 * (rate.mean + RATE):.1f}%", within(rate, OFF)))  # fmt: skip
    return found


def _means(each: list[Values], detector: str) -> list[float]:
    """Over data sets, seed by seed."""
    return [fmean(scores[detector] for scores in value["auroc"].values()) for value in each]
