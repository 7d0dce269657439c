"""The profile: the part of the predictive variance due to each layer, unit and group of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from whence.auditing.context import LABELS, Context, view_key
from whence.auditing.data import spaced
from whence.auditing.profile_tree import LayerNodes, NodeShares, VarianceSums, nodes_of, shares_of
from whence.engine.batches import Inputs, size_of, take
from whence.errors import NotDefined
from whence.linalg.structures import BlockStructure
from whence.numerals import number, percent, percent_in_words, points
from whence.posteriors.laplace.posterior import Laplace
from whence.recording.blocks import Block
from whence.recording.units import units_of
from whence.report.record.common import Numbers
from whence.report.record.convert import tidied
from whence.report.record.sections import NegativeShare, Node, Profile, View
from whence.where.connections import (
    Connections,
    ConnectionShares,
    connection_shares_of_groups,
    connections_of,
)
from whence.where.layer_rows import LayerRow
from whence.where.shares import Shares
from whence.where.where import Where

UNITS = 24  # units of a layer with a node
GROUPS = 5  # groups of connections of a unit
NODES = 1_800  # approximate total
WORK = 1e10  # multiplications that a layer's connections may take for a set of inputs
QUICK_WORK = 2e9
NEGATIVE = 10  # listed units of a view
ROUNDING = 1e-6  # shares that count as negative are below its negative
BETWEEN = "interaction"


def profile(context: Context, work: float | None = None) -> Profile:
    """Nodes, with the share and the explained fraction of each in every view.

    If a layer's connections would take more than ``work`` multiplications, a subset of inputs is used.
    """
    context.need("test")
    work = work or (QUICK_WORK if context.note else WORK)
    if not context.posterior.has_curvature:
        return _profile_by_draws(context)
    posterior = context.profile_posterior.as_laplace("a profile")
    sets = [_Inputs.of_set(context, name) for name in LABELS if context.has(name)]
    layers = _layers(posterior, [one.found for one in sets])
    found = [one.sums(posterior, layers, work) for one in sets]
    layers = [_with_connections(layer, [sums[0] for sums in found]) for layer in layers]
    views = [one.view(0, sums[0], layers) for one, sums in zip(sets, found, strict=True)]
    test, whole = views[0], found[0][0]
    if len(views) == 2:
        views.append(_difference(*views))
    views.append(_prior_alone(test, whole.total.prior / whole.inputs))
    for one, sums in zip(sets, found, strict=True):
        views += [one.view(i, part, layers) for i, part in enumerate(sums) if i]
    for name in LABELS:
        if any(place == name for place, _ in context.most_uncertain):
            shown = _Inputs.of_shown(context, name)
            views += [shown.view(i, part, layers) for i, part in enumerate(shown.sums(posterior, layers, work))]
    nodes, precision = nodes_of(context.network_name, layers), posterior.prior_precision
    return Profile(
        "variance",
        context.profile_note,
        precision if isinstance(precision, float) else None,
        context.where("test").residual,
        nodes,
        tuple(views),
        tuple(_negative(nodes, views[: len(sets)], NEGATIVE)),
        tuple(_words(nodes, test, views, _Errors.of(sets[0].found, math.prod(posterior.output_shape)))),
        posterior.prior.describe(),
        math.prod(posterior.output_shape),
        sets[0].found.question.random_columns,
    )


# Inputs


class _Label(NamedTuple):
    """What a view is called."""

    key: str
    kind: Literal["set", "class", "input"]
    words: str


@dataclass(frozen=True)
class _Inputs:
    """Inputs that are profiled in groups: a set and its classes, or single inputs."""

    inputs: Inputs
    found: Shares  # with units by group
    labels: tuple[_Label, ...]  # of the groups
    members: Tensor  # bool [N, G]
    whole: bool  # the first group is all inputs, which the shares are already of

    @classmethod
    def of_set(cls, context: Context, name: str) -> _Inputs:
        """A set, and for test data its most frequent classes."""
        found, inputs = context.examined(name).own, context.profiled[name].inputs
        labels, members = [_Label(name, "set", LABELS[name])], torch.ones(size_of(inputs), 1, dtype=torch.bool)
        classes = context.class_groups if name == "test" else None
        if classes is not None and classes.members is not None:
            word = "Predicted class" if classes.predicted else "Class"
            for c, mine in zip(classes.labels, classes.members.T, strict=True):
                words = f"{word} {context.class_name(c)} ({int(mine.sum()):,} inputs)"
                labels.append(_Label(f"class:{c}", "class", words))
            members = torch.cat([members, classes.members], 1)
        return cls(inputs, found, tuple(labels), members, True)

    @classmethod
    def of_shown(cls, context: Context, name: str) -> _Inputs:
        """The inputs of a set that are shown on the page."""
        seen = context.shown_examined(name)
        index = [index for place, index in context.most_uncertain if place == name]
        word = "Test" if name == "test" else "Out-of-distribution"
        labels = tuple(_Label(view_key(name, i), "input", f"{word} input {i}") for i in index)
        return cls(seen.inputs, seen.own, labels, torch.eye(len(index), dtype=torch.bool), False)

    def view(self, group: int, sums: VarianceSums, layers: list[LayerNodes]) -> View:
        variance = sums.total.posterior / sums.inputs
        return View(*self.labels[group], sums.inputs, variance, *shares_of(layers, sums))

    def sums(self, posterior: Laplace, layers: list[LayerNodes], work: float) -> list[VarianceSums]:
        """Variances of layers, units, and connections of the shown units by group; the latter perhaps of few inputs."""
        groups = self.members.shape[1]
        found: list[dict[str, ConnectionShares]] = [{} for _ in range(groups)]
        for few, shown in self._affordable(posterior, layers, work).items():
            index, members = self._spread_out(few)
            some = self.inputs if few == len(self.members) else take(self.inputs, index)
            parts = connection_shares_of_groups(posterior, some, shown, members)
            scale = (self.members.sum(0) / members.sum(0).clamp(min=1)).tolist()
            for group in range(groups):
                found[group] |= {name: one.times(scale[group]) for name, one in parts[group].items()}
        return [VarianceSums(self._shares_of(group), found[group]) for group in range(groups)]

    def _shares_of(self, group: int) -> Shares:
        if not self.whole:
            return self.found.of_group(group, self.members[:, group])
        return self.found if group == 0 else self.found.of_group(group - 1, self.members[:, group])

    def _affordable(self, posterior: Laplace, layers: list[LayerNodes], work: float) -> dict[int, dict[str, list[int]]]:
        """Number of inputs for the connections of each layer: number → layer → units."""
        outputs = self.found.question.random_columns or math.prod(posterior.output_shape)
        blocks, found = {block.name: block for block in posterior.blocks}, dict[int, dict[str, list[int]]]()
        for layer in layers:
            if layer.group_weights is not None:
                few = int(work // _multiplications(blocks[layer.name], len(layer.shown), outputs))
                few = 4 ** (few.bit_length() // 2) if few < len(self.members) else few  # layers share a pass
                few = min(len(self.members), max(self.members.shape[1], few))
                found.setdefault(few, {})[layer.name] = layer.shown
        return found

    def _spread_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Some inputs, evenly from all groups, and their groups."""
        last = self.members.int() * torch.arange(self.members.shape[1])
        index = last.amax(1).argsort(stable=True)[spaced(len(self.members), count)].sort().values
        return index, self.members[index]


