"""Accuracy with 90% pruned, how far each order goes, and half-width networks at equal size."""

from __future__ import annotations

from collections.abc import Mapping

from reproductions.bayesian_cnn.wording import SLIDES, by_cell, judged, paired, shown, table
from reproductions.claims import Claim, above, interval
from reproductions.store import Values

PRUNED = "slides, model pruning"
FRACTION, LOSS = 0.9, 0.005  # pruned, and the accuracy that this may cost
NAMES = {
    ("plain", "snr"): "plain, Laplace signal to noise", ("plain", "saliency"): "plain, saliency",
    ("plain", "magnitude"): "plain, magnitude", ("l1", "magnitude"): "plain with L1, magnitude",
    ("bayesian", "snr"): "Bayesian, signal to noise", ("bayesian", "magnitude"): "Bayesian, magnitude",
    ("bayesian, l1", "snr"): "Bayesian with L1, signal to noise",
    ("bayesian, l1", "magnitude"): "Bayesian with L1, magnitude",
}  # fmt: skip


def at(curve: Values, fraction: float, column: str = "test") -> float:
    """Between the two nearest fractions."""
    places, values = curve["fraction"], curve[column]
    for (a, x), (b, y) in zip(zip(places, values, strict=True), zip(places[1:], values[1:], strict=True), strict=False):
        if a <= fraction <= b:
            return float(x + (y - x) * (fraction - a) / (b - a))
    return float(values[-1])


def reach(value: Values, by: str) -> float:
    """The largest fraction up to which validation accuracy falls by at most ``LOSS``."""
    curve = value["curves"][by]
    kept = 0.0
    for fraction, accuracy in zip(curve["fraction"], curve["validation"], strict=True):
        if accuracy < value["whole"]["validation"] - LOSS:
            break
        kept = fraction
    return float(kept)


def cost(value: Values, by: str) -> float:
    """Test accuracy that pruning 90% costs, by its own whole network."""
    return float(value["whole"]["test"] - at(value["curves"][by], FRACTION))


def claims(units: Values) -> list[Claim]:
    cells = by_cell(units)
    found: list[Claim] = []

    def kept(words: str, source: str, by: str) -> None:
        values = {
            cell: interval([-cost(v, by) for v in s[source].values()]) if len(s.get(source, {})) > 1 else None
            for cell, s in cells.items()
        }
        found.extend(judged(words, PRUNED, values, lambda v: above(v, -LOSS), 2, 100, " points"))

    kept("90% pruned by the Bayesian signal to noise costs less than 0.5 points", "bayesian", "snr")
    kept("90% pruned by magnitude after an L1 penalty costs less than 0.5 points", "l1", "magnitude")
    kept("90% pruned by magnitude, Bayesian with L1, costs less than 0.5 points", "bayesian, l1", "magnitude")

    def further(words: str, one: tuple[str, str], other: tuple[str, str]) -> None:
        pairs = {
            cell: paired(with_curve(s, *one), with_curve(s, *other), lambda v: v["score"]) for cell, s in cells.items()
        }
        found.extend(judged(words, PRUNED, pairs, above, 2, 100, " points"))

    further(
        "with 90% pruned the Bayesian signal to noise is better than Laplace's", ("bayesian", "snr"), ("plain", "snr")
    )
    further("… than magnitude in the plain network", ("bayesian", "snr"), ("plain", "magnitude"))
    pairs = {cell: equal_size(sources) for cell, sources in cells.items()}
    words = "the pruned Bayesian network is better than the half-width network of its size"
    found.extend(judged(words, SLIDES, pairs, above, 2, 100, " points"))
    return found


def with_curve(sources: Mapping[str, dict[str, Values]], source: str, by: str) -> dict[str, Values]:
    """Test accuracy with 90% pruned, by seed."""
    seeds = sources.get(source, {})
    return {seed: {"score": at(v["curves"][by], FRACTION)} for seed, v in seeds.items() if by in v["curves"]}


def equal_size(sources: Mapping[str, dict[str, Values]]):  # type: ignore[no-untyped-def]
    """Accuracy of the Bayesian network pruned to the number of parameters of the half-width one, minus the latter's."""
    ours, half = sources.get("bayesian", {}), sources.get("half", {})
    pruned = {}
    for seed in ours.keys() & half.keys():
        fraction = 1 - half[seed]["parameters"] / ours[seed]["parameters"]
        pruned[seed] = {"score": at(ours[seed]["curves"]["snr"], fraction)}
    return paired(pruned, {s: {"score": half[s]["whole"]["test"]} for s in pruned}, lambda v: v["score"])


def tables(units: Values) -> str:
    rows = []
    for cell, sources in by_cell(units).items():
        for (source, by), label in NAMES.items():
            some = list(sources.get(source, {}).values())
            if not some:
                continue
            whole, pruned, reached = (
                shown(values, 2, 100)
                for values in (
                    [v["whole"]["test"] for v in some], [at(v["curves"][by], FRACTION) for v in some],
                    [reach(v, by) for v in some],
                )
            )  # fmt: skip
            penalties = ", ".join(sorted({f"{v['l1']:g}" for v in some if v.get("l1")})) or ""
            rows.append([cell, label, str(len(some)), whole, pruned, reached, penalties])
        for value in list(sources.get("half", {}).values())[:1]:
            some = list(sources["half"].values())
            text = f"half-width network, {value['parameters']:,} parameters"
            rows.append([cell, text, str(len(some)), shown([v["whole"]["test"] for v in some], 2, 100), "", "", ""])
    head = [
        "cell",
        "training and order",
        "seeds",
        "whole, accuracy %",
        "90% pruned",
        "pruned within 0.5 points, %",
        "L1",
    ]
    note = (
        "Test accuracy; how far an order goes is read from validation accuracy. Bayesian networks are scored at the "
        "mean. The L1 factor is chosen by the validation loss with 90% pruned."
    )
    return "\n\n".join(["### Weights", table(head, rows), note, "![Curves](curves.png)"])
