"""A private copy of a user's module: what it is wrapped in, what a copy shares with it, what forward passes leave."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import UnsupportedLayer, WhenceError, notice
from whence.sharded import gathered, is_sharded

CACHES = "_whence_caches"  # on the private copy of a module
OWN = ("_parameters", "_buffers", "_modules")  # what torch keeps of a module


def unwrap(model: nn.Module) -> nn.Module:
    """The plain module inside torch.compile, DataParallel and DistributedDataParallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def copy_module(model: nn.Module) -> nn.Module:
    """A deep copy that also copes with computed tensors kept in attributes (old-style weight norm), and with shards."""
    if is_sharded(model):
        model = gathered(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedLayer("a scripted module hides its layers; pass the nn.Module that it was scripted from.")
    memo: dict[int, Any] = {}
    for part in model.modules():
        for name, value in vars(part).items():
            if name not in OWN:
                memo |= {id(t): t.detach().clone() for t in _tensors(value) if not t.is_leaf}
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise WhenceError(
            f"the model could not be copied ({type(error).__name__}: {error}). whence works on a copy so that "
            "yours stays as it is; remove what cannot be deep-copied (open files, locks, generators) from it."
        ) from error
    for p in copied.parameters():
        p.grad = None
    _own_forwards(copied)
    for part in copied.modules():  # hooks that watch or change gradients in training have no part in the posterior
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    return copied


def _tensors(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Tensors in an attribute, in nested lists, tuples and mappings too."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth - 1)


# A forward that was put in the place of the class's own


def _own_forwards(copied: nn.Module) -> None:
    """Refuse a ``forward`` that would run the user's original network; take off what training has left around it."""
    mine = {id(part) for part in copied.modules()} | {id(t) for t in (*copied.parameters(), *copied.buffers())}
    for name, part in copied.named_modules():
        forward = vars(part).get("forward")
        if forward is None:
            continue
        if _has_autocast(forward):
            _without_autocast(part, name)
            continue
        compiled = hasattr(forward, "_torchdynamo_orig_callable")
        if compiled and type(part).forward in _inside(forward):
            del part.forward  # the class's own, compiled
        elif _reaches(forward, mine):
            raise UnsupportedLayer(
                f"the forward of {name or type(part).__name__!r} was replaced by a function that refers to the "
                "original network, which a copy would go on running whatever its own weights are. Write it as a method "
                "of a subclass, or compile the module (torch.compile(module)) instead of its forward."
            )


def _has_autocast(forward: Any) -> bool:
    """Whether a forward was wrapped by accelerate, and so by the ``Trainer`` of transformers, for half precision."""
    return any(
        isinstance(found, torch.autocast) or "autocast" in str(getattr(found, "__qualname__", "")).lower()
        for found in _inside(forward)
    )


def _without_autocast(part: nn.Module, name: str) -> None:
    del part.forward
    notice(
        f"the forward of {name or 'the model'!r} was left under autocast by accelerate, or by the Trainer of "
        "transformers (bf16=True or fp16=True). whence runs the plain forward; pass autocast=torch.bfloat16 to compute "
        "in half precision."
    )


def _reaches(forward: Any, mine: set[int]) -> bool:
    """Whether a function holds modules or tensors that are not those of the copy."""
    return any(isinstance(found, (nn.Module, Tensor)) and id(found) not in mine for found in _inside(forward))


def _inside(value: Any, depth: int = 6) -> Iterator[Any]:
    """What a callable refers to: bound objects, closures, defaults, wrapped functions, global names that it uses."""
    yield value
    if depth == 0 or isinstance(value, (nn.Module, Tensor)):
        return
    parts: list[Any] = []
    if isinstance(value, types.MethodType):
        parts = [value.__self__, value.__func__]
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        parts += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        known = (value.__globals__.get(name) for name in value.__code__.co_names)
        parts += [found for found in known if isinstance(found, (nn.Module, Tensor))]
        for name in ("__wrapped__", "_torchdynamo_orig_callable"):
            parts += [] if getattr(value, name, None) is None else [getattr(value, name)]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    for part in parts:
        yield from _inside(part, depth - 1)


# What forward passes leave behind


@dataclass(frozen=True)
class Cache:
    """An attribute in which a module keeps what it computed, and what it is before a forward pass."""

    module: str
    attribute: str
    empty: Any

    def clear(self, root: nn.Module) -> None:
        value = type(self.empty)(self.empty) if isinstance(self.empty, (dict, list, set)) else self.empty
        root.get_submodule(self.module).__dict__[self.attribute] = value


def caches_of(module: nn.Module) -> list[Cache]:
    """What was found to be kept from pass to pass; known to copies of the module."""
    found: list[Cache] = module.__dict__.get(CACHES, [])
    return found


def clear_caches(module: nn.Module) -> None:
    """Have the next pass compute everything from the weights that it is given."""
    for cache in caches_of(module):
        cache.clear(module)


@torch.no_grad()
def find_caches(module: nn.Module, run: Callable[[], Tensor]) -> None:
    """Find what a forward pass ``run`` leaves in the modules, so that later ones do not take it from there; once.

    A mapping that holds tensors before, or a tensor, is one if the network computes the same without it.
    """
    if CACHES in module.__dict__:
        return
    before = _state(module)
    outputs = run()
    found = _left_behind(before, _state(module))
    module.__dict__[CACHES] = found
    clear_caches(module)
    known = {(cache.module, cache.attribute) for cache in found}
    for cache in _filled(before):
        if (cache.module, cache.attribute) in known:
            continue
        cache.clear(module)
        try:
            same = torch.allclose(run(), outputs, rtol=1e-4, atol=1e-5, equal_nan=True)
        except Exception:
            same = False
        if same:
            found.append(cache)
        else:
            held = before[cache.module, cache.attribute]
            module.get_submodule(cache.module).__dict__[cache.attribute] = held
    clear_caches(module)


State = Mapping[tuple[str, str], Any]  # by module and attribute


def _state(module: nn.Module) -> State:
    """What its parts keep beside parameters, buffers and modules: values, and shallow copies of containers."""
    found = {}
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute in OWN or attribute == CACHES:
                continue
            plain = value is None or isinstance(value, Tensor)
            if plain or type(value) in (dict, list, set):
                found[name, attribute] = value if plain else type(value)(value)
    return found


def _left_behind(before: State, after: State) -> list[Cache]:
    """The attributes to which a forward pass gave (other) tensors, with what they were before."""
    found = []
    for (module, attribute), now in after.items():
        was = before.get((module, attribute))
        if {id(t) for t in _tensors(now)} - {id(t) for t in _tensors(was)}:
            found.append(Cache(module, attribute, was))
    return found


def _filled(state: State) -> list[Cache]:
    """Tensors, and plain mappings that hold some: perhaps computed by an earlier pass of the user's."""
    found = []
    for (module, attribute), value in state.items():
        if isinstance(value, Tensor):
            found.append(Cache(module, attribute, None))
        elif type(value) is dict and any(True for _ in _tensors(value)):
            found.append(Cache(module, attribute, {}))
    return found
