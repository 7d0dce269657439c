"""Verdicts on section 5.2 and table 1, and on our own aims, from the values of the units alone."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from reproductions.claims import Claim, Interval, Verdict, above, below, difference, every, interval, within
from reproductions.ritter2018.mnist import (
    DETERMINISTIC,
    DIAGONAL,
    DROPOUT,
    ENSEMBLE,
    FACTORISED,
    KRONECKER,
    LAYERED,
    LINEARISED,
    METHODS,
    PAPER,
    SWAG,
)
from reproductions.ritter2018.ood.config import MEAN, PRIOR, SLOW, Config
from reproductions.ritter2018.ood.names import (
    chosen_reading,
    copy_counts,
    divergences,
    has_method,
    label,
    outside,
    over_seeds,
    readings,
    seeds,
)
from reproductions.store import Values

ALIKE = 0.2  # points of accuracy
SIMILAR = 0.2  # nats of mean entropy
CERTAIN = Config.certain  # nats
HARDLY = 0.01  # share of predictions that are certain
SAME_NLL, SAME_ENTROPY = 0.001, 0.05  # nats
AIM = 98.6  # % of the deterministic network
FITTED = 98.0  # % below which the factorised Gaussian is none that the paper speaks of (98.88 %)
SECTION, TABLE, OURS = "5.2", "table 1", "beyond the paper"


def claims(values: Values) -> list[Claim]:
    if not seeds(values):
        return []
    return [*_entropy(values), *_regularised(values), *_accuracy(values), *_aims(values), *_further(values)]


def _pair(name: str, first: Interval, second: Interval, by: Interval, digits: int = 2, unit: str = "") -> str:
    """Two figures and their difference seed by seed."""
    return f"{name} {first.mean:.{digits}f}{unit} against {second.mean:.{digits}f}{unit}: {by.text(digits, unit)}"


def _share(found: Interval) -> str:
    """Of inputs, in percent; its interval ends at 0 and 100."""
    return Interval(found.mean, max(found.low, 0.0), min(found.high, 100.0)).text(2, " %")


# The paper's


def _entropy(values: Values) -> list[Claim]:
    letters = outside(values)[0]
    where, name = ("outside", letters, "mean_entropy"), label(letters)
    found = {method: over_seeds(values, method, *where) for method in METHODS}
    certain = {method: over_seeds(values, method, "outside", letters, "certain") for method in METHODS}
    high = interval(over_seeds(values, KRONECKER, "outside", letters, "high"))

    def higher(first: str, second: str, text: str) -> Claim:
        by = difference(found[first], found[second])
        ours = _pair("mean entropy in nats", interval(found[first]), interval(found[second]), by)
        return Claim(text, f"{SECTION}, fig. 2", ours, above(by))

    fewer = difference(certain[KRONECKER], certain[DROPOUT]).times(100)
    share = interval(certain[KRONECKER]).times(100)
    apart = difference(found[DIAGONAL], found[DROPOUT])
    dropout = interval(certain[DROPOUT]).times(100)
    return [
        higher(DROPOUT, DETERMINISTIC, f"MC dropout is more uncertain on {name} than a deterministic pass"),
        Claim(f"with MC dropout some images of {name} are still predicted with certainty", SECTION,
              f"{_share(dropout)} have an entropy below {CERTAIN} nats", _all(v > 0 for v in certain[DROPOUT])),
        higher(KRONECKER, DETERMINISTIC, f"Kronecker Laplace is more uncertain on {name} than a deterministic pass"),
        higher(KRONECKER, DROPOUT, f"Kronecker Laplace is more uncertain on {name} than MC dropout"),
        higher(KRONECKER, DIAGONAL, f"Kronecker Laplace is more uncertain on {name} than diagonal Laplace"),
        Claim(f"Kronecker Laplace makes hardly any predictions with certainty (less than 1 % below {CERTAIN} nats)",
              SECTION, f"{_share(share)} of {name}", below(share, 100 * HARDLY)),
        Claim("… and fewer than MC dropout", SECTION,
              _pair("share", share, dropout, fewer, unit=" %"), below(fewer)),
        Claim(f"it assigns high uncertainty to most of {name} (more than half have at least half the largest entropy)",
              SECTION, _share(high.times(100)), above(high, 0.5)),
        Claim(f"diagonal Laplace is similar to MC dropout (mean entropy on {name} within {SIMILAR} nats)", SECTION,
              _pair("mean entropy in nats", interval(found[DIAGONAL]), interval(found[DROPOUT]), apart),
              within(apart, SIMILAR)),
        _if_fitted(values, higher(KRONECKER, FACTORISED, "the factorised Gaussian has low uncertainty: lower on "
                                  f"{name} than Kronecker Laplace")),
    ]  # fmt: skip


def _if_fitted(values: Values, claim: Claim) -> Claim:
    """A verdict on the factorised Gaussian says something of the paper's only if it is trained as far as that."""
    accuracy = interval([100 * v for v in over_seeds(values, FACTORISED, "test", "accuracy")])
    if accuracy.mean > FITTED:
        return claim
    ours = f"{claim.ours}; ours reaches {accuracy.mean:.1f} % only, below {FITTED} %, and is not the paper's"
    return replace(claim, ours=ours, verdict="cannot be told")


