"""Do many weak networks know more than a strong one?"""

from __future__ import annotations

from reproductions.claims import Claim, above, below
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.members.config import KINDS
from reproductions.kniebel2020.members.tables import groups, over_cells, over_strong
from reproductions.store import Values


def claims(units: Values) -> list[Claim]:
    found, where = groups(units), questions.MEMBERS
    made = []
    for kind in KINDS:
        if len([1 for _, own in found if own == kind]) < 2:
            continue
        more = {s: over_cells(found, kind, over_strong(s)) for s in ("accuracy", "nll", "novel")}
        scaled = over_cells(found, kind, over_strong("nll", "strong, scaled"))
        tied = over_cells(found, kind, lambda value: float(value["correlation"]))
        words = f"Many members, weak by {'size' if kind == 'small' else 'few examples'},"
        made += [
            Claim(f"{words} are right more often than the strong network", where,
                  f"{more['accuracy'].times(100).text(1)} points", above(more["accuracy"])),
            Claim(f"{words} have a smaller log loss", where, more["nll"].text(3), below(more["nll"])),
            Claim(f"{words} have a smaller log loss than the strong network with a temperature", where, scaled.text(3),
                  below(scaled)),
            Claim(f"{words} find novel inputs better", where, more["novel"].text(3), above(more["novel"])),
            Claim(f"{words} err independently, as Condorcet assumes (correlation below 0.1)", where, tied.text(2),
                  below(tied, 0.1)),
        ]  # fmt: skip
    return made
