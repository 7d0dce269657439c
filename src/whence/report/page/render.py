"""The record of an audit or a comparison → one self-contained HTML page."""

from __future__ import annotations

import base64
import functools
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whence import numerals
from whence.errors import need
from whence.report import formatting, notices, uncertainty
from whence.report.page import glossary, icicle, names, people, seal, theme
from whence.report.page.all_charts import audit_charts, comparison_charts, difference_charts
from whence.report.page.attributed import attributed_columns, attribution_picture, attribution_sum, token_styles
from whence.report.page.charts import CRITERIA, FEWEST, drawn_bins, looks_of, pairs, pruning_score
from whence.report.page.dense import Scales, pictures, token_style
from whence.report.page.explained import explained_text
from whence.report.page.layer_charts import layers_with
from whence.report.page.layer_colours import layer_colours, layer_names
from whence.report.page.number_charts import number_charts
from whence.report.page.weight_maps import QUANTITIES, caption, weight_map
from whence.report.record.audit import AuditRecord
from whence.report.record.common import Estimate, LeftOut, MetricName
from whence.report.record.comparison import Agreement, Compared, ComparisonRecord, ComparisonSection, LayersOfMethods
from whence.report.record.convert import to_json
from whence.report.record.difference import DiffRecord
from whence.report.record.sections import Novelty, Profile, View
from whence.report.record.verdict import JUDGED

Record = AuditRecord | ComparisonRecord | DiffRecord
Context = dict[str, Any]  # variables of the templates
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
AUDIT_PARTS = (
    "verdict", "quality", "comparison", "conformal", "deferral", "groups", "profile", "inputs", "novelty", "next",
    "run",
)  # fmt: skip
COMPARISON_PARTS = ("title", "scores", "curves", "layers", "run")
OPTIONAL = {"next": "next_steps"}  # the record's fields with other names than their sections
GROUPS = {"set": "Data sets", "difference": "Data sets", "prior": "Data sets", "class": "One class"}
JUDGEMENTS = {"same": "no clear difference"}
METRIC_TERMS = ("nll", "brier", "ece", "auroc", "fpr95", "entropy", "rmse", "crps")  # terms in the names of metrics
LARGEST = 256  # largest side of a picture in pixels


def render(record: Record, most: int = icicle.MOST) -> str:
    """One self-contained page, including scripts, styles, data and pictures.

    ``most`` is the number of cells (nodes times views) above which the profile omits groups of weights.
    """
    bundle = need("plotly.offline", "report").get_plotlyjs().replace("</script", "<\\/script")
    shown, prefix = names.without_common(record)
    if isinstance(shown, AuditRecord):
        found = _audit(shown, most)
    else:
        found = _difference(shown) if isinstance(shown, DiffRecord) else _comparison(shown)
    trace = record.trace if isinstance(record, AuditRecord) else None
    found["seal"] = trace and {"empty": seal.EMPTY, "trace": embedded(to_json(trace))}
    return seal.sealed(str(_environment().get_template("page.html.j2").render(found, bundle=bundle, prefix=prefix)))


def pictures_page(record: Record, kind: str) -> str:
    """The page with a script that leaves every chart as an image in ``<pre id="answer">``."""
    profile = record.profile if isinstance(record, AuditRecord) else None
    kinds = ("set", "difference", "prior")
    views = [view.key for view in profile.views if view.kind in kinds] if profile and profile.nodes else []
    script = _environment().get_template("pictures.html.j2").render(format=kind, views=embedded(views))
    return render(record).replace("</body>", f'<pre id="answer" hidden></pre><script>{script}</script></body>')


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, for any strings."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter, escape in ESCAPES.items():
        text = text.replace(letter, escape)
    return text


