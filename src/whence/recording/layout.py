"""Find the example dimension of each call, and self-check the recording (both on the first batch).

A gradient that belongs to one example must not reach the rows of another; that identifies the example
dimension. Parameter gradients rebuilt from the recorded (input, output gradient) pairs must equal
autograd's; a parameter for which they do not is handled by the per-example fallback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.batches import Inputs, check_count, concatenate, size_of, take
from whence.engine.memory import none_if_out_of_memory, release, sizes
from whence.engine.options import Option
from whence.errors import UnsupportedLayer, first_line, is_out_of_memory
from whence.functional import Network, differentiable
from whence.linalg.dense import widened
from whence.recording.backward import TOLERANCE, densified, gradients
from whence.recording.independence import check_alone, doubled
from whence.recording.recorder import Pass, Recorder, Ref, Use, forward, probe_like
from whence.recording.rules import EmbeddingRule, MatrixRule

MISMATCH = "its gradient is not the sum over its recognised calls"
DEAD = "no gradient reaches it, and several of its dimensions may count the examples"
CHECKED = 8  # examples of the first batch that are checked
PASSED_ON = {  # functions that keep the outputs of a layer, or shift all classes alike
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "PermuteBackward0",
    "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1", "AliasBackward0", "CloneBackward0", "ToCopyBackward0",
    "LogSoftmaxBackward0",
}  # fmt: skip


class Place(Option):
    """Where the examples are among the leading dimensions."""

    DIM = "dim"  # one dimension counts them
    MAJOR = "major"  # the slower part of the first one
    MINOR = "minor"  # the faster part of it
    ALONE = "alone"  # one example, which has every row


@dataclass(frozen=True)
class Layout:
    """The position of the examples among a call's leading dimensions."""

    place: Place
    dim: int = 0

    def examples_first(self, t: Tensor, lead: int, size: int) -> Tensor:
        """Move the examples to position ``lead``: [*before, *lead dims, features] → [*before, N, T, features]."""
        if self.place is Place.ALONE:
            return t.reshape(*t.shape[:lead], 1, -1, t.shape[-1])
        if self.place is Place.DIM:
            t = t.movedim(lead + self.dim, lead)
        elif self.place is Place.MAJOR:
            t = t.unflatten(lead, (size, -1))
        else:
            t = t.unflatten(lead, (-1, size)).movedim(lead + 1, lead)
        return t.reshape(*t.shape[: lead + 1], -1, t.shape[-1])

    def fits(self, lead_shape: tuple[int, ...], size: int) -> bool:
        if self.place is Place.ALONE:
            return size == 1
        if self.place is Place.DIM:
            return self.dim < len(lead_shape) and lead_shape[self.dim] == size
        return bool(lead_shape) and lead_shape[0] % size == 0


@dataclass
class Inspection:
    """Result of the self-check: a layout for each use, and the parameters without a valid rule."""

    layouts: dict[Any, Layout] = field(default_factory=dict)
    unexplained: dict[str, str] = field(default_factory=dict)  # parameter → reason
    unused: set[str] = field(default_factory=set)
    uses: list[Use] = field(default_factory=list)  # calls of the inspected pass, in order
    external: set[Any] = field(default_factory=set)  # calls (or recurrent matrices) whose input depends on no parameter
    recurrent: set[str] = field(default_factory=set)  # matrices of recurrent calls
    heads: set[str] = field(default_factory=set)  # parameters of calls whose outputs are the network's


def lead_dims(use: Use, g: Tensor) -> tuple[int, tuple[int, ...]]:
    """Position of the leading dimensions in a canonical gradient, and their sizes."""
    start = 2 if isinstance(use.rule, MatrixRule) else 1
    return start, tuple(g.shape[start:-1])


