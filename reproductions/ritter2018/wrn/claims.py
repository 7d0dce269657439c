"""Section 5.4, sentence by sentence; and what is claimed beyond it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from reproductions.claims import (
    Claim,
    Interval,
    Verdict,
    above,
    below,
    difference,
    every,
    interval,
    within,
)
from reproductions.ritter2018 import COLLECTION
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED
from reproductions.ritter2018.wrn.values import NETWORKS, measured, methods, networks, novelty, tuned
from reproductions.store import Values, read, values

COMPARABLE = 0.5  # points of accuracy
ALMOST_DETERMINISTIC = 0.005  # mean total variation from the deterministic prediction
SIMILAR = 1.5  # ratio of mean entropies
SURE = 0.05  # share of foreign images with a confidence over 99 % that counts as overconfidence
MLP_SIZE = 55_000  # images that the MNIST network was trained on

Found = tuple[str, Verdict]
Judge = Callable[[Interval], Verdict]


def claims(units: Values, other: Values | None = None) -> list[Claim]:
    """``other``: the values of ``ood``, where the multilayer perceptron was tuned; by default those on disk."""
    return [*_of_the_paper(units, mlp() if other is None else other), *_beyond(units)]


def _of_the_paper(units: Values, other: Values) -> list[Claim]:
    return [
        _claim(f"The accuracy of the prediction methods is comparable (here: within {COMPARABLE} points)",
               "5.4, table 2",
               _changes(units, "accuracy", lambda i: within(i, COMPARABLE), (DROPOUT, KRONECKER), 2, 100, " points")),
        _claim("The network is more uncertain on its misclassifications, with and without dropout in training and for "
               "every method", "5.4, figure 5", _wrong_over_correct(units)),
        _claim("Both dropout and Laplace increase the uncertainty, whether the classification is correct or not",
               "5.4, figure 5", _increases(units)),
        _claim("Kronecker Laplace has similar uncertainty as dropout (here: mean entropies within a factor of "
               f"{SIMILAR})", "5.4", _similar(units)),
        _claim("The diagonal approximation has to be regularised to the extent of becoming deterministic (here: mean "
               f"total variation from the deterministic prediction below {ALMOST_DETERMINISTIC})", "5.4",
               _levels(units, DIAGONAL, "inside", "total_variation", lambda i: below(i, ALMOST_DETERMINISTIC), 4)),
        _claim(f"The Kronecker approximation has not (here: above {ALMOST_DETERMINISTIC})", "5.4",
               _levels(units, KRONECKER, "inside", "total_variation", lambda i: above(i, ALMOST_DETERMINISTIC), 4)),
        _claim("It needs much stronger regularisation than on the MNIST network (here: tuned δ / (s N) at least ten "
               "times as large)", "5.4", _stronger(units, other)),
    ]  # fmt: skip


def _beyond(units: Values) -> list[Claim]:
    """What the paper does not say."""
    found = [
        _claim("A network trained on CIFAR-10 is sure of what it sees in SVHN (here: a confidence over 99 % for more "
               f"than {100 * SURE:.0f} % of the images)", "beyond",
               _levels(units, DETERMINISTIC, "outside", "sure", lambda i: above(i, SURE), 3)),
    ]  # fmt: skip
    for method in (KRONECKER, LINEARISED):
        own = (method,)
        found += [
            _claim(f"{_named(method)} has a lower NLL than the deterministic network", "beyond",
                   _changes(units, "nll", below, own, 4)),
            _claim(f"{_named(method)} has a lower ECE", "beyond", _changes(units, "ece", below, own, 4)),
            _claim(f"{_named(method)} has a lower AURC", "beyond", _changes(units, "aurc", below, own, 5)),
            _claim(f"{_named(method)} makes fewer SVHN images sure of a class", "beyond",
                   _changes(units, "sure", below, own, 3, part="outside")),
            _claim(f"{_named(method)} tells SVHN better by its entropy (AUROC)", "beyond",
                   _changes(units, "auroc", above, own, 3, part="outside")),
        ]  # fmt: skip
    return [*found, _claim("Novelty tells SVHN better than the entropy of the deterministic network (AUROC)", "beyond",
                           _novelty(units))]  # fmt: skip


def _claim(claim: str, where: str, found: Sequence[Found]) -> Claim:
    if not found:
        return Claim(claim, where, "not run", "cannot be told")
    return Claim(claim, where, "; ".join(words for words, _ in found), every(*(verdict for _, verdict in found)))


def _named(method: str) -> str:
    return method[0].upper() + method[1:]


def _changes(
    units: Values, what: str, judge: Judge, which: Sequence[str], digits: int, factor: float = 1, unit: str = "",
    part: str = "inside",
) -> list[Found]:  # fmt: skip
    """Differences from the deterministic network, seed by seed."""
    found = []
    for network in networks(units):
        plain = measured(units, network, DETERMINISTIC, part, what)
        for method in methods(units, network):
            if method in which:
                change = difference(measured(units, network, method, part, what), plain).times(factor)
                found.append((f"{NETWORKS[network]}, {method}: {_signed(change, digits)}{unit}", judge(change)))
    return found


def _signed(found: Interval, digits: int) -> str:
    return f"{found.mean:+.{digits}f} ({found.low:+.{digits}f} to {found.high:+.{digits}f})"


def _levels(units: Values, method: str, part: str, what: str, judge: Judge, digits: int) -> list[Found]:
    found = []
    for network in networks(units):
        level = interval(measured(units, network, method, part, what))
        found.append((f"{NETWORKS[network]} {level.text(digits)}", judge(level)))
    return found


def _wrong_over_correct(units: Values) -> list[Found]:
    found = []
    for network in networks(units):
        for method in methods(units, network):
            wrong, correct = (measured(units, network, method, "inside", f"entropy_{k}") for k in ("wrong", "correct"))
            gap = difference(wrong, correct)
            found.append((f"{NETWORKS[network]}, {method}: {_signed(gap, 2)} nats", above(gap)))
    return found


def _increases(units: Values) -> list[Found]:
    found = []
    for group in ("correct", "wrong"):
        changes = _changes(units, f"entropy_{group}", above, (DROPOUT, KRONECKER), 3, unit=f" nats where {group}")
        found += changes
    return found


def _similar(units: Values) -> list[Found]:
    if "dropout" not in networks(units):
        return []
    found: list[Found] = []
    for group in ("correct", "wrong"):
        kronecker, dropout = (
            measured(units, "dropout", method, "inside", f"entropy_{group}") for method in (KRONECKER, DROPOUT)
        )
        ratio = interval([math.log(a / b) for a, b in zip(kronecker, dropout, strict=True)])
        shown = Interval(*(math.exp(v) for v in (ratio.mean, ratio.low, ratio.high)))
        found.append((f"{shown.text(2)} times dropout's where {group}", within(ratio, math.log(SIMILAR))))
    return found


def _stronger(units: Values, other: Values) -> list[Found]:
    """log₁₀ δ / (s N), seed by seed, above the mean of the perceptron's by one."""
    known = [unit["prior_precision"] / unit["data_scale"] / MLP_SIZE for unit in mlp_tuned(other)]
    if not known:
        return [("no results of `ood` to compare with", "cannot be told")]
    usual = statistics.fmean(math.log10(value) for value in known)
    found = []
    for network in networks(units):
        logs = [math.log10(value) for value in tuned(units, network, KRONECKER, "per_example")]
        ratio = interval([value - usual for value in logs])
        words = f"{NETWORKS[network]} 10^{ratio.mean:.1f} (10^{ratio.low:.1f} to 10^{ratio.high:.1f}) times as strong"
        found.append((words, above(ratio, 1.0)))
    return found


def _novelty(units: Values) -> list[Found]:
    found = []
    for network in networks(units):
        change = difference(
            novelty(units, network, "auroc"), measured(units, network, DETERMINISTIC, "outside", "auroc")
        )
        found.append((f"{NETWORKS[network]} {_signed(change, 3)}", above(change)))
    return found


def mlp() -> Values:
    """Values of the ``ood`` experiment, if it was run."""
    path = COLLECTION.home / "ood" / "results.json"
    return values(read(path)) if path.exists() else {}


def mlp_tuned(other: Values) -> list[Values]:
    """The tuned hyperparameters of its sampled Kronecker posterior, one record for each seed."""
    found = []
    for name, unit in other.items():
        own = unit if name.endswith(f"/{KRONECKER}") else unit.get(KRONECKER) if isinstance(unit, dict) else None
        if isinstance(own, dict) and isinstance(own.get("prior_precision"), (int, float)) and "data_scale" in own:
            found.append(own)
    return found
