"""Table 2, and the numbers behind figure 5 and the picture of overconfidence."""

from __future__ import annotations

from collections.abc import Sequence

from reproductions.claims import interval
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED
from reproductions.ritter2018.wrn.values import NETWORKS, ORDER, measured, methods, networks, novelty, seeds, tuned
from reproductions.store import Values

# Table 2 of the paper, CIFAR-100.
PAPER = {
    (DETERMINISTIC, "dropout"): 79.12,
    (DETERMINISTIC, "plain"): 79.18,
    (DROPOUT, "dropout"): 79.20,
    (KRONECKER, "dropout"): 79.10,
    (KRONECKER, "plain"): 79.36,
}
INSIDE = (
    ("accuracy", "accuracy, %", 100, 2),
    ("nll", "NLL", 1, 4),
    ("ece", "ECE, %", 100, 2),
    ("aurc", "AURC, ‰", 1000, 2),
    ("entropy_correct", "entropy, correct", 1, 3),
    ("entropy_wrong", "entropy, wrong", 1, 3),
    ("auroc_wrong", "AUROC, wrong", 1, 3),
    ("total_variation", "from deterministic", 1, 4),
)
OUTSIDE = (
    ("confidence", "mean confidence", 1, 3),
    ("sure", "sure, %", 100, 1),
    ("entropy", "entropy", 1, 3),
    ("auroc", "AUROC", 1, 3),
    ("fpr95", "FPR95", 1, 3),
)


def tables(units: Values) -> str:
    parts = [
        "Means over seeds with the half width of their 95 % interval (Student's t).",
        "### Table 2: accuracy",
        _accuracies(units),
        "### Correct and wrong predictions",
        "Mean entropy in nats; AURC and the AUROC of wrong against correct predictions are by entropy; *from "
        "deterministic* is the mean total variation.",
        _measures(units, "inside", INSIDE),
        "### Hyperparameters",
        "Tuned prior precision δ and data scale s, seed by seed; δ / (s N) is what the prior counts beside one "
        "training example. *NLL* is that of the tuning images, beside what the strongest prior gives, which is all but "
        "deterministic.",
        _hyperparameters(units),
        "### Images of another kind",
        "*Sure*: confidence over 99 %. AUROC and FPR95 tell them from the reported test images by entropy; novelty by "
        "its own score.",
        _measures(units, "outside", OUTSIDE),
        _novelty(units),
        "### Training and curvature",
        _fits(units),
    ]
    return "\n\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _mean(values: Sequence[float], factor: float, digits: int) -> str:
    found = interval(values).times(factor)
    return f"{found.mean:.{digits}f} ± {found.high - found.mean:.{digits}f}"


def _accuracies(units: Values) -> str:
    present = networks(units)
    head = [
        "prediction",
        *(f"paper, CIFAR-100, {NETWORKS[n]}" for n in present),
        *(f"ours, {NETWORKS[n]}" for n in present),
    ]
    rows = []
    for method in ORDER:
        theirs = [f"{PAPER[method, n]:.2f} %" if (method, n) in PAPER else "" for n in present]
        ours = [
            f"{_mean(measured(units, n, method, 'inside', 'accuracy'), 100, 2)} %"
            if method in methods(units, n)
            else ""
            for n in present
        ]
        rows.append([method, *theirs, *ours])
    return _table(head, rows)


def _measures(units: Values, part: str, columns: Sequence[tuple[str, str, float, int]]) -> str:
    rows = [
        [NETWORKS[n], m, *(_mean(measured(units, n, m, part, what), factor, d) for what, _, factor, d in columns)]
        for n in networks(units)
        for m in methods(units, n)
    ]
    return _table(["network", "prediction", *(name for _, name, _, _ in columns)], rows)


def _hyperparameters(units: Values) -> str:
    rows = []
    for n in networks(units):
        for m in (DIAGONAL, KRONECKER, LINEARISED):
            cells = [
                ", ".join(f"{v:.3g}" for v in tuned(units, n, m, key))
                for key in ("prior_precision", "data_scale", "per_example")
            ]
            nll, strongest = (tuned(units, n, m, key) for key in ("nll", "nll_of_strongest_prior"))
            pairs = ", ".join(f"{a:.4f} / {b:.4f}" for a, b in zip(nll, strongest, strict=True))
            edge = ", ".join("yes" if v else "no" for v in tuned(units, n, m, "edge"))
            rows.append([NETWORKS[n], m, *cells, pairs, edge])
    head = ["network", "posterior", "δ", "s", "δ / (s N)", "NLL, tuned / strongest prior", "at an edge of the search"]
    return _table(head, rows)


def _novelty(units: Values) -> str:
    keys = ("auroc", "fpr95", "flagged_inside", "flagged_outside")
    rows = [[NETWORKS[n], *(_mean(novelty(units, n, key), 1, 3) for key in keys)] for n in networks(units)]
    return _table(["network", "novelty: AUROC", "FPR95", "p ≤ 0.05 inside", "p ≤ 0.05 outside"], rows)


def _fits(units: Values) -> str:
    rows = []
    for n in networks(units):
        for seed in seeds(units, n):
            train, kron = units[f"{n}/{seed}/train"], units[f"{n}/{seed}/fit/kron"]
            kinds = "; ".join(
                f"{kind}: {', '.join(f'{count} {name}' for name, count in found.items())}"
                for kind, found in kron["structures"].items()
            )
            rows.append([
                NETWORKS[n], seed, f"{train['examples']:,}", f"{train['epochs']}", f"{train['weights']:,}",
                f"{100 * kron['accuracy']:.2f} %", f"{100 * kron['mean_confidence']:.2f} %", kinds,
            ])  # fmt: skip
    head = ["network", "seed", "images", "epochs", "weights", "accuracy on augmented images", "confidence", "blocks"]
    return _table(head, rows)
