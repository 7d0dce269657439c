"""What the linearised predictive should do on these sets, held against the numbers."""

from __future__ import annotations

from reproductions.claims import Claim
from reproductions.linearised.classes.config import SETS
from reproductions.linearised.classes.numbers import TITLES, Numbers
from reproductions.linearised.online.claims import counted, majority
from reproductions.store import Values

PREDICTIONS = "Immer, Korzepa and Bauer (2021)"
PAIRS = (
    ("laplace, full", "plain", PREDICTIONS), ("laplace, full", "temperature", "our expectation"),
    ("laplace, full", "laplace, sampled", PREDICTIONS), ("laplace, full", "laplace, evidence", "our expectation"),
    ("laplace, full", "variational", PREDICTIONS), ("laplace, full", "ensemble", "our expectation"),
    ("ensemble", "plain", "our expectation"),
)  # fmt: skip


def claims(units: Values) -> list[Claim]:
    numbers = Numbers(units)
    found = []
    cases = len(SETS) if set(numbers.sets()) & set(SETS) else len(numbers.sets())
    for method, other, where in PAIRS:
        over = numbers.all_over(method, other, "nll")
        if over:
            claim = f"NLL of “{TITLES[method]}” is lower than of “{TITLES[other]}” on most sets"
            found.append(Claim(claim, where, counted(over), majority(over, cases)))
    return found
