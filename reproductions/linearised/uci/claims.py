"""What the linearised predictive should do on these tables, held against the numbers."""

from __future__ import annotations

from reproductions.claims import Claim, Interval, Verdict
from reproductions.linearised.uci.numbers import TITLES, Numbers
from reproductions.linearised.uci.published import NLL
from reproductions.store import Values

WANTED, TABLES = 7, 9


def claims(units: Values) -> list[Claim]:
    numbers = Numbers(units)
    found = []
    for method in ("laplace, full", "laplace, chosen", "longer, laplace"):
        over = numbers.all_over("standard", method, "ensemble", "nll")
        claim = f"{TITLES[method]}: NLL at or below that of our ensemble of five on {WANTED} of {TABLES} sets"
        found.append(Claim(claim, "aim", _counted(over), enough(over, WANTED, TABLES)))
    for kind in ("standard", "gap"):
        for method, other in (
            ("laplace, full", "plain"), ("ensemble", "plain"), ("laplace, full", "laplace, sampled"),
            ("laplace, full", "laplace, evidence"), ("laplace, refined", "laplace, full"),
        ):  # fmt: skip
            found += _lower(numbers, kind, method, other)
    found += _gap(numbers)
    return [*found, *_against_published(numbers)]


def enough(over: dict[str, Interval], wanted: int, tables: int) -> Verdict:
    """Whether ``wanted`` differences are at or below 0; tables that were not measured may be either."""
    sure = sum(interval.high <= 0 for interval in over.values())
    possible = sum(interval.low <= 0 for interval in over.values()) + tables - len(over)
    return "holds" if sure >= wanted else "does not hold" if possible < wanted else "cannot be told"


def majority(over: dict[str, Interval]) -> Verdict:
    """Significantly below 0 on more than half of the tables, or above 0 on as many; all nine, where any is theirs."""
    half = (TABLES if set(over) & set(NLL) else len(over)) / 2
    if sum(interval.high < 0 for interval in over.values()) > half:
        return "holds"
    return "does not hold" if sum(interval.low > 0 for interval in over.values()) > half else "cannot be told"


def _counted(over: dict[str, Interval]) -> str:
    low = [name for name, interval in over.items() if interval.high < 0]
    high = [name for name, interval in over.items() if interval.low > 0]
    mean = sum(interval.mean <= 0 for interval in over.values())
    return (
        f"mean at or below on {mean} of {len(over)} sets; significantly below on {_named(low)}, above on {_named(high)}"
    )


def _named(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _lower(numbers: Numbers, kind: str, method: str, other: str) -> list[Claim]:
    over = numbers.all_over(kind, method, other, "nll")
    if not over:
        return []
    claim = f"{kind.capitalize()} splits: NLL of “{TITLES[method]}” is lower than of “{TITLES[other]}” on most sets"
    return [Claim(claim, "our expectation", _counted(over), majority(over))]


def _gap(numbers: Numbers) -> list[Claim]:
    """Who knows what it does not know."""
    found = []
    for method, other in (("laplace, full", "ensemble"), ("ensemble", "plain")):
        over = numbers.all_over("gap", method, other, "widening")
        turned = {name: interval.times(-1) for name, interval in over.items()}
        if over:
            claim = f"In gaps “{TITLES[method]}” widens its predictions more than “{TITLES[other]}” on most sets"
            more = sum(interval.mean > 0 for interval in over.values())
            sure = [name for name, interval in turned.items() if interval.high < 0]
            shown = f"more on {more} of {len(over)} sets; significantly on {_named(sure)}"
            found.append(Claim(claim, "our expectation", shown, majority(turned)))
    over = numbers.all_over("gap", "laplace, full", "ensemble", "nll")
    if over:
        claim = "In gaps “Laplace, full” has a lower NLL than the ensemble on most sets"
        found.append(Claim(claim, "our expectation", _counted(over), majority(over)))
    return found


def _against_published(numbers: Numbers) -> list[Claim]:
    """Means alone: the published figures have no splits to pair with."""
    means = {}
    for name in numbers.sets("standard"):
        values = numbers.each("standard", name, "laplace, full", "nll")
        if values and name in NLL:
            means[name] = sum(values) / len(values)
    if not means:
        return []
    below = [name for name, mean in means.items() if mean <= NLL[name][2][0]]
    shown = f"{_named(below)} of {len(means)} sets; means, without intervals"
    claim = "“Laplace, full” of one network: mean NLL at or below the published deep ensembles' on most sets"
    possible = len(below) + TABLES - len(means)
    half = TABLES / 2
    verdict: Verdict = "holds" if len(below) > half else "cannot be told" if possible > half else "does not hold"
    return [Claim(claim, "Lakshminarayanan et al. (2017), table 1", shown, verdict)]
