"""Question (d): layers during training, an order, a stopping rule, and what stays unidentified."""

from __future__ import annotations

from statistics import fmean

from reproductions.claims import Interval, below, interval
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.grid.numbers import ranks
from reproductions.kniebel2020.stability import REFERENCE, Condition, Stable, over_cells
from reproductions.kniebel2020.training import rules
from reproductions.kniebel2020.training.rules import FAMILIES, Judged, Runs, optimum, series, settled_at
from reproductions.kniebel2020.training.watch import PRUNED
from reproductions.kniebel2020.wording import known, said, section, sentence, short, table
from reproductions.store import Values

CHEAP = 0.01  # nats
OURS, VALIDATION, FIXED = "all layers have settled", "validation loss", "a fixed number of epochs"


def runs_of(units: Values) -> Runs:
    """Cells with at least two seeds."""
    found: Runs = {}
    for name, run in units.items():
        found.setdefault(name.rpartition("/")[0], []).append(run)
    return {cell: some for cell, some in found.items() if len(some) > 1}


# Figures of one run under a condition


def order(run: Values, condition: Condition) -> float:
    """Rank correlation of a layer's place with the epoch at which its `identified` settles, looking back."""
    found = list(zip(*series(run, condition, "identified"), strict=True))
    return ranks(range(len(found)), [settled_at(values) for values in found])


def peak(run: Values, condition: Condition) -> float:
    """The epoch at which the mean of `explained` is largest, less that of the validation optimum, as shares."""
    means = [fmean(row) for row in series(run, condition, "explained")]
    return (max(range(len(means)), key=means.__getitem__) - optimum(run)) / (len(means) - 1)


def fallen(run: Values, condition: Condition) -> float:
    """The largest mean of `explained` less the last one."""
    means = [fmean(row) for row in series(run, condition, "explained")]
    return max(means) - means[-1]


def apart(run: Values, condition: Condition, when: int) -> float:
    """The range of `explained` over layers in one record."""
    row = series(run, condition, "explained")[when]
    return max(row) - min(row)


def grown(run: Values, condition: Condition) -> float:
    """How much further apart layers are at the validation optimum than before training."""
    return apart(run, condition, optimum(run)) - apart(run, condition, 0)


def stayed(run: Values, _: Condition) -> float:
    """Of the units that are unidentified at the end, the share that was never identified."""
    last = sum(layer["last"] for layer in run["unidentified"])
    return float(sum(layer["throughout"] for layer in run["unidentified"]) / last) if last else 1.0


def off(run: Values, when: str) -> float:
    units = sum(layer["units"] for layer in run["unidentified"])
    return float(sum(layer[when] for layer in run["unidentified"]) / units)


def pruned(run: Values, by: str, other: str, place: int = 1) -> float:
    """Accuracy after pruning by one order less that by another."""
    return float(run["pruned"][by][place] - run["pruned"][other][place])


# Rules


def regrets(family: str, runs: Runs, condition: Condition = REFERENCE) -> dict[str, Judged]:
    return dict(rules.judged(family, runs, condition))


def extra(first: dict[str, Judged], second: dict[str, Judged]) -> Interval:
    """Test loss of one family of rules less that of another, over cells."""
    return interval([fmean(first[cell].regrets) - fmean(second[cell].regrets) for cell in first])


def settled_early(runs: Runs, condition: Condition) -> Interval:
    """The epoch at which our rule stops less the validation optimum, as a share of the training, over cells."""
    return interval([fmean(j.epochs) for j in regrets(OURS, runs, condition).values()])


def tables(units: Values) -> str:
    runs = runs_of(units)
    return "\n\n".join(part for part in (differences(runs), stopping(runs), unidentified(runs)) if part)


def differences(runs: Runs) -> str:
    ordered, early, less, more = (over_cells(runs, get) for get in (order, peak, fallen, grown))
    answer = (
        f"Before training the layers are about equally unexplained; at the validation optimum the best and the least "
        f"explained layer are {more.text()} further apart. "
        f"`explained` does not only rise: from its largest value to the end of the training it falls by {less.text()}, "
        f"because a network that becomes sure of its training data sends less curvature back. "
        f"{_in_order(ordered)} {_peaks(early)}"
    )
    head = ["cell", "validation optimum", "peak of explained", "apart at the start", "at the optimum", "at the end",
            "fallen since the peak", "order"]  # fmt: skip
    rows = []
    for cell, some in runs.items():
        best = fmean(optimum(run) for run in some)
        top = best + fmean(peak(run, REFERENCE) * (len(run["test"]) - 1) for run in some)
        places = [[0, optimum(run), -1] for run in some]
        distances = [
            fmean(apart(run, REFERENCE, when) for run, when in zip(some, whens, strict=True))
            for whens in zip(*places, strict=True)
        ]
        sign = known(Stable.of(some, order), ("first layers first", "last layers first"))
        epochs = [f"epoch {best:.1f}", f"epoch {top:.1f}"]
        rows.append([cell, *epochs, *(f"{d:.2f}" for d in distances), short(Stable.of(some, fallen)), sign])
    title = "(d) During training: do layers settle, and in an order?"
    return section(title, questions.TRAINING, answer, table(head, rows))


