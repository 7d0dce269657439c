"""The profile as an icicle: one set of nodes, and for each view its widths, colours and true numbers."""

from __future__ import annotations

import math
from typing import Any

from whence.errors import need
from whence.report.page import theme
from whence.report.page.words import NONE, drawn, number, percent, shortened, signed, significant

Record = dict[str, Any]
UNITS = 10**8  # the width of the root; whole numbers, so that children never exceed their parent
MOST = 75_000  # nodes times views; beyond that weight groups are left out
DEEP = 3  # levels shown at once
NEGATIVE = -1e-6  # shares are rounded to six digits
ROUNDING = 1e-4  # by which a sum of rounded shares may differ from its parent's
SMALL = 0.005  # of the variance; layers below it share a line of the list
MANY = 12  # layers that the list shows one by one, whatever their shares
TEXT = "%{label}<br>%{customdata[0]}"
HOVER = (
    "<b>%{label}</b><br>{share}: %{customdata[0]}{unit}<br>{explained}: %{customdata[1]}<br>%{hovertext}<extra></extra>"
)


def profile(record: Record) -> Record:
    """Everything that the page's script picks from: the figure without its view, and the views."""
    nodes, keep = _kept(record)
    views = [_cut(view, keep) for view in record["views"]]
    prior = next((view["share"] for view in views if view["kind"] == "prior"), None)
    limit = _limit(views, nodes)
    return {
        "trace": _trace(nodes, prior),
        "layers": [node["layer"] for node in nodes],
        "palettes": {kind: _palette(views, kind, limit) for kind in ("explained", "difference", "prior")},
        "views": {view["key"]: _view(view, nodes) for view in views},
        "limit": limit,
        "thinned": len(nodes) < len(record["nodes"]),
    }


def _kept(record: Record) -> tuple[list[Record], list[int]]:
    """The nodes that are drawn, and their places; without groups where the page would get too large."""
    nodes, views = record["nodes"], record["views"]
    whole = len(nodes) * len(views) <= MOST
    keep = [i for i, node in enumerate(nodes) if whole or node["level"] != "group"]
    return [nodes[i] for i in keep], keep


def _cut(view: Record, keep: list[int]) -> Record:
    return {**view, "share": [view["share"][i] for i in keep], "explained": [view["explained"][i] for i in keep]}


def _trace(nodes: list[Record], prior: list[float] | None) -> Record:
    objects = need("plotly.graph_objects", "report")
    trace = objects.Icicle(
        ids=[node["id"] for node in nodes],
        labels=[drawn(shortened(str(node["label"]), 40)) for node in nodes],
        parents=[node["parent"] or "" for node in nodes],
        hovertext=[_standing(node, None if prior is None else prior[i]) for i, node in enumerate(nodes)],
        branchvalues="total", maxdepth=DEEP, sort=False,
        tiling={"orientation": "v", "pad": 0}, leaf={"opacity": 1},
        pathbar={"visible": True, "thickness": 30, "textfont": {"size": 13}}, textposition="middle center",
        textfont={"size": 13},
    )  # fmt: skip
    return dict(trace.to_plotly_json())


def _standing(node: Record, prior: float | None) -> str:
    """What is the same in every view."""
    words = f"{number(node['weights'])} weights"
    return words if prior is None else f"share under the prior alone: {percent(prior)}<br>{words}"


def _view(view: Record, nodes: list[Record]) -> Record:
    change = view["kind"] == "difference"
    widths, squeezed = changes(view["share"], nodes) if change else fitted(view["share"], nodes)
    facts = [[_share(s, change), _explained(e, change)] for s, e in zip(view["share"], view["explained"], strict=True)]
    words = ("change of the share", "change of explained") if change else ("share of the variance", "explained")
    unit = "\u202fpp" if change else "\u202f%"
    hover = HOVER.replace("{share}", words[0]).replace("{explained}", words[1]).replace("{unit}", unit)
    return {
        "values": widths, "customdata": facts, "unit": unit, "texttemplate": TEXT + unit, "hovertemplate": hover,
        "palette": _coloured(view),
        "note": _note(view, squeezed), "small": small(view["share"], nodes),
    }  # fmt: skip


def _coloured(view: Record) -> str:
    """The name of the colours that a view is drawn in."""
    return view["kind"] if view["kind"] in ("difference", "prior") else "explained"


def _palette(views: list[Record], kind: str, limit: float) -> dict[str, list[str]]:
    """Colour and ink for each text of ``explained`` that occurs; one for all under the prior."""
    change, none = kind == "difference", theme.cell(theme.MISSING)
    values = {
        _explained(value, change): value
        for view in views
        if _coloured(view) == kind
        for value in view["explained"]
        if value is not None
    }
    cells = theme.cells(values.values(), limit if change else None) if kind != "prior" else [none] * len(values)
    return {**dict(zip(values, cells, strict=True)), NONE: none}


