"""The textbook's sentence about layers, which the thesis repeats as background, and what uncertainty shows."""

from __future__ import annotations

from reproductions.claims import Claim, above, below
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.separation.tables import at_border, error, groups, outside, over
from reproductions.store import Values

ARTICLE = {"half-plane": "a half-plane", "convex set": "a convex set", "arbitrary set": "an arbitrary set"}
SEPARATES, FAILS = 3.0, 5.0  # percent of test points


def claims(units: Values) -> list[Claim]:
    found = groups(units)
    where = questions.SEPARATION
    can = [
        ("one layer", "separates", "half-plane"),
        ("two layers", "separate", "convex set"),
        ("three layers", "separate", "arbitrary set"),
    ]
    cannot = [("one layer", "convex set"), ("two layers", "arbitrary set")]
    made = []
    for network, verb, which in can:
        off = over(found, which, network, error)
        words = f"{network.capitalize()} {verb} {ARTICLE[which]} (error below {SEPARATES:g}%)"
        made.append(Claim(words, where, f"{off.text(1)}%", below(off, SEPARATES)))
    for network, which in cannot:
        off = over(found, which, network, error)
        words = f"{network.capitalize()} cannot separate {ARTICLE[which]} (error above {FAILS:g}%)"
        made.append(Claim(words, where, f"{off.text(1)}%", above(off, FAILS)))
    more = over(found, "arbitrary set", "three layers", at_border)
    far = over(found, "arbitrary set", "three layers", outside)
    weak = over(found, "convex set", "one layer", lambda v: float(v["errors by epistemic"]))
    border, away = (f"{v.times(100).text(0)}% larger" for v in (more, far))
    knows = "A network that cannot separate a set knows where it is wrong (AUROC of epistemic uncertainty above 0.7)"
    return [
        *made,
        Claim("Epistemic uncertainty is larger at the border of the set", where, border, above(more)),
        Claim("… and outside the data", where, away, above(far)),
        Claim(knows, where, weak.text(2), above(weak, 0.7)),
    ]
