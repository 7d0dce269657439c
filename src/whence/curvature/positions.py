"""Which positions of a sequence count: those that some output depends on.

Padding that is masked out, tokens after the last label that counts, everything but the class token after the last
attention: no output depends on them, and with them in R and A the Kronecker factors would depend on how long the
batches are. A position counts if a gradient reaches it. Where that can vanish by chance (few units that are all off, a
maximum that was taken elsewhere) a second pass decides, in which no unit is off and no maximum takes all. Convolutions
count all their positions.

Index legend: K columns, N examples, T positions, M output positions, C outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.curvature.capture import MAXIMA, Recorder, forward
from whence.curvature.jacobian import Gradients, Recording
from whence.curvature.probes import probe_like
from whence.curvature.rules import ChannelRule, ChannelSlopeRule, ConvRule
from whence.likelihoods import Likelihood

NARROW = 64  # outputs of a layer up to which all of its units may be off by chance
TINY = 1e-20  # of what is sent back where an output counts and its loss is flat: it reaches, and adds nothing
MASKED = -1e4  # what is put in the place of entries that must not win a maximum


def has_sequences(recording: Recording) -> bool:
    """Whether a layer that is not a convolution sees several positions of an example."""
    return bool(_sequences(recording))


def _sequences(recording: Recording) -> list[int]:
    kinds = (ConvRule, ChannelRule, ChannelSlopeRule)
    every = enumerate(recording.called)
    return [i for i, called in every if not isinstance(called.use.rule, kinds) and called.positions > 1]


def probe(recording: Recording, likelihood: Likelihood, targets: Tensor | None) -> Tensor:
    """A column [1, *outputs] that starts at every output that counts."""
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
    """Note for every sequence which of its positions the gradients of all outputs that count reach."""
    found = {i: _reached(grads.grads[i]) for i in _sequences(recording)}
    unsure = [i for i, live in found.items() if _by_chance(recording, i) and not _every(live)]
    if unsure:
        for i, again in _softened(recording, column, unsure).items():
            found[i] = found[i] | again
    for i, live in found.items():
        recording.called[i].live = None if live.device.type == "cpu" and bool(live.all()) else live


def _every(live: Tensor) -> bool:
    """Whether all positions count; False where a CUDA graph is captured, which must do for other batches too."""
    return not (live.is_cuda and torch.cuda.is_current_stream_capturing()) and bool(live.all())


def _reached(g: Tensor) -> Tensor:
    """[N, T] from gradients [K, E, N, T, O] or [K, N, T, F]."""
    nonzero = g.ne(0).any(-1)
    while nonzero.dim() > 2:
        nonzero = nonzero.any(0)
    return nonzero


def _by_chance(recording: Recording, index: int) -> bool:
    """Whether the gradient of a position that counts may vanish."""
    return recording.seen.maxima or recording.called[index].use.shape[-1] < NARROW


def _softened(recording: Recording, column: Tensor, wanted: list[int]) -> dict[int, Tensor]:
    """The same from a pass in which every unit is on and every entry takes part in a maximum."""
    plan = recording.plan
    seen = forward(plan.network, recording.inputs, recorder=Softened(plan.network))
    again = Recording(plan, recording.inputs, seen, recording.size, False)
    places = {called.use.key: i for i, called in enumerate(again.called)}
    grads = again.differentiate(column)
    found = {}
    for i in wanted:
        place = places.get(recording.called[i].use.key)
        if place is not None:
            found[i] = _reached(grads.grads[place])
    return found


class Softened(Recorder):
    """A pass with stand-ins for functions whose derivative is zero in places."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stand_in = STAND_INS.get(func)
        if stand_in is not None:
            return stand_in(func, *args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _on(func: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return F.leaky_relu(x, 0.5)


def _as_it_is(func: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x * 1


def _maximum(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A sum in which every entry has a weight, but for those that were put out of the running."""
    hard = func(x, *args, **kwargs)
    values = hard if isinstance(hard, Tensor) else hard[0]
    other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
    if isinstance(other, Tensor):
        soft = x + other
    else:
        soft = torch.where(x > MASKED, x, 0.0).sum() * 1e-3 + values
        dim, keep = kwargs.get("dim", args[0] if args else None), bool(kwargs.get("keepdim", len(args) > 1 and args[1]))
        if dim is not None and dim != ():
            soft = torch.where(x > MASKED, x, 0.0).sum(dim, keepdim=keep) * 1e-3 + values
    return soft if isinstance(hard, Tensor) else type(hard)((soft, hard[1]))


def _pooled(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    hard = func(x, *args, **kwargs)
    if not isinstance(hard, Tensor):
        return hard
    spread = F.adaptive_avg_pool1d(torch.where(x > MASKED, x, 0.0), hard.shape[-1])
    return hard + 1e-3 * spread


STAND_INS: dict[Any, Any] = {
    **dict.fromkeys((F.relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_), _on),
    **dict.fromkeys((F.relu6, F.hardtanh, F.hardswish, F.hardsigmoid, F.threshold), _on),
    **dict.fromkeys((torch.clamp, torch.Tensor.clamp, torch.Tensor.clamp_, torch.Tensor.clamp_min), _as_it_is),
    **dict.fromkeys((torch.clamp_min, torch.clamp_max, torch.Tensor.clamp_max), _as_it_is),
    **dict.fromkeys((torch.max, torch.amax, torch.Tensor.max, torch.Tensor.amax, torch.maximum), _maximum),
    **dict.fromkeys((F.max_pool1d, F.adaptive_max_pool1d), _pooled),
}
assert set(STAND_INS) >= MAXIMA
