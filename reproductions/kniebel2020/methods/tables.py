"""Question (g): agreement of methods on where, and with Hamiltonian Monte Carlo."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

from reproductions.claims import Interval, interval
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.grid.numbers import ranks
from reproductions.kniebel2020.stability import Condition, Get, over_cells
from reproductions.kniebel2020.wording import section, sentence, short, table
from reproductions.store import Values

KRON, DIAG, RELATIVE, DRAWN = "laplace kron", "laplace diag", "laplace relative", "laplace kron, drawn"
VARIATIONAL, SWAG, DROPOUT, ENSEMBLE, HMC = "variational", "swag", "dropout", "ensemble", "hmc"
WITH_SHARES = (KRON, DIAG, RELATIVE, DRAWN, VARIATIONAL, SWAG)
ALL = (KRON, DIAG, "laplace block", "laplace full", RELATIVE, VARIATIONAL, SWAG, DROPOUT, ENSEMBLE)
NEAR = 0.15  # of the variance to be moved: below, two methods agree
REFERENCE: Condition = ("kron", "1")
Cells = dict[str, list[Values]]  # by cell: networks, each by factor on the prior precision


def cells_of(units: Values) -> Cells:
    """Networks that were looked at under every factor that was run for all of them."""
    found: dict[str, dict[str, Values]] = {}
    for name, value in units.items():
        cell, seed, factor = name.rsplit("/", 2)
        found.setdefault(cell, {}).setdefault(seed, {})[factor] = value
    every = [set(network) for seeds in found.values() for network in seeds.values()]
    common = set.intersection(*every) if every else set()
    return {
        cell: [{f: network[f] for f in sorted(common)} for network in seeds.values()]
        for cell, seeds in found.items()
        if len(seeds) > 1 and "1" in common
    }


def conditions(cells: Cells) -> list[Condition]:
    """The factors; the structure is part of a method's name here."""
    return [("kron", factor) for factor in next(iter(cells.values()))[0]]


def deeper(cells: Cells) -> Cells:
    return {name: some for name, some in cells.items() if len(some[0]["1"]["layers"]) > 1}


def reference(cells: Cells) -> Cells:
    return {name: some for name, some in cells.items() if HMC in some[0]["1"]["scores"]}


# Figures of one network under a condition


def moved(one: str, other: str) -> Get:
    """Share of the variance that would have to be moved between layers to turn one answer into the other."""

    def get(network: Values, condition: Condition) -> float:
        first, second = (network[condition[1]]["where"][name]["share"] for name in (one, other))
        return 0.5 * sum(abs(a - b) for a, b in zip(first, second, strict=True))

    return get


def same_order(one: str, other: str) -> Get:
    """Rank correlation of the shares over layers."""

    def get(network: Values, condition: Condition) -> float:
        first, second = (network[condition[1]]["where"][name]["share"] for name in (one, other))
        return ranks(first, second)

    return get


def apart(network: Values, factor: str, method: str) -> list[float]:
    """1 − CKA of every layer between draws."""
    found = network[factor]["disagreement"][method]
    return [found.get(layer, 0.0) for layer in network[factor]["layers"]]


def same_disagreement(one: str, other: str) -> Get:
    """Mean difference over layers of 1 − CKA between draws."""

    def get(network: Values, condition: Condition) -> float:
        first, second = (apart(network, condition[1], name) for name in (one, other))
        return fmean(abs(a - b) for a, b in zip(first, second, strict=True))

    return get


def pair(table_: str, one: str, other: str, what: str) -> Get:
    """A comparison of two methods, in either order."""

    def get(network: Values, condition: Condition) -> float:
        found = network[condition[1]][table_]
        if f"{one} | {other}" in found:
            return float(found[f"{one} | {other}"][what])
        sign = -1.0 if what == "log ratio" else 1.0
        return sign * float(found[f"{other} | {one}"][what])

    return get


def nll(method: str) -> Get:
    return lambda network, condition: float(network[condition[1]]["scores"][method]["nll"])


def seeds(cells: Cells, get: Get) -> Interval:
    """Over all networks of the cells, which are few."""
    return interval([get(network, REFERENCE) for some in cells.values() for network in some])


# Tables


def tables(units: Values) -> str:
    cells = cells_of(units)
    parts = (agreement(deeper(cells)), against_hmc(reference(cells)), single(cells))
    return "\n\n".join(part for part in parts if part)


