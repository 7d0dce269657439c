"""Whether training with the evidence replaces validation data, held against the numbers."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Claim, Interval, Verdict, below, difference, every
from reproductions.linearised.online.numbers import KINDS, TITLES, Numbers
from reproductions.store import Values

IMMER = "Immer et al. (2021)"
OURS = "our expectation"
CASES = {"standard": 9, "gap": 9, "images": 8}  # of the full version
WORDS = {"standard": "Standard splits", "gap": "Gap splits", "images": "Images"}


def claims(units: Values) -> list[Claim]:
    numbers = Numbers(units)
    found = []
    for kind in KINDS:
        for method, other, where in (
            ("online, laplace", "grid, laplace", IMMER), ("online, laplace", "early, laplace", IMMER),
            ("online", "grid", IMMER), ("online, laplace", "online", IMMER),
            ("online, laplace", "afterwards, laplace", IMMER),
            ("online, laplace", "online, relative, laplace", OURS), ("online, laplace", "online, kron, laplace", OURS),
            ("online, exact", "online, laplace", OURS),
        ):  # fmt: skip
            found += _lower(numbers, kind, method, other, where)
    return [*found, *_start(numbers), *_gain(numbers)]


def majority(over: dict[str, Interval], cases: int) -> Verdict:
    """Significantly below 0 in more than half of all cases, or above 0 in as many; those not measured may be either."""
    half = max(cases, len(over)) / 2
    if sum(interval.high < 0 for interval in over.values()) > half:
        return "holds"
    return "does not hold" if sum(interval.low > 0 for interval in over.values()) > half else "cannot be told"


def counted(over: dict[str, Interval]) -> str:
    low = [case for case, interval in over.items() if interval.high < 0]
    high = [case for case, interval in over.items() if interval.low > 0]
    mean = sum(interval.mean < 0 for interval in over.values())
    return f"mean lower in {mean} of {len(over)} cases; significantly lower in {_named(low)}, higher in {_named(high)}"


def _named(names: list[str]) -> str:
    return f"{len(names)} ({'; '.join(names)})" if names else "0"


def _cases(numbers: Numbers, kind: str, over: dict[str, Interval]) -> int:
    """All cases there are in the full version; in small ones those that were measured."""
    real = any(case in ("yacht", "concrete") or case.startswith(("mnist", "fashion")) for case in numbers.cases(kind))
    return CASES[kind] if real else len(over)


def _lower(numbers: Numbers, kind: str, method: str, other: str, where: str) -> list[Claim]:
    over = numbers.all_over(kind, method, other, "nll")
    if not over:
        return []
    claim = f"{WORDS[kind]}: NLL of “{TITLES[method]}” is lower than of “{TITLES[other]}” in most cases"
    cases = len(over) if method == "online, exact" else _cases(numbers, kind, over)
    return [Claim(claim, where, counted(over), majority(over, cases))]


def _start(numbers: Numbers) -> list[Claim]:
    """The worst NLL over starts less the best one, split by split: of the isotropic prior less of the relative one."""
    over: dict[str, Interval] = {}
    for name, starts in numbers.starts.items():
        spread = []
        for prior in ("isotropic", "relative"):
            each = [own["nll"] for begin, own in starts.items() if begin.startswith(prior)]
            spread.append([max(nlls) - min(nlls) for nlls in zip(*each, strict=True)])
        if len(spread[0]) > 1:
            over[name] = difference(*spread)
    if not over:
        return []
    shown = "; ".join(f"{name} {interval.text(2)}" for name, interval in over.items())
    ours = f"spread of NLL over three starts, isotropic less relative: {shown}"
    claim = "The isotropic prior depends less on where it starts than the relative prior"
    return [Claim(claim, OURS, ours, every(*[below(interval) for interval in over.values()]))]


def _gain(numbers: Numbers) -> list[Claim]:
    """The evidence of the first update, less that of the last: training and updates raise it."""
    found: dict[str, list[float]] = {"online": [], "online, relative": []}
    for kind in KINDS:
        for trace in numbers.traces[kind].values():
            for method, gains in found.items():
                records = trace.get(method, [])
                if len(records) > 1:
                    gains.append(records[-1]["evidence"] - records[0]["evidence"])
    gains, relative = found["online"], found["online, relative"]
    if not gains:
        return []
    verdict: Verdict = "holds" if all(gain > 0 for gain in gains) else "does not hold"
    ours = f"higher at the last update than at the first in {sum(g > 0 for g in gains)} of {len(gains)} first splits"
    if relative:
        ours += f" (relative prior: {sum(g > 0 for g in relative)}, where it is the evidence of another prior)"
    spread = f"; mean gain {fmean(gains):,.0f} nats"
    return [Claim("Training with the evidence raises it, everywhere", IMMER, ours + spread, verdict)]
