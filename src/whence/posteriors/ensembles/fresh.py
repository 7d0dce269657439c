"""Whether a factory makes fresh networks: not one object twice, not one start for all, and of one output."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from whence.batches import from_numpy, is_pair, take, to_device
from whence.copies import copy_module, unwrap
from whence.errors import BadOption, notice
from whence.functional import weights_hash
from whence.posteriors.ensembles.stack import call, shapes

ANEW = "the factory must make a fresh network each time"


class Fresh:
    """What a factory made so far, by member."""

    def __init__(self) -> None:
        self.waiting: dict[int, nn.Module] = {}  # made, and not yet asked for
        self.seen: dict[int, weakref.ref[nn.Module]] = {}
        self.states: dict[int, bytes] = {}  # that torch's generator was left in
        self.outputs: dict[int, tuple[int, ...] | None] = {}  # shape for one example; None where it is not known
        self.plan: Any = None  # of the first network: repr and shapes

    def __reduce__(self) -> Any:
        """Another process begins with nothing."""
        return Fresh, ()

    def note(self, index: int, model: nn.Module, state: bytes, data: Any) -> None:
        """One more network; refused if it was there before, or predicts something else than the others."""
        for other, known in self.seen.items():
            if other != index and (before := known()) is not None:
                _refuse_shared(model, before, index, other)
        self.seen[index] = weakref.ref(model)
        self.states[index] = state
        if _lazy(model):
            return
        plan = repr(model), shapes(model)
        if self.plan is None:
            self.plan = plan
            self.outputs[index] = output_shape(model, data)
        elif plan != self.plan:
            self.outputs[index] = output_shape(model, data)
        self._refuse_other_outputs(index)

    def _refuse_other_outputs(self, index: int) -> None:
        mine = self.outputs.get(index)
        for other, its in self.outputs.items():
            if mine is not None and its is not None and mine != its:
                raise BadOption(
                    f"member {index} gives outputs of shape {list(mine)} for one input and member {other} of shape "
                    f"{list(its)}; the factory must make networks that predict the same thing."
                )

    def compare(self, members: int) -> None:
        """The first two, untrained: whether they start from the same weights."""
        two = [self.waiting[0], self.waiting[1]]
        if members < 2:
            self.waiting.pop(1)
        if members < 2 or any(_lazy(m) for m in two) or weights_hash(two[0]) != weights_hash(two[1]):
            return
        if self.states[0] == self.states[1]:
            raise BadOption(
                f"{ANEW}, from other weights: this one sets torch's seed itself, so that all members start from the "
                "same. Leave the seed out, or take it as an argument: def factory(seed): …."
            )
        notice(
            "the factory gives all members the same first weights; they differ by the order of the data (and dropout) "
            "alone."
        )


def _refuse_shared(model: nn.Module, before: nn.Module, index: int, other: int) -> None:
    if model is before:
        raise BadOption(
            f"{ANEW}, and this one returned the same object for members {other} and {index}; pass lambda: Net(), or "
            "lambda: copy.deepcopy(net) to start all from one."
        )
    known = {id(p) for p in before.parameters() if p.requires_grad}
    shared = next((n for n, p in model.named_parameters() if id(p) in known), None)
    if shared is not None:
        raise BadOption(
            f"{ANEW}, and members {other} and {index} of this one share the parameter {shared!r}; make or copy it "
            "inside the factory, or freeze it."
        )


def _lazy(model: nn.Module) -> bool:
    """Whether shapes are not known before the first pass."""
    return any(nn.parameter.is_lazy(t) for t in [*model.parameters(), *model.buffers()])


def output_shape(model: nn.Module, data: Any) -> tuple[int, ...] | None:
    """For the first example; None where it is not at hand (a loader), or the network cannot take it as it is."""
    from whence.zoo import Examples

    data = from_numpy(data)
    if isinstance(data, Examples):
        one: Any = data.take(1).tensors()[0] if data.size else None
    else:
        one = take(data[0], slice(0, 1)) if is_pair(data) and len(data[1]) else None
    if one is None:
        return None
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        one = to_device(one, first.device, first.dtype)
    try:
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            return tuple(call(copy_module(unwrap(model)).eval(), one).shape[1:])
    except Exception:  # the training says it better
        return None