def agreement(cells: Cells) -> str:
    if len(cells) < 2:
        return ""
    which = conditions(cells)
    found = {p: over_cells(cells, moved(*p), which) for p in combinations(WITH_SHARES, 2)}
    vi, swag, drawn = (found[KRON, name] for name in (VARIATIONAL, SWAG, DRAWN))
    side = over_cells(cells, nearer, which)
    so = sentence(
        side, "It is nearer to the diagonal than to the Kronecker posterior.",
        "It is nearer to the Kronecker than to the diagonal posterior.",
        "it is nearer to the diagonal than to the Kronecker posterior",
    )  # fmt: skip
    answer = (
        f"To turn the Kronecker posterior's answer into that of variational inference, {vi.times(100).text(0, '%')} of "
        f"the variance would have to be moved between layers; into SWAG's {swag.times(100).text(0, '%')}. "
        f"{so} "
        f"Linearising is not the reason: Kronecker Laplace by draws differs from itself linearised by "
        f"{drawn.times(100).text(0, '%')}."
    )
    rows = []
    for one in WITH_SHARES:
        cells_ = [one]
        for other in WITH_SHARES:
            if one == other:
                cells_.append("")
            elif (one, other) in found:
                cells_.append(f"{100 * found[one, other].reference.mean:.0f}%")
            else:
                cells_.append(f"{short(over_cells(cells, same_order(other, one), which))}")
        rows.append(cells_)
    note = (
        "Above the diagonal: share of the variance to be moved, mean over cells. Below: rank correlation of the shares "
        "over layers. All methods have the same isotropic prior precision for every weight, chosen by validation data "
        "and under which the network was trained; `laplace relative` has the relative prior at τ = 1."
    )
    bars = [[cell, *(_shares(some, method) for method in WITH_SHARES)] for cell, some in cells.items()]
    return section(
        "(g) Do methods agree on where?", questions.METHODS, answer, table(["", *WITH_SHARES], rows), note,
        "Shares, layer by layer:", table(["cell", *WITH_SHARES], bars),
    )  # fmt: skip


def nearer(network: Values, condition: Condition) -> float:
    """How much farther variational inference is from the Kronecker posterior than from the diagonal one."""
    return moved(VARIATIONAL, KRON)(network, condition) - moved(VARIATIONAL, DIAG)(network, condition)


def _shares(some: list[Values], method: str) -> str:
    each = [network["1"]["where"][method]["share"] for network in some]
    return " / ".join(f"{fmean(values):.2f}" for values in zip(*each, strict=True))


def against_hmc(cells: Cells) -> str:
    """Predictive variance and activations, judged by the chains."""
    if not cells:
        return ""
    deep = deeper(cells)
    rows = []
    for method in ALL:
        own = {n: some for n, some in cells.items() if method in some[0]["1"]["scores"]}
        if not own:
            continue
        within = {n: some for n, some in deep.items() if n in own}
        rank, ratio = (seeds(own, pair("variance", method, HMC, what)) for what in ("rank", "log ratio"))
        gap = seeds(within, same_disagreement(method, HMC)).text(3) if within else ""
        rows.append([method, rank.text(), ratio.text(), gap, seeds(own, nll(method)).text(3)])
    rows.append([HMC, "", "", "", seeds(cells, nll(HMC)).text(3)])
    best = max(rows[:-1], key=lambda row: float(row[1].split(" ")[0]))
    size = min(rows[:-1], key=lambda row: abs(float(row[2].split(" ")[0])))
    answer = (
        f"By the order of inputs in predictive variance `{best[0]}` agrees best with Hamiltonian Monte Carlo (rank "
        f"correlation {best[1]}); by its size `{size[0]}` (logarithm of the ratio {size[2]}). "
        f"NLL of the chains is {rows[-1][4]}. Their layers are compared by outputs alone, since hidden units permute."
    )
    head = ["method", "variance: rank correlation with HMC", "log ratio", "layers: difference in 1 − CKA", "NLL"]
    return section("Which agrees with HMC?", questions.METHODS, answer, table(head, rows))


def single(cells: Cells) -> str:
    """The perceptron, whose weights can be compared with the chains'."""
    own = {n: some for n, some in reference(cells).items() if len(some[0]["1"]["layers"]) == 1}
    if not own:
        return ""
    pairs = [key.split(" | ") for key in next(iter(own.values()))[0]["1"]["weights"]]
    methods = [m for m in ALL if [m, HMC] in pairs or [HMC, m] in pairs]
    rows = [[m, *(seeds(own, pair("weights", m, HMC, what)).text() for what in ("rank", "log ratio"))] for m in methods]
    head = ["method", "standard deviation of weights: rank correlation with HMC", "log ratio"]
    return f"#### Weights of the perceptron\n\n{table(head, rows)}"
