"""Answers about methods as sentences that can be wrong; the question is the proposal's."""

from __future__ import annotations

from reproductions.claims import Claim, above, below, within
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.methods import tables
from reproductions.kniebel2020.methods.tables import DIAG, DRAWN, HMC, KRON, NEAR, RELATIVE, SWAG, VARIATIONAL, Cells
from reproductions.kniebel2020.stability import over_cells
from reproductions.store import Values

SIZE = 0.2  # of a logarithm: standard deviations within about 20%


def claims(units: Values) -> list[Claim]:
    cells = tables.cells_of(units)
    deep = tables.deeper(cells)
    return [*(_where(deep) if len(deep) > 1 else []), *_reference(tables.reference(cells))]


def _where(cells: Cells) -> list[Claim]:
    which, where = tables.conditions(cells), questions.METHODS
    pairs = {
        "Variational inference agrees with the Kronecker posterior on where": (KRON, VARIATIONAL),
        "… and with the diagonal posterior": (DIAG, VARIATIONAL),
        "SWAG agrees with the Kronecker posterior on where": (KRON, SWAG),
        "The diagonal and the Kronecker posterior agree on where": (KRON, DIAG),
        "The isotropic and the relative prior give the same answer": (KRON, RELATIVE),
        "Draws and linearisation give the same answer": (KRON, DRAWN),
    }
    found = []
    for words, (one, other) in pairs.items():
        moved = over_cells(cells, tables.moved(one, other), which)
        text = f"{moved.times(100).text(0, '%')} of the variance to be moved"
        found.append(Claim(f"{words} (less than {NEAR:.0%} to be moved)", where, text, moved.below(NEAR)))
    nearer = over_cells(cells, tables.nearer, which)
    words = "Variational inference is nearer to the diagonal than to the Kronecker posterior"
    return [*found, Claim(words, where, nearer.times(100).text(1) + " points", nearer.above())]


def _reference(cells: Cells) -> list[Claim]:
    if not cells:
        return []
    found, where = [], questions.METHODS
    for method in tables.ALL:
        own = {n: some for n, some in cells.items() if method in some[0]["1"]["scores"]}
        if own:
            rank = tables.seeds(own, tables.pair("variance", method, HMC, "rank"))
            words = f"`{method}` orders inputs by predictive variance as HMC does (rank correlation above 0.5)"
            found.append(Claim(words, where, rank.text(), above(rank, 0.5)))
    flat = {n: some for n, some in cells.items() if len(some[0]["1"]["layers"]) == 1}
    for method in ("laplace full", DIAG, VARIATIONAL):
        if flat and method in next(iter(flat.values()))[0]["1"]["scores"]:
            ratio = tables.seeds(flat, tables.pair("weights", method, HMC, "log ratio"))
            words = f"Weights of the perceptron: standard deviations by `{method}` are within {SIZE:.0%} of HMC's"
            found.append(Claim(words, where, f"log ratio {ratio.text()}", within(ratio, SIZE)))
            if method != "laplace full":
                found.append(Claim(f"… by `{method}` they are too small", where, ratio.text(), below(ratio)))
    return found
