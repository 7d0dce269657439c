"""The questions (a), (b), (c) and (e), and what explains the place: tables and answers, from the results alone."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.grid import numbers
from reproductions.kniebel2020.grid.numbers import Cells, cells_of, deeper, main
from reproductions.kniebel2020.grid.regression import everywhere, regress
from reproductions.kniebel2020.stability import CONDITIONS, FACTORS, REFERENCE, Get, Stable, over_cells
from reproductions.kniebel2020.wording import known, said, section, sentence, short, table
from reproductions.store import Values

STRONG = 0.14  # ε² from which a difference counts as large
BY_STRUCTURE = (("kron", "1"), ("diag", "1"))
KRON = tuple(("kron", f) for f in FACTORS)
TUNED = (("kron", "1"),)
SCORES = {"nll": "NLL", "ece": "ECE", "errors": "AUROC, errors", "novel": "AUROC, novel inputs"}
MEASURES: dict[str, tuple[str, Get]] = {
    "raw curvature": ("ε²", numbers.between("curvature")),
    "relative curvature": ("ε²", numbers.between("relative_curvature")),
    "posterior standard deviation": ("ε²", numbers.between("std")),
    "identified": ("ε²", numbers.between("identified")),
}
SIZES: dict[str, Get] = {
    "raw curvature": numbers.curvature_with_size,
    "posterior standard deviation": numbers.with_size("std"),
    "identified": numbers.with_size("identified"),
}


def tables(units: Values) -> str:
    cells = cells_of(units)
    makers: list[Callable[[Cells], str]] = [layers, inside, size, last, beyond, structures]
    return "\n\n".join(part for part in (make(cells) for make in makers) if part)


def stable(cells: Cells, get: Get) -> Stable:
    return over_cells(cells, get)


# (a)


def layers(cells: Cells) -> str:
    own = deeper(main(cells))
    found = {name: stable(own, get) for name, (_, get) in MEASURES.items()}
    wide, last = stable(own, numbers.explained_range), stable(own, numbers.last_above_others)
    follows = stable(deeper(own, 3), numbers.std_with_prior)
    so = sentence(
        last, f"The last layer is explained better than the others, by {last.text()}.",
        "The last layer is explained less than the others.", "the last layer is explained better than the others",
    )  # fmt: skip
    strong = [name for name, s in found.items() if s.above(STRONG) == "holds"]
    answer = (
        f"Between layers the differences in {' and '.join(strong) or 'no measure'} are large (ε² above {STRONG}) under "
        f"every prior and structure; for identified ε² is {found['identified'].text()}. `explained` differs by "
        f"{wide.text()} between the best and the least explained layer. {so} The posterior standard deviation "
        f"by itself says little: over layers it is ordered as the prior's (rank correlation {follows.text()}), which "
        "is the scale of the weights."
    )
    ends = ("explained: first", "middle", "last")
    head = ["cell", *MEASURES, *ends, "largest share", "slope over depth", "least explained"]
    rows = []
    for name, networks in own.items():
        which, often = numbers.least(networks, CONDITIONS)
        measures = [short(Stable.of(networks, get)) for _, get in MEASURES.values()]
        share, slope = (Stable.of(networks, get) for get in (numbers.largest_share, numbers.slope))
        least = f"`{which}` ({often:.0%})"
        rows.append([name, *measures, *_ends(networks), short(share), slope.direction(), least])
    note = (
        "ε²: effect size of a rank test between the layers' weights. `explained` and the share are of test inputs, at "
        "τ = 1 with Kronecker factors; the slope is of `explained` over relative depth, and is given where its sign "
        "holds over seeds, under τ = 0.1, 1 and 10, and with Kronecker and diagonal posteriors. The percentage says "
        "for how many networks and conditions the same layer is explained least."
    )
    return section("(a) Do layers differ?", questions.LAYERS, answer, table(head, rows), note)


def _ends(networks: list[Values]) -> list[str]:
    each = [numbers.column(network, REFERENCE, "explained") for network in networks]
    mean = [sum(values) / len(values) for values in zip(*each, strict=True)]
    middle = mean[1:-1]
    return [f"{mean[0]:.2f}", f"{sum(middle) / len(middle):.2f}" if middle else "", f"{mean[-1]:.2f}"]


# (b)


def inside(cells: Cells) -> str:
    own = main(cells)
    ident, relative = (stable(own, numbers.inside(what)) for what in ("identified", "relative_curvature"))
    off, dead = stable(own, numbers.unidentified), over_cells(own, numbers.dead, BY_STRUCTURE)
    how = said(ident.above(STRONG), "strongly", "little", "to an unknown degree")
    answer = (
        f"Units of one layer differ {how} in how well they are identified (ε² {ident.text()}), and in relative "
        f"curvature (ε² {relative.text()}). {off.reference.mean:.0%} of all units are identified less than 1% and "
        f"{dead.reference.mean:.1%} are dead, without any curvature. {_which(own)}"
    )
    head = ["cell", "ε² identified", "ε² relative curvature", "identified < 1%", "dead", "classes: ρ with accuracy"]
    rows = []
    for name, networks in own.items():
        shown = [Stable.of(networks, numbers.inside(w)) for w in ("identified", "relative_curvature")]
        off, dead = Stable.of(networks, numbers.unidentified), Stable.of(networks, numbers.dead, BY_STRUCTURE)
        shares = [f"{off.reference.mean:.0%}", f"{dead.reference.mean:.1%}"]
        classes = known(Stable.of(networks, numbers.with_class_accuracy), ("positive", "negative"))
        rows.append([name, *(short(s) for s in shown), *shares, classes])
    return section("(b) Do units inside a layer differ, and which?", questions.INSIDE, answer, table(head, rows))


def _which(cells: Cells) -> str:
    """Edges of images, and classes."""
    seen = {name: networks for name, networks in cells.items() if networks[0]["pixels"]}
    if len(seen) < 2:
        return ""
    pixel, edge = (over_cells(seen, get, KRON) for get in (numbers.with_activity, numbers.middle_above_edge))
    found = stable(cells, numbers.with_class_accuracy)
    classes = sentence(
        found, "Classes that are predicted well are explained better.", "Classes predicted well are explained less.",
        "classes that are predicted well are explained better",
    )  # fmt: skip
    return (
        f"Which ones: weights from pixels that are often lit are known better (rank correlation {pixel.text()}), those "
        f"at the middle of images {edge.times(100).text(0, '%')} better than those at the edge. {classes}"
    )


# (c)


def size(cells: Cells) -> str:
    own = main(cells)
    found = {name: stable(own, get) for name, get in SIZES.items()}
    ident, std = found["identified"], found["posterior standard deviation"]
    answer = (
        f"Inside layers, the rank correlation of |w| is with {'; '.join(f'{n} {s.text()}' for n, s in found.items())}. "
        f"{_larger(ident, 'better', 'worse')} {_wider(std)}"
    )
    rows = []
    for name, networks in own.items():
        each = [Stable.of(networks, get) for get in SIZES.values()]
        rows.append([name, *(f"{short(s)} ({known(s, ('+', '−'))})" for s in each)])
    head = ["cell", *(f"ρ(\\|w\\|, {name})" for name in SIZES)]
    return section("(c) Is a weight's size related to its uncertainty?", questions.SIZE, answer, table(head, rows))


def _larger(ident: Stable, better: str, worse: str) -> str:
    words = "The data identify larger weights {}."
    return sentence(ident, words.format(better), words.format(worse), "the data identify larger weights better")


def _wider(std: Stable) -> str:
    yes, no = (f"Larger weights also have a {way} standard deviation." for way in ("larger", "smaller"))
    return sentence(std, yes, no, "larger weights have a larger or a smaller standard deviation")


# (e)


def last(cells: Cells) -> str:
    own = deeper(main(cells))
    found = {score: stable(own, numbers.last_less_all(score)) for score in SCORES}
    few = {score: over_cells(own, numbers.set_less_all("as good", score), TUNED) for score in SCORES}
    alone = {score: over_cells(own, numbers.set_less_all("last, tuned by itself", score), TUNED) for score in SCORES}
    of_layers, of_weights = (
        over_cells(own, get("as good"), TUNED).reference.mean for get in (numbers.size_of_set, numbers.weights_of_set)
    )
    answer = (
        f"With the last layer alone NLL changes by {found['nll'].text(3)} and the AUROC for novel inputs by "
        f"{found['novel'].text(3)}; tuned by itself by {alone['nll'].text(3)} and {alone['novel'].text(3)}. "
        f"For finding errors the change is {found['errors'].text(3)}, for ECE {found['ece'].text(3)}. The smallest set "
        f"that validation data find as good as all (by NLL, within 0.001) has {of_layers:.0%} of the layers and "
        f"{of_weights:.0%} of the weights, and on test data changes NLL by {few['nll'].text(4)} and the AUROC for "
        f"novel inputs by {few['novel'].text(3)}."
    )
    changes = [f"last − all: {label}" for label in SCORES.values()]
    head = ["cell", "NLL: plain", "scaled", "all layers", *changes, "as good: layers", "NLL − all"]
    rows = []
    for name, networks in own.items():
        paths = (("plain", "nll"), ("scaled", "nll"), ("enough", "kron", "1", "all", "nll"))
        losses = [f"{_mean(networks, *path):.3f}" for path in paths]
        each = [Stable.of(networks, numbers.last_less_all(score)) for score in SCORES]
        shown = [f"{short(s, 3)} ({known(s, ('+', '−'))})" for s in each]
        chosen = Stable.of(networks, numbers.set_less_all("as good", "nll"), TUNED)
        count = sum(len(n["sets"]["as good"]["layers"]) for n in networks) / len(networks)
        of = f"{count:.1f} of {len(networks[0]['network']['layers'])}"
        rows.append([name, *losses, *shown, of, short(chosen, 4)])
    note = (
        "At the τ that validation data choose for each structure, a tenth and ten times of it. Plus and minus are "
        "signs that hold over seeds, priors and structures."
    )
    return section("(e) Is the last layer enough?", questions.LAST, answer, table(head, rows), note)


def _mean(networks: list[Values], *path: str) -> float:
    found = []
    for network in networks:
        value = network
        for key in path:
            value = value[key]
        found.append(float(value))  # type: ignore[arg-type]
    return sum(found) / len(found)


# Beyond


def beyond(cells: Cells) -> str:
    if len(deeper(cells)) < 6:
        return ""
    slopes, fitted = everywhere(cells, numbers.slope), regress(cells, numbers.slope, REFERENCE)
    sizes = over_cells(deeper(main(cells), 3), numbers.with_parameters("explained"))
    clear = [f"{n} ({s.direction(('larger', 'smaller'))} slope)" for n, s in slopes.items() if not s.reason()]
    so = said(
        sizes.below(), "What data leave open is where most weights are", "Larger layers are explained better",
        "Under some priors or structures that cannot be told",
    )  # fmt: skip
    answer = (
        f"The slope of `explained` over relative depth depends on {', '.join(clear) or 'none of the factors'} in a way "
        f"that is stable over cells, priors and structures; all factors together determine "
        f"{fitted.determined.mean:.0%} of it. Over the layers of a network, `explained` has a rank correlation of "
        f"{sizes.text()} with the number of weights. {so}."
    )
    rows = [[name, s.text(3), s.direction(("larger", "smaller"))] for name, s in slopes.items()]
    note = (
        f"Least squares over {fitted.networks} networks of {fitted.cells} cells, intervals by a bootstrap over cells. "
        "Numbers enter as logarithms to base 2: a coefficient is what a doubling does. The base is the first data set."
    )
    coefficients = table(["factor", "change of the slope", "sign"], rows)
    return section("What explains the place?", questions.BEYOND, answer, coefficients, note)


def structures(cells: Cells) -> str:
    """Explained by layer with every structure, where there are more than two."""
    own = {name: networks for name, networks in main(cells).items() if len(networks[0]["structures"]) > 2}
    if not own:
        return ""
    rows = []
    for name, networks in own.items():
        for structure in networks[0]["structures"]:
            each = [numbers.column(network, (structure, "1"), "explained") for network in networks]
            mean = [sum(values) / len(values) for values in zip(*each, strict=True)]
            rows.append([name, structure, " / ".join(f"{value:.2f}" for value in mean)])
    head = ["cell", "structure", "explained, layer by layer (τ = 1, mean over seeds)"]
    return f"### More structures, where networks are small\n\n{table(head, rows)}"
