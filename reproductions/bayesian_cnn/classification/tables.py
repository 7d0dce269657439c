"""Scores by cell and method, parameters, costs; and what was claimed."""

from __future__ import annotations

from functools import partial

from reproductions.bayesian_cnn.wording import SLIDES, Cells, by_cell, judged, paired, shown, table
from reproductions.claims import Claim, Verdict, above, below
from reproductions.store import Values

SHOWN = {
    "plain": "plain", "dropout": "MC dropout", "bayesian": "Bayesian, ours", "described": "Bayesian, as described",
    "zero": "as described, means from 0",
}  # fmt: skip
# Shridhar et al. (2019): accuracy in % of the Bayesian network, on the whole of each data set.
PUBLISHED = {"mnist-lenet5": 98, "mnist-alexnet": 99, "cifar-lenet5": 69, "cifar-alexnet": 73}
COLUMNS = {
    "accuracy": ("accuracy, %", 100, 2), "nll": ("NLL", 1, 4), "ece": ("ECE, %", 100, 2),
    "errors": ("AUROC of errors", 1, 3), "novel": ("AUROC of novel inputs, entropy", 1, 3),
    "novel, epistemic": ("the same, epistemic", 1, 3),
}  # fmt: skip
POINTS = 0.01  # of accuracy that count as comparable


def claims(units: Values) -> list[Claim]:
    cells = by_cell(units)
    found: list[Claim] = []

    def compared(words: str, one: str, other: str, score: str, judge, digits: int = 2, factor: float = 100.0) -> None:  # type: ignore[no-untyped-def]
        pairs = {
            cell: paired(methods.get(one, {}), methods.get(other, {}), lambda v: v.get(score))
            for cell, methods in cells.items()
        }
        found.extend(judged(words, SLIDES, pairs, judge, digits, factor))

    near = partial(above, bound=-POINTS)
    compared("it is at most 1 point less accurate than the plain one", "bayesian", "plain", "accuracy", near)
    compared("as described, it is at most 1 point less accurate", "described", "plain", "accuracy", near)
    compared("it has a smaller NLL than the plain one", "bayesian", "plain", "nll", below, 4, 1.0)
    compared("… than MC dropout", "bayesian", "dropout", "nll", below, 4, 1.0)
    compared("it is better calibrated than the plain one (ECE, points)", "bayesian", "plain", "ece", below)
    compared("its entropy finds novel inputs better (AUROC)", "bayesian", "plain", "novel", above, 3, 1.0)
    for cell, methods in cells.items():
        values = [v for method in ("bayesian", "described") for v in methods.get(method, {}).values()]
        if values:
            ratios = sorted({v["trainable"] / v["parameters"] for v in values})
            exact: Verdict = "holds" if ratios == [2.0] else "does not hold"
            text = f"{' and '.join(f'{r:g}' for r in ratios)} times the parameters"
            found.append(Claim(f"{cell}: it doubles the number of parameters", SLIDES, text, exact))
    return found


def tables(units: Values) -> str:
    cells = by_cell(units)
    rows = []
    for cell, methods in cells.items():
        for method, seeds in methods.items():
            cells_of = [
                shown([v[key] for v in seeds.values() if v.get(key) is not None], digits, factor)
                for key, (_, factor, digits) in COLUMNS.items()
            ]
            published = f"{PUBLISHED[cell]}" if method == "described" and cell in PUBLISHED else ""
            rows.append([cell, SHOWN[method], str(len(seeds)), *cells_of, published])
    head = ["cell", "method", "seeds", *(label for label, *_ in COLUMNS.values()), "published accuracy, %"]
    note = (
        "Mean over seeds with its 95% interval (Student's t). Published accuracies are of Shridhar et al. (2019), on "
        "the whole sets; CIFAR-10 here is 18,000 training images, so these are not comparable. CIFAR-100 was not at "
        "hand: the published 31% and 36% have no counterpart here."
    )
    return "\n\n".join(["### Scores", table(head, rows), note, _costs(cells), "![Accuracy](accuracy.png)"])


def _costs(cells: Cells) -> str:
    rows = []
    for cell, methods in cells.items():
        for method, seeds in methods.items():
            any_ = next(iter(seeds.values()))
            seconds = [v["seconds"] for v in seeds.values()]
            memory = [v["memory"] for v in seeds.values() if v["memory"] is not None]
            choices = sorted({", ".join(f"{k} {w:g}" for k, w in v["choice"].items()) for v in seeds.values()})
            counts = [f"{any_[key]:,}" for key in ("parameters", "trainable", "stored")]
            most = f"{max(memory):,.0f}" if memory else "not measured"
            rows.append([cell, SHOWN[method], *counts, f"{min(seconds):.2f}", most, "; ".join(choices)])
    head = [
        "cell", "method", "parameters of the network", "trainable", "stored", "seconds an epoch (least)",
        "memory, MB", "chosen on validation data",
    ]  # fmt: skip
    note = (
        "`stored` is what a prediction needs, buffers included. Seconds are of the machine named above, which may "
        "have been busy; memory is the largest that torch held on a GPU, data included."
    )
    return "\n\n".join(["### Parameters and costs", table(head, rows), note])
