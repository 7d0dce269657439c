"""Answers about training as sentences that can be wrong; the questions are the proposal's."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Claim, above, interval
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.stability import CONDITIONS, REFERENCE, Stable, over_cells
from reproductions.kniebel2020.training.rules import Runs
from reproductions.kniebel2020.training.tables import (
    CHEAP,
    FIXED,
    OURS,
    VALIDATION,
    extra,
    fallen,
    grown,
    order,
    peak,
    pruned,
    regrets,
    runs_of,
    settled_early,
    stayed,
)
from reproductions.store import Values


def claims(units: Values) -> list[Claim]:
    runs = runs_of(units)
    if len(runs) < 2:
        return []
    return [*_layers(runs), *_stopping(runs), *_unidentified(runs)]


def _layers(runs: Runs) -> list[Claim]:
    wide, less, first, early = (over_cells(runs, get) for get in (grown, fallen, order, peak))
    where = questions.TRAINING
    return [
        Claim("Differences between layers in `explained` arise in training", where, wide.text(), wide.above()),
        Claim("`explained` falls again before the end (by more than 0.05)", where, less.text(), less.above(0.05)),
        Claim("The first layers settle first", where, first.text(), first.above()),
        Claim("`explained` peaks before the validation optimum", questions.CONVERGENCE,
              early.times(100).text(0, "%") + " of the training later", early.below()),
    ]  # fmt: skip


def _stopping(runs: Runs) -> list[Claim]:
    when = Stable({c: settled_early(runs, c) for c in CONDITIONS})
    found = {c: {family: regrets(family, runs, c) for family in (OURS, VALIDATION, FIXED)} for c in CONDITIONS}
    against = Stable({c: extra(each[OURS], each[VALIDATION]) for c, each in found.items()})
    plain = Stable({c: extra(each[OURS], each[FIXED]) for c, each in found.items()})
    where = questions.CONVERGENCE
    return [
        Claim("All layers have settled before the validation optimum", where,
              when.times(100).text(0, "%") + " of the training later", when.below()),
        Claim(f"Stopping there costs no more than {CHEAP} nats over early stopping on validation data", where,
              against.text(3), against.below(CHEAP)),
        Claim("Stopping there is better than a fixed number of epochs", where, plain.text(3), plain.below()),
    ]  # fmt: skip


def _unidentified(runs: Runs) -> list[Claim]:
    kept = over_cells(runs, stayed, (REFERENCE,)).reference
    gain, size = (
        interval([fmean(pruned(run, "throughout", other) for run in some) for some in runs.values()])
        for other in ("random", "magnitude")
    )
    where = questions.PRUNED
    return [
        Claim("Most units that are unidentified at the end never were identified", where,
              kept.times(100).text(0, "%"), above(kept, 0.5)),
        Claim("Half of the hidden units pruned by what was never identified cost less accuracy than at random", where,
              f"{gain.times(100).text(1)} points", above(gain)),
        Claim("… and less than the smallest ones", where, f"{size.times(100).text(1)} points", above(size)),
    ]  # fmt: skip
