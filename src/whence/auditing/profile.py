"""The profile: which part of the predictive variance each layer, unit and group of weights causes, view by view."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.drawn_profile import drawn_profile
from whence.auditing.pick import picked
from whence.auditing.plain import number, numbers
from whence.auditing.sets import spaced
from whence.auditing.tree import Leaf, Parts, nodes, shares, values
from whence.batches import Inputs, size_of, take
from whence.curvature.blocks import Block
from whence.curvature.units import units_of
from whence.where.connections import Connections, connection_shares, connections_of
from whence.where.shares import shares_with_units

UNITS = 24  # of a layer that have a node
GROUPS = 5  # of a unit
NODES = 1_800  # about so many in all
CLASSES = 20  # that have a view
WORK = 1e11  # multiplications that a layer's connections may take for a view
NEGATIVE = 10  # units that are listed for a view


@dataclass(frozen=True)
class View:
    """Some inputs that are profiled together."""

    key: str
    kind: str
    label: str
    inputs: Inputs


def profile(context: Context) -> dict[str, Any]:
    """Nodes, and a share and an explained fraction on each of them in every view."""
    context.need("test")
    if not context.subject.laplace:
        return drawn_profile(context)
    posterior = context.where_posterior
    sets = _sets(context)
    split = {v.key: shares_with_units(posterior, v.inputs) for v in sets}
    leaves = _leaves(posterior, split)
    joined = {key: _parts(posterior, leaves, view.inputs, split[key]) for key, view in ((v.key, v) for v in sets)}
    leaves = [_grouped(leaf, list(joined.values())) for leaf in leaves]
    found = {key: shares(values(leaves, parts)) for key, parts in joined.items()}
    views = [_describe(v, joined[v.key], *found[v.key]) for v in sets]
    views += _derived(context, found, joined)
    for view in _some(context):
        parts = _parts(posterior, leaves, view.inputs, shares_with_units(posterior, view.inputs))
        views.append(_describe(view, parts, *shares(values(leaves, parts))))
    tree = nodes(type(posterior.network.module).__name__, leaves)
    described = [node.describe() for node in tree]
    return {
        "measure": "variance",
        "note": context.where_note,
        "prior_precision": _one_number(posterior.prior_precision),
        "prior": posterior.prior.describe(),
        "residual": number(context.where("test").residual),
        "nodes": described,
        "views": views,
        "negative": _negative(described, views),
        "words": _words(described, views),
    }


def _one_number(value: Any) -> float | None:
    return number(value) if isinstance(value, float) else None


def _sets(context: Context) -> list[View]:
    labels = {"test": "Test data", "ood": "Out of distribution"}
    return [View(n, "set", w, context.profiled[n].inputs) for n, w in labels.items() if context.has(n)]


def _some(context: Context) -> list[View]:
    """One view for each of the most frequent classes, and for each of the inputs that are shown."""
    found = []
    held = context.profiled["test"]
    if context.task == "classification":
        labels = held.targets
        word = "Class"
        if labels is None or labels.dim() != 1:
            labels, word = context.where("test").shares.outputs.argmax(1).cpu(), "Predicted class"
        counted = [(int((labels == c).sum()), int(c)) for c in labels.unique()]
        often = sorted(c for _, c in sorted(counted, reverse=True)[:CLASSES] if c >= 0)
        for c in often:
            mine = (labels == c).nonzero().flatten()
            words = f"{word} {context.class_name(c)} ({len(mine):,} inputs)"
            found.append(View(f"class:{c}", "class", words, held.at(mine)))
    for one in picked(context):
        origin = context.need(one.held)
        words = "Test" if one.held == "test" else "Out-of-distribution"
        inputs = origin.at(torch.tensor([one.index]))
        found.append(View(one.key, "input", f"{words} input {one.index}", inputs))
    return found


def _leaves(posterior: Any, split: dict[str, Any]) -> list[Leaf]:
    """The units with the largest shares of either sign in any of the sets."""
    most = max(3, min(UNITS, NODES // (len(posterior.blocks) * (GROUPS + 2))))
    found = []
    for index, block in enumerate(posterior.blocks):
        units = units_of(posterior.network, block)
        size = torch.stack([s[1][block.name].variance.abs() / s[0].variance.sum() for s in split.values()]).amax(0)
        shown = sorted(size.argsort(descending=True, stable=True)[:most].tolist())
        shown = list(range(units.count)) if units.count <= most + 1 else shown
        links = connections_of(block, units)
        ones = torch.ones(block.size)
        leaf = Leaf(block.name, index, block.size, units, shown, {}, sizes=units.total(ones))
        if links is not None and links.count > 1:
            leaf = replace(leaf, names=links.names, group_sizes=_sizes(units.of_weight, shown, links))
        found.append(leaf)
    return found


def _sizes(of_weight: Tensor, shown: list[int], links: Connections) -> Tensor:
    place = torch.full((int(of_weight.max()) + 1,), -1)
    place[shown] = torch.arange(len(shown))
    mine = place[of_weight] >= 0
    cell = place[of_weight][mine] * links.count + links.of_weight[mine]
    return torch.bincount(cell, minlength=len(shown) * links.count).reshape(len(shown), -1)


def _parts(posterior: Any, leaves: list[Leaf], inputs: Inputs, split: Any) -> Parts:
    """With connections of the shown units; of a few of the inputs where all would take too long."""
    total = size_of(inputs)
    wanted: dict[int, dict[str, list[int]]] = {}
    blocks = {b.name: b for b in posterior.blocks}
    outputs = split[0].outputs.shape[1]
    scale = {}
    for leaf in leaves:
        if leaf.group_sizes is not None:
            few = max(1, min(total, int(WORK // _work(blocks[leaf.name], len(leaf.shown), outputs))))
            wanted.setdefault(few, {})[leaf.name] = leaf.shown
            scale[leaf.name] = total / few
    found: dict[str, Any] = {}
    for few, chosen in wanted.items():
        some = inputs if few == total else take(inputs, spaced(total, few))
        found |= connection_shares(posterior, some, chosen)
    return Parts(split[0], split[1], found, scale)


def _work(block: Block, units: int, outputs: int) -> float:
    """Multiplications for one input, at most."""
    if block.form is None:
        return float(outputs * block.size**2 if block.structure == "dense" else outputs * block.size)
    _, rows, columns = block.form.native
    return float(outputs * (units * columns * (rows + columns) + rows * columns))


def _grouped(leaf: Leaf, parts: list[Parts]) -> Leaf:
    """The connections with the largest shares of either sign in any of the sets."""
    if leaf.group_sizes is None:
        return leaf
    chosen = {}
    for place, unit in enumerate(leaf.shown):
        size = torch.stack([p.connections[leaf.name].variance[place].abs() / p.total[0] for p in parts]).amax(0)
        size = torch.where(leaf.group_sizes[place] > 0, size, -1.0)
        there = int((leaf.group_sizes[place] > 0).sum())
        most = there if there <= GROUPS + 1 else GROUPS
        if there > 1:
            chosen[unit] = sorted(size.argsort(descending=True, stable=True)[:most].tolist())
    return replace(leaf, connections=chosen)


def _describe(
    view: View, parts: Parts, own: list[float], prior: list[float], explained: list[float | None]
) -> dict[str, Any]:
    return {
        "key": view.key,
        "kind": view.kind,
        "label": view.label,
        "inputs": parts.inputs,
        "variance": number(parts.total[0] / parts.inputs),
        "share": numbers(own),
        "prior_share": numbers(prior),
        "explained": [None if e is None else number(e) for e in explained],
    }


def _derived(context: Context, found: dict[str, Any], joined: dict[str, Parts]) -> list[dict[str, Any]]:
    """The difference between the sets, and the prior alone on the test data."""
    views = []
    if "ood" in found:
        (a, pa, ea), (b, pb, eb) = found["test"], found["ood"]
        views.append(
            {
                "key": "difference",
                "kind": "difference",
                "label": "Out of distribution − test",
                "inputs": joined["ood"].inputs + joined["test"].inputs,
                "variance": None,
                "share": numbers([y - x for x, y in zip(a, b, strict=True)]),
                "prior_share": numbers([y - x for x, y in zip(pa, pb, strict=True)]),
                "explained": [None if x is None or y is None else number(y - x) for x, y in zip(ea, eb, strict=True)],
            }
        )
    _, prior, _ = found["test"]
    views.append(
        {
            "key": "prior",
            "kind": "prior",
            "label": "Prior alone",
            "inputs": joined["test"].inputs,
            "variance": number(joined["test"].total[1] / joined["test"].inputs),
            "share": numbers(prior),
            "prior_share": numbers(prior),
            "explained": [0.0] * len(prior),
        }
    )
    return views


def _negative(described: list[dict[str, Any]], views: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most negative units of each set."""
    found = []
    for view in views:
        if view["kind"] != "set":
            continue
        pairs = zip(described, view["share"], strict=True)
        below = [(s, n["id"]) for n, s in pairs if n["level"] in ("unit", "layer") and s is not None and s < -1e-6]
        found += [{"id": i, "view": view["key"], "share": s} for s, i in sorted(below)[:NEGATIVE]]
    return found


def _words(described: list[dict[str, Any]], views: list[dict[str, Any]]) -> list[str]:
    test = views[0]
    layers = [
        (s, e, p, n["label"])
        for n, s, e, p in zip(described, test["share"], test["explained"], test["prior_share"], strict=True)
        if n["level"] == "layer"
    ]
    share, explained, prior, name = max(layers, key=lambda row: row[0])
    words = [
        f"On test data, `{name}` contributes {share:.0%} of the predictive variance, and {prior:.0%} under the prior "
        "alone" + (f"; training reduced its prior variance by {explained:.0%}." if explained is not None else ".")
    ]
    known = sorted((row[1], row[3]) for row in layers if row[1] is not None)
    if len(known) > 1 and known[-1][0] - known[0][0] > 0.01:
        (low, least), (high, most) = known[0], known[-1]
        words.append(
            f"Training reduced the prior variance most in `{most}` ({high:.0%}) and least in `{least}` ({low:.0%})."
        )
    return words