def _finite(data: Any) -> Any:
    """Replace numbers that are not finite by None."""
    if isinstance(data, dict):
        return {key: _finite(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(item) for item in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


@functools.cache
def _environment() -> Any:
    jinja = need("jinja2", "report")
    made = jinja.Environment(
        loader=jinja.PackageLoader("whence.report.page"), autoescape=True, undefined=jinja.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "number": numerals.number, "percent": numerals.percent, "share": numerals.share,
        "share_range": numerals.share_range, "fixed": numerals.fixed,
        "alike": numerals.alike, "places": formatting.places_of, "plus_minus": formatting.plus_minus,
        "p_value": numerals.p_value, "estimate": formatting.estimate, "shown": formatting.shown,
        "duration": formatting.duration, "size": formatting.size, "term": term,
        "dotted": names.dotted, "code": names.code, "picture": picture, "judged": judged, "aim": aim, "rank": rank,
        "pairs": pairs, "weakest": people.weakest, "place": people.place, "tint": people.tint,
        "pictures": pictures, "token_style": token_style, "points_estimate": formatting.points_estimate,
        "shown_uncertainty": uncertainty.shown, "threshold": uncertainty.threshold, "quartiles": uncertainty.quartiles,
        "threshold_label": uncertainty.threshold_label, "spelt": names.spelt, "section_name": section_name,
        "notice": notices.in_words,
        "used": glossary.used, "attributed": attributed_columns, "attribution_picture": attribution_picture,
        "attribution_sum": attribution_sum,
        "token_parts": token_styles, "caption": caption, "explained": explained_text, "capital": formatting.capital,
        "drawn": drawn_bins, "mean_iou": people.mean_iou,
    }  # fmt: skip
    return made


def section_name(key: str) -> str:
    """The title of a section of an audit, for what was left out."""
    text = _text()
    found = text.audit_sections.get(key)
    return str(found[1]) if found else str(text.other_sections.get(key, key))


def _text() -> Any:
    """Titles of the sections and explanations of terms, from a template."""
    return _environment().get_template("text.html.j2").module


def _audit(record: AuditRecord, most: int) -> Context:
    """Variables of the templates of an audit's page."""
    text = _text()
    compared = record.comparison
    profile = record.profile if record.profile and record.profile.nodes and record.profile.views else None
    layers, colours = layer_names(record), layer_colours(record)
    drawings = {
        "charts": {**audit_charts(record), **people.people_charts(record), **_of_numbers(record)},
        "slider": people.slider(record.deferral),
        "profile": profile and icicle.icicle(profile, most, _spread_of(record)),
        "maps": [weight_map(found) for found in record.maps or ()],
    }
    return {
        **_common(record, compared, drawings),
        "what": "audit", "nested": True, "judged_points": JUDGED, "parts": [f"{part}.html.j2" for part in AUDIT_PARTS],
        "sections": {key: title for key, title in text.audit_sections.items() if _is_shown(record, key)},
        "matrix": people.MATRIX,
        "terms": _terms(record, text), "detector_terms": text.detector_terms,
        "tree": icicle.tree(profile, most) if profile else [], "views": _view_groups(profile) if profile else {},
        "negative": icicle.negative_units(profile) if profile else {},
        "kinds": {layer.name: layer.kind for layer in record.layers or ()}, "criteria": CRITERIA,
        "colours": colours,
        "score": pruning_score(record.pruning.rows if record.pruning else (), record.unit),
        "unlisted": len(layers) - len(colours), "deep": any(len(name) > names.SHORT for name in layers),
        "novelty_height": _novelty_height(record.novelty) if record.novelty else 0,
        "dense": Scales.of(record.inputs or ()), "quantities": QUANTITIES, "missing_colour": theme.MISSING,
        "ramps": {"explained": theme.ramp(False), "difference": theme.ramp(True)},
    }  # fmt: skip


def _terms(record: AuditRecord, text: Any) -> dict[str, tuple[str, ...]]:
    """Explanations in the order of the page; of predicted numbers they do not speak of classes."""
    numbers = text.number_terms if record.task == "regression" else {}
    return {**text.terms, **numbers, **(text.comparison_terms if record.comparison else {})}


def _spread_of(record: AuditRecord) -> icicle.Spread | None:
    """How the variance of predicted numbers is shown: as a standard deviation, with its unit."""
    if record.task != "regression":
        return None
    numbers = record.quality.numbers if record.quality else None
    several = numbers is not None and len(numbers.outputs) + numbers.unlisted > 1
    return icicle.Spread(None if several else record.unit, several)


def _of_numbers(record: AuditRecord) -> Context:
    found = record.quality.numbers if record.quality else None
    return number_charts(found) if found else {}


def _comparison(record: ComparisonRecord) -> Context:
    """Variables of the templates of a comparison's page."""
    text = _text()
    ends = {key: text.audit_sections[key] for key in ("run", "glossary")}
    return {
        **_common(record, record, {"charts": comparison_charts(record), "profile": None, "maps": []}),
        "what": "comparison", "nested": False,
        "terms": {**text.terms, **text.comparison_terms},
        "parts": [f"compared_{part}.html.j2" for part in COMPARISON_PARTS],
        "sections": {**text.comparison_sections, **ends},
    }  # fmt: skip


def _difference(record: DiffRecord) -> Context:
    """Variables of the templates of the page of what changed."""
    text = _text()
    drawings: Context = {"charts": difference_charts(record), "profile": None, "maps": []}
    return {
        **drawings, "what": "diff", "r": record, "run": {"versions": record.versions, "interrupted": None},
        "terms": text.terms,
        "tones": text.tones, "parts": ["changed.html.j2"], "why": {},
        "sections": {**text.diff_sections, "glossary": text.audit_sections["glossary"]},
        "height": min(2000, 110 + 34 * len(record.layers)),
        "data": embedded({**drawings, "themes": theme.templates()}),
    }  # fmt: skip


def _common(
    record: AuditRecord | ComparisonRecord, compared: ComparisonSection | ComparisonRecord | None, drawings: Context
) -> Context:
    """Variables of both pages; ``compared`` is the comparison, on its own page or as a section of an audit's."""
    found: Context = {"c": compared}
    if compared is not None:
        found |= {
            "compared": _text().comparison_sections, "compared_why": _reasons(compared.left_out),
            "looks": looks_of(compared.methods), "heights": _heights(compared.layers),
            "heat": _agreement_cells(compared.agreement), "layered": _with_layers(compared),
        }  # fmt: skip
    return {
        **found, **drawings, "r": record, "run": record.run, "tones": _text().tones, "fewest": FEWEST,
        "data": embedded({**drawings, "themes": theme.templates()}),
    }  # fmt: skip


def _is_shown(record: AuditRecord, section: str) -> bool:
    """Whether the page has a section: what was not computed is listed under "not covered"."""
    found = getattr(record, OPTIONAL.get(section, section), True)
    return found is True or bool(found)


def _reasons(left_out: Sequence[LeftOut]) -> dict[str, str]:
    """Why a section is missing."""
    return {item.what: item.why.rstrip(".") for item in left_out}


# An audit's page


def _novelty_height(novelty: Novelty) -> int:
    """Height of the chart with a box for each layer and set, in pixels."""
    return min(2000, max(240, 100 + len(novelty.names) * (9 * len(novelty.sets) + 9)))


def _view_groups(profile: Profile) -> dict[str, list[View]]:
    """Views by their group in the menu."""
    found: dict[str, list[View]] = {}
    for view in profile.views:
        found.setdefault(GROUPS.get(view.kind, "One input"), []).append(view)
    return found


def picture(pixels: Sequence[Any]) -> str:
    """Grey (h × w) or colour (h × w × 3) levels from 0 to 255 as PNG data, ready for an ``img``."""
    image = need("PIL.Image", "report")
    levels = np.clip(np.asarray(pixels, dtype=float), 0, 255).astype(np.uint8)
    if levels.ndim == 3 and levels.shape[2] == 1:
        levels = levels[:, :, 0]
    step = max(1, -(-max(levels.shape[:2]) // LARGEST))
    store = io.BytesIO()
    image.fromarray(np.ascontiguousarray(levels[::step, ::step])).save(store, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(store.getvalue()).decode()


# A comparison's page


def _heights(layers: LayersOfMethods | None) -> dict[str, int]:
    """Heights of the charts with one row for each layer, in pixels."""
    if layers is None:
        return {}
    bars = sum(row is not None for row in layers.share)
    rows = len(layers_with(layers, layers.share))
    return {
        "shares": min(2600, 120 + rows * (12 * max(bars, 1) + 14)),
        "marks": min(2000, 80 + len(layers.names) * 34),
    }


def _with_layers(found: Compared) -> list[int]:
    """Indices of the methods that have any quantity by layer."""
    if found.layers is None:
        return []
    kinds = (found.layers.share, found.layers.explained, found.layers.activations)
    return [i for i in range(len(found.methods)) if any(rows[i] is not None for rows in kinds)]


def _agreement_cells(agreement: Agreement | None) -> list[Context]:
    """The two tables of agreement as cells: text, colour and ink."""
    if agreement is None:
        return []
    tables = (("spearman", "Rank correlation of the layers’ shares", agreement.rho, 1.0),
              ("total_variation", "Part of the variance that would have to move", agreement.total_variation, None),
              )  # fmt: skip
    return [
        {"term": term, "title": title, "rows": [[_cell(value, limit) for value in row] for row in rows]}
        for term, title, rows, limit in tables
        if rows
    ]


def _cell(value: float | None, limit: float | None) -> tuple[str, str, str]:
    colour, ink = theme.cell(theme.MISSING) if value is None else theme.cells([value], limit)[0]
    text = numerals.percent(value, 2) if value is None or limit is None else numerals.minus(f"{value:.2f}")
    return text, colour, ink


def term(metric: str) -> str:
    """The term that explains a metric, or nothing."""
    return next((key for key in METRIC_TERMS if key in metric.split("_")), "")


def judged(metric: MetricName, difference: Estimate | None) -> str:
    """Describe a difference by its interval."""
    found = metric.judge(difference) or ""
    return JUDGEMENTS.get(found, found)


def rank(value: Estimate | None, better: str) -> str:
    """Sort key of a value, the best first; empty if there is none."""
    if value is None or value.value is None:
        return ""
    if better in ("lower", "higher"):
        return f"{value.value if better == 'lower' else -value.value:.9g}"
    return f"{abs(value.value - float(better)):.9g}"


def aim(better: str) -> str:
    """Which values of a metric are good, in words."""
    if better in ("lower", "higher"):
        return f"{'↓' if better == 'lower' else '↑'} {better} is better"
    return f"nearest {better} is best"