def _regularised(values: Values) -> list[Claim]:
    """Tuning acts on δ and on s; how much it narrows the posterior is what both come to."""
    letters = outside(values)[0]
    narrowed = {
        name: [
            math.log10(std / bare)
            for std, bare in zip(
                over_seeds(values, "regularisation", name, "std"),
                over_seeds(values, "regularisation", name, "untuned_std"),
                strict=True,
            )
        ]
        for name in (DIAGONAL, KRONECKER)
    }
    distance = {name: over_seeds(values, "regularisation", name, "distance", letters) for name in narrowed}
    more = difference(narrowed[DIAGONAL], narrowed[KRONECKER])
    nearer = difference(distance[DIAGONAL], distance[KRONECKER])
    return [
        Claim("diagonal Laplace needs stronger regularisation than Kronecker Laplace (tuning narrows it by more)",
              SECTION, _pair("decades of the mean standard deviation", interval(narrowed[DIAGONAL]),
                             interval(narrowed[KRONECKER]), more), below(more)),
        Claim(f"… towards predicting deterministically (total variation from that on {label(letters)})",
              SECTION, _pair("distance", interval(distance[DIAGONAL]), interval(distance[KRONECKER]), nearer),
              below(nearer)),
    ]  # fmt: skip


def _accuracy(values: Values) -> list[Claim]:
    found = {name: [100 * v for v in over_seeds(values, name, "test", "accuracy")] for name in METHODS}
    by = {name: difference(found[name], found[DETERMINISTIC]) for name in METHODS if name != DETERMINISTIC}

    def alike(names: tuple[str, ...], text: str, where: str) -> Claim:
        parts = [f"{name} {by[name].text(2)}" for name in names]
        return Claim(text, where, "; ".join(parts), every(*(within(by[name], ALIKE) for name in names)))

    same = f"within {ALIKE} points of the deterministic network"
    return [
        alike((DROPOUT, DIAGONAL, KRONECKER), f"MC dropout, diagonal and Kronecker Laplace are alike ({same})", TABLE),
        _if_fitted(values, alike((FACTORISED,), f"the factorised Gaussian is as accurate ({same})", TABLE)),
        alike(tuple(m for m in METHODS if m not in PAPER), f"so are the further methods ({same})", OURS),
    ]  # fmt: skip


# Ours


def _aims(values: Values) -> list[Claim]:
    letters = outside(values)[0]
    accuracy = interval([100 * v for v in over_seeds(values, DETERMINISTIC, "test", "accuracy")])
    lower: list[Claim] = []
    for name, text, digits in (("nll", "NLL", 4), ("ece", "ECE", 4)):
        mine, plain = (over_seeds(values, m, "test", name) for m in (LINEARISED, DETERMINISTIC))
        pairs = ", ".join(f"{a:.{digits}f} < {b:.{digits}f}" if a < b else f"{a:.{digits}f} ≥ {b:.{digits}f}"
                          for a, b in zip(mine, plain, strict=True))  # fmt: skip
        lower.append(
            Claim(f"linearised Kronecker Laplace has a lower {text} than the deterministic network on every seed", OURS,
                  pairs, _all(a < b for a, b in zip(mine, plain, strict=True)))
        )  # fmt: skip
    return [
        Claim(
            f"the deterministic network reaches {AIM} % on MNIST", OURS, accuracy.text(2, " %"), above(accuracy, AIM)
        ),
        *lower,
        _auroc_above(values, LINEARISED, DROPOUT, letters),
        *([_auroc_above(values, LAYERED, DROPOUT, letters)] if has_method(values, LAYERED) else []),
        _variance_above(values, letters),
        *_bound(values),
        _edges(values),
        *_reading(values),
        *_settled(values),
    ]


def _auroc_above(values: Values, first: str, second: str, other: str) -> Claim:
    a, b = (over_seeds(values, m, "outside", other, "by_entropy", "auroc") for m in (first, second))
    by = difference(a, b)
    late = " (a second try, after the one before had missed)" if first == LAYERED else ""
    text = f"the entropy of “{first}” tells {label(other)} from digits better than that of {second}{late}"
    return Claim(text, OURS, _pair("AUROC", interval(a), interval(b), by, 3), above(by))