def _in_order(found: Stable) -> str:
    yes, no = (f"The {ends} layers settle first (rank correlation {found.text()})." for ends in ("first", "last"))
    return sentence(found, yes, no, "layers settle in an order")


def _peaks(found: Stable) -> str:
    away = found.times(100).text(0, "%")
    yes, no = (
        f"`explained` peaks {when} the validation optimum ({away} of the training later)."
        for when in ("after", "before")
    )
    return sentence(found, yes, no, "`explained` peaks before the validation optimum")


def stopping(runs: Runs) -> str:
    if len(runs) < 2:
        return ""
    found = {family: regrets(family, runs) for family in FAMILIES}
    ours, validation = found[OURS], found[VALIDATION]
    over, early = extra(ours, validation), settled_early(runs, REFERENCE)
    so = said(
        below(over, CHEAP), "As a stopping rule that needs no validation data it will do",
        "As a stopping rule it does not replace validation data", "Whether it can replace validation data is not known",
    )  # fmt: skip
    answer = (
        f"Stopping when all layers have settled costs {over.text(3)} nats of test loss more than early stopping on "
        f"validation data, and {extra(ours, found[FIXED]).text(3)} more than a fixed number of epochs. "
        f"Its epoch minus that of the validation optimum is {early.times(100).text(0, '%')} of the training. "
        f"{so}."
    )
    head = ["stop by", "settings (most often)", "test loss − at the validation optimum", "epochs after the optimum"]
    rows = []
    for family, each in found.items():
        settings = [j.settings for j in each.values()]
        common = max(dict.fromkeys(settings), key=settings.count)
        cost = interval([fmean(j.regrets) for j in each.values()])
        late = interval([fmean(j.epochs) for j in each.values()]).times(100)
        rows.append([family, common, cost.text(3), f"{late.text(0, '%')} of the training"])
    cells = [[cell, *(f"{fmean(found[f][cell].regrets):+.3f}" for f in FAMILIES)] for cell in runs]
    note = (
        "Settings are chosen on the validation losses of the other cells (patience too); the loss is that of the "
        "weights that are kept: with validation data the best so far, else the last. Intervals are over cells."
    )
    by_cell = table(["cell", *FAMILIES], cells)
    return section("Is that a reason to stop?", questions.CONVERGENCE, answer, table(head, rows), by_cell, note)


def unidentified(runs: Runs) -> str:
    start, end = (
        interval([fmean(off(run, when) for run in some) for some in runs.values()]) for when in ("first", "last")
    )
    kept = over_cells(runs, stayed, (REFERENCE,)).reference
    gain = interval([fmean(pruned(run, "throughout", "random") for run in some) for some in runs.values()])
    size = interval([fmean(pruned(run, "throughout", "magnitude") for run in some) for some in runs.values()])
    answer = (
        f"Of all units, {start.times(100).text(0, '%')} are identified less than 1% before training and "
        f"{end.times(100).text(0, '%')} after it; {kept.times(100).text(0, '%')} of the latter always were. "
        f"Pruning the half of the hidden units that were identified least throughout the training changes accuracy by "
        f"{gain.times(100).text(1, ' points')} against pruning at random, and by {size.times(100).text(1, ' points')} "
        f"against pruning the smallest ones."
    )
    orders = ("throughout", "identified", "magnitude", "random")
    shown = [f"half pruned: {o}" for o in orders]
    head = ["cell", "unidentified at the start", "at the end", "throughout", "accuracy", *shown]
    rows = []
    for cell, some in runs.items():
        shares = [fmean(off(run, when) for run in some) for when in ("first", "last", "throughout")]
        accuracy = fmean(run["accuracy"][-1] for run in some)
        left = [fmean(run["pruned"][o][PRUNED.index(0.5)] for run in some) for o in orders]
        rows.append([cell, *(f"{s:.0%}" for s in shares), f"{accuracy:.3f}", *(f"{a:.3f}" for a in left)])
    return section("What stays unidentified to the end?", questions.PRUNED, answer, table(head, rows))
