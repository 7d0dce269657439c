"""Answers as sentences that can be wrong, and whether the numbers bear them out.

The questions are the thesis's and the proposal's; the sentences are ours.
"""

from __future__ import annotations

from reproductions.claims import Claim
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.grid import numbers
from reproductions.kniebel2020.grid.numbers import Cells, cells_of, deeper, main
from reproductions.kniebel2020.grid.regression import everywhere
from reproductions.kniebel2020.grid.tables import BY_STRUCTURE, KRON, MEASURES, STRONG, TUNED
from reproductions.kniebel2020.stability import Get, Stable, over_cells
from reproductions.store import Values

SAME_NLL, SAME_ECE, SAME_AUROC = 0.001, 0.005, 0.005


def claims(units: Values) -> list[Claim]:
    cells = cells_of(units)
    found = [*_layers(cells), *_inside(cells), *_size(cells), *_last(cells)]
    return found + (_beyond(cells) if len(deeper(cells)) >= 6 else [])


def _above(claim: str, where: str, found: Stable, bound: float = 0.0, digits: int = 2) -> Claim:
    return Claim(claim, where, found.text(digits), found.above(bound))


def _below(claim: str, where: str, found: Stable, bound: float = 0.0, digits: int = 2) -> Claim:
    return Claim(claim, where, found.text(digits), found.below(bound))


def _layers(cells: Cells) -> list[Claim]:
    own, three = deeper(main(cells)), deeper(main(cells), 3)
    if len(own) < 2:
        return []
    found = [
        _above(f"Layers differ strongly in {name} (ε² above {STRONG})", questions.LAYERS, over_cells(own, get), STRONG)
        for name, (_, get) in MEASURES.items()
    ]
    found += [
        _above("`explained` differs between layers by more than 0.1", questions.LAYERS,
               over_cells(own, numbers.explained_range), 0.1),
        _above("One layer causes more than a third of the variance", questions.LAYERS,
               over_cells(own, numbers.largest_share), 1 / 3),
        _above("The last layer is explained better than those before it", questions.LAYERS,
               over_cells(own, numbers.last_above_others)),
    ]  # fmt: skip
    if len(three) > 1:
        found += [
            _above("Over layers, the posterior's standard deviation is ordered as the prior's (correlation above 0.5)",
                   questions.CURVATURE, over_cells(three, numbers.std_with_prior), 0.5),
            _above("The first layer is explained better than those in the middle", questions.LAYERS,
                   over_cells(three, numbers.first_above_middle)),
        ]  # fmt: skip
    return found


def _inside(cells: Cells) -> list[Claim]:
    own = main(cells)
    found = [
        _above(f"Units of a layer differ strongly in {name} (ε² above {STRONG})", questions.INSIDE,
               over_cells(own, numbers.inside(what)), STRONG)
        for name, what in (("identified", "identified"), ("relative curvature", "relative_curvature"))
    ]  # fmt: skip
    found += [
        _above("Some units are dead", questions.INSIDE, over_cells(own, numbers.dead, BY_STRUCTURE), digits=3),
        _above("Classes that are predicted well are explained better", questions.INSIDE,
               over_cells(own, numbers.with_class_accuracy)),
    ]  # fmt: skip
    seen = {name: networks for name, networks in own.items() if networks[0]["pixels"]}
    if len(seen) > 1:
        found += [
            _above("Weights from pixels that are often lit are identified better", questions.INSIDE,
                   over_cells(seen, numbers.with_activity, KRON)),
            _above("Weights from pixels at the middle of images are identified better than from the edge",
                   questions.INSIDE, over_cells(seen, numbers.middle_above_edge, KRON)),
        ]  # fmt: skip
    return found


def _size(cells: Cells) -> list[Claim]:
    own = main(cells)
    return [
        _above("Inside a layer, larger weights are better identified", questions.SIZE,
               over_cells(own, numbers.with_size("identified"))),
        _below("Inside a layer, larger weights have a smaller standard deviation", questions.SIZE,
               over_cells(own, numbers.with_size("std"))),
        _above("Larger weights have more raw curvature", questions.SIZE,
               over_cells(own, numbers.curvature_with_size, BY_STRUCTURE)),
    ]  # fmt: skip


def _last(cells: Cells) -> list[Claim]:
    own = deeper(main(cells))
    if len(own) < 2:
        return []

    def over(get: Get, tuned: bool = False) -> Stable:
        return over_cells(own, get, TUNED) if tuned else over_cells(own, get)

    alone, good = "last, tuned by itself", "as good"
    return [
        _below(f"The last layer alone predicts as well (NLL within {SAME_NLL})", questions.LAST,
               over(numbers.last_less_all("nll")), SAME_NLL, 4),
        _below(f"Tuned by itself, it predicts as well (NLL within {SAME_NLL})", questions.LAST,
               over(numbers.set_less_all(alone, "nll"), True), SAME_NLL, 4),
        _below(f"Tuned by itself, it is as well calibrated (ECE within {SAME_ECE})", questions.LAST,
               over(numbers.set_less_all(alone, "ece"), True), SAME_ECE, 4),
        _above(f"Tuned by itself, it finds errors as well (AUROC within {SAME_AUROC})", questions.LAST,
               over(numbers.set_less_all(alone, "errors"), True), -SAME_AUROC, 4),
        _above(f"Tuned by itself, it finds novel inputs as well (AUROC within {SAME_AUROC})", questions.LAST,
               over(numbers.set_less_all(alone, "novel"), True), -SAME_AUROC, 4),
        _below(f"The layers that validation data choose predict as well as all (NLL within {SAME_NLL})", questions.LAST,
               over(numbers.set_less_all(good, "nll"), True), SAME_NLL, 4),
        _above(f"They find novel inputs as well (AUROC within {SAME_AUROC})", questions.LAST,
               over(numbers.set_less_all(good, "novel"), True), -SAME_AUROC, 4),
        _below("All layers, tuned, predict better than temperature scaling", questions.LAST,
               over_cells(own, numbers.over_plain("scaled", "nll"), TUNED), digits=4),
    ]  # fmt: skip


def _beyond(cells: Cells) -> list[Claim]:
    sizes = over_cells(deeper(main(cells), 3), numbers.with_parameters("explained"))
    found = [_below("Layers with more weights are explained less", questions.BEYOND, sizes)]
    for name, stable in everywhere(cells, numbers.slope).items():
        if not name.startswith("data set"):
            claim = f"With more {name} (yes instead of no)" if name == "batch norm" else f"With more {name}"
            found.append(
                _above(f"{claim}, `explained` rises more towards the output", questions.BEYOND, stable, digits=3)
            )
    return found