# Which units and connections have a node


def _layers(posterior: Laplace, splits: list[Shares]) -> list[LayerNodes]:
    """The units with the largest shares of either sign in any of the sets."""
    most = max(3, min(UNITS, NODES // (len(posterior.blocks) * (GROUPS + 2))))
    found = []
    for index, block in enumerate(posterior.blocks):
        units = units_of(posterior.network, block)
        size = torch.stack([s.units[block.name].variance.abs() / s.variance.sum() for s in splits]).amax(0)
        shown = _largest(size, most, units.count)
        layer = LayerNodes(block.name, index, block.size, units, shown, units.total(torch.ones(block.size)))
        links = connections_of(block, units)
        if links is not None and links.count > 1:
            layer = replace(layer, names=links.names, group_weights=_group_weights(units.of_weight, shown, links))
        found.append(layer)
    return found


def _largest(size: Tensor, most: int, count: int) -> list[int]:
    """Indices of the largest, in ascending order; all if only one would be omitted."""
    most = count if count <= most + 1 else most
    return sorted(size.argsort(descending=True, stable=True)[:most].tolist())


def _group_weights(of_weight: Tensor, shown: list[int], links: Connections) -> Tensor:
    """Number of weights of each (shown unit, connection) [U, G]."""
    place = torch.full((int(of_weight.max()) + 1,), -1)
    place[shown] = torch.arange(len(shown))
    mine = place[of_weight] >= 0
    cell = place[of_weight][mine] * links.count + links.of_weight[mine]
    return torch.bincount(cell, minlength=len(shown) * links.count).reshape(len(shown), -1)


def _with_connections(layer: LayerNodes, sums: list[VarianceSums]) -> LayerNodes:
    """The connections with the largest shares of either sign in any of the sets."""
    if layer.group_weights is None:
        return layer
    chosen = {}
    for place, unit in enumerate(layer.shown):
        size = torch.stack([s.connections[layer.name].variance[place].abs() / s.total.posterior for s in sums]).amax(0)
        there = layer.group_weights[place] > 0
        if int(there.sum()) > 1:
            chosen[unit] = _largest(torch.where(there, size, -1.0), GROUPS, int(there.sum()))
    return replace(layer, connections=chosen)


def _multiplications(block: Block, units: int, outputs: int) -> float:
    """Upper bound on the multiplications for one input."""
    if block.form is None:
        return float(outputs * block.size**2 if block.structure is BlockStructure.DENSE else outputs * block.size)
    _, rows, columns = block.form.native
    return float(outputs * (units * columns * (rows + columns) + rows * columns))


# Views derived from others, and words


def _difference(test: View, ood: View) -> View:
    def apart(one: Numbers, other: Numbers) -> Numbers:
        return tuple(None if a is None or b is None else b - a for a, b in zip(one, other, strict=True))

    parts = (apart(getattr(test, key), getattr(ood, key)) for key in NodeShares._fields)
    return View("difference", "difference", "Out of distribution − test", test.inputs + ood.inputs, None, *parts)


def _prior_alone(test: View, variance: float) -> View:
    prior = test.prior_share
    return View("prior", "prior", "Prior alone", test.inputs, variance, prior, prior, (0.0,) * len(prior))


def _negative(nodes: tuple[Node, ...], views: list[View], most: int | None = None) -> Iterator[NegativeShare]:
    """The most negative layers and units of each view."""
    for view in views:
        pairs = [(s, node) for node, s in zip(nodes, view.share, strict=True) if s is not None and s < -ROUNDING]
        below = sorted((s, node.id) for s, node in pairs if node.is_layer or node.is_unit)
        yield from (NegativeShare(node, view.key, share) for share, node in below[:most])


class _Errors(NamedTuple):
    """Standard errors of the layers' shares of test data; none where these are exact."""

    of_share: dict[str, float]
    columns: int  # random directions for each input
    outputs: int

    @classmethod
    def of(cls, found: Shares, outputs: int) -> _Errors | None:
        errors = found.over_inputs().variance_share_error
        if errors is None:
            return None
        return cls(dict(zip(found.names, errors.tolist(), strict=True)), found.question.random_columns or 0, outputs)

    def after(self, name: str) -> str:
        """What stands after a share."""
        return f" (± {points(self.of_share[name])} points)"

    def words(self, first: tuple[float, str], second: tuple[float, str]) -> str:
        """How shares are estimated, and whether the two largest can be told apart, at two standard errors of each."""
        (one, name), (other, next_name) = first, second
        said = (
            f"Shares are estimated from {self.columns} random directions of the outputs for each input, in place of "
            f"all {self.outputs:,}; ± is a standard error."
        )
        if one - other > 2 * (self.of_share[name] + self.of_share[next_name]):
            return said
        return (
            f"{said} Whether layer `{name}` or layer `{next_name}` ({percent(other)}{self.after(next_name)}) "
            "contributes more cannot be told from these."
        )


def _words(
    nodes: tuple[Node, ...], test: View, views: Sequence[View] = (), errors: _Errors | None = None
) -> Iterator[str]:
    rows = [
        (share, explained, prior, node.label)
        for node, share, explained, prior in zip(nodes, test.share, test.explained, test.prior_share, strict=True)
        if node.is_layer and share is not None
    ]
    share, explained, prior, name = max(rows, key=lambda row: row[0])
    reduced = (
        f"; training reduced its prior variance by {percent_in_words(explained, 0)}." if explained is not None else "."
    )
    shown = percent(share, 0) if errors is None else f"{percent(share)}{errors.after(name)}"
    yield (
        f"For {test.inputs:,} test inputs, layer `{name}` contributes {shown} of the predictive variance, "
        f"and {percent(prior, 0)} under the prior alone{reduced}"
    )
    if errors is not None and len(rows) > 1:
        first, second = sorted(((row[0], row[3]) for row in rows), reverse=True)[:2]
        yield errors.words(first, second)
    novel = next((view for view in views if view.is_novel), None)
    if novel is not None and test.variance is not None and (novel.variance or 0.0) < test.variance:
        yield (
            "On average the variance of the outputs is smaller for the out-of-distribution inputs "
            f"({number(novel.variance)}) than for test inputs ({number(test.variance)}): by itself it does not show "
            "that inputs are novel."
        )
    known = sorted((explained, name) for _, explained, _, name in rows if explained is not None)
    if len(known) > 1 and known[-1][0] - known[0][0] > 0.01:
        (low, least), (high, most) = known[0], known[-1]
        yield (
            f"Training reduced the prior variance of the outputs most in layer `{most}` ({percent(high, 0)}) and least "
            f"in layer `{least}` ({percent(low, 0)})."
        )


# Posteriors without closed forms


def _profile_by_draws(context: Context) -> Profile:
    """Layers (or dropout sites) by draws; the interaction between them has its own node, so that nodes sum to 1."""
    tables = {name: context.where(name) for name in LABELS if context.has(name)}
    rows = tables["test"].layers
    if not rows or any(row.variance_share is None for row in rows):
        raise NotDefined(tables["test"].why_not or "this posterior has no shares.")
    nodes = (
        Node("n", None, "network", context.network_name, context.posterior.parameters, None, None),
        *(Node(f"n{i}", "n", "layer", row.name, row.parameters or 0, row.name, None) for i, row in enumerate(rows)),
        Node("ni", "n", "layer", BETWEEN, 0, None, None),
    )
    views = [tidied(_view_by_draws(context, name, table)) for name, table in tables.items()]
    if len(views) == 2:
        views.append(_difference(*views))
    return Profile(
        "variance",
        "Shares are by draws with one layer random and the others at their mean; "
        f"{BETWEEN!r} is the remaining variance with all of them random.",
        context.posterior.summary().prior_precision,
        0.0,
        nodes,
        tuple(views),
        tuple(_negative(nodes, views[: len(tables)])),
        (_words_by_draws(rows, tables["test"].interaction or 0.0, len(context.profiled["test"])),),
    )


def _view_by_draws(context: Context, name: str, table: Where) -> View:
    rows, interaction = table.layers, table.interaction or 0.0
    share = [row.variance_share for row in rows]
    prior = [row.prior_share for row in rows]
    known = [value for value in prior if value is not None]
    priors = (1.0, *prior, 1 - sum(known)) if len(known) == len(prior) else (None,) * (len(rows) + 2)
    explained = (None, *(row.explained for row in rows), None)
    count = len(context.profiled[name])
    return View(name, "set", LABELS[name], count, None, (1.0, *share, interaction), priors, explained)


def _words_by_draws(rows: list[LayerRow], interaction: float, count: int) -> str:
    top = max(rows, key=lambda row: row.variance_share or 0.0)
    error = "" if top.variance_share_error is None else f" (± {points(top.variance_share_error)} percentage points)"
    return (
        f"For {count:,} test inputs {percent(top.variance_share, 0)}{error} of the predictive variance comes from "
        f"`{top.name}` alone; {percent(interaction, 0)} is interaction between layers."
    )
