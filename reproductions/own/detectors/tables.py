"""AUROC of detectors and combinations, what is chosen leaving out a set, and rules that see no novel data."""

from __future__ import annotations

from statistics import fmean

from reproductions.own.detectors.choose import (
    FAMILIES,
    NEAR,
    Areas,
    areas,
    average,
    leave_one_out,
    mean,
    regrets,
)
from reproductions.own.detectors.combine import SHOWN
from reproductions.own.detectors.subjects import CHANGES, HELD_OUT
from reproductions.store import Values

TITLES = {
    "mlp": "ReLU network 784-256-256-8, MNIST digits 0 to 7",
    "lenet5": "LeNet-5, MNIST digits 0 to 7",
    "batch-norm": "Convolutions with batch normalisation, Fashion-MNIST without bags and ankle boots",
    "photographs": "LeNet-5, CIFAR-10 without ships and trucks",
}
SHORT = {"mlp": "digits, MLP", "lenet5": "digits, LeNet-5", "batch-norm": "clothes", "photographs": "photographs"}
NAMES = {
    "novelty": "novelty", "entropy": "entropy (posterior)", "plain_entropy": "entropy (plain network)",
    "mutual_information": "mutual information", "variance": "variance", "max_probability": "maximum probability",
    "energy": "energy", "mahalanobis": "Mahalanobis, last features", "mahalanobis_layers": "Mahalanobis, all layers",
    "neighbours": "nearest neighbours",
}  # fmt: skip


def named(detector: str) -> str:
    return NAMES.get(detector, detector)


def lines_of(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def tables(units: Values) -> str:
    found = areas(units)
    parts = [f"### {TITLES[network]}\n\n{_network(units, found, network)}" for network in found]
    parts += ["### Chosen on the other sets, judged on the one left out", _left_out(found)]
    parts += ["### Rules that see no novel data", _rules(found, areas(units, "surrogates"))]
    parts += ["### The best combinations", _best(found)]
    return "\n\n".join(parts)


def _network(units: Values, found: Areas, network: str) -> str:
    """AUROC with the range over seeds, and FPR95; the interval over inputs is the widest of the seeds' intervals."""
    mine = [unit for name, unit in units.items() if name.startswith(f"{network}/")]
    sets = list(found[network])
    rows = [["AUROC (least to largest of the seeds)", *sets]]
    for detector in SHOWN:
        values = [found[network][place][detector] for place in sets]
        rows.append([named(detector), *(f"{fmean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for v in values)])
    rates = [["FPR95, mean over seeds", *sets]]
    for detector in SHOWN:
        cells = [fmean(unit["sets"][place][detector]["fpr95"] for unit in mine) for place in sets]
        rates.append([named(detector), *(f"{value:.2f}" for value in cells)])
    widest = max(v["high"] - v["low"] for unit in mine for s in unit["sets"].values() for v in map(s.get, SHOWN)) / 2
    flagged = fmean(unit["flagged"] for unit in mine)
    accuracy = fmean(unit["accuracy"] for unit in mine)
    about = (
        f"{len(mine)} seeds; accuracy {accuracy:.1%}. Over inputs, the 95% interval of an AUROC of one seed is at most "
        f"± {widest:.3f}. Of fresh test inputs {flagged:.1%} have p ≤ 0.01 by novelty with entropy."
    )
    return f"{about}\n\n{lines_of(rows)}\n\n{lines_of(rates)}"


def _left_out(found: Areas) -> str:
    parts = []
    for family in FAMILIES:
        rows = [["left out", "chosen on the others", "AUROC on it", "best single detector on it, seen afterwards"]]
        for row in leave_one_out(found, family):
            best = f"{named(row.best_single)}, {row.best_area:.3f}"
            rows.append([row.place, named(row.chosen), f"{row.area:.3f}", best])
        parts.append(f"From {family}:\n\n{lines_of(rows)}")
    return "\n\n".join(parts)


def _rules(found: Areas, surrogates: Areas) -> str:
    head = [
        "rule", "mean AUROC", "mean regret", "worst regret", f"cases within {NEAR} of the best single detector",
    ]  # fmt: skip
    rows = [head]
    for row in regrets(found, surrogates):
        rule = row.rule if not row.rule.startswith("always ") else f"always {named(row.rule.removeprefix('always '))}"
        cells = [f"{row.area:.3f}", f"{row.mean:.3f}", f"{row.worst:.3f}", f"{row.near} of {row.count}"]
        rows.append([rule, *cells])
    return (
        "A case is a network and a novel set. Regret: the AUROC of the best single detector of the case, seen "
        "afterwards, minus that of the choice; it can be below 0. Surrogates are made from validation inputs: "
        "two mixed, halves of two, and all pixels from different ones.\n\n" + lines_of(rows)
    )


def _best(found: Areas) -> str:
    ranked = sorted(FAMILIES["all combinations"], key=lambda name: -average(found, name))
    rows = [["combination", "mean AUROC over networks", *(SHORT[n] for n in found)]]
    for name in ranked[:15]:
        by_network = [fmean(mean(found, network, place, name) for place in found[network]) for network in found]
        rows.append([name, f"{average(found, name):.3f}", *(f"{value:.3f}" for value in by_network)])
    return "Seen afterwards, means over sets.\n\n" + lines_of(rows)


# For the documentation


def kinds(found: Areas, network: str) -> dict[str, list[str]]:
    """The novel sets of a network by kind."""
    sets = list(found[network])
    return {
        "unseen classes": [s for s in sets if s == HELD_OUT],
        "other data": [s for s in sets if s != HELD_OUT and s not in CHANGES],
        "changed images": [s for s in sets if s in CHANGES],
    }


def summary(units: Values) -> str:
    """One column for each network and kind of novel set; means over sets and seeds."""
    found = areas(units)
    columns = [(n, kind, sets) for n in found for kind, sets in kinds(found, n).items() if sets]
    rows = [["AUROC", *(f"{SHORT[n]}: {kind}" for n, kind, _ in columns), "mean over networks"]]
    for detector in SHOWN:
        cells = [fmean(mean(found, n, place, detector) for place in sets) for n, _, sets in columns]
        rows.append([named(detector), *(f"{value:.3f}" for value in cells), f"{average(found, detector):.3f}"])
    return f"{lines_of(rows)}\n\n{_rules(found, areas(units, 'surrogates'))}"
