"""The profile as an icicle: one set of nodes, and for each view its widths, colours and true numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whence.errors import need
from whence.numerals import NONE, number, points
from whence.numerals import share as share_text
from whence.report.formatting import quantity, shortened
from whence.report.page import theme
from whence.report.page.charts import plain_text
from whence.report.page.explained import ExplainedScale, explained_text
from whence.report.record.common import Numbers
from whence.report.record.sections import Node, Profile, View

Chart = dict[str, Any]
UNITS = 10**8  # width of the root; integers, so that children never exceed their parent
MOST = 75_000  # nodes times views above which weight groups are omitted
DEEP = 3  # levels shown at once
NEGATIVE = -1e-6  # shares are rounded to six digits
ROUNDING = 1e-4  # tolerance for the sum of rounded shares
LARGEST = 1e100  # beyond which shares are cut, so that nothing overflows
SMALL = 0.005  # share of the variance below which layers share a line of the list
MANY = 12  # number of layers up to which the list shows each
STEPS = 100  # of a colour scale; the step after them is the colour of what is not known
LEVELS = {"layer": "layer", "unit": "unit", "group": "group of weights"}
HOVER = "<b>%{{label}}</b><br>{0}: %{{customdata[0]}}{2}<br>{1}: %{{customdata[1]}}<br>%{{hovertext}}<extra></extra>"


@dataclass(frozen=True)
class Spread:
    """That variances are shown as standard deviations, in this unit; ``several``: of all outputs together."""

    unit: str | None
    several: bool


def icicle(profile: Profile, most: int = MOST, spread: Spread | None = None) -> Chart:
    """The data for the page's script: the trace without a view, and the views."""
    places = drawn_nodes(profile, most)
    nodes = [profile.nodes[i] for i in places]
    limit, scale, size = _limit(profile), ExplainedScale.of(profile), _Size(spread, profile.outputs)
    return {
        "trace": _trace(nodes, places, _prior(profile)),
        "layers": [node.layer for node in nodes],
        "palettes": {"explained": _palette(None), "difference": _palette(limit), "prior": _palette(None)},
        "views": {view.key: _view(view, places, nodes, size, _Steps(scale, limit)) for view in profile.views},
        "limit": limit, "ticks": scale.ticks, "decades": scale.decades,
        "thinned": len(nodes) < len(profile.nodes),
    }  # fmt: skip


def drawn_nodes(profile: Profile, most: int = MOST) -> list[int]:
    """Indices of the nodes that are drawn, without groups if the page would get too large."""
    whole = len(profile.nodes) * len(profile.views) <= most
    return [i for i, node in enumerate(profile.nodes) if whole or node.level != "group"]


def _prior(profile: Profile) -> Numbers | None:
    """Shares under the prior alone."""
    return next((view.share for view in profile.views if view.kind == "prior"), None)


def _trace(nodes: list[Node], places: list[int], prior: Numbers | None) -> Chart:
    alone = [""] * len(nodes)
    if prior is not None:
        alone = [f"share under the prior alone: {share_text(prior[i])}<br>" for i in places]
    trace = need("plotly.graph_objects", "report").Icicle(
        ids=[node.id for node in nodes],
        labels=[plain_text(shortened(node.label, 40)) for node in nodes],
        parents=[node.parent or "" for node in nodes],
        hovertext=[f"{words}{number(node.weights)} weights" for words, node in zip(alone, nodes, strict=True)],
        branchvalues="total", maxdepth=DEEP, sort=False,
        tiling={"orientation": "v", "pad": 0}, leaf={"opacity": 1},
        pathbar={"visible": True, "thickness": 30, "textfont": {"size": 13}}, textposition="middle center",
        textfont={"size": 13},
    )  # fmt: skip
    return dict(trace.to_plotly_json())


def _view(view: View, places: list[int], nodes: list[Node], size: _Size, steps: _Steps) -> Chart:
    change = view.kind == "difference"
    shares, explained = ([values[i] for i in places] for values in (view.share, view.explained))
    widths, squeezed = (changes(shares, nodes), []) if change else fitted(shares, nodes)
    unit = "\u202fpp" if change else "%"
    words = ("change of the share", "change of explained") if change else ("share of the variance", "explained")
    return {
        "values": widths, "unit": unit, "palette": _palette_of(view),
        "note": _note(view, undrawn(shares, nodes) if not change else [], bool(squeezed), size),
        "customdata": [
            [_share(s, change), _explained(e, change), steps.of(view, e)]
            for s, e in zip(shares, explained, strict=True)
        ],
        "texttemplate": "%{label}<br>%{customdata[0]}" + unit, "hovertemplate": HOVER.format(*words, unit),
        "small": small_layers(shares, nodes),
    }  # fmt: skip


