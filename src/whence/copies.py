"""Private copies of a user's module: removing wrappers, checking forwards, and clearing caches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.closures import OWN, Closures, inside
from whence.errors import BadData, UnsupportedLayer, WhenceError, notice

CACHES = "_whence_caches"  # on the private copy of a module
SHARDED_REMEDY = (
    "Get them whole on every rank, state = torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True)), load them into a plain network, and pass that."
)


def unwrap(model: nn.Module) -> nn.Module:
    """The plain module inside torch.compile, DataParallel and DistributedDataParallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def no_model(given: Any) -> str:
    """Why something that is no module cannot be the model, and what to pass."""
    kind = type(given).__name__
    if hasattr(given, "networks") and hasattr(given, "predict"):
        return f"the model is a {kind}, which is a posterior already. Pass the trained torch.nn.Module."
    if isinstance(given, type):
        return f"the model is a class; pass an instance, as in {given.__name__}(…)."
    if isinstance(given, Mapping) and given and all(isinstance(v, Tensor) for v in given.values()):
        return f"the model must be a torch.nn.Module, not a {kind} of tensors. Load the state into its network first."
    swapped = isinstance(given, (tuple, list, Tensor)) or hasattr(given, "__getitem__") or hasattr(given, "batch_size")
    order = " The model comes first, then the data." if swapped else ""
    return f"the model must be a torch.nn.Module, not a {kind}.{order}"


def no_parameters(model: nn.Module) -> str:
    """That a network has no parameters, and why."""
    packed = any("quantized" in type(part).__module__ for part in model.modules())
    hint = " Quantised layers hold theirs packed: pass the network before quantisation." if packed else ""
    return f"the model ({type(model).__name__}) has no parameters.{hint}"


