"""The numbers as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from reproductions.claims import Interval, interval
from reproductions.ritter2018.mnist import (
    DETERMINISTIC,
    DIAGONAL,
    DROPOUT,
    FACTORISED,
    KRONECKER,
    LINEARISED,
)
from reproductions.ritter2018.ood.config import PRIOR, SLOW, Config
from reproductions.ritter2018.ood.names import (
    DETECTORS,
    chosen_reading,
    copy_counts,
    divergences,
    label,
    methods,
    outside,
    over_seeds,
    readings,
    seeds,
)
from reproductions.store import Values

TABLE_1 = {FACTORISED: 98.88, DETERMINISTIC: 98.86, DROPOUT: 98.85, DIAGONAL: 98.85, KRONECKER: 98.80}  # %
ROUNDING = 1e-6  # of the largest eigenvalue; below, single precision knows nothing


def tables(values: Values) -> str:
    parts: list[str] = []
    if seeds(values):
        many = len(seeds(values))
        parts += [f"Means over {many} seeds with the 95 % interval of the mean over seeds, unless it says otherwise."]
        parts += [_table_1(values), _entropy(values), _detection(values), _detectors(values), _hyperparameters(values)]
        parts += [_untuned(values), _check(values)]
    if readings(values):
        parts.append(_readings(values))
    if divergences(values) and seeds(values):
        parts.append(_divergence(values))
    if copy_counts(values):
        parts.append(_copies(values))
    return "\n\n".join(parts)


def _divergence(values: Values) -> str:
    found = {f"{weight:g}": values[f"divergence/{weight:g}"] for weight in divergences(values)}
    if SLOW in values:
        found["1, slow standard deviations"] = values[SLOW]
    rows = [
        [
            name, f"{unit['validation']['nll']['value']:.4f}", f"{100 * unit['test']['accuracy']['value']:.2f} %",
            f"{unit['test']['nll']['value']:.4f}", f"{unit['outside']['mean_entropy']:.2f}",
            f"{unit['bound']:.3f} ± {unit['bound_se']:.3f}", f"{unit['divergence']:.3f}",
        ]
        for name, unit in found.items()
    ]  # fmt: skip
    title = "The factorised Gaussian by the weight of its divergence from the prior (one seed; nats)"
    columns = (
        "weight", "validation NLL", "test accuracy", "test NLL", f"mean entropy on {label(outside(values)[0])}",
        "bound for each image", "divergence for each image",
    )  # fmt: skip
    return _markdown(title, columns, rows)


def _markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"**{title}**", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _span(found: Sequence[float], digits: int, factor: float = 1.0, low: float = 0.0, high: float = 1.0) -> str:
    """Mean and its interval, which ends where the figure does."""
    mean = interval([v * factor for v in found])
    low, high = low * factor, high * factor
    return Interval(mean.mean, max(mean.low, low), min(mean.high, high)).text(digits)


def _table_1(values: Values) -> str:
    rows = []
    for method in methods(values):
        paper = f"{TABLE_1[method]:.2f}" if method in TABLE_1 else ""
        cells = [_span(over_seeds(values, method, "test", "accuracy"), 2, 100), paper]
        cells.append(_span(over_seeds(values, method, "test", "nll"), 4, high=float("inf")))
        cells.append(_span(over_seeds(values, method, "test", "ece"), 2, 100))
        cells.append(_span(over_seeds(values, method, "test", "brier"), 4, high=2.0))
        rows.append([method, *cells])
    title = "Table 1, and calibration: the test digits"
    return _markdown(title, ("method", "accuracy, %", "the paper's", "NLL", "ECE, %", "Brier"), rows)


def _entropy(values: Values) -> str:
    sets = outside(values)
    rows = []
    for method in methods(values):
        cells = [_span(over_seeds(values, method, "test", "mean_entropy"), 3, high=float("inf"))]
        for name in sets:
            mean = over_seeds(values, method, "outside", name, "mean_entropy")
            certain = interval(over_seeds(values, method, "outside", name, "certain")).times(100)
            cells += [_span(mean, 2, high=float("inf")), f"{certain.mean:.1f}"]
        rows.append([method, *cells])
    columns = ["method", "test digits"]
    for name in sets:
        columns += [label(name), "certain, %"]
    return _markdown(f"Mean entropy in nats, and predictions with less than {Config.certain} nats", columns, rows)


def _detection(values: Values) -> str:
    sets = outside(values)
    rows = []
    for method in methods(values):
        for key, text in (("by_entropy", "entropy"), ("by_epistemic", "epistemic")):
            if key not in values[f"{seeds(values)[0]}/{method}"]["outside"][sets[0]]:
                continue
            cells = []
            for name in sets:
                cells.append(_span(over_seeds(values, method, "outside", name, key, "auroc"), 3))
                cells.append(_span(over_seeds(values, method, "outside", name, key, "fpr95"), 3))
            rows.append([f"{method}, {text}", *cells])
    return _markdown("Test digits against others, by uncertainty", _detection_columns("method", sets), rows)


def _detection_columns(first: str, sets: list[str]) -> list[str]:
    columns = [first]
    for name in sets:
        columns += [f"AUROC, {label(name)}", "FPR95"]
    return columns


def _detectors(values: Values) -> str:
    sets = outside(values)
    known = values[f"{seeds(values)[0]}/detectors"][sets[0]]
    rows = []
    for key, text in DETECTORS.items():
        if key not in known:
            continue
        cells = []
        for name in sets:
            cells.append(_span(over_seeds(values, "detectors", name, key, "auroc"), 4))
            cells.append(_span(over_seeds(values, "detectors", name, key, "fpr95"), 4))
        rows.append([text, *cells])
    return _markdown("The same by novelty and by the detectors beside it", _detection_columns("detector", sets), rows)


def _hyperparameters(values: Values) -> str:
    letters = outside(values)[0]
    rows = []
    for seed in seeds(values):
        for name, found in values[f"{seed}/regularisation"].items():
            rows.append([
                name, seed, f"{found['prior_precision']:.3g}", f"{found['data_scale']:.3g}",
                f"{found['prior_precision'] / found['data_scale']:.3g}",
                f"{found['decades_below']:.1f}, {found['decades_above']:.1f}",
                f"{found['scale_decades_below']:.1f}, {found['scale_decades_above']:.1f}",
                f"{found['std']:.3g}", f"{found['score']:.4f}",
                f"{found['distance']['test']['value']:.4f}", f"{found['distance'][letters]['value']:.3f}",
            ])  # fmt: skip
    columns = ("posterior", "seed", "prior precision δ", "data scale s", "δ / s", "decades of δ / s tried below, above",
               "of s", "mean std of a weight", "validation NLL", "total variation from deterministic, test",
               f"{label(letters)}")  # fmt: skip
    return _markdown("What tuning on validation data chose", columns, rows)


def _untuned(values: Values) -> str:
    rows = []
    for name in (DIAGONAL, KRONECKER, LINEARISED):
        path = ("regularisation", name, "untuned")
        rows.append([
            name, _span(over_seeds(values, *path, "nll"), 3, high=float("inf")),
            _span(over_seeds(values, *path, "accuracy"), 2, 100),
            _span(over_seeds(values, *path, "ece"), 2, 100),
            _span(over_seeds(values, "regularisation", name, "untuned_std"), 3, high=float("inf")),
        ])  # fmt: skip
    columns = ("posterior", "NLL", "accuracy, %", "ECE, %", "mean std of a weight")
    return _markdown("Untuned, with the prior that the network was trained with: the test digits", columns, rows)


def _check(values: Values) -> str:
    rows = []
    for seed in seeds(values):
        found = values[f"{seed}/check"]
        for name, e in found["entropy"].items():
            rows.append([
                seed, label(name) if name != "test" else "test digits", f"{e['library']:.4f}", f"{e['by_hand']:.4f}",
                f"{e['by_hand_se']:.4f}", f"{e['deterministic_library']:.4f}", f"{e['deterministic']:.4f}",
                f"{100 * max(found['variance'].values()):.2g}",
            ])  # fmt: skip
    columns = ("seed", "set", "mean entropy, library", "plain torch", "standard error by its draws",
               "deterministic, library", "plain torch", "variances differ by at most, %")  # fmt: skip
    return _markdown("Kronecker Laplace by the library and in plain torch, one binarised copy", columns, rows)


def _readings(values: Values) -> str:
    rows = []
    for name in readings(values):
        found = values[f"reading/{name}"]
        cells = [f"{found['weight_decay']:.3g}", f"{100 * found['train_accuracy']:.2f}"]
        for part in ("validation", "test"):
            accuracy = found[part]["accuracy"]
            cells.append(Interval(accuracy["value"], accuracy["low"], accuracy["high"]).times(100).text(2))
        known = {"used": PRIOR, "best on validation images": chosen_reading(values)}
        marks = [mark for mark, reading in known.items() if reading == name]
        rows.append([name + (f" ({', '.join(marks)})" if marks else ""), *cells])
    columns = ("the L2 factor as", "weight decay", "training accuracy, %", "validation accuracy, %", "test accuracy, %")
    return _markdown("Readings of the L2 factor, one seed; intervals over images", columns, rows)


def settling(values: Values) -> dict[int, dict[str, dict[str, float]]]:
    """How far each layer's curvature is from that over the most copies: |trace / trace − 1| of the product of its
    factors, and the mean of |λ / λ − 1| over the eigenvalues that are kept and not zero up to rounding."""
    counts = copy_counts(values)
    most = values[f"copies/{counts[-1]}"]["layers"]
    found: dict[int, dict[str, dict[str, float]]] = {}
    for count in counts:
        found[count] = {}
        for name, layer in values[f"copies/{count}"]["layers"].items():
            trace, best = (item["trace_inputs"] * item["trace_gradients"] for item in (layer, most[name]))
            known = most[name]["eigenvalues"]
            least = ROUNDING * max(known.values())
            kept = [(layer["eigenvalues"][k], v) for k, v in known.items() if v > least]
            off = [abs(mine / its - 1) for mine, its in kept]
            found[count][name] = {"trace": abs(trace / best - 1), "eigenvalues": sum(off) / len(off)}
    return found


def _copies(values: Values) -> str:
    off = settling(values)
    rows = []
    for count in copy_counts(values):
        unit = values[f"copies/{count}"]
        layers = off[count].values()
        auroc, nll = unit["outside"]["by_entropy"]["auroc"], unit["test"]["nll"]
        rows.append([
            f"{count:,}" if count else "grey images",
            f"{max(layer['trace'] for layer in layers):.2g}", f"{max(layer['eigenvalues'] for layer in layers):.2g}",
            f"{unit['prior_precision']:.3g}", f"{unit['data_scale']:.3g}", f"{unit['std']:.3g}",
            Interval(nll["value"], nll["low"], nll["high"]).text(4),
            f"{100 * unit['test']['accuracy']['value']:.2f}", f"{unit['outside']['mean_entropy']:.3f}",
            Interval(auroc["value"], auroc["low"], auroc["high"]).text(3),
        ])  # fmt: skip
    columns = ("copies", "trace off by", "eigenvalues off by", "δ", "s", "mean std of a weight", "NLL", "accuracy, %",
               "mean entropy outside", "AUROC")  # fmt: skip
    title = "Kronecker Laplace by the number of binarised copies, one seed; curvature relative to that over the most"
    return _markdown(title, columns, rows)
