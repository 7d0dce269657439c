"""What the paper says of the toy regression, held against the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reproductions.claims import Claim, Interval, Verdict, above, below, difference, every, interval
from reproductions.ritter2018.toy.names import DETERMINISTIC, DIAGONAL, EXACT, FULL, HMC, KRONECKER, PAPER
from reproductions.ritter2018.toy.views import View, activations
from reproductions.store import Values

GOOD = 0.5  # of HMC's standard deviation: a distance up to which a fit is called good
VASTLY = 3.0  # times HMC's standard deviation
SHORT = {KRONECKER: "Kronecker", DIAGONAL: "diagonal", FULL: "full", EXACT: "Kronecker (exact damping)"}
RAW, TUNED = "untuned sampled", "tuned sampled"
MAIN, APPENDIX, BEYOND = "5.1, fig. 1", "app. E, fig. 8", "not in the paper"


def claims(units: Values) -> list[Claim]:
    return judged(View(units, activations(units)[0]))


def judged(view: View) -> list[Claim]:
    """Every claim, with the networks of one activation."""
    return [*_tuned(view), *_regularisation(view), *_untuned(view), *_closer(view), *_beyond(view)]


def ratios(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Seed by seed, first / second; its interval is taken of the logarithm."""
    found = interval([math.log(a / b) for a, b in zip(first, second, strict=True)])
    return Interval(*(math.exp(v) for v in (found.mean, found.low, found.high)))


def _text(found: dict[str, Interval], digits: int = 2, unit: str = "") -> str:
    return "; ".join(f"{SHORT[method]} {value.text(digits, unit)}" for method, value in found.items())


def _all(found: dict[str, Interval], test: str, bound: float) -> Verdict:
    check = above if test == "above" else below
    return every(*(check(value, bound) for value in found.values()))


def _tuned(view: View) -> list[Claim]:
    spread = view.numbers(HMC, "", "target_std")
    fit = {m: ratios(view.distance(m, TUNED), spread) for m in PAPER}
    near = {m: ratios(view.spread(m, TUNED, "inside"), view.spread(HMC, region="inside")) for m in PAPER}
    alone = ratios(view.distance(DETERMINISTIC), spread)
    grown = {m: difference(_growth(view, m, TUNED), _growth(view, HMC, "")) for m in PAPER}
    return [
        Claim(
            "Tuned, all Laplace posteriors give an overall good fit to HMC",
            MAIN,
            f"Wasserstein distance over HMC's standard deviation (good: below {GOOD}): {_text(fit)}; "
            f"the trained network alone {alone.text(2)}",
            _all(fit, "below", GOOD),
        ),
        Claim(
            "Tuned, their uncertainty is slightly higher than HMC's close to the training data",
            MAIN,
            f"standard deviation over HMC's, x within ±4 (higher: above 1): {_text(near)}",
            _all(near, "above", 1.0),
        ),
        Claim(
            "Tuned, their uncertainty increases more slowly away from the data than HMC's",
            MAIN,
            "increase of the standard deviation from x within ±4 to x beyond, less HMC's "
            f"(slower: below 0): {_text(grown, 1)}",
            _all(grown, "below", 0.0),
        ),
        Claim(
            "Tuned, the diagonal posterior underestimates the uncertainty",
            APPENDIX,
            f"standard deviation over HMC's (under: below 1): {_ratio_to_hmc(view, DIAGONAL, TUNED).text(2)}",
            below(_ratio_to_hmc(view, DIAGONAL, TUNED), 1.0),
        ),
    ]


def _growth(view: View, method: str, case: str) -> list[float]:
    far, near = view.spread(method, case, "outside"), view.spread(method, case, "inside")
    return [a - b for a, b in zip(far, near, strict=True)]


def _ratio_to_hmc(view: View, method: str, case: str) -> Interval:
    return ratios(view.spread(method, case), view.spread(HMC))


def _cut(view: View, method: str) -> list[float]:
    """log₁₀ of how many times tuning lowers the variance of a weight."""
    raw, tuned = (view.numbers(method, case, "weight_std", None) for case in (RAW, TUNED))
    return [2 * math.log10(a / b) for a, b in zip(raw, tuned, strict=True)]


def _regularisation(view: View) -> list[Claim]:
    more = {m: difference(_cut(view, m), _cut(view, KRONECKER)) for m in (DIAGONAL, FULL)}
    wider = {m: ratios(view.spread(m, RAW), view.spread(KRONECKER, RAW)) for m in (DIAGONAL, FULL)}
    return [
        Claim(
            "The diagonal and full posteriors need stronger regularisation than the Kronecker-factored one",
            MAIN,
            "decades by which tuning lowers the variance of the weights, less the Kronecker posterior's "
            f"(stronger: above 0): {_text(more)}",
            _all(more, "above", 0.0),
        ),
        Claim(
            "Untuned, the diagonal and full posteriors have higher uncertainty than the Kronecker-factored one",
            f"{MAIN}; {APPENDIX}",
            f"standard deviation over the Kronecker posterior's (higher: above 1): {_text(wider)}",
            _all(wider, "above", 1.0),
        ),
    ]


