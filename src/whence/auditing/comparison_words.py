"""What a comparison comes to, in words."""

from __future__ import annotations

from typing import Any


def comparison_words(record: dict[str, Any]) -> list[str]:
    """What the table comes to."""
    names = [m["name"] for m in record["methods"]]
    words = []
    for metric in record["metrics"]:
        if metric["name"] in ("nll", "ece", "ood_auroc", "rmse"):
            best = [n for n, good in zip(names, metric["best"], strict=True) if good]
            if best and len(best) < len(names):
                words.append(f"{metric['label']}: best {'is' if len(best) == 1 else 'are'} {', '.join(best)}.")
            elif best:
                words.append(f"{metric['label']}: the methods do not differ by more than chance.")
    found = record.get("agreement")
    if found is not None and len(found["methods"]) > 1:
        words += _agreement_words(found)
    return words


def _agreement_words(found: dict[str, Any]) -> list[str]:
    pairs = [
        (found["total_variation"][i][j], found["methods"][i], found["methods"][j])
        for i in range(len(found["methods"]))
        for j in range(i)
        if found["total_variation"][i][j] is not None
    ]
    if not pairs:
        return []
    apart, one, other = max(pairs)
    near = "in the same layers" if apart < 0.1 else "in partly different layers" if apart < 0.4 else "in other layers"
    return [f"{one} and {other} put their uncertainty {near}: {apart:.0%} of the variance would have to move."]
