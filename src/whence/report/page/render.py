"""The record of an audit or a comparison → the text of one HTML page that needs nothing else."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from whence.errors import need
from whence.report.page import comparison, icicle, maps, naming, theme, words
from whence.report.page.charts import NAMES, ORDERS, all_charts, pruning_score
from whence.report.page.compared import compared_charts
from whence.report.page.pictures import data_uri

Record = dict[str, Any]
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
SECTIONS = {
    "verdict": ("Verdict", "Verdict"),
    "quality": ("Quality", "How good the uncertainties are"),
    "comparison": ("Methods compared", "Methods compared"),
    "deferral": ("Deferral", "When a person should take over"),
    "profile": ("Profile", "Where the uncertainty sits"),
    "maps": ("Weight maps", "Weight maps"),
    "inputs": ("Inputs", "The most uncertain inputs"),
    "novelty": ("Novelty", "Novelty, layer by layer"),
    "pruning": ("Pruning", "Pruning"),
    "run": ("What was done", "What was done"),
    "glossary": ("Terms", "Terms"),
}
PARTS = ("verdict", "quality", "comparison", "deferral", "profile", "inputs", "novelty", "run", "glossary")
COMPARED = ("title", "scores", "curves", "layers", "run")


def render(record: Record) -> str:
    """One self-contained page: scripts, styles, data and pictures are inside."""
    bundle = need("plotly.offline", "report").get_plotlyjs().replace("</script", "<\\/script")
    shown, prefix = naming.without_common(record)
    found = _comparison(shown) if comparison.is_comparison(shown) else _audit(shown)
    return str(_environment().get_template("page.html.j2").render(found, bundle=bundle, prefix=prefix))


def embedded(data: Any) -> str:
    """JSON that may stand inside a script element whatever strings it holds."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter, escape in ESCAPES.items():
        text = text.replace(letter, escape)
    return text


def _finite(data: Any) -> Any:
    """The same with null for what JSON cannot say."""
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
        "number": words.number, "percent": words.percent, "estimate": words.estimate, "judged": words.judged,
        "duration": words.duration, "picture": data_uri, "flat": words.flat, "term": words.term,
        "aim": comparison.aim, "nth": comparison.nth, "rank": comparison.rank, "size": comparison.size,
        "dotted": naming.dotted, "coded": naming.coded,
    }  # fmt: skip
    return made


def _audit(record: Record) -> Record:
    """Everything that the templates of an audit's page name."""
    layers, drawings = _layer_names(record), _drawings(record)
    listed = naming.most_seen(record.get("inputs"), layers)
    found = record.get("comparison")
    extra = comparison.context(found, nested=True)
    return {
        **_common(record, drawings), **extra, **_fixed(), "what": "audit", "c": _gentle(found),
        "parts": [f"{part}.html.j2" for part in PARTS],
        "sections": {key: names for key, names in SECTIONS.items() if key != "comparison" or found},
        "terms": {**words.GLOSSARY, **(extra["compared_terms"] if found else {})},
        "tree": icicle.tree(record["profile"]) if drawings["profile"] else [],
        "views": _views(record["profile"]) if drawings["profile"] else [], "negative": _negative(record.get("profile")),
        "kinds": {layer["name"]: layer.get("kind") or "" for layer in record.get("layers") or []},
        "colours": dict(zip(listed, theme.layer_colours(len(listed)), strict=True)),
        "score": pruning_score((record.get("pruning") or {}).get("rows") or []),
        "unlisted": len(layers) - len(listed), "deep": any(len(name) > naming.SHORT for name in layers),
        "rows": _row_heights(record.get("novelty") or {}),
    }  # fmt: skip


def _comparison(record: Record) -> Record:
    """Everything that the templates of a comparison's page name."""
    extra = comparison.context(record, nested=False)
    ends = {key: SECTIONS[key] for key in ("run", "glossary")}
    return {
        **_common(record, {"charts": compared_charts(record), "profile": None, "maps": []}), **extra,
        "what": "comparison", "c": _gentle(record), "terms": extra["compared_terms"],
        "parts": [*(f"compared_{part}.html.j2" for part in COMPARED), "glossary.html.j2"],
        "sections": {**comparison.SECTIONS, **ends},
    }  # fmt: skip


def _common(record: Record, drawings: Record) -> Record:
    """What both pages name."""
    run = record.get("run") or {}
    return {
        "r": _gentle(record), "run": _gentle(run), "nothing": _Gentle(), "tones": words.TONES, **drawings,
        "why": {item["what"]: str(item["why"]).rstrip(".") for item in run.get("left_out") or []},
        "data": embedded({**drawings, "themes": theme.templates()}),
    }  # fmt: skip


def _drawings(record: Record) -> Record:
    """What the page's script draws."""
    profile = record.get("profile") or {}
    shown = icicle.profile(profile) if profile.get("nodes") and profile.get("views") else None
    charts = {**all_charts(record), **compared_charts(record.get("comparison") or {})}
    return {"charts": charts, "profile": shown, "maps": maps.weight_maps(record.get("maps") or [])}


def _fixed() -> Record:
    """What is the same on every audit's page."""
    return {
        "names": NAMES, "orders": ORDERS,
        "quantities": maps.QUANTITIES, "missing_colour": theme.MISSING,
        "ramps": {"explained": _ramp(False), "difference": _ramp(True)},
    }  # fmt: skip


class _Gentle(dict[str, Any]):
    """A mapping whose missing entries are None, so that templates may ask for any section."""

    def __missing__(self, key: str) -> None:
        return None


def _gentle(data: Any) -> Any:
    """The same with gentle mappings throughout."""
    if isinstance(data, dict):
        return _Gentle({key: _gentle(item) for key, item in data.items()})
    return [_gentle(item) for item in data] if isinstance(data, list) else data


def _layer_names(record: Record) -> list[str]:
    """In the network's order; those that only inputs name come last."""
    named = [layer["name"] for layer in record.get("layers") or []]
    named += [name for item in record.get("inputs") or [] for name, _ in item.get("layers") or []]
    return list(dict.fromkeys(named))


def _row_heights(novelty: Record) -> int:
    """Pixels that a chart with a box for each layer and set takes."""
    return min(2000, max(330, 100 + len(novelty.get("names") or []) * (9 * len(novelty.get("sets") or []) + 9)))


def _views(profile: Record) -> list[tuple[str, list[Record]]]:
    """The views in groups, for the select."""
    groups = {"set": "Data sets", "difference": "Data sets", "prior": "Data sets", "class": "One class"}
    found: dict[str, list[Record]] = {}
    for view in profile["views"]:
        found.setdefault(groups.get(view["kind"], "One input"), []).append(view)
    return list(found.items())


def _negative(profile: Record | None) -> dict[str, list[Record]]:
    """Units with a negative share, by view, the most negative first."""
    if not profile:
        return {}
    labels = {node["id"]: node for node in profile.get("nodes") or []}
    found: dict[str, list[Record]] = {}
    for item in sorted(profile.get("negative") or [], key=lambda item: item["share"]):
        node = labels.get(item["id"], {"layer": "", "label": item["id"]})
        found.setdefault(item["view"], []).append({**item, "layer": node["layer"], "label": node["label"]})
    return found


def _ramp(signed: bool) -> str:
    """A colour scale as CSS."""
    return f"linear-gradient(90deg,{','.join(theme.scale(signed))})"