def _variance_above(values: Values, other: str) -> Claim:
    """The variance of the logits is the linearised posterior's own uncertainty; entropy mixes it with the mean's."""
    mine = over_seeds(values, "detectors", other, "variance", "auroc")
    dropout = over_seeds(values, DROPOUT, "outside", other, "by_entropy", "auroc")
    by = difference(mine, dropout)
    text = (
        f"the variance of the logits of “{LINEARISED}” tells {label(other)} from digits better than the entropy of "
        f"{DROPOUT} (another score, after entropy had missed)"
    )
    return Claim(text, OURS, _pair("AUROC", interval(mine), interval(dropout), by, 3), above(by))


def _bound(values: Values) -> list[Claim]:
    """Why the factorised Gaussian is not trained on the bound itself: what that prefers is not what the paper shows."""
    weights = divergences(values)
    if len(weights) < 2 or weights[0] != 1.0:
        return []
    found = {weight: values[f"divergence/{weight:g}"] for weight in weights}
    own, others = found[1.0], [found[weight] for weight in weights[1:]]
    gap = 100 * (own["test"]["accuracy"]["value"] - over_seeds(values, DETERMINISTIC, "test", "accuracy")[0])
    clear = all(own["bound"] - o["bound"] > 3 * (own["bound_se"] + o["bound_se"]) for o in others)
    bounds = ", ".join(f"{f['bound']:.3f} (weight {w:g})" for w, f in found.items())
    course = own["bound_by_epoch"]
    tenth = max(1, len(course) // 10)
    still = fmean(course[-tenth:]) - fmean(course[-2 * tenth : -tenth])
    lead = own["bound"] - max(o["bound"] for o in others)
    losses = {weight: f["validation"]["nll"] for weight, f in found.items()}
    used, least = over_seeds(values, FACTORISED, "kl_weight")[0], min(v["value"] for v in losses.values())
    return [
        Claim("trained on the variational bound itself, with a standard normal prior, the factorised Gaussian is as "
              f"accurate as the deterministic network (within {ALIKE} points; one seed)", TABLE,
              f"accuracy differs by {gap:+.2f} points", _all([abs(gap) < ALIKE])),
        Claim("… and the bound prefers it to those with a smaller weight of the divergence", OURS,
              f"bound in nats for each training image {bounds}", _all([clear])),
        Claim("… and longer training would not change that: over the last tenth of the epochs the bound rises by less "
              "than a tenth of its lead", OURS, f"by {still:.4f} nats for each image; lead {lead:.3f}",
              _all([still < lead / 10])),
        Claim("the weight of the divergence that is used is the one that validation data prefer, or as good a one "
              "(within its interval)", OURS,
              "validation NLL " + ", ".join(f"{v['value']:.4f} (weight {w:g})" for w, v in losses.items()),
              _all([losses[used]["low"] <= least])),
        *_slow(values, own),
    ]  # fmt: skip


def _slow(values: Values, own: Values) -> list[Claim]:
    """What is like the paper's factorised Gaussian: one whose standard deviations have hardly left their start."""
    if SLOW not in values:
        return []
    slow, letters = values[SLOW], outside(values)[0]
    gap = 100 * (slow["test"]["accuracy"]["value"] - over_seeds(values, DETERMINISTIC, "test", "accuracy")[0])
    doubt, kronecker = (
        slow["outside"]["mean_entropy"],
        over_seeds(values, KRONECKER, "outside", letters, "mean_entropy")[0],
    )
    return [
        Claim("with standard deviations that hardly leave their start the factorised Gaussian is as the paper has it: "
              f"accurate (within {ALIKE} points) and less uncertain on {label(letters)} than Kronecker Laplace (one "
              "seed)", OURS,
              f"accuracy differs by {gap:+.2f} points, mean entropy {doubt:.2f} against {kronecker:.2f} nats",
              _all([abs(gap) < ALIKE, doubt < kronecker])),
        Claim("… but the bound is far from its optimum", OURS,
              f"{slow['bound']:.1f} against {own['bound']:.2f} nats for each training image",
              _all([own["bound"] - slow["bound"] > 3 * (own["bound_se"] + slow["bound_se"])])),
    ]  # fmt: skip


def _edges(values: Values) -> Claim:
    keys = ("decades_below", "decades_above", "scale_decades_below", "scale_decades_above")
    margins = [
        min(over_seeds(values, "regularisation", name, key))
        for name in (DIAGONAL, KRONECKER, LINEARISED)
        for key in keys
    ]
    text = "no tuned hyperparameter lies on the edge of what was tried"
    return Claim(text, OURS, f"tried {min(margins):.1f} decades beyond each, or more", _all(m > 0.01 for m in margins))


def _reading(values: Values) -> list[Claim]:
    """The L2 factor as plain weight decay, and as it is used here."""
    best = chosen_reading(values)
    if best is None or not {MEAN, PRIOR} <= set(readings(values)):
        return []

    def accuracy(name: str, part: str) -> Interval:
        found = values[f"reading/{name}"][part]["accuracy"]
        return Interval(found["value"], found["low"], found["high"]).times(100)

    plain, used, top = accuracy(MEAN, "test"), accuracy(PRIOR, "validation"), accuracy(best, "validation")
    return [
        Claim(f"read as plain weight decay the L2 factor keeps the network below {AIM} %", OURS,
              f"{plain.text(2, ' %')} on test images", below(plain, AIM)),
        Claim("read as a prior precision it gives the best validation accuracy of the readings, or as good a one "
              "(within its interval)", OURS, f"{used.text(2, ' %')}; the best, {best}: {top.mean:.2f} %",
              _all([used.high >= top.mean])),
    ]  # fmt: skip


def _settled(values: Values) -> list[Claim]:
    """Whether ten times as many copies would change anything."""
    counts = copy_counts(values)
    if len(counts) < 2:
        return []
    few, many = (values[f"copies/{count}"] for count in counts[-2:])
    loss = few["test"]["nll"]["value"] - many["test"]["nll"]["value"]
    doubt = few["outside"]["mean_entropy"] - many["outside"]["mean_entropy"]
    text = (
        f"{counts[-2]:,} binarised copies are as good as {counts[-1]:,} for Kronecker Laplace (one seed: NLL within "
        f"{SAME_NLL}, mean entropy on {label(outside(values)[0])} within {SAME_ENTROPY} nats)"
    )
    ours = f"NLL differs by {loss:+.4f}, entropy by {doubt:+.3f}"
    return [Claim(text, OURS, ours, _all([abs(loss) < SAME_NLL, abs(doubt) < SAME_ENTROPY]))]


def _further(values: Values) -> list[Claim]:
    letters = outside(values)[0]
    found = [_auroc_above(values, ENSEMBLE, DROPOUT, letters), _auroc_above(values, SWAG, DROPOUT, letters)]
    nll = {m: over_seeds(values, m, "test", "nll") for m in (ENSEMBLE, LINEARISED)}
    by = difference(nll[ENSEMBLE], nll[LINEARISED])
    found.append(
        Claim("a deep ensemble of 5 has a lower NLL than linearised Kronecker Laplace of one network", OURS,
              _pair("NLL", interval(nll[ENSEMBLE]), interval(nll[LINEARISED]), by, 4), below(by))
    )  # fmt: skip
    sets, margins = outside(values), []
    for other in sets:
        novelty = over_seeds(values, "detectors", other, "novelty", "auroc")
        best = [max(v) for v in zip(*(over_seeds(values, m, "outside", other, "by_entropy", "auroc") for m in METHODS),
                                    strict=True)]  # fmt: skip
        margins.append(difference(novelty, best))
    parts = [f"{label(other)} by {margin.text(4)}" for other, margin in zip(sets, margins, strict=True)]
    text = "whence.novelty has a higher AUROC than the entropy of any method, on every set"
    return [*found, Claim(text, OURS, "; ".join(parts), every(*(above(margin) for margin in margins))), _ours(values)]


def _ours(values: Values) -> Claim:
    """Whether the library and plain torch agree: what a verdict against the paper rests on."""
    gaps, bounds, widest = [], [], 0.0
    for seed in seeds(values):
        check = values[f"{seed}/check"]
        widest = max(widest, *check["variance"].values())
        for found in check["entropy"].values():
            gaps.append(abs(found["library"] - found["by_hand"]))
            bounds.append(max(0.01, 3 * math.sqrt(2) * found["by_hand_se"]))
    agree = _all([widest < 0.01, *(gap < bound for gap, bound in zip(gaps, bounds, strict=True))])
    text = (
        "the Kronecker posterior (eq. 9) agrees with one in plain torch: variances to 1 %, entropies up to their draws"
    )
    return Claim(
        text, OURS, f"variances differ by {100 * widest:.2g} % at most, entropies by {max(gaps):.3f} nats", agree
    )


def _all(found: object) -> Verdict:
    return "holds" if all(found) else "does not hold"  # type: ignore[call-overload]
