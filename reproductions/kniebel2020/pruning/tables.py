"""Question (f): how much can go at equal accuracy, by which order; weights, units, whole layers."""

from __future__ import annotations

from statistics import fmean

from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.stability import CONDITIONS, Condition, Get, over_cells
from reproductions.kniebel2020.wording import section, sentence, table
from reproductions.store import Values

LOSS = 0.01  # of accuracy on validation data that pruning may cost
BY_STRUCTURE: tuple[Condition, ...] = (("kron", "1"), ("diag", "1"))
ONE: tuple[Condition, ...] = (("kron", "1"),)
PIECES = {"weights": "Single weights", "units": "Units", "layers": "Whole layers"}
SHOWN = {
    "snr": "signal to noise", "snr, isotropic": "signal to noise, isotropic prior",
    "identified": "identified",
    "saliency": "saliency", "relative_curvature": "relative curvature", "magnitude": "magnitude", "random": "random",
    "snr, variational": "variational: signal to noise", "identified, variational": "variational: identified",
}  # fmt: skip
Cells = dict[str, list[Values]]


def cells_of(units: Values, pieces: str = "weights") -> Cells:
    """Cells with at least two seeds, where such pieces can be pruned."""
    found: Cells = {}
    for name, value in units.items():
        found.setdefault(name.rpartition("/")[0], []).append(value)
    return {name: some for name, some in found.items() if len(some) > 1 and all(n[pieces] for n in some)}


def curves(network: Values, pieces: str, order: str, condition: Condition) -> list[Values]:
    """Of an order under a condition; several at random."""
    found, (structure, factor) = network[pieces], condition
    names = (order, f"{order}, {structure} {factor}", f"{order}, {structure}")
    one = next((found[name] for name in names if name in found), None)
    if one is not None:
        return [one]
    return [curve for name, curve in found.items() if name.startswith(f"{order} ")]


def reach(network: Values, curve: Values) -> int | None:
    """Place of the largest fraction up to which validation accuracy is kept; None if the first already costs more."""
    kept = [accuracy >= network["whole"]["validation"] - LOSS for accuracy in curve["validation"]]
    first = kept.index(False) if False in kept else len(kept)
    return first - 1 if first else None


def pruned(pieces: str, order: str) -> Get:
    """How much goes at equal accuracy: sparsity of weights and units, the fraction of layers; chosen on validation."""
    column = "fraction" if pieces == "layers" else "sparsity"

    def get(network: Values, condition: Condition) -> float:
        found = []
        for curve in curves(network, pieces, order, condition):
            place = reach(network, curve)
            found.append(0.0 if place is None else curve[column][place])
        return fmean(found)

    return get


def cost(pieces: str, order: str) -> Get:
    """Accuracy on test data that goes with it."""

    def get(network: Values, condition: Condition) -> float:
        found = []
        for curve in curves(network, pieces, order, condition):
            place = reach(network, curve)
            found.append(0.0 if place is None else network["whole"]["test"] - curve["test"][place])
        return fmean(found)

    return get


def further(pieces: str, one: str, other: str) -> Get:
    """How much more one order prunes than another."""
    first, second = pruned(pieces, one), pruned(pieces, other)
    return lambda network, condition: first(network, condition) - second(network, condition)


def has(cells: Cells, pieces: str, order: str) -> Cells:
    return {n: some for n, some in cells.items() if all(curves(v, pieces, order, ("kron", "1")) for v in some)}


def tables(units: Values) -> str:
    return "\n\n".join(part for part in (_pieces(units, pieces) for pieces in PIECES) if part)


def _pieces(units: Values, pieces: str) -> str:
    cells = cells_of(units, pieces)
    if len(cells) < 2:
        return ""
    orders = [order for order in SHOWN if has(cells, pieces, order)]
    rows = [[name, *(_cell(some, pieces, order) for order in orders)] for name, some in cells.items()]
    best = max((o for o in orders if len(has(cells, pieces, o)) == len(cells)), key=lambda o: _mean(cells, pieces, o))
    size, chance = (
        over_cells(cells, further(pieces, best, other), _conditions(best)).times(100)
        for other in ("magnitude", "random")
    )
    ident = over_cells(cells, further(pieces, "identified", "random")).times(100)
    so = sentence(
        ident, f"What the data have not identified can go sooner than a random choice ({ident.text(0)} points more).",
        f"What the data have not identified cannot go sooner than a random choice ({ident.text(0)} points more).",
        "what the data have not identified can go sooner than a random choice",
    )  # fmt: skip
    lost = 100 * over_cells(cells, cost(pieces, best), ONE).reference.mean
    answer = (
        f"With at most {LOSS:.0%} of validation accuracy lost, most goes by {SHOWN[best]}: "
        f"{_mean(cells, pieces, best):.0%} on average, {size.text(0)} points more than by magnitude and "
        f"{chance.text(0)} more than at random. {so} On test "
        f"data the best order costs {lost:.1f} points of accuracy."
    )
    note = (
        "In brackets: points of test accuracy that it costs. With Kronecker factors and the relative prior at τ = 1. "
        "Variational networks have other means, and are compared with the trained network, as all others are."
    )
    title = f"(f) {PIECES[pieces]}"
    curves_drawn = (
        f"![{PIECES[pieces]}]({pieces}.png)\n\nTest accuracy, mean over seeds; dotted: a point below the whole network."
    )
    return section(
        title, questions.PRUNED, answer, table(["cell", *(SHOWN[o] for o in orders)], rows), note, curves_drawn
    )


def _cell(some: list[Values], pieces: str, order: str) -> str:
    """How much goes, and what it costs; empty if the order was not tried."""
    if not all(curves(v, pieces, order, ("kron", "1")) for v in some):
        return ""
    own, lost = (fmean(get(v, ("kron", "1")) for v in some) for get in (pruned(pieces, order), cost(pieces, order)))
    return f"{own:.0%} ({100 * lost:+.1f})"


def _mean(cells: Cells, pieces: str, order: str) -> float:
    get = pruned(pieces, order)
    return fmean(fmean(get(v, ("kron", "1")) for v in some) for some in cells.values())


def _conditions(order: str) -> tuple[Condition, ...]:
    """Under which an order differs."""
    if order in ("snr", "identified"):
        return CONDITIONS
    return BY_STRUCTURE if order in ("saliency", "relative_curvature") else ONE