def _untuned(view: View) -> list[Claim]:
    over = {m: _ratio_to_hmc(view, m, RAW) for m in PAPER}
    rising = {m: ratios(view.spread(m, RAW, "outside"), view.spread(m, RAW, "inside")) for m in PAPER}
    true = ratios(view.spread(HMC, region="outside"), view.spread(HMC, region="inside"))
    smaller = {m: ratios(view.spread(m, RAW), view.spread(FULL, RAW)) for m in (KRONECKER, DIAGONAL)}
    worse = ratios(view.numbers(FULL, RAW, "rmse", None), view.numbers(HMC, "", "rmse", None))
    return [
        Claim(
            "Untuned, all Laplace posteriors overestimate the uncertainty",
            APPENDIX,
            f"standard deviation over HMC's (over: above 1): {_text(over)}",
            _all(over, "above", 1.0),
        ),
        Claim(
            "Untuned, they are increasingly uncertain away from the data, as HMC is",
            APPENDIX,
            "standard deviation for x beyond ±4 over that within (increasing: above 1): "
            f"{_text(rising)}; HMC {true.text(2)}",
            every(_all(rising, "above", 1.0), above(true, 1.0)),
        ),
        Claim(
            "Untuned, the full posterior vastly overestimates the uncertainty",
            f"{MAIN}; {APPENDIX}",
            f"standard deviation over HMC's (vastly: above {VASTLY:.0f}): {over[FULL].text(1)}",
            above(over[FULL], VASTLY),
        ),
        Claim(
            "Untuned, the full posterior has a bad predictive mean",
            f"{MAIN}; {APPENDIX}",
            f"error of its mean to x³ for x within ±4, over that of HMC's mean (bad: above 1): {worse.text(1)}",
            above(worse, 1.0),
        ),
        Claim(
            "Untuned, the Kronecker-factored and the diagonal posterior have smaller variance than the full one",
            APPENDIX,
            f"standard deviation over the full posterior's (smaller: below 1): {_text(smaller)}",
            _all(smaller, "below", 1.0),
        ),
    ]


def _nearer(view: View, method: str, case: str, other: str, its: str) -> Interval:
    """Its distance to HMC over that of another."""
    return ratios(view.distance(method, case), view.distance(other, its))


def _closer(view: View) -> list[Claim]:
    helped = {m: _nearer(view, m, TUNED, m, RAW) for m in PAPER}
    diagonal = _nearer(view, KRONECKER, TUNED, DIAGONAL, TUNED)
    full = {case: _nearer(view, KRONECKER, case, FULL, case) for case in (RAW, TUNED)}
    return [
        Claim(
            "Tuning makes the uncertainty much more similar to the true posterior",
            APPENDIX,
            f"Wasserstein distance to HMC, tuned over untuned (nearer: below 1): {_text(helped)}",
            _all(helped, "below", 1.0),
        ),
        Claim(
            "Tuned, the Kronecker-factored posterior is closer to HMC than the diagonal one",
            MAIN,
            f"Wasserstein distance to HMC, Kronecker over diagonal (nearer: below 1): {diagonal.text(2)}",
            below(diagonal, 1.0),
        ),
        Claim(
            "Restricting the structure of the covariance estimates it better than the full matrix",
            MAIN,
            "Wasserstein distance to HMC, Kronecker over full (nearer: below 1): "
            f"untuned {full[RAW].text(2)}; tuned {full[TUNED].text(2)}",
            every(*(below(value, 1.0) for value in full.values())),
        ),
    ]


def _beyond(view: View) -> list[Claim]:
    lines = []
    for tuning in ("untuned", "tuned"):
        found = {m: _nearer(view, m, f"{tuning} linearised", m, f"{tuning} sampled") for m in PAPER}
        lines.append(
            Claim(
                f"{tuning.capitalize()}, the linearised prediction is closer to HMC than the sampled one",
                BEYOND,
                f"Wasserstein distance to HMC, linearised over sampled (nearer: below 1): {_text(found)}",
                _all(found, "below", 1.0),
            )
        )
    plain = {m: _nearer(view, FULL, "untuned linearised", m, TUNED) for m in PAPER}
    lines.append(
        Claim(
            "The full posterior, linearised and not tuned at all, is closer to HMC than every tuned, sampled one",
            BEYOND,
            f"Wasserstein distance to HMC, over that of the tuned, sampled posterior (nearer: below 1): {_text(plain)}",
            _all(plain, "below", 1.0),
        )
    )
    return lines