def _palette_of(view: View) -> str:
    return view.kind if view.kind in ("difference", "prior") else "explained"


def _palette(limit: float | None) -> list[list[str]]:
    """Colour and ink of each step of a scale, and of what is not known."""
    steps = [i / STEPS for i in range(STEPS + 1)]
    values = steps if limit is None else [limit * (2 * step - 1) for step in steps]
    return [*theme.cells(values, limit), theme.cell(theme.MISSING)]


@dataclass(frozen=True)
class _Steps:
    """The step of the colour scale that each value gets."""

    scale: ExplainedScale
    limit: float  # of changes

    def of(self, view: View, value: float | None) -> int:
        if value is None or view.kind == "prior":
            return STEPS + 1
        place = self.scale.place(value) if view.kind != "difference" else 0.5 + 0.5 * value / self.limit
        return round(STEPS * min(max(place, 0.0), 1.0))


def undrawn(shares: Sequence[float | None], nodes: Sequence[Node]) -> list[Node]:
    """The nodes that have no cell because their share is negative."""
    return [node for node, share in zip(nodes, shares, strict=True) if (share or 0.0) < NEGATIVE]


def negative_units(profile: Profile) -> dict[str, list[tuple[Node, float]]]:
    """Layers and units with a negative share and that share, by view, the most negative first."""
    found: dict[str, list[tuple[Node, float]]] = {}
    for view in profile.views:
        if view.kind != "difference":
            pairs = zip(profile.nodes, view.share, strict=True)
            below = [(node, share or 0.0) for node, share in pairs if (share or 0.0) < NEGATIVE]
            mine = [pair for pair in below if pair[0].is_layer or pair[0].is_unit]
            if mine:
                found[view.key] = sorted(mine, key=lambda pair: pair[1])
    return found


