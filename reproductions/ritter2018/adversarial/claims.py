"""Section 5.3 and appendix C, sentence by sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reproductions.claims import Claim, Interval, Verdict, above, difference, every, interval, within
from reproductions.ritter2018.adversarial.check import BINARISED, GREY
from reproductions.ritter2018.adversarial.config import PLAIN, UNTARGETED
from reproductions.ritter2018.adversarial.curves import (
    Along,
    curve,
    fooled,
    half,
    names,
    peak,
    plain_methods,
    seeds,
    steps,
)
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, METHODS
from reproductions.store import Values

SAME = (DETERMINISTIC, DROPOUT, DIAGONAL)  # the paper's other ways to predict with the same network
ALIKE = 0.1  # nats of entropy within which curves count as alike
UPDATES = 2.0  # within which halves count as alike
TWICE = 1.5  # "about twice" is at least so many times
NEARLY = 0.95  # of the images
THREE, FOUR, OURS = "5.3, figure 3", "5.3, figure 4", "beyond the paper"


def claims(units: Values) -> list[Claim]:
    return [*_untargeted(units), *_targeted(units), *_similar(units), *_appendix(units)]


def _untargeted(units: Values) -> list[Claim]:
    others = tuple(name for name in METHODS if name != KRONECKER)
    return [
        _above(units, "Untargeted: the Kronecker Laplace has higher uncertainty than the other ways to predict with "
               "the same network", THREE, "entropy", (KRONECKER,), SAME),
        _above(units, "… and than every method here", OURS, "entropy", (KRONECKER,), others),
        _above(units, "Untargeted: the Kronecker Laplace keeps a higher accuracy than MC dropout", THREE, "accuracy",
               (KRONECKER,), (DROPOUT,)),
        _above(units, "Untargeted: the diagonal Laplace keeps a higher accuracy than MC dropout", THREE, "accuracy",
               (DIAGONAL,), (DROPOUT,)),
        _above(units, "Untargeted: the deterministic pass is the most accurate", THREE, "accuracy", (DETERMINISTIC,),
               (DROPOUT, DIAGONAL, KRONECKER)),
        *_artefact(units),
        _above(units, "Untargeted: the deterministic pass has less uncertainty than the others", THREE, "entropy",
               (DROPOUT, DIAGONAL, KRONECKER), (DETERMINISTIC,)),
        _confident(units),
    ]  # fmt: skip


def _above(units: Values, claim: str, where: str, column: str, first: Sequence[str], second: Sequence[str]) -> Claim:
    """Every one of ``first`` above every one of ``second``, step by step."""
    pairs = [Along(units, name, other, column) for name in first for other in second]
    digits, unit = (2, " (nats)") if column == "entropy" else (3, "")
    several = len(first) > 1
    words = "; ".join((f"{pair.names[0]} " if several else "") + pair.text(digits) for pair in pairs)
    head = "" if several else f"{first[0]} "
    return Claim(claim, where, f"{head}{words}{unit}", every(*(pair.verdict for pair in pairs)))


def _confident(units: Values) -> Claim:
    """At the largest step nearly all predictions are false; how sure are they?"""
    found = interval([values[-1] for values in curve(units, UNTARGETED, DETERMINISTIC, "confidence")])
    wrong = interval([1 - values[-1] for values in curve(units, UNTARGETED, DETERMINISTIC, "accuracy")])
    step = steps(units, UNTARGETED)[-1]
    return Claim(
        "Untargeted: the deterministic pass confidently predicts a false class for most images (mean confidence above "
        "0.8 where more than half are false)", THREE,
        f"at a step of {step:g} {wrong.times(100).text(1, ' %')} are false, with a confidence of {found.text(2)}",
        every(above(found, 0.8), above(wrong, 0.5)),
    )  # fmt: skip


def _artefact(units: Values) -> list[Claim]:
    """The comparison of accuracies with gradients as single precision gives them, for all methods that have them."""
    known = plain_methods(units)
    others = [name for name in (DROPOUT, DIAGONAL, KRONECKER) if name in known]
    if DETERMINISTIC not in known or not others:
        return []
    pairs = [Along(units, DETERMINISTIC, name, "accuracy", (PLAIN, PLAIN)) for name in others]
    return [
        Claim("… and it is, if all gradients are taken in single precision, where probabilities round to 1: that alone "
              "would be enough to explain the paper's finding", OURS,
              f"{DETERMINISTIC} {'; '.join(pair.text(3) for pair in pairs)}", every(*(p.verdict for p in pairs)))
    ]  # fmt: skip


def _targeted(units: Values) -> list[Claim]:
    kronecker = interval(half(units, KRONECKER))
    best = [max(values) for values in zip(*(half(units, name) for name in SAME), strict=True)]
    times = interval([a / b for a, b in zip(half(units, KRONECKER), best, strict=True)])
    return [
        _larger("Targeted: the Kronecker Laplace has a smaller peak of uncertainty than the other ways to predict with "
                "the same network", FOUR, [(f"{name} − {KRONECKER}", difference(peak(units, name),
                                                                                peak(units, KRONECKER)))
                                           for name in SAME], 2, "nats"),
        _larger("Targeted: it is the most robust of them: half of the images are lost later", FOUR,
                [(f"{KRONECKER} − {name}", difference(half(units, KRONECKER), half(units, name))) for name in SAME], 1,
                "updates"),
        Claim(f"Targeted: that takes about twice as many updates (20 against 10; {TWICE} times counts)", FOUR,
              f"{kronecker.text(1)} updates, {times.text(2)} times the next best", above(times, TWICE)),
        _later(units, f"Targeted: nearly all images ({NEARLY:.0%}) are taken for the target later", FOUR, NEARLY),
        _later(units, "Targeted: all images are taken for the target later (about 50 updates against 25)", FOUR, 1.0),
    ]  # fmt: skip


def _larger(claim: str, where: str, found: Sequence[tuple[str, Interval]], digits: int, unit: str) -> Claim:
    words = "; ".join(f"{name}: {value.text(digits)}" for name, value in found)
    return Claim(claim, where, f"{words} {unit}", every(*(above(value) for _, value in found)))


def _later(units: Values, claim: str, where: str, share: float) -> Claim:
    """By order, seed by seed, since some never get there; a verdict needs all seeds."""
    mine = fooled(units, KRONECKER, share)
    others = {name: fooled(units, name, share) for name in SAME}
    later = [all(found[i] < value for found in others.values()) for i, value in enumerate(mine)]
    earlier = [any(found[i] > value for found in others.values()) for i, value in enumerate(mine)]
    verdict: Verdict = "holds" if all(later) else "does not hold" if all(earlier) else "cannot be told"
    words = "; ".join(f"{name} {updates(found)}" for name, found in ((KRONECKER, mine), *others.items()))
    return Claim(claim, where, f"updates on each seed: {words}", verdict)


def updates(found: Sequence[float]) -> str:
    return ", ".join("never" if math.isinf(value) else f"{value:g}" for value in found)


def _similar(units: Values) -> list[Claim]:
    """The diagonal Laplace beside dropout, in both attacks."""
    doubts = [abs(found.mean) for found in Along(units, DIAGONAL, DROPOUT, "entropy").found]
    apart = interval([max(abs(a - b) for a, b in zip(one, two, strict=True))
                      for one, two in zip(curve(units, UNTARGETED, DIAGONAL, "entropy"),
                                          curve(units, UNTARGETED, DROPOUT, "entropy"), strict=True)])  # fmt: skip
    lost = difference(half(units, DIAGONAL), half(units, DROPOUT))
    return [
        Claim("The diagonal Laplace performs similarly to dropout, untargeted "
              f"(entropies nowhere further apart than {ALIKE} nats)", "5.3",
              f"up to {apart.text(2)} nats apart, {sum(doubts) / len(doubts):.2f} on average", within(apart, ALIKE)),
        Claim(f"… and targeted (half of the images lost within {UPDATES:g} updates of each other)", "5.3",
              f"{lost.text(1)} updates later", within(lost, UPDATES)),
    ]  # fmt: skip


def _appendix(units: Values) -> list[Claim]:
    """Only the variants that were run."""
    found = {name.partition("(")[2].rstrip(")"): name for name in names(units) if "(" in name}
    augmented, plain, exact = (
        found[name] for name in ("augmented, batches", "not augmented, batches", "not augmented, exact")
    )
    strength = _strength(units, plain, augmented)
    return [
        _above(units, "Untargeted: curvature from augmented data gives more uncertainty", "C, figure 6", "entropy",
               (augmented,), (plain, exact)),
        _larger("Targeted: curvature from augmented data is the most robust (half of the images lost later)",
                "C, figure 7",
                [(f"{augmented} − {name}", difference(half(units, augmented), half(units, name)))
                 for name in (plain, exact)], 1, "updates"),
        *_checked(units),
        _negligible(units, "without augmentation", plain, exact, "C, figures 6 and 7"),
        _negligible(units, "with it", augmented, KRONECKER, OURS),
        Claim("Without augmentation stronger regularisation is needed (tuned δ/s)", "C",
              f"log₁₀ of δ/s without over with augmentation {strength.text(2)}", above(strength)),
    ]  # fmt: skip


def _checked(units: Values) -> list[Claim]:
    """Whether what speaks against the paper is the library's fault."""
    if not all(f"{seed}/check" in units for seed in seeds(units)):
        return []
    halves = {
        (kind, by): [units[f"{seed}/check"][kind][f"half_{by}"] or math.inf for seed in seeds(units)]
        for kind in (GREY, BINARISED) for by in ("by_hand", "library")
    }  # fmt: skip
    pairs = [(a, b) for kind in (GREY, BINARISED)
             for a, b in zip(halves[kind, "by_hand"], halves[kind, "library"], strict=True)]  # fmt: skip
    order = zip(halves[GREY, "by_hand"], halves[BINARISED, "by_hand"], strict=True)
    words = "; ".join(
        f"{kind} {', '.join(f'{value:.1f}' for value in halves[kind, 'by_hand'])} by hand, "
        f"{', '.join(f'{value:.1f}' for value in halves[kind, 'library'])} by the library"
        for kind in (GREY, BINARISED)
    )
    return [
        Claim("In plain torch (factors, draws, gradients in double precision; fewer images and draws) half of the "
              f"images are lost at the same update as by the library (within {UPDATES:g}), later with grey images on "
              "every seed", OURS, f"updates on each seed: {words}",
              "holds" if all(abs(a - b) < UPDATES for a, b in pairs) and all(a > b for a, b in order)
              else "does not hold"),
    ]  # fmt: skip


def _negligible(units: Values, which: str, first: str, second: str, where: str) -> Claim:
    """Both attacks: entropy at its worst step, and the updates to lose half."""
    apart = max((found for found in Along(units, first, second, "entropy").found), key=lambda found: abs(found.mean))
    lost = difference(half(units, first), half(units, second))
    return Claim(
        f"Averaging the activation Hessian over a batch makes a negligible difference, {which} (entropy within {ALIKE} "
        f"nats at every step, half lost within {UPDATES:g} updates)", where,
        f"{apart.text(2)} nats at the worst step, {lost.text(1)} updates",
        every(within(apart, ALIKE), within(lost, UPDATES)),
    )  # fmt: skip


def _strength(units: Values, first: str, second: str) -> Interval:
    """log₁₀ of the ratio of tuned δ/s."""

    def tuned(seed: str, name: str) -> float:
        unit = units[f"{seed}/targeted/{name}"]
        return math.log10(unit["prior_precision"] / unit["data_scale"])

    return interval([tuned(seed, first) - tuned(seed, second) for seed in seeds(units)])
