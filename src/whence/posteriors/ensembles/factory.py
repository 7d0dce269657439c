"""Members from the user's factory: each with its own seed, checked to be a new network, and trained."""

from __future__ import annotations

import inspect
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from whence.copies import copy_module, unwrap
from whence.engine.batches import as_source, is_pair, take, to_device
from whence.engine.randomness import derived_seed, preserved_random_state, seeded
from whence.errors import BadData, BadOption, notice
from whence.functional import tensors_of, weights_hash
from whence.training.examples import Examples
from whence.training.feed import outputs_of
from whence.training.settings import Settings
from whence.training.supervised import train

Factory = Callable[..., nn.Module]
History = list[dict[str, float]]  # one entry for each epoch
ANEW = "the factory must make a new network each time"


class MemberTrainer:
    """Builds and trains the members. It can be sent to another process if factory and data can."""

    def __init__(
        self,
        factory: Factory,
        data: Any,
        validation: Any,
        settings: Settings,
        explicit: dict[str, Any],
        seed: int,
        device: str | None,
        checkpoint_every: float = 30.0,
    ) -> None:
        self.factory, self.data, self.validation, self.settings = factory, data, validation, settings
        self.explicit = explicit  # settings that the caller named, which a loader may not take
        self.seed, self.device, self.checkpoint_every = seed, device, checkpoint_every
        self._waiting: dict[int, nn.Module] = {}  # built in advance
        self._seen: dict[int, weakref.ref[nn.Module]] = {}
        self._generator_states: dict[int, bytes] = {}  # of torch's generator after the factory
        self._output_shapes: dict[int, tuple[int, ...] | None] = {}  # for one example, where known
        self._architecture: Any = None  # of the first network

    def __reduce__(self) -> Any:
        """Pickle without the networks built so far."""
        given = self.factory, self.data, self.validation, self.settings, self.explicit, self.seed, self.device
        return MemberTrainer, (*given, self.checkpoint_every)

    def build(self, index: int) -> nn.Module:
        """Member ``index``, untrained."""
        model = self.peek(index)
        del self._waiting[index]
        return model if self.device is None else model.to(self.device)

    def peek(self, index: int) -> nn.Module:
        """The network that :meth:`build` will return; do not change it."""
        if index not in self._waiting:
            self._waiting[index] = self._made(index)
        return self._waiting[index]

    def member_seed(self, index: int) -> int:
        """The seed of one member's shuffles, augmentations and dropout masks."""
        return derived_seed(self.seed, "member", index)

    def train(self, index: int, checkpoint: Any, progress: bool) -> tuple[nn.Module, History]:
        """Member ``index``, trained alone, with its history."""
        done = train(
            self.build(index), self.data, self.settings, validation=self.validation, seed=self.member_seed(index),
            checkpoint=checkpoint, checkpoint_every=self.checkpoint_every, progress=progress, **self.explicit,
        )  # fmt: skip
        return done.network, [record.to_dict() for record in done.history]

    # Check that the factory makes new networks

    def check(self, members: int) -> None:
        """Compare two networks of the factory before anything is trained."""
        two = [self.peek(0), self.peek(1)]
        if members < 2:
            del self._waiting[1]
        if members < 2 or any(is_lazy(m) for m in two) or weights_hash(two[0]) != weights_hash(two[1]):
            return
        if self._generator_states[0] == self._generator_states[1]:
            raise BadOption(
                f"{ANEW}, with other weights: this one sets torch's seed itself, so all members start from the "
                "same weights. Remove the seed, or take it as an argument: def factory(seed): …."
            )
        notice(
            "the factory gives all members the same initial weights; they differ only by the order of the data (and "
            "dropout)."
        )

    def _made(self, index: int) -> nn.Module:
        seed = derived_seed(self.seed, "weights", index)
        before = torch.cuda.is_initialized()
        model, state = self._called(seed)
        if torch.cuda.is_initialized() and not before:
            model, state = self._called(seed)  # the first call may draw on a GPU before it can be seeded
        if not isinstance(model, nn.Module):
            raise BadData(f"the factory returned a {type(model).__name__}, not a torch.nn.Module.")
        for other, known in self._seen.items():
            if other != index and (earlier := known()) is not None:
                _refuse_shared(model, earlier, index, other)
        self._seen[index], self._generator_states[index] = weakref.ref(model), state
        self._refuse_other_outputs(index, model)
        return model

    def _called(self, seed: int) -> tuple[Any, bytes]:
        """The factory's network, and the state of torch's generator after it."""
        with seeded(seed):
            model = self.factory(seed=seed) if _takes_seed(self.factory) else self.factory()
            return model, torch.default_generator.get_state().numpy().tobytes()

    def _refuse_other_outputs(self, index: int, model: nn.Module) -> None:
        """Refuse members with outputs of different shapes, one per architecture."""
        architecture = None if is_lazy(model) else (repr(model), shapes(model))
        if architecture is None or architecture == self._architecture:
            return
        self._architecture = self._architecture or architecture
        mine = self._output_shapes[index] = _output_shape(model, self.data)
        for other, its in self._output_shapes.items():
            if mine is not None and its is not None and mine != its:
                raise BadOption(
                    f"member {index} has outputs of shape {list(mine)} for one input and member {other} of shape "
                    f"{list(its)}; the factory must make networks that predict the same thing."
                )


def shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and dtypes of a module's tensors."""
    return [(name, tuple(t.shape), t.dtype) for name, t in tensors_of(module, keep_vars=True).items()]


def _refuse_shared(model: nn.Module, earlier: nn.Module, index: int, other: int) -> None:
    if model is earlier:
        raise BadOption(
            f"{ANEW}, but this one returned the same object for members {other} and {index}; pass lambda: Net(), or "
            "lambda: copy.deepcopy(net) to start all from one."
        )
    known = {id(p) for p in earlier.parameters() if p.requires_grad}
    shared = next((n for n, p in model.named_parameters() if id(p) in known), None)
    if shared is not None:
        raise BadOption(
            f"{ANEW}, but members {other} and {index} share the parameter {shared!r}; create or copy it "
            "inside the factory, or freeze it."
        )


def is_lazy(model: nn.Module) -> bool:
    """Whether a model has shapes that are unknown before its first pass."""
    return any(nn.parameter.is_lazy(t) for t in [*model.parameters(), *model.buffers()])


def _output_shape(model: nn.Module, data: Any) -> tuple[int, ...] | None:
    """Output shape for the first example; None if it is not available (a loader), or if the network fails."""
    data = as_source(data)
    one: Any = None
    if isinstance(data, Examples) and data.size:
        one = data.take(1).tensors()[0]
    elif is_pair(data) and len(data[1]):
        one = take(data[0], slice(0, 1))
    if one is None:
        return None
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        one = to_device(one, first.device, first.dtype)
    try:
        with torch.no_grad(), preserved_random_state():
            return tuple(outputs_of(copy_module(unwrap(model)).eval(), one).shape[1:])
    except Exception:  # the training gives the better message
        return None


# The user's function


def check_factory(factory: Any, processes: int) -> None:
    """Refuse a factory that does not make networks, or cannot be sent to processes."""
    if isinstance(factory, nn.Module):
        raise BadOption(
            "fit_ensemble takes a function that makes a new network, not a network: pass lambda: Net(), or the class."
        )
    if not callable(factory):
        raise BadOption(f"the factory must be a function that makes a network, not a {type(factory).__name__}.")
    try:
        _signature(factory).bind(**({"seed": 0} if _takes_seed(factory) else {}))
    except TypeError as error:
        raise BadOption(
            f"the factory is called without arguments, or with seed= if it takes one, but this one cannot be "
            f"({error}); pass lambda: Net(…)."
        ) from error
    if not processes:
        return
    try:
        pickle.dumps(factory)
    except Exception as error:
        raise BadOption(
            f"processes={processes} needs a factory that can be pickled, but this one cannot ({error}); define it with "
            "def at the top of a module, or pass processes=0."
        ) from error


def _takes_seed(factory: Factory) -> bool:
    return "seed" in _signature(factory).parameters


def _signature(factory: Factory) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):  # implemented in C
        return inspect.Signature()
