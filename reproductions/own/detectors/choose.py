"""Choices made on some novel sets and judged on another, and rules that see no novel set at all.

All from AUROCs that are means over seeds, by network and set.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from reproductions.own.detectors.combine import ALL, COMBINATIONS, FEW, OURS, SINGLE, TRAINED, WITHOUT_TRAINING_DATA
from reproductions.store import Values

NEAR = 0.02  # AUROC by which a choice may be worse than the best
FAMILIES = {
    "single detectors": SINGLE,
    "single detectors without training data": tuple(name for name in SINGLE if name not in TRAINED),
    "novelty + entropy": tuple(name for name in COMBINATIONS if name.startswith("novelty + entropy, ")),
    "combinations without training data": WITHOUT_TRAINING_DATA,
    "all combinations": tuple(COMBINATIONS),
}
Areas = dict[str, dict[str, dict[str, list[float]]]]  # network → set → detector → AUROC of each seed


def areas(units: Values, what: str = "sets") -> Areas:
    """AUROCs of novel sets, or of ``surrogates``."""
    found: Areas = {}
    for name, unit in units.items():
        network = found.setdefault(name.split("/")[0], {})
        for place, scores in unit[what].items():
            for detector, value in scores.items():
                area = value["auroc"] if isinstance(value, dict) else value
                network.setdefault(place, {}).setdefault(detector, []).append(area)
    return found


def cases(found: Areas) -> list[tuple[str, str]]:
    """(network, set)."""
    return [(network, place) for network, sets in found.items() for place in sets]


def mean(found: Areas, network: str, place: str, detector: str) -> float:
    return fmean(found[network][place][detector])


def average(found: Areas, detector: str, left_out: str = "") -> float:
    """Over sets, then over networks, so that a network with many sets counts once; without one set."""
    by_network = [
        [mean(found, network, place, detector) for place in sets if place != left_out]
        for network, sets in found.items()
    ]
    return fmean(fmean(values) for values in by_network if values)


@dataclass(frozen=True)
class LeftOut:
    """What was chosen without a set, and how well it does on that set."""

    place: str
    chosen: str
    area: float  # mean over networks that have the set
    best_single: str  # seen afterwards
    best_area: float


def leave_one_out(found: Areas, family: str) -> list[LeftOut]:
    """For every novel set: the member of a family that is best on the others, judged on it."""
    places = list(dict.fromkeys(place for _, place in cases(found)))
    if len(places) < 2:
        return []
    rows = []
    for place in places:
        chosen = max(FAMILIES[family], key=lambda name: average(found, name, place))
        here = {name: _on(found, place, name) for name in (*SINGLE, chosen)}
        best = max(SINGLE, key=lambda name: here[name])
        rows.append(LeftOut(place, chosen, here[chosen], best, here[best]))
    return rows


def _on(found: Areas, place: str, detector: str) -> float:
    return fmean(mean(found, network, place, detector) for network, sets in found.items() if place in sets)


# Rules that see no novel data


@dataclass(frozen=True)
class Regret:
    """How far a rule's choice stays behind the best single detector of each case, seen afterwards."""

    rule: str
    mean: float
    worst: float
    near: int  # cases within NEAR
    count: int
    area: float  # mean AUROC over cases
    behind: tuple[float, ...]  # regret of each case


def regrets(found: Areas, surrogates: Areas) -> list[Regret]:
    """ "Always X", and the best on surrogates: by their mean, by the worst of them, one of them."""
    always = [_regret(found, f"always {name}", dict.fromkeys(found, name)) for name in (*SINGLE, OURS, FEW, ALL)]
    names = (*SINGLE, OURS, FEW, ALL)
    rows = []
    for title, candidates in (("single", SINGLE), ("any", names)):
        kinds = {"mean": fmean, "worst": min}
        for kind, of in kinds.items():
            chosen = {
                network: max(candidates, key=lambda d: of([fmean(s[d]) for s in surrogates[network].values()]))
                for network in found
            }
            rows.append(_regret(found, f"best on surrogates ({kind} of them), {title}", chosen))
    return sorted([*always, *rows], key=lambda row: row.mean)


def _regret(found: Areas, rule: str, chosen: dict[str, str]) -> Regret:
    behind, area = [], []
    for network, place in cases(found):
        best = max(mean(found, network, place, name) for name in SINGLE)
        area.append(mean(found, network, place, chosen[network]))
        behind.append(best - area[-1])
    near = sum(value <= NEAR for value in behind)
    return Regret(rule, fmean(behind), max(behind), near, len(behind), fmean(area), tuple(behind))
