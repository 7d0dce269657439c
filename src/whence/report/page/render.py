"""The record of an audit → the text of one HTML page that needs nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

from whence.errors import need
from whence.report.page import icicle, maps, theme, words
from whence.report.page.charts import NAMES, ORDERS, all_charts, pruning_score
from whence.report.page.pictures import data_uri

Record = dict[str, Any]
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
SECTIONS = {
    "verdict": ("Verdict", "Verdict"),
    "quality": ("Quality", "How good the uncertainties are"),
    "deferral": ("Deferral", "When a person should take over"),
    "profile": ("Profile", "Where the uncertainty sits"),
    "maps": ("Weight maps", "Weight maps"),
    "inputs": ("Inputs", "The most uncertain inputs"),
    "novelty": ("Novelty", "Novelty, layer by layer"),
    "pruning": ("Pruning", "Pruning"),
    "run": ("What was done", "What was done"),
    "glossary": ("Terms", "Terms"),
}


def render(record: Record) -> str:
    """One self-contained page: scripts, styles, data and pictures are inside."""
    bundle = need("plotly.offline", "report").get_plotlyjs().replace("</script", "<\\/script")
    return str(_environment().get_template("page.html.j2").render(_context(record), bundle=bundle))


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


def _environment() -> Any:
    jinja = need("jinja2", "report")
    made = jinja.Environment(
        loader=jinja.PackageLoader("whence.report.page"), autoescape=True, undefined=jinja.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "number": words.number, "percent": words.percent, "estimate": words.estimate, "judged": words.judged,
        "duration": words.duration, "picture": data_uri, "flat": words.flat, "term": words.term,
    }  # fmt: skip
    return made


def _context(record: Record) -> Record:
    """Everything that the templates name."""
    run = record.get("run") or {}
    layers = _layer_names(record)
    drawings = _drawings(record)
    return {
        "r": _gentle(record), "run": _gentle(run), "nothing": _Gentle(), **_fixed(), **drawings,
        "why": {item["what"]: item["why"] for item in run.get("left_out") or []},
        "tree": icicle.tree(record["profile"]) if drawings["profile"] else [],
        "views": _views(record["profile"]) if drawings["profile"] else [], "negative": _negative(record.get("profile")),
        "kinds": {layer["name"]: layer.get("kind") or "" for layer in record.get("layers") or []},
        "colours": dict(zip(layers, theme.layer_colours(len(layers)), strict=True)),
        "score": pruning_score((record.get("pruning") or {}).get("rows") or []),
        "data": embedded({**drawings, "themes": theme.templates()}),
    }  # fmt: skip


def _drawings(record: Record) -> Record:
    """What the page's script draws."""
    profile = record.get("profile") or {}
    shown = icicle.profile(profile) if profile.get("nodes") and profile.get("views") else None
    return {"charts": all_charts(record), "profile": shown, "maps": maps.weight_maps(record.get("maps") or [])}


def _fixed() -> Record:
    """What is the same on every page."""
    return {
        "sections": SECTIONS, "terms": words.GLOSSARY, "tones": words.TONES, "names": NAMES, "orders": ORDERS,
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
