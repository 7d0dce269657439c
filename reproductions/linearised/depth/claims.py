"""Whether the evidence chooses as test data do."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from reproductions.claims import Claim, Verdict, above, below
from reproductions.linearised.depth.numbers import (
    WHERE,
    Correlation,
    Figure,
    Numbers,
    OverMean,
    over,
    shown,
)
from reproductions.store import Values

ANTORAN = "Antorán et al. (2022)"
IMMER = "Immer et al. (2021)"


def claims(units: Values) -> list[Claim]:
    numbers = Numbers(units)
    found = []
    for kind, title in (("depth", "Depth and width"), ("activation", "Activation functions")):
        for where, words in WHERE.items():
            if not numbers.with_where(kind, where):
                continue
            for figure, claim, sign in _figures(title, words):
                values = numbers.over_data(kind, where, figure)
                found.append(
                    Claim(claim, IMMER, f"{shown(values)}, over {len(values)} data sets", _verdict(values, sign))
                )
    found += _difference(numbers)
    return [*found, *_occam(numbers), *_images(numbers)]


def _figures(title: str, words: str) -> list[tuple[Figure, str, float]]:
    evidence = f"{title}: the evidence {words}"
    return [
        (Correlation(), f"{evidence} orders networks as test NLL does (rank correlation above 0)", 1.0),
        (OverMean(), f"{evidence} chooses networks with a lower NLL than chance does", -1.0),
    ]


def _verdict(values: Sequence[float], sign: float) -> Verdict:
    found = over(values)
    if found is None:
        return "cannot be told"
    return above(found) if sign > 0 else below(found)


def _difference(numbers: Numbers) -> list[Claim]:
    """The same networks, ordered by the two evidences; only numbers have both."""
    names, figure = numbers.with_where("depth", "refined"), Correlation()
    first, second = (
        [fmean(figure(pairs) for pairs in numbers.each("depth", name, where)) for name in names]
        for where in ("refined", "trained")
    )
    values = [a - b for a, b in zip(first, second, strict=True)]
    claim = "Depth and width: the evidence at the linear model's optimum orders networks better than the other"
    ours = f"rank correlation {shown(values)} more, over {len(values)} data sets"
    return [Claim(claim, ANTORAN, ours, _verdict(values, 1.0))] if values else []


def _occam(numbers: Numbers) -> list[Claim]:
    """From the shallowest to the deepest network of the largest width, mean over seeds."""
    fits: list[float] = []
    factors: list[float] = []
    for name in numbers.data("depth"):
        rows = list(numbers.units["depth"][name].values())
        first, last = _widths(rows[0])[-1], list(rows[0])[-1]
        for key, into in (("fit", fits), ("occam", factors)):
            into.append(fmean(row[last]["trained"][key] - row[first]["trained"][key] for row in rows))
    if not fits:
        return []
    parts = f"fit {shown(fits, 0)}, Occam factor {shown(factors, 0)}"
    ours = f"nats, deepest less shallowest, over {len(fits)} data sets: {parts}"
    verdict = _both(_verdict(fits, 1.0), _verdict(factors, -1.0))
    return [Claim("Deeper networks fit better and pay a larger Occam factor", "MacKay (1992)", ours, verdict)]


def _both(first: Verdict, second: Verdict) -> Verdict:
    if "does not hold" in (first, second):
        return "does not hold"
    return "holds" if first == second == "holds" else "cannot be told"


def _widths(networks: Values) -> list[str]:
    depth = next(iter(networks)).split(", ")[0]
    return [name for name in networks if name.split(", ")[0] == depth]


IMAGE_PAIRS = (
    ("convolutions", "fully connected"),
    ("convolutions, batch norm", "convolutions"),
    ("fully connected, batch norm", "fully connected"),
)


def _images(numbers: Numbers) -> list[Claim]:
    """Differences of evidence and of test NLL between two networks, seed by seed."""
    found = []
    for name in numbers.data("images"):
        for first, second in IMAGE_PAIRS:
            for where, words in WHERE.items():
                each = numbers.each("images", name, where)
                if not each or first not in each[0]:
                    continue
                evidence = [pairs[first][0] - pairs[second][0] for pairs in each]
                networks = numbers.units["images"][name].values()
                own = [n[first]["alone"] - n[second]["alone"] for n in networks]  # what training made of them
                nll = [pairs[first][1] - pairs[second][1] for pairs in each]
                claim = f"{name}: the evidence {words} compares “{first}” with “{second}” as test NLL does"
                ours = f"{shown(evidence, 0)} nats of evidence; {shown(nll)} of NLL, {shown(own)} of the networks alone"
                found.append(Claim(claim, ANTORAN, f"{ours}; {len(each)} seeds", _agree(evidence, nll, own)))
    return found


def _agree(evidence: Sequence[float], *scores: Sequence[float]) -> Verdict:
    """Whether more evidence goes with less NLL, of the linearised prediction and of the network alone."""
    intervals = [over(values) for values in (evidence, *scores)]
    signs = [_sign(i.low, i.high) for i in intervals if i is not None]
    if len(signs) < len(intervals) or 0 in signs:
        return "cannot be told"
    first, *others = signs
    if all(sign == -first for sign in others):
        return "holds"
    return "does not hold" if all(sign == first for sign in others) else "cannot be told"


def _sign(low: float, high: float) -> int:
    return 1 if low > 0 else -1 if high < 0 else 0
