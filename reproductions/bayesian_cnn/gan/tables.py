"""Samples by kind, parameters, and what the discriminator's uncertainty says."""

from __future__ import annotations

from reproductions.bayesian_cnn.wording import SLIDES, by_seed, judged, paired, shown, table
from reproductions.claims import Claim, above, below, interval
from reproductions.store import Values

NAMES = {
    "plain": "plain", "noise": "plain with noise, as many parameters as both", "generator": "Bayesian generator",
    "discriminator": "Bayesian discriminator", "both": "both Bayesian",
}  # fmt: skip
COLUMNS = {"fid": 2, "precision": 3, "recall": 3, "classes": 1, "class entropy": 3}
HEAD = ("FID", "precision", "recall", "classes", "entropy of classes, nats")
DOUBTS = {
    "doubt, samples": "AUROC, samples against real images", "doubt, others": "AUROC, other data against real images",
    "doubt, distance": "correlation with the distance to real images, of samples",
}  # fmt: skip


def claims(units: Values) -> list[Claim]:
    kinds = by_seed(units)
    found: list[Claim] = []
    for kind in ("generator", "discriminator", "both"):
        for other in ("plain", "noise"):
            pair = {NAMES[kind]: paired(kinds.get(kind, {}), kinds.get(other, {}), lambda v: v["fid"])}
            found += judged(f"better samples than {NAMES[other]} (FID)", SLIDES, pair, below, 2)
        recall = {NAMES[kind]: paired(kinds.get(kind, {}), kinds.get("plain", {}), lambda v: v["recall"])}
        found += judged("covers more of the data than the plain GAN (recall)", SLIDES, recall, above, 3)
    for kind in ("discriminator", "both"):
        some = list(kinds.get(kind, {}).values())
        for key, words, bound in (
            ("doubt, samples", "its uncertainty is larger for samples than for real images (AUROC above 0.5)", 0.5),
            ("doubt, others", "… for images of another set (AUROC above 0.5)", 0.5),
            ("doubt, distance", "… for samples farther from real images (correlation above 0)", 0.0),
        ):
            value = interval([v[key] for v in some]) if len(some) > 1 else None
            groups = {NAMES[kind]: value}
            found += judged(words, "beyond the slides", groups, lambda v, bound=bound: above(v, bound), 3)  # type: ignore[misc]
    return found


def tables(units: Values) -> str:
    kinds = by_seed(units)
    rows, doubts = [], []
    for kind, label in NAMES.items():
        some = list(kinds.get(kind, {}).values())
        if some:
            cells = [shown([v[key] for v in some], digits) for key, digits in COLUMNS.items()]
            seconds = f"{1000 * min(v['seconds'] for v in some):.1f}"
            rows.append([label, str(len(some)), f"{some[0]['trainable']:,}", *cells, seconds])
        if some and "doubt, samples" in some[0]:
            doubts.append([label, *(shown([v[key] for v in some], 3) for key in DOUBTS)])
    note = (
        "FID, precision and recall by features of our own LeNet-5, not of Inception: comparable here only. Classes are "
        "those that at least 1% of the samples belong to by that LeNet-5. The learning rate is chosen by the FID to "
        "validation images."
    )
    parts = ["### Samples", table(["GAN", "seeds", "trainable", *HEAD, "ms a step (least)"], rows), note]
    if doubts:
        parts += ["### The discriminator's uncertainty", table(["GAN", *DOUBTS.values()], doubts)]
    return "\n\n".join([*parts, "![Samples](samples.png)"])
