"""What the thesis asks and the design expects, held against the tables."""

from __future__ import annotations

from reproductions.claims import Claim, above, below, interval
from reproductions.ritter2018.where.tables import TITLES, kinds
from reproductions.store import Values

STRONG = 0.14  # ε² from which a difference counts as large


def claims(units: Values) -> list[Claim]:
    found = []
    for kind, networks in kinds(units).items():
        title, questions = TITLES[kind], "thesis"
        between = interval([n["differences"]["between_layers"] for n in networks])
        last = interval([n["layers"][-1]["test"]["variance_share"] for n in networks])
        fall = interval([n["layers"][0]["test"]["explained"] - n["layers"][0]["ood"]["explained"] for n in networks])
        size = interval([n["magnitude"]["all layers"] for n in networks])
        dead = interval([_unidentified(n) for n in networks])
        found += [
            Claim(f"{title}: layers differ strongly in their weights' uncertainty", questions,
                  f"ε² = {between.text(2)}", above(between, STRONG)),
            Claim(f"{title}: the last layer alone holds less than a tenth of the predictive variance", questions,
                  f"{last.times(100).text(1, ' %')}", below(last, 0.1)),
            Claim(f"{title}: for novel inputs the first layer explains less than for test inputs", questions,
                  f"`explained` falls by {fall.text(2)}", above(fall)),
            Claim(f"{title}: larger weights are better identified", questions, f"ρ = {size.text(2)}", above(size)),
            Claim(f"{title}: some units stay unidentified (below 1 %)", questions,
                  f"{dead.times(100).text(1, ' %')} of the units", above(dead)),
        ]  # fmt: skip
    return found


def _unidentified(network: Values) -> float:
    units = network["units"].values()
    return float(sum(u["unidentified"] for u in units) / sum(u["units"] for u in units))