def candidates(lead: tuple[int, ...], size: int) -> list[Layout]:
    """Layouts that the sizes allow; none for a call without rows, as of an expert that no example was sent to."""
    if 0 in lead:
        return []
    found = [Layout(Place.DIM, i) for i, s in enumerate(lead) if s == size]
    if lead and lead[0] % size == 0 and lead[0] != size:
        found += [Layout(Place.MAJOR), Layout(Place.MINOR)]
    return found


def find_layout(use: Use, by_example: Tensor, size: int) -> Layout | None:
    """The layout under which a gradient that starts at example j stays with example j; None if there is none.

    ``by_example`` is [N, *shape]: its j-th entry started at example j alone.
    """
    canonical = use.rule.gradient(by_example)
    start, lead = lead_dims(use, canonical)
    fitting = [layout for layout in candidates(lead, size) if _stays(layout, canonical, start, size)]
    dead = not bool(canonical.any())
    return fitting[0] if fitting and not (dead and len(fitting) > 1) else None


def holds(layout: Layout, use: Use, by_example: Tensor, size: int) -> bool:
    """Whether a layout found on other examples holds for these."""
    canonical = use.rule.gradient(by_example)
    start, lead = lead_dims(use, canonical)
    return not layout.fits(lead, size) or _stays(layout, canonical, start, size)


def contradicted(network: Network, few: Inputs, layout_of: Callable[[Use], Layout | None]) -> list[Use]:
    """The calls for which a layout found on other examples does not hold for these."""
    seen, size = forward(network, few), size_of(few)
    if (fewer := probed(seen, size)) < size:
        del seen
        return contradicted(network, take(few, slice(0, fewer)), layout_of)
    if not seen.outputs.requires_grad:
        return []
    grads = zip(seen.uses, by_example(seen, size), strict=True)
    return [use for use, g in grads if (known := layout_of(use)) is not None and not holds(known, use, g, size)]


def _stays(layout: Layout, canonical: Tensor, start: int, size: int) -> bool:
    if not canonical.numel():
        return True
    moved = layout.examples_first(canonical, start, size).abs().movedim(start, 1)
    energy = moved.flatten(2).amax(2)  # [j, N]
    return float((energy - energy.diagonal().diag()).max()) <= 1e-6 * float(energy.max())


def lead_shape(use: Use) -> tuple[int, ...]:
    """Sizes of the leading dimensions of a call's canonical gradient."""
    zero = torch.zeros((), device=use.rule.x.device)
    return lead_dims(use, use.rule.gradient(zero.expand(1, *use.shape)))[1]


def rebuilt(use: Use, g: Tensor) -> dict[str, tuple[Ref, Tensor]]:
    """Gradients of weight and bias from a use's input and output gradient g [*shape], summed over all."""
    rule = use.rule
    canonical = rule.gradient(g.unsqueeze(0))[0]
    parts: dict[str, tuple[Ref, Tensor]] = {}
    if isinstance(rule, MatrixRule):
        rows = widened(_flat(canonical))  # [E, R, O]
        if use.weight is not None:
            grad = rows.mT @ widened(_flat(rule.features()))  # [E, O, D]
            parts["weight"] = (use.weight, as_weight(grad, rule))
        if use.bias is not None:
            parts["bias"] = (use.bias, rows.sum(1).flatten())
    elif isinstance(rule, EmbeddingRule):
        assert use.weight is not None
        table = canonical.new_zeros(use.weight.rows, canonical.shape[-1])
        parts["weight"] = (use.weight, table.index_add(0, rule.x.flatten(), canonical.reshape(-1, canonical.shape[-1])))
    else:
        rows = canonical.reshape(-1, canonical.shape[-1])
        if use.weight is not None:
            features = rule.features()  # type: ignore[attr-defined]
            parts["weight"] = (use.weight, (rows * features.reshape(-1, features.shape[-1])).sum(0))
        if use.bias is not None:
            parts["bias"] = (use.bias, rows.sum(0))
    return parts


def _flat(t: Tensor) -> Tensor:
    """[E, *lead, F] → [E, R, F]; also for a layer called on a single vector."""
    return t.flatten(1, -2) if t.dim() > 2 else t.unsqueeze(1)


