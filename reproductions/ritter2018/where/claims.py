"""What one might expect of the answers to the thesis's questions; it asks, these expectations are ours."""

from __future__ import annotations

from reproductions.claims import Claim, Interval, above, below, every, interval
from reproductions.ritter2018.where.tables import TITLES, kinds, taus
from reproductions.store import Values

STRONG = 0.14  # ε² from which a difference counts as large


def claims(units: Values) -> list[Claim]:
    found = []
    for kind, networks in kinds(units).items():
        title, questions = TITLES[kind], "our expectation"
        between = interval([n["differences"]["between_layers"] for n in networks])
        last = {
            tau: interval([n["sweep"][tau]["test"][-1]["variance_share"] for n in networks]) for tau in taus(networks)
        }
        fall = {tau: interval([_fall(n["sweep"][tau]) for n in networks]) for tau in taus(networks)}
        size = interval([n["magnitude"]["all layers"] for n in networks])
        dead = interval([_unidentified(n) for n in networks])
        found += [
            Claim(f"{title}: layers differ strongly in their weights' uncertainty", questions,
                  f"ε² = {between.text(2)}", above(between, STRONG)),
            Claim(f"{title}: the last layer alone holds less than a tenth of the predictive variance", questions,
                  _by_tau({tau: f.times(100) for tau, f in last.items()}, 1, " %"),
                  every(*(below(f, 0.1) for f in last.values()))),
            Claim(f"{title}: for novel inputs the first layer explains less than for test inputs", questions,
                  f"`explained` falls by {_by_tau(fall, 2)}", every(*(above(f) for f in fall.values()))),
            Claim(f"{title}: larger weights are better identified", questions, f"ρ = {size.text(2)}", above(size)),
            Claim(f"{title}: some units stay unidentified (below 1 %)", questions,
                  f"{dead.times(100).text(1, ' %')} of the units", above(dead)),
        ]  # fmt: skip
    return found


def _fall(sweep: Values) -> float:
    """Of explained in the first layer, from test inputs to novel ones."""
    return float(sweep["test"][0]["explained"] - sweep["ood"][0]["explained"])


def _by_tau(found: dict[str, Interval], digits: int, unit: str = "") -> str:
    return "; ".join(f"τ = {tau}: {each.text(digits, unit)}" for tau, each in found.items())


def _unidentified(network: Values) -> float:
    units = network["units"].values()
    return float(sum(u["unidentified"] for u in units) / sum(u["units"] for u in units))
