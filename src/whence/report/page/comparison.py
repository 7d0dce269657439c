"""What the templates name of a comparison, on its own page or inside an audit's."""

from __future__ import annotations

from typing import Any

from whence.report.page import theme
from whence.report.page.compared import heights, looks
from whence.report.page.words import GLOSSARY, number, percent

Record = dict[str, Any]
SCHEMA = "whence.comparison/"
SECTIONS = {
    "compared-methods": ("Methods", "What was compared"),
    "compared-scores": ("Scores", "How the methods score"),
    "compared-reliability": ("Reliability", "Is stated confidence earned?"),
    "compared-uncertainty": ("Uncertainty", "How much of the data is how uncertain?"),
    "compared-rejection": ("Rejection", "What rejecting the uncertain buys"),
    "compared-layers": ("Layers", "Where each method puts the uncertainty"),
    "compared-agreement": ("Agreement", "Do the methods agree on where?"),
    "compared-distance": ("Distance", "How far each is from the reference"),
}
TERMS = {
    "chance": (
        "not worse by more than chance",
        "A method is marked when it is the best, or when the 95 % interval of its difference from the best, taken "
        "input by input, holds zero: with these data the two cannot be told apart.",
    ),
    "rejection": (
        "rejection",
        "Leaving out the inputs that a method is least sure of. A method that knows what it does not know makes fewer "
        "errors on those it keeps.",
    ),
    "share": (
        "share",
        "The part of the predictive variance that comes from one layer's weights. By draws, a layer's share is the "
        "variance left when it alone is random; it has a Monte Carlo standard error (±).",
    ),
    "interaction": (
        "interaction",
        "What the shares of single layers leave of the variance, because layers act together. It may be negative.",
    ),
    "disagreement": (
        "disagreement",
        "How differently two draws of a method tell inputs apart in a layer: 1 − CKA (centred kernel alignment), "
        "averaged over pairs of draws. 0 = alike, whatever the order of their units; near 1 = nothing in common.",
    ),
    "spearman": (
        "rank correlation",
        "Spearman's ρ between the layers' shares: 1 = both methods put the layers in the same order, 0 = no relation, "
        "−1 = the opposite order.",
    ),
    "total_variation": (
        "total variation",
        "The part of a distribution that has to move to turn it into another: 0 = the same, 1 = nothing in common.",
    ),
    "wasserstein": (
        "Wasserstein distance",
        "How far probability has to be carried to turn one prediction into another, on average.",
    ),
}
KEPT = ("nll", "brier", "ece", "auroc", "fpr95", "entropy", "explained", "prior", "interval", "variance")
REASON = "it was not computed"


def is_comparison(record: Record) -> bool:
    """Whether the record is of a comparison rather than of an audit."""
    return str(record.get("schema") or "").startswith(SCHEMA)


def context(found: Record | None, nested: bool) -> Record:
    """Everything that the templates of a comparison name; ``nested``: as one section of an audit's page."""
    found = found or {}
    return {
        "nested": nested, "compared": SECTIONS, "compared_why": _reasons(found), "looks": looks(_methods(found)),
        "heights": heights(found), "heat": _heat(found.get("agreement")), "layered": _layered(found),
        "compared_terms": {**{key: GLOSSARY[key] for key in KEPT}, **TERMS},
    }  # fmt: skip


def _methods(found: Record) -> list[Record]:
    return found.get("methods") or []


def _layered(found: Record) -> list[int]:
    """The places of the methods that say anything of their layers."""
    layers = found.get("layers") or {}
    kinds = ("share", "explained", "activations")
    return [i for i in range(len(_methods(found))) if any(nth(layers.get(key), i) is not None for key in kinds)]


def _reasons(found: Record) -> dict[str, str]:
    """Why a section is missing; inside an audit the reasons stand in the comparison itself."""
    listed = (found.get("run") or {}).get("left_out") or found.get("left_out") or []
    return {item["what"]: str(item["why"]).rstrip(".") for item in listed}


def _heat(agreement: Record | None) -> list[Record]:
    """The two tables of agreement as cells: text, colour and ink."""
    if not agreement:
        return []
    kinds = (("rho", "spearman", "Rank correlation of the layers’ shares", 1.0),
             ("total_variation", "total_variation", "Part of the variance that would have to move", None))  # fmt: skip
    made = []
    for key, term, title, limit in kinds:
        rows = agreement.get(key) or []
        if rows:
            cells = [[_cell(value, limit) for value in row] for row in rows]
            made.append({"term": term, "title": title, "methods": agreement["methods"], "rows": cells})
    return made


def _cell(value: float | None, limit: float | None) -> Record:
    if value is None:
        colour, ink = theme.cell(theme.MISSING)
        return {"text": number(None), "colour": colour, "ink": ink}
    colour, ink = theme.cells([value], limit)[0]
    return {"text": percent(value, 2) if limit is None else f"{value:.2f}".replace("-", "−"), "colour": colour,
            "ink": ink}  # fmt: skip


def nth(rows: list[Any] | None, place: int) -> Any:
    """One entry, or none where there is none."""
    return rows[place] if rows and place < len(rows) else None


def rank(value: Record | None, better: str | None) -> str:
    """A number by which a column is sorted, the best first; nothing where there is none."""
    found = (value or {}).get("value")
    if found is None:
        return ""
    if better == "higher":
        return f"{-found:.9g}"
    return f"{found:.9g}" if better in ("lower", None) else f"{abs(found - float(better)):.9g}"


def aim(better: str | None) -> str:
    """Which values of a metric are good, in words."""
    if better in ("lower", "higher"):
        return f"{'↓' if better == 'lower' else '↑'} {better} is better"
    return f"nearest {better} is best" if better else ""


def size(count: Any) -> str:
    """Bytes for people."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return number(None)
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