def as_weight(native: Tensor, rule: MatrixRule) -> Tensor:
    """[..., E, O, D] in the (flattened) order of the weight that the rule multiplies by."""
    if not rule.inputs_first:
        return native
    channels = native.shape[-1] // kernel_size(rule)
    split = native.unflatten(-1, (channels, -1))  # [..., E, O, I, k]
    return split.transpose(-3, -2)


def kernel_size(rule: MatrixRule) -> int:
    """Kernel offsets of a convolution; 1 for a linear layer."""
    return int(torch.Size(getattr(rule, "kernel", ())).numel())


def inspect(network: Network, selected: list[str], inputs: Inputs) -> Inspection:
    """Find the layouts and check the gradients on the first examples of a batch; on two if more do not fit."""
    found = none_if_out_of_memory(lambda: _inspect(network, selected, inputs, CHECKED))
    if found is None:
        release(network.device)
        found = _inspect(network, selected, inputs, 2)
    return found


def _inspect(network: Network, selected: list[str], inputs: Inputs, count: int) -> Inspection:
    few = take(inputs, slice(0, count))
    if size_of(few) == 1:
        few = concatenate([few, few])  # with two examples, the example dimension differs from others of size one
    size = size_of(few)
    seen = _followed(network, few)
    if (fewer := probed(seen, size)) < size:
        del seen
        return _inspect(network, selected, inputs, fewer)
    check_count(seen.outputs, size)
    if not seen.outputs.requires_grad:
        return Inspection(unused=set(selected))
    found = Inspection(uses=seen.uses)
    _find_layouts(found, seen, size)
    unexplained, found.unused = check_gradients(network, selected, few, seen)
    found.unexplained = unexplained | found.unexplained
    check_alone(network, selected, few, seen)
    _find_ends(found, seen, network, few)
    return found


def _followed(network: Network, few: Inputs) -> Pass:
    """A forward pass of a network that runs where gradients are not followed."""
    try:
        return forward(network, few)
    except NotImplementedError as error:
        raise UnsupportedLayer(
            f"the network cannot be differentiated on {network.device}: {first_line(error)} Leave the layers before it "
            "out (layers=…), or choose another device or implementation of it."
        ) from error


