"""Functions in a module's attributes and hooks, and what their closures and globals refer to."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.errors import UnsupportedLayer

OWN = ("_parameters", "_buffers", "_modules")  # torch's own attributes of a module
GETTERS = ("__get__",)  # of shape, dtype or device
GLOBAL = (dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"])  # instructions that read a global name
LEFT = (*OWN, "forward", "_backward_hooks", "_backward_pre_hooks")  # has rules of its own, or is not copied


class Closures:
    """Functions in attributes and hooks whose closures refer to their network, as ``lambda x: self.layer(x)`` does.

    A deep copy would keep them and run the layers of the original, so they are made anew around the copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.mine = {id(part) for part in model.modules()} | {id(t) for t in (*model.parameters(), *model.buffers())}
        self.known: dict[int, bool] = {}  # objects that were looked at: whether they lead to the network
        self.functions: list[types.FunctionType] = []
        for name, part in model.named_modules():
            for attribute, value in vars(part).items():
                if attribute not in LEFT:
                    self.where = f"{attribute!r} of {name or type(part).__name__!r}"
                    self.leads(value)
        self.replaced = {id(f): _anew(f) for f in self.functions}

    def leads(self, value: Any, depth: int = 6) -> bool:
        """Whether an object leads to the network by closures, containers and bound objects."""
        if isinstance(value, (nn.Module, Tensor)):
            return id(value) in self.mine
        if isinstance(value, (str, int, float)):
            return False
        if depth == 0 or isinstance(value, type) or id(value) in self.known:
            return self.known.get(id(value), False)
        self.known[id(value)] = False
        parts = list(value.values()) if isinstance(value, dict) else parts_of(value)
        found = max([self.leads(part, depth - 1) for part in parts], default=False)  # all: each may be a function
        if isinstance(value, types.FunctionType):
            self._refuse_global(value)
            self.functions += [value] if found else []
        self.known[id(value)] = found
        return found

    def _refuse_global(self, function: types.FunctionType) -> None:
        for name in _global_names(function):
            found = function.__globals__.get(name)
            owner = found.__self__ if isinstance(found, types.MethodType) else found
            if isinstance(owner, (nn.Module, Tensor)) and id(owner) in self.mine:
                raise UnsupportedLayer(
                    f"a function in {self.where} refers to the network by the global name {name!r}, so a copy would "
                    "keep running the original instead of its own weights. Write it as a method."
                )

    def close(self, memo: dict[int, Any]) -> None:
        """Fill the closures of the new functions: what leads to the network with its copy, the rest as it was."""

        def taken(value: Any) -> Any:
            return copy.deepcopy(value, memo) if self.leads(value) else value

        for old in self.functions:
            new = self.replaced[id(old)]
            for cell, before in zip(new.__closure__ or (), old.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # not filled yet
                    cell.cell_contents = taken(before.cell_contents)
            new.__defaults__ = old.__defaults__ and tuple(map(taken, old.__defaults__))
            new.__kwdefaults__ = old.__kwdefaults__ and {k: taken(v) for k, v in old.__kwdefaults__.items()}


def _anew(function: types.FunctionType) -> types.FunctionType:
    """The same function with an empty closure."""
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
    made.__dict__.update(function.__dict__)
    return made


class OnlyOwn(TorchFunctionMode):
    """Refuses a forward pass that uses parameters of the network that was copied, however it came by them."""

    def __init__(self, originals: Mapping[int, tuple[str, weakref.ref[Any]]]) -> None:
        super().__init__()
        self.originals = originals  # by id: name, and a reference, since ids are given again

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", None) not in GETTERS:
            self._check((*args, *kwargs.values()))
        return func(*args, **kwargs)

    def _check(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, (list, tuple)):
                self._check(value)
            name, reference = self.originals.get(id(value), ("", None))
            if reference is not None and reference() is value:
                raise UnsupportedLayer(
                    f"the forward pass uses {name!r} of the network itself, not of the copy that whence makes: "
                    "something refers to the module by a weak reference, a class attribute, or a function in another "
                    "object. Keep the module as an attribute of the one that calls it."
                )


# What an object refers to


def inside(value: Any, depth: int = 6) -> Iterator[Any]:
    """Objects that a callable refers to: bound objects, attributes, closures, defaults, wrapped functions, globals."""
    yield value
    if depth == 0 or isinstance(value, (nn.Module, Tensor)):
        return
    for part in parts_of(value):
        yield from inside(part, depth - 1)


def parts_of(value: Any) -> list[Any]:
    """What an object refers to directly."""
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
        known = (value.__globals__.get(name) for name in _global_names(value))
        parts += [found for found in known if _is_own_global(found, value)]
        for name in ("__wrapped__", "_torchdynamo_orig_callable"):
            parts += [] if getattr(value, name, None) is None else [getattr(value, name)]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif callable(value) and not isinstance(value, type):  # an object that stands for a function
        parts = list(getattr(value, "__dict__", {}).values())
    return parts


def _global_names(function: types.FunctionType) -> list[str]:
    """The global names that a function reads."""
    return [step.argval for step in dis.get_instructions(function) if step.opcode in GLOBAL]


def _is_own_global(found: Any, user: types.FunctionType) -> bool:
    """Whether a global of a function can lead to a network: not the functions of other modules, such as torch's."""
    if isinstance(found, types.FunctionType):
        return found.__globals__ is user.__globals__ and found is not user
    return isinstance(found, (nn.Module, Tensor, types.MethodType, functools.partial))
