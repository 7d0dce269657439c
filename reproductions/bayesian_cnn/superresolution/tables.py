"""Quality, and whether uncertainty knows where the errors are."""

from __future__ import annotations

from statistics import fmean

from reproductions.bayesian_cnn.wording import SLIDES, Cells, by_cell, judged, paired, shown, table
from reproductions.claims import Claim, above, below, interval
from reproductions.store import Values

SHOWN = {
    "bicubic": "bicubic", "plain": "plain; gradient of its output", "dropout": "MC dropout",
    "variational": "variational", "laplace": "Laplace",
}  # fmt: skip
COLUMNS = {"psnr": 2, "ssim": 4, "nll": 3, "correlation": 3, "ause": 3}
HEAD = ("PSNR, dB", "SSIM", "NLL of a pixel", "correlation of error and uncertainty", "AUSE")


def claims(units: Values) -> list[Claim]:
    tasks = by_cell(units)
    found: list[Claim] = []
    for method in ("variational", "dropout", "laplace"):
        label = SHOWN[method]
        psnr = {t: paired(m.get(method, {}), m.get("plain", {}), lambda v: v["psnr"]) for t, m in tasks.items()}
        near = "reconstructs as well as the plain network (PSNR at most 0.1 dB less)"
        found += judged(f"{label} {near}", SLIDES, psnr, lambda v: above(v, -0.1), 2, 1, " dB")
        alone = {
            t: interval([v["correlation"] for v in m[method].values()]) if len(m.get(method, {})) > 1 else None
            for t, m in tasks.items()
        }
        words = "error and uncertainty are correlated (above 0.3)"
        found += judged(f"{label}: {words}", SLIDES, alone, lambda v: above(v, 0.3), 2)
        area = {t: paired(m.get(method, {}), m.get("plain", {}), lambda v: v["ause"]) for t, m in tasks.items()}
        words = "uncertainty finds errors better than the gradient of the plain output (AUSE)"
        found += judged(f"{label}: {words}", "beyond the slides", area, below)
    return found


def tables(units: Values) -> str:
    tasks, rows = by_cell(units), []
    for task, methods in tasks.items():
        for method, seeds in methods.items():
            some = list(seeds.values())
            cells = [shown([v[k] for v in some if k in v], digits) for k, digits in COLUMNS.items()]
            rows.append([task, SHOWN[method], str(len(some)), *cells])
    note = (
        "PSNR and SSIM are means over test images. Uncertainty is the epistemic standard deviation of a pixel; AUSE is "
        "the area between the sparsification curve and the oracle's (0 is best). The plain network has no uncertainty: "
        "the size of the gradient of its output stands there, which says where edges are. Variational "
        "networks start at the plain one and are trained for more epochs."
    )
    parts = ["### Quality and uncertainty", table(["task", "method", "seeds", *HEAD], rows), note]
    parts += [_regions(tasks), "![Sparsification](sparsification.png)", "![Maps](maps.png)"]
    return "\n\n".join(part for part in parts if part)


def _regions(tasks: Cells) -> str:
    """Shares of the layers, Laplace."""
    rows = []
    for task, methods in tasks.items():
        some = [v["where"] for v in methods.get("laplace", {}).values()]
        for layer in some[0]["edges"] if some else ():
            cells = [
                f"{100 * fmean(w[r][layer][i] for w in some):.0f}%" for r in ("edges", "elsewhere") for i in (0, 1, 2)
            ]
            rows.append([task, layer, *cells])
    if not rows:
        return ""
    names = ("share", "of the prior's variance", "explained")
    head = ["task", "layer", *(f"{region}: {name}" for region in ("edges", "elsewhere") for name in names)]
    note = "Edges are the fifth of the pixels with the steepest reconstruction. Laplace; means over seeds."
    return "\n\n".join(["### Which layer is a region's uncertainty from?", table(head, rows), note])
