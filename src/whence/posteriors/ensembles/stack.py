"""Networks of one architecture as one: their weights stacked, their passes side by side under ``vmap``.

Index legend: M members, N examples.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs, take
from whence.functional import arguments, call_with, output_tensor, tensors_of

TensorDict = dict[str, Tensor]


def shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and types of what a module holds."""
    return [(name, tuple(t.shape), t.dtype) for name, t in tensors_of(module, keep_vars=True).items()]


def difference(modules: Sequence[nn.Module]) -> str | None:
    """Why the modules cannot be stacked, or None: by their classes, settings and shapes."""
    first = modules[0]
    for index, module in enumerate(modules[1:], 1):
        if type(module) is not type(first) or repr(module) != repr(first):
            return f"member {index} is another network than member 0"
        if shapes(module) != shapes(first):
            return f"member {index} has other shapes than member 0"
    return None


class Stack:
    """Stacked weights and buffers, and the function that they go into."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        params, buffers = torch.func.stack_module_state(list(modules))
        self.params: TensorDict = {n: p.detach() for n, p in params.items()}
        self.buffers: TensorDict = {n: b.detach() for n, b in buffers.items()}
        self.size = len(modules)
        self.base = copy.deepcopy(modules[0])

    def member(self, params: TensorDict, buffers: TensorDict, inputs: Inputs) -> Tensor:
        """Outputs of one member."""
        args, kwargs = arguments(inputs)
        return output_tensor(call_with(self.base, params | buffers, args, kwargs))

    def outputs(self, inputs: Inputs, own: bool = False) -> Tensor:
        """Outputs of all members [M, N, …], for the same inputs or (``own``) for inputs [M, N, …]."""
        run = torch.func.vmap(self.member, in_dims=(0, 0, 0 if own else None), randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return run(self.params, self.buffers, inputs)

    def agrees(self, modules: Sequence[nn.Module], inputs: Inputs) -> str | None:
        """Why the stack is not the modules, or None: outputs in evaluation mode, on a few inputs."""
        few = take(inputs, slice(0, 2))
        try:
            with torch.no_grad():
                together = self.outputs(few)
                apart = torch.stack([call(module, few) for module in modules])
        except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
            return f"vmap cannot run it ({str(error).splitlines()[0][:120]})"
        scale = float(apart.detach().abs().max()) + 1e-30
        tolerance = 1e-9 if apart.dtype == torch.float64 else 1e-2 if apart.dtype != torch.float32 else 2e-3
        if together.shape != apart.shape or float((together - apart).abs().max()) > tolerance * scale:
            return "its outputs under vmap are not those of the members one by one"
        return None


def slow_together(module: nn.Module, device: torch.device) -> bool:
    """On a processor a convolution of many networks at once becomes a grouped one, which is slower than one by one."""
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
    return device.type == "cpu" and convolutions


def call(module: nn.Module, inputs: Inputs) -> Tensor:
    args, kwargs = arguments(inputs)
    return output_tensor(module(*args, **kwargs))


def unstacked(stack: Stack, index: int) -> dict[str, Any]:
    """One member's parameters and buffers, by name."""
    return {n: t[index].clone() for n, t in (stack.params | stack.buffers).items()}