def probed(seen: Pass, size: int) -> int:
    """How many examples of a pass can be probed: the cost grows with the square of their number."""
    each = sum(use.shape.numel() for use in seen.uses) * seen.outputs.element_size() // size
    return min(size, max(2, math.isqrt(sizes().probes // max(each, 1))))


def by_example(seen: Pass, size: int) -> list[Tensor]:
    """For each call the gradients [N, *shape] of a probe at each example alone."""
    probe = probe_like(seen.outputs)
    alone = torch.zeros(size, *probe.shape, dtype=probe.dtype, device=probe.device)
    every = torch.arange(size, device=probe.device)
    alone[every, every] = probe
    return seen.backward(alone, range(len(seen.uses)))


def _find_layouts(found: Inspection, seen: Pass, size: int) -> None:
    try:
        grads = by_example(seen, size)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = first_line(error)
        raise UnsupportedLayer(
            "a backward pass through the network fails in evaluation mode, in which whence needs gradients: "
            f"{reason} A cache or a state that is written in place may be the reason; switch it off, as with "
            "use_cache=False."
        ) from error
    for i, use in enumerate(seen.uses):
        layout = find_layout(use, grads[i], size)
        if layout is not None:
            found.layouts[use.key] = layout
            continue
        dead = not bool(grads[i].any())
        for ref in use.refs:
            found.unexplained[ref.name] = DEAD if dead else "it acts on values that the examples of a batch share"


def check_gradients(
    network: Network, selected: list[str], inputs: Inputs, seen: Pass, alone: Collection[Any] = ()
) -> tuple[dict[str, str], set[str]]:
    """The parameters whose gradient is not rebuilt from their calls, with the reason, and those without a gradient.

    A mismatch is computed again in double precision: kernels may round by more than the tolerance (convolutions in
    TF32 on a GPU). ``alone`` are the calls that an example alone may make, see :class:`Recorder`.
    """
    found, unused = _mismatches(network, selected, seen)
    if network.dtype != torch.float64 and MISMATCH in found.values():
        exact = doubled(network, inputs)
        if exact is not None:
            again, _ = _mismatches(exact[0], selected, forward(*exact, recorder=Recorder(exact[0], alone)))
            found = {name: reason for name, reason in found.items() if name in again}
    return found, unused


def _mismatches(network: Network, selected: list[str], seen: Pass) -> tuple[dict[str, str], set[str]]:
    probe = probe_like(seen.outputs)
    params = [network.params[name] for name in selected]
    with differentiable(network):
        true = gradients(network, seen.outputs, params, probe.unsqueeze(0), False)
    true = [t if t is None else densified(t) for t in true]
    sums = {name: torch.zeros_like(network.params[name].detach()) for name in selected}
    for use, g in zip(seen.uses, seen.backward(probe.unsqueeze(0), range(len(seen.uses))), strict=True):
        with torch.no_grad():
            parts = rebuilt(use, g[0])
        for ref, grad in parts.values():
            target = sums[ref.name]
            part = target[ref.start : ref.stop] if target.dim() else target
            part += grad.reshape(part.shape)
    rows = [_compared(None if t is None else t[0], sums[name]) for name, t in zip(selected, true, strict=True)]
    numbers = torch.stack(rows).tolist() if rows else []  # one transfer for all
    largest = max((norm for norm, _, _ in numbers), default=0.0)
    tolerance = TOLERANCE.get(network.dtype, 5e-2) if network.autocast is None else 5e-2
    found = {
        name: MISMATCH if rebuilt_norm else "no layer rule covers its use"
        for name, (norm, error, rebuilt_norm) in zip(selected, numbers, strict=True)
        if error > tolerance * (norm + 1e-3 * largest)
    }
    return found, {name for name, t in zip(selected, true, strict=True) if t is None}


def _find_ends(found: Inspection, seen: Pass, network: Network, few: Inputs) -> None:
    """Find calls whose input depends on no parameter, frozen or not, and calls that give the network's outputs."""
    selected = network.selected
    everything = [name for name, p in network.params.items() if p.is_floating_point()]
    whole = seen
    if len(selected) < len(everything):
        network.select(everything)
        try:
            whole = forward(network, few)
        finally:
            network.select(selected)
    touched = {use.key for use in whole.uses if use.rule.x.requires_grad}
    found.external |= {use.key for use in seen.uses if not _is_touched(use, whole.uses, touched)}
    for call in whole.recurrent:
        inputs = [(network.names_by_id.get(id(w)), x) for w, x in call.inputs()]
        found.recurrent |= {name for name, _ in inputs if name is not None}
        if inputs and inputs[0][0] is not None and not call.x.requires_grad:
            found.external.add(inputs[0][0])
    node = seen.outputs.grad_fn
    while node is not None:
        ends = [use for use in seen.uses if use.edge.node is node]
        found.heads |= {ref.name for use in ends for ref in use.refs if ref.whole}
        if ends or type(node).__name__ not in PASSED_ON or not node.next_functions:
            return
        node = node.next_functions[0][0]


def _is_touched(use: Use, uses: list[Use], touched: set[Any]) -> bool:
    """Whether a call's input depended on a parameter in a pass with more parameters selected."""
    mine = {ref.name for ref in use.refs}
    return any(other.key in touched and mine & {ref.name for ref in other.refs} for other in uses)


def _compared(true: Tensor | None, summed: Tensor) -> Tensor:
    """Norms of the true gradient, of its difference from the rebuilt gradient, and of the rebuilt gradient: [3]."""
    true = torch.zeros_like(summed) if true is None else true
    return torch.stack([true.norm(), (summed - true).norm(), summed.norm()]).double()