def fitted(shares: list[float], nodes: list[Record]) -> tuple[list[int], list[int]]:
    """Widths from the positive shares, and the places of the parents that a negative child leaves too little room."""
    places, children = _family(nodes)
    exact = [0.0] * len(nodes)
    squeezed = []
    for root in (i for i, node in enumerate(nodes) if node["parent"] not in places):
        exact[root] = float(UNITS)
    for i in range(len(nodes)):
        wanted = [max(shares[kid] or 0.0, 0.0) for kid in children[i]]
        own, total = max(shares[i] or 0.0, 0.0), math.fsum(wanted)
        below = any((shares[kid] or 0.0) < NEGATIVE for kid in children[i])
        if exact[i] > 0 and below and total > own + ROUNDING:
            squeezed.append(i)
        for kid, want in zip(children[i], wanted, strict=True):
            exact[kid] = exact[i] * want / max(own, total, 1e-300) * (1 - 1e-14)
    return [int(width) for width in exact], squeezed


def changes(shares: list[float], nodes: list[Record]) -> tuple[list[int], list[int]]:
    """Widths of a difference: a leaf's is its size, a parent's the sum of its leaves'."""
    _, children = _family(nodes)
    exact = [0.0] * len(nodes)
    for i in reversed(range(len(nodes))):
        exact[i] = math.fsum(exact[kid] for kid in children[i]) if children[i] else abs(shares[i] or 0.0)
    whole = max(exact, default=0.0) or 1.0
    widths = [int(UNITS * size / whole) for size in exact]
    for i in reversed(range(len(nodes))):
        if children[i]:
            widths[i] = sum(widths[kid] for kid in children[i])
    return widths, []


def small(shares: list[float], nodes: list[Record]) -> list[int]:
    """The places of the layers that the list folds away in a view: of many layers, those with nearly no share."""
    layers = [i for i, node in enumerate(nodes) if node["level"] == "layer" and node.get("layer") is not None]
    found = [i for i in layers if abs(shares[i] or 0.0) < SMALL]
    return found if len(layers) > MANY and len(found) > 1 else []


def _family(nodes: list[Record]) -> tuple[dict[str, int], list[list[int]]]:
    places = {node["id"]: i for i, node in enumerate(nodes)}
    children: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        if node["parent"] in places:
            children[places[node["parent"]]].append(i)
    return places, children


def _share(share: float | None, change: bool) -> str | float | int:
    """In per cent: a plain number where that is readable, which is shorter in JSON."""
    rounded = significant(None if share is None else round(100 * share, 3), 3)
    if not rounded:
        return NONE if rounded is None else 0
    return signed(rounded, change) if change or rounded < 0 else rounded


def _explained(value: float | None, change: bool) -> str:
    return NONE if value is None else signed(round(value, 2) + 0.0, change, ".2f")


def _limit(views: list[Record], nodes: list[Record]) -> float:
    """Where the colours of the difference end: the largest change of a layer or unit, in tenths."""
    sizes = [
        abs(value)
        for view in views
        if view["kind"] == "difference"
        for node, value in zip(nodes, view["explained"], strict=True)
        if value is not None and node["level"] in ("layer", "unit")
    ]
    return min(1.0, math.ceil(10 * max(sizes, default=1.0) + 1e-9) / 10)


def _note(view: Record, squeezed: list[int]) -> str:
    """One or two sentences under the chart."""
    inputs = f"{number(view['inputs'])} input{'s' * (view['inputs'] != 1)}" if view.get("inputs") else ""
    kind = "What the shares would be had the network seen no data." if view["kind"] == "prior" else ""
    size = "" if view["kind"] == "difference" else f"mean variance {number(view.get('variance'))}"
    words = [f"{view['label']}: {', '.join(part for part in (inputs, size) if part)}.", kind]
    if squeezed:
        words.append(
            f"In {len(squeezed)} place{'s' * (len(squeezed) > 1)} a part has a negative share and is not drawn; its "
            "neighbours are narrowed to fit. The numbers shown are the true ones."
        )
    return " ".join(word for word in words if word)


def tree(record: Record) -> list[Record]:
    """Layers in their order, each with its units by their shares in the first view, for the list beside the chart."""
    nodes = record["nodes"]
    shares = record["views"][0]["share"] if record["views"] else [0.0] * len(nodes)
    kept = {key: i for i, key in enumerate(node["id"] for node in _kept(record)[0])}
    prior = next((view["share"] for view in record["views"] if view["kind"] == "prior"), None)

    def entry(i: int) -> Record:
        node = nodes[i]
        return {"place": kept[node["id"]], "id": node["id"], "label": node["label"], "weights": number(node["weights"]),
                "prior": NONE if prior is None else percent(prior[i])}  # fmt: skip

    units: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        if node["level"] == "unit":
            units.setdefault(node["parent"], []).append(i)
    return [
        {**entry(i), "units": [entry(kid) for kid in sorted(units.get(node["id"], []), key=lambda k: -shares[k])]}
        for i, node in enumerate(nodes)
        if node["level"] == "layer"
    ]