def fitted(shares: Sequence[float | None], nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Widths from the positive shares, and the indices of parents whose children were narrowed."""
    children, roots = _family(nodes)
    known = [_bounded(share) for share in shares]
    exact = [float(UNITS) if i in roots else 0.0 for i in range(len(nodes))]
    squeezed = []
    for i in range(len(nodes)):
        wanted = [max(known[kid], 0.0) for kid in children[i]]
        own, total = max(known[i], 0.0), math.fsum(wanted)
        below = any(known[kid] < NEGATIVE for kid in children[i])
        if exact[i] > 0 and below and total > own + ROUNDING:
            squeezed.append(i)
        for kid, want in zip(children[i], wanted, strict=True):
            exact[kid] = exact[i] * want / max(own, total, 1e-300) * (1 - 1e-14)
    return [int(width) for width in exact], squeezed


def changes(shares: Sequence[float | None], nodes: Sequence[Node]) -> list[int]:
    """Widths of a difference: the absolute change of a leaf, and the sum over leaves for a parent."""
    children, _ = _family(nodes)
    exact = [0.0] * len(nodes)
    for i in reversed(range(len(nodes))):
        exact[i] = math.fsum(exact[kid] for kid in children[i]) if children[i] else abs(_bounded(shares[i]))
    whole = max(exact, default=0.0) or 1.0
    widths = [int(UNITS * size / whole) for size in exact]
    for i in reversed(range(len(nodes))):
        if children[i]:
            widths[i] = sum(widths[kid] for kid in children[i])
    return widths


def _bounded(share: float | None) -> float:
    """A share whose sums and products do not overflow, whatever the record says."""
    return min(max(share or 0.0, -LARGEST), LARGEST)


def small_layers(shares: Sequence[float | None], nodes: Sequence[Node]) -> list[int]:
    """Indices of the layers that the list hides in a view: those with almost no share, if there are many."""
    layers = [i for i, node in enumerate(nodes) if node.level == "layer" and node.layer is not None]
    found = [i for i in layers if abs(shares[i] or 0.0) < SMALL]
    return found if len(layers) > MANY and len(found) > 1 else []


def _family(nodes: Sequence[Node]) -> tuple[list[list[int]], set[int]]:
    """The children of each node, and the roots, by index."""
    places = {node.id: i for i, node in enumerate(nodes)}
    children: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        if node.parent in places:
            children[places[node.parent]].append(i)
    return children, {i for i, node in enumerate(nodes) if node.parent not in places}


def _share(share: float | None, change: bool) -> str:
    """In percent, or a change in percentage points."""
    if share is None or not change:
        return share_text(share).removesuffix("%")
    return points(share, signed=True)


def _explained(value: float | None, change: bool) -> str:
    return points(value, signed=True) if change and value is not None else explained_text(value)


def _limit(profile: Profile) -> float:
    """End of the colour scale of the difference: the largest change of a layer or unit, rounded up to tenths."""
    sizes = [
        abs(value)
        for view in profile.views
        if view.kind == "difference"
        for node, value in zip(profile.nodes, view.explained, strict=True)
        if value is not None and node.level in ("layer", "unit")
    ]
    return min(1.0, math.ceil(10 * max(sizes, default=1.0) + 1e-9) / 10)


def _note(view: View, hidden: list[Node], squeezed: bool, size: _Size) -> str:
    """One or two sentences under the chart."""
    facts = [f"{number(view.inputs)} input{'s' * (view.inputs != 1)}"] if view.inputs else []
    facts += [] if view.kind == "difference" else [size.words(view.variance)]
    words = [f"{view.label}: {', '.join(facts)}."]
    if view.kind == "prior":
        words.append("The shares before any training data.")
    if hidden:
        several = len(hidden) > 1
        narrowed = "; their neighbours are narrowed to fit" if squeezed else ""
        words.append(
            f"{_counted(hidden)} with a negative share {'are' if several else 'is'} not drawn{narrowed}. "
            "The labels give the shares themselves; only the widths are adjusted."
        )
    return " ".join(words)


def _counted(nodes: list[Node]) -> str:
    """Nodes by their level: "2 units and 13 groups of weights"."""
    counts = {words: sum(node.level == level for node in nodes) for level, words in LEVELS.items()}
    shown = [f"{n:,} {words if n == 1 else words.replace(words.split()[0], words.split()[0] + 's', 1)}"
             for words, n in counts.items() if n]  # fmt: skip
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


@dataclass(frozen=True)
class _Size:
    """How large the variance of a view is, in words; of predicted numbers as a standard deviation."""

    spread: Spread | None
    outputs: int | None

    def words(self, variance: float | None) -> str:
        if self.spread is not None and variance is not None and variance >= 0:
            of = ", all outputs together" if self.spread.several else ""
            return f"standard deviation from weights {quantity(math.sqrt(variance), self.spread.unit)}{of}"
        if self.outputs is None or self.outputs < 2 or variance is None:
            return f"mean variance of the outputs {number(variance)}"
        return (
            f"variance summed over the {self.outputs:,} outputs, mean over inputs: {number(variance)}, that is "
            f"{number(variance / self.outputs)} for each output"
        )


@dataclass(frozen=True)
class TreeEntry:
    """A layer or a unit in the list next to the chart; ``place`` is the index of its node in the chart."""

    place: int
    id: str
    label: str
    weights: str
    prior: str  # share under the prior alone
    units: tuple[TreeEntry, ...] = ()


def tree(profile: Profile, most: int = MOST) -> list[TreeEntry]:
    """Layers in order, each with its units sorted by share in the first view."""
    nodes, prior = profile.nodes, _prior(profile)
    shares = profile.views[0].share
    place = {i: at for at, i in enumerate(drawn_nodes(profile, most))}

    def entry(i: int, units: tuple[TreeEntry, ...] = ()) -> TreeEntry:
        alone = NONE if prior is None else share_text(prior[i])
        return TreeEntry(place[i], nodes[i].id, nodes[i].label, number(nodes[i].weights), alone, units)

    units: dict[str | None, list[int]] = {}
    for i, node in enumerate(nodes):
        if node.level == "unit":
            units.setdefault(node.parent, []).append(i)
    ordered = {parent: sorted(mine, key=lambda i: -(shares[i] or 0.0)) for parent, mine in units.items()}
    return [
        entry(i, tuple(map(entry, ordered.get(node.id, ())))) for i, node in enumerate(nodes) if node.level == "layer"
    ]
