"""Networks whose weights are spread over processes: a plain copy with whole weights, or an error in words."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from whence.errors import UnsupportedLayer

REMEDY = (
    "Get them whole on every rank, state = torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True)), load them into a plain network, and pass that."
)


def is_sharded(model: Any) -> bool:
    """Whether a process holds parts of some weights, or would put them together in the forward pass."""
    if not isinstance(model, nn.Module):
        return False
    return any(_partial(p) for p in model.parameters()) or any(_wrapped_by(m) for m in model.modules())


def _partial(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    return hasattr(tensor, "full_tensor")


def _wrapped_by(module: nn.Module) -> str | None:
    """Which of torch's ways of sharding a module is under, if any."""
    names = [c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.distributed")]
    return next((n for n in ("FSDPModule", "FullyShardedDataParallel") if n in names), None)


def gathered(model: nn.Module) -> nn.Module:
    """A plain copy, with whole weights, of a network under ``fully_shard``; every rank must call it."""
    managed = [m for m in model.modules() if _wrapped_by(m) == "FSDPModule"]
    _refuse_others(model, {id(part) for m in managed for part in m.modules()})
    memo: dict[int, Any] = {}
    for part in managed:
        part.reshard()  # type: ignore[operator]  # the shards have the full precision
        memo[id(part)] = object.__new__(type(part).__bases__[-1])  # of the class that it had before
    for p in model.parameters():
        if _partial(p):
            whole = p.full_tensor().detach().clone()  # type: ignore[attr-defined]
            memo[id(p)] = nn.Parameter(whole, requires_grad=p.requires_grad)
    for part in managed:
        vars(memo[id(part)]).update(copy.deepcopy(_own_state(part), memo))
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied


def _own_state(module: nn.Module) -> dict[str, Any]:
    """Its attributes without what ``fully_shard`` has put there."""
    state = {k: v for k, v in vars(module).items() if not k.startswith("__composable_api_state_key")}
    for key in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = {k: v for k, v in state[key].items() if not str(v.__module__).startswith("torch.distributed")}
        state[key] = type(state[key])(hooks)
    return state


def _refuse_others(model: nn.Module, known: set[int]) -> None:
    """Tensor parallelism and the older FSDP change what the modules compute with."""
    for name, part in model.named_modules():
        older = _wrapped_by(part) == "FullyShardedDataParallel"
        parallel = getattr(part, "_distribute_module_applied", False)
        loose = id(part) not in known and any(_partial(p) for p in part.parameters(recurse=False))
        if older or parallel or loose:
            raise UnsupportedLayer(
                f"the weights of {name or 'the network'!r} ({type(part).__name__}) are spread over processes, and "
                f"whence gathers them only under torch.distributed.fsdp.fully_shard. {REMEDY}"
            )