def check_parameters(params: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters without finite values, on several devices, or in double and single precision."""
    lazy = [n for n, p in params.items() if isinstance(p, nn.parameter.UninitializedParameter) or p.is_meta]
    if lazy:
        raise BadData(f"the parameter {lazy[0]!r} has no values yet; run the network once, or load its weights.")
    devices = {p.device for p in params.values()}
    if len(devices) > 1:
        raise BadData(f"the parameters are on several devices ({sorted(map(str, devices))}); move them to one.")
    kinds = {p.dtype: n for n, p in params.items() if p.is_floating_point()}
    if torch.float64 in kinds and len(kinds) > 1:
        single = next(n for dtype, n in kinds.items() if dtype != torch.float64)
        raise UnsupportedLayer(
            f"the parameter {kinds[torch.float64]!r} is in double precision, and {single!r} is not. Convert the "
            "network to one of them: model.float() or model.double()."
        )
    finite = torch.stack([torch.isfinite(p).all() for p in params.values()]).tolist()
    for name, fine in zip(params, finite, strict=True):
        if not fine:
            raise BadData(f"the parameter {name!r} contains NaN or infinite values; the network cannot be used.")


def copy_module(model: nn.Module) -> nn.Module:
    """A deep copy that also handles computed tensors in attributes (old-style weight norm) and sharded weights."""
    if is_sharded(model):
        model = gathered(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedLayer("a scripted module hides its layers; pass the nn.Module that it was scripted from.")
    memo: dict[int, Any] = {}
    for part in model.modules():
        for name, value in vars(part).items():
            if name not in OWN:
                memo |= {id(t): t.detach().clone() for t in _tensors(value) if not t.is_leaf}
    found = Closures(model)
    memo |= found.replaced
    try:
        copied = copy.deepcopy(model, memo)
        found.close(memo)
    except Exception as error:
        raise WhenceError(
            f"the model could not be copied ({type(error).__name__}: {error}). whence works on a copy so that "
            "yours does not change; remove attributes that cannot be deep-copied (open files, locks, generators)."
        ) from error
    for p in copied.parameters():
        p.grad = None
    _own_forwards(copied)
    for part in copied.modules():  # hooks on gradients in training do not belong to the posterior
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


# A replaced forward


def _own_forwards(copied: nn.Module) -> None:
    """Refuse a ``forward`` that would run the user's original network; remove wrappers from training."""
    mine = {id(part) for part in copied.modules()} | {id(t) for t in (*copied.parameters(), *copied.buffers())}
    for name, part in copied.named_modules():
        forward = vars(part).get("forward")
        if forward is None:
            continue
        if _has_autocast(forward):
            _without_autocast(part, name)
            continue
        compiled = hasattr(forward, "_torchdynamo_orig_callable")
        if compiled and type(part).forward in inside(forward):
            del part.forward  # the class's own, compiled
        elif _reaches(forward, mine):
            raise UnsupportedLayer(
                f"the forward of {name or type(part).__name__!r} was replaced by a function that refers to the "
                "original network, which a copy would keep running instead of its own weights. Write it as a method "
                "of a subclass, or compile the module (torch.compile(module)) instead of its forward."
            )


def _has_autocast(forward: Any) -> bool:
    """Whether a forward was wrapped by accelerate, and so by the ``Trainer`` of transformers, for half precision."""
    return any(
        isinstance(found, torch.autocast) or "autocast" in str(getattr(found, "__qualname__", "")).lower()
        for found in inside(forward)
    )


def _without_autocast(part: nn.Module, name: str) -> None:
    del part.forward
    notice(
        f"the forward of {name or 'the model'!r} was wrapped in autocast by accelerate, or by the Trainer of "
        "transformers (bf16=True or fp16=True). whence runs it without; pass autocast=torch.bfloat16 to compute "
        "in half precision."
    )


def _reaches(forward: Any, mine: set[int]) -> bool:
    """Whether a function refers to modules or tensors outside the copy."""
    return any(isinstance(found, (nn.Module, Tensor)) and id(found) not in mine for found in inside(forward))


# Caches of forward passes


@dataclass(frozen=True)
class Cache:
    """An attribute in which a module caches results, with its value before a forward pass."""

    module: str
    attribute: str
    empty: Any

    def clear(self, root: nn.Module) -> None:
        value = type(self.empty)(self.empty) if isinstance(self.empty, (dict, list, set)) else self.empty
        root.get_submodule(self.module).__dict__[self.attribute] = value


def caches_of(module: nn.Module) -> list[Cache]:
    """The known caches of a module, also of its copies."""
    found: list[Cache] = module.__dict__.get(CACHES, [])
    return found


def clear_caches(module: nn.Module) -> None:
    """Clear all caches, so that the next pass computes everything from its weights."""
    for cache in caches_of(module):
        cache.clear(module)


@torch.no_grad()
def find_caches(module: nn.Module, run: Callable[[], Tensor]) -> None:
    """Find attributes in which a forward pass ``run`` caches results, once.

    An existing tensor or mapping of tensors is a cache if the network computes the same without it.
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
    """Attributes of its modules except parameters, buffers and modules: values, and shallow copies of containers."""
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
    """The attributes to which a forward pass assigned tensors, with their values before."""
    found = []
    for (module, attribute), now in after.items():
        was = before.get((module, attribute))
        if {id(t) for t in _tensors(now)} - {id(t) for t in _tensors(was)}:
            found.append(Cache(module, attribute, was))
    return found


def _filled(state: State) -> list[Cache]:
    """Tensors and mappings of tensors, perhaps computed by an earlier pass of the user."""
    found = []
    for (module, attribute), value in state.items():
        if isinstance(value, Tensor):
            found.append(Cache(module, attribute, None))
        elif type(value) is dict and any(True for _ in _tensors(value)):
            found.append(Cache(module, attribute, {}))
    return found


# Weights sharded over processes


def is_sharded(model: Any) -> bool:
    """Whether weights are sharded, or gathered only in the forward pass."""
    if not isinstance(model, nn.Module):
        return False
    return any(_partial(p) for p in model.parameters()) or any(_wrapped_by(m) for m in model.modules())


def _partial(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "full_tensor")


def _wrapped_by(module: nn.Module) -> str | None:
    """The kind of sharding of a module, if any."""
    names = [c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.distributed")]
    return next((n for n in ("FSDPModule", "FullyShardedDataParallel") if n in names), None)


def gathered(model: nn.Module) -> nn.Module:
    """A copy with full weights of a network under ``fully_shard``; every rank must call it."""
    managed = [m for m in model.modules() if _wrapped_by(m) == "FSDPModule"]
    _refuse_others(model, {id(part) for m in managed for part in m.modules()})
    memo: dict[int, Any] = {}
    for part in managed:
        part.reshard()  # type: ignore[operator]  # shards are in full precision
        memo[id(part)] = object.__new__(type(part).__bases__[-1])  # its original class
    for p in model.parameters():
        if _partial(p):
            whole = p.full_tensor().detach().clone()  # type: ignore[attr-defined]
            memo[id(p)] = nn.Parameter(whole, requires_grad=p.requires_grad)
    for part in managed:
        vars(memo[id(part)]).update(copy.deepcopy(_own_state(part), memo))
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied


def _own_state(module: nn.Module) -> dict[str, Any]:
    """Its attributes without those of ``fully_shard``."""
    state = {k: v for k, v in vars(module).items() if not k.startswith("__composable_api_state_key")}
    for key in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = {k: v for k, v in state[key].items() if not str(v.__module__).startswith("torch.distributed")}
        state[key] = type(state[key])(hooks)
    return state


def _refuse_others(model: nn.Module, known: set[int]) -> None:
    """Refuse tensor parallelism and the older FSDP, which change the modules' computations."""
    for name, part in model.named_modules():
        older = _wrapped_by(part) == "FullyShardedDataParallel"
        parallel = getattr(part, "_distribute_module_applied", False)
        loose = id(part) not in known and any(_partial(p) for p in part.parameters(recurse=False))
        if older or parallel or loose:
            raise UnsupportedLayer(
                f"the weights of {name or 'the network'!r} ({type(part).__name__}) are sharded over processes, and "
                f"whence gathers them only under torch.distributed.fsdp.fully_shard. {SHARDED_REMEDY}"
            )
