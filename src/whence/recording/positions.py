"""Which positions of a sequence count: those that some output depends on.

Masked padding, tokens after the last label that counts, everything but the class token after the last attention:
no output depends on them, and with them in R and A the Kronecker factors would depend on the length of the
batches. A position counts if a gradient reaches it. Where a gradient can vanish by chance (few units that are all off,
a maximum taken elsewhere) a second pass decides, in which every unit is on and every entry contributes to a maximum.
All positions of convolutions count.

Index legend: K columns, N examples, T positions, M output positions, C outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.likelihoods import Likelihood
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients
from whence.recording.recorder import MAXIMA, Recorder, forward, probe_like
from whence.recording.rules import ChannelRule, ChannelSlopeRule, ConvRule

NARROW = 64  # layer width up to which all units may be off by chance
TINY = 1e-20  # sent back where an output counts but its loss is flat: reaches the layers, adds nothing
MASKED = -1e4  # entries below this were masked before a maximum


def has_sequences(recording: Recording) -> bool:
    """Whether a layer that is not a convolution has several positions per example."""
    return bool(_sequences(recording))


def _sequences(recording: Recording) -> list[int]:
    kinds = (ConvRule, ChannelRule, ChannelSlopeRule)
    every = enumerate(recording.calls)
    return [i for i, call in every if not isinstance(call.use.rule, kinds) and call.positions > 1]


def probe(recording: Recording, likelihood: Likelihood, targets: Tensor | None) -> Tensor:
    """A column [1, *outputs] that is non-zero at every output that counts."""
    outputs = recording.outputs.detach()
    column = probe_like(outputs)
    mask = None if targets is None else likelihood.mask(targets)
    if mask is not None:
        flat = likelihood.flatten(column)
        column = likelihood.unflatten(flat * mask.reshape(*flat.shape[:2], 1), outputs)
    return column.unsqueeze(0)


def reaching(columns: Tensor, recording: Recording, likelihood: Likelihood, targets: Tensor) -> Tensor:
    """Columns [K, *outputs] that are nowhere zero at outputs that count."""
    flat = torch.stack([likelihood.flatten(column) for column in columns])  # [K, N, M, C]
    empty = ~flat.ne(0).any(3).any(0)  # [N, M]
    start = likelihood.flatten(probe(recording, likelihood, targets)[0])
    first = flat[0] + TINY * start * empty.unsqueeze(-1)
    outputs = recording.outputs
    return torch.cat([likelihood.unflatten(first, outputs).unsqueeze(0), columns[1:]])


def find_live(recording: Recording, grads: Gradients, column: Tensor) -> None:
    """Mark the positions of every sequence that are reached by a gradient of an output that counts."""
    found = {i: _reached(grads.grads[i]) for i in _sequences(recording)}
    unsure = [i for i, live in found.items() if _by_chance(recording, i) and not _every(live)]
    if unsure:
        for i, again in _softened(recording, column, unsure).items():
            found[i] = found[i] | again
    for i, live in found.items():
        recording.calls[i].live = None if live.device.type == "cpu" and bool(live.all()) else live


def _every(live: Tensor) -> bool:
    """Whether all positions count; False during CUDA graph capture, since the graph serves other batches too."""
    return not (live.is_cuda and torch.cuda.is_current_stream_capturing()) and bool(live.all())


def _reached(g: Tensor) -> Tensor:
    """[N, T] from gradients [K, E, N, T, O] or [K, N, T, F]."""
    nonzero = g.ne(0).any(-1)
    while nonzero.dim() > 2:
        nonzero = nonzero.any(0)
    return nonzero


def _by_chance(recording: Recording, index: int) -> bool:
    """Whether the gradient at a position that counts may vanish."""
    return recording.seen.maxima or recording.calls[index].use.shape[-1] < NARROW


def _softened(recording: Recording, column: Tensor, wanted: list[int]) -> dict[int, Tensor]:
    """Live positions from a pass in which every unit is on and every entry contributes to a maximum."""
    plan = recording.plan
    seen = forward(plan.network, recording.inputs, recorder=Softened(plan.network))
    again = Recording(plan, recording.inputs, seen, recording.size, False)
    places = {call.use.key: i for i, call in enumerate(again.calls)}
    grads = again.differentiate(column)
    found = {}
    for i in wanted:
        use = recording.calls[i].use
        place = places.get(use.key)
        if place is not None and again.calls[place].use.shape == use.shape:  # else it keeps tokens at random
            found[i] = _reached(grads.grads[place])
    return found


class Softened(Recorder):
    """A pass with the values of the network, in which functions whose derivative can be zero pass gradients on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        x = args[0] if args else kwargs.get("input")
        stand_in = STAND_INS.get(func)
        if stand_in is None or not isinstance(x, Tensor) or not x.requires_grad:
            return super().__torch_function__(func, types, args, kwargs)
        through = _zeros_of(x)  # first: ``func`` may work in place
        return stand_in(func(*args, **kwargs), through, args[1:], kwargs)


def _zeros_of(x: Tensor) -> Tensor:
    """Zeros through which a gradient reaches every entry that was not masked."""
    kept = torch.where(x.isfinite() & (x > MASKED), x, 0.0)
    return kept - kept.detach()


def _on(hard: Tensor, through: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return hard + 0.5 * through


def _maximum(hard: Any, through: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every entry contributes to the maximum that it was compared for."""
    first = args[0] if args else kwargs.get("other", kwargs.get("dim"))
    keep = bool(kwargs.get("keepdim", len(args) > 1 and args[1]))
    if isinstance(first, Tensor):
        soft = through + _zeros_of(first) if first.requires_grad else through
    else:
        soft = through.sum() if first is None or first == () else through.sum(first, keepdim=keep)
    if isinstance(hard, Tensor):
        return hard + 1e-3 * soft
    return type(hard)((hard[0] + 1e-3 * soft, hard[1]))


def _pooled(hard: Any, through: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return hard + 1e-3 * F.adaptive_avg_pool1d(through, hard.shape[-1]) if isinstance(hard, Tensor) else hard


STAND_INS: dict[Any, Any] = {
    **dict.fromkeys((F.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_), _on),
    **dict.fromkeys((F.relu6, F.hardtanh, F.hardswish, F.hardsigmoid, F.threshold), _on),
    **dict.fromkeys((torch.clamp, torch.Tensor.clamp, torch.Tensor.clamp_, torch.Tensor.clamp_min), _on),
    **dict.fromkeys((torch.clamp_min, torch.clamp_max, torch.Tensor.clamp_max), _on),
    **dict.fromkeys((torch.max, torch.amax, torch.Tensor.max, torch.Tensor.amax, torch.maximum), _maximum),
    **dict.fromkeys((F.max_pool1d, F.adaptive_max_pool1d), _pooled),
}
assert set(STAND_INS) >= MAXIMA
