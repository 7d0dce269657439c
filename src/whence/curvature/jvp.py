"""J v: derivatives of the outputs along directions in weight space, by forward-mode differentiation.

Index legend: N examples, R directions.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from whence.engine.batches import Inputs, check_finite, cut, joined, map_tensors, size_of, take
from whence.engine.follow import is_followed
from whence.engine.memory import sizes
from whence.errors import UnsupportedLayer, is_out_of_memory
from whence.functional import Network, differentiable
from whence.linalg.dense import widened
from whence.recording.backward import gradients

ALIVE = 8  # activations of a network that exist at the same time while it runs forward, with their derivatives
AGREE = {True: 1e-8, False: 1e-3}  # tolerated relative difference of forward and backward derivatives; key: float64


def push(
    network: Network,
    inputs: Inputs,
    directions: Mapping[str, Tensor],
    outputs: Tensor | None = None,
    check: bool = True,
) -> tuple[Tensor, Tensor]:
    """Outputs f and J v along directions [R, *shape] by parameter name: [R, *outputs].

    Uses forward-mode differentiation where it agrees with the backward pass, otherwise the backward pass itself.
    ``outputs`` with their graph save a forward pass; ``check=False`` skips the comparison.
    """
    wanted = torch.is_grad_enabled() and is_followed(inputs)
    if network.runtime.forward_mode:
        try:
            found = _forward_mode(network, inputs, directions, wanted)
            if not check or _adjoint(network, inputs, directions, found[1], outputs):
                return found
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
        network.runtime.forward_mode = False
    return _twice_backward(network, inputs, directions, wanted)


def _adjoint(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], moved: Tensor, outputs: Tensor | None
) -> bool:
    """Whether ⟨u, J v⟩ = ⟨Jᵀ u, v⟩ for a random mixture v of the directions and a random u.

    They differ, for example, where the backward pass skips the padding of an embedding and the forward pass does not.
    """
    generator = torch.Generator().manual_seed(1)
    mixture = torch.randn(len(moved), generator=generator, dtype=torch.float64)
    along = torch.tensordot(mixture.to(moved), moved.detach(), 1).double()
    u = torch.randn(along.shape, generator=generator, dtype=torch.float64).to(along)
    with differentiable(network):
        if outputs is None:
            outputs = network(map_tensors(Tensor.detach, inputs))
        if not outputs.requires_grad:
            return not bool(moved.any())
        params = [network.params[n] for n in directions]
        back = torch.autograd.grad(outputs, params, u.to(outputs.dtype), retain_graph=True, allow_unused=True)
    there = torch.zeros_like(along.sum())
    for g, v in zip(back, directions.values(), strict=True):
        if g is not None:
            there += mixture.to(there) @ (v.reshape(len(v), -1) @ g.reshape(-1).to(v.dtype)).double()
    agree = AGREE[moved.dtype == torch.float64] * u.norm() * along.norm()
    return bool(((u * along).sum() - there).abs() <= agree)


def _forward_mode(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], wanted: bool
) -> tuple[Tensor, Tensor]:
    """Values and derivatives in one forward pass."""
    at = {n: network.params[n].detach() for n in directions}
    toward = {n: v.to(at[n].dtype) for n, v in directions.items()}

    def along(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = torch.func.jvp(lambda p: network.functional(p, inputs), (at,), (v,))
        return found[0], found[1]

    with warnings.catch_warnings(), differentiable(network), torch.set_grad_enabled(wanted):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # inside torch's forward mode
        outputs, moved = torch.func.vmap(along, out_dims=(None, 0))(toward)  # type: ignore[arg-type]
    return outputs, moved


def _twice_backward(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], wanted: bool
) -> tuple[Tensor, Tensor]:
    """The derivative of the backward pass, which is linear in its cotangents."""
    try:
        with differentiable(network):
            outputs = network(inputs)
            params = [network.params[n] for n in directions]
            sent = torch.zeros_like(outputs, requires_grad=True)
            first = torch.autograd.grad(outputs, params, sent, create_graph=True, allow_unused=True)
            parts = [
                (g.reshape(-1), v.reshape(len(v), -1))
                for g, v in zip(first, directions.values(), strict=True)
                if g is not None and g.requires_grad
            ]
            count = len(next(iter(directions.values())))
            if not parts:
                return outputs, outputs.new_zeros(count, *outputs.shape)
            linear, along = torch.cat([g for g, _ in parts]), torch.cat([v for _, v in parts], dim=1)
            (moved,) = gradients(network, linear, [sent], along.to(outputs.dtype), wanted)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedLayer(
            "derivatives along directions of the weights need forward-mode differentiation, or a backward pass that "
            f"can be differentiated; one operation supports neither ({error}). Use structure='kron' or 'diag'."
        ) from error
    return outputs, outputs.new_zeros(count, *outputs.shape) if moved is None else moved


def forward_bytes(network: Network, inputs: Inputs) -> int:
    """Bytes that a forward pass stores for its backward pass, without the weights."""
    kept, outputs = _saved(network, inputs)
    return sum(kept) + outputs


def _saved(network: Network, inputs: Inputs) -> tuple[list[int], int]:
    """Bytes of every tensor that a forward pass stores for its backward pass, and of the outputs."""
    own = {p.data_ptr() for p in network.params.values()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with differentiable(network), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        outputs = network(inputs)
    return list(seen.values()), outputs.numel() * outputs.element_size()


def room_for_tangents(network: Network, inputs: Inputs) -> int:
    """How many inputs, times directions, go through one forward-mode pass."""
    kept, outputs = _saved(network, take(inputs, slice(0, 1)))
    wanted = torch.is_grad_enabled() and is_followed(inputs)
    alive = sum(kept) if wanted else min(sum(kept), ALIVE * max(kept, default=0))
    return sizes().forward_mode(network.device) // max(alive + outputs, 1)


def shifted(network: Network, shift: Mapping[str, Tensor] | None) -> Network:
    """The same network, whose recorded outputs are those of the linear model f*(x) + J(x) δ; without δ its own."""
    made = copy.copy(network)
    made.shift = None if shift is None else {n: v.detach().to(network.params[n]) for n, v in shift.items()}
    made.moved = None if shift is None else functools.partial(_along_shift, made)
    return made


def _along_shift(network: Network, inputs: Inputs) -> Tensor:
    """J(x) δ, differentiable in the inputs where these are followed."""
    assert network.shift is not None
    _, moved = push(network, inputs, {n: v.unsqueeze(0) for n, v in network.shift.items()}, check=False)
    return moved[0] if is_followed(inputs) else moved[0].detach()


def tangents(network: Network, inputs: Inputs, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """f(x) [N, …] and J(x) v [R, N, …]; f(x) is that of the linear model, where the network is shifted."""
    if network.shift is None:
        return plain_tangents(network, inputs, directions)
    mean, moved = plain_tangents(network, inputs, with_shift(network, directions))
    return mean + moved[-1], moved[:-1]


def with_shift(network: Network, directions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The directions [R, *shape], and δ behind them."""
    assert network.shift is not None
    return {n: torch.cat([v, network.shift[n].unsqueeze(0).to(v)]) for n, v in directions.items()}


def plain_tangents(network: Network, inputs: Inputs, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """f(x) [N, …] and J(x) v [R, N, …]: some inputs at a time along all directions, or one along some of them."""
    count, size = len(next(iter(directions.values()))), size_of(inputs)
    room = room_for_tangents(network, inputs)
    together, step = max(1, min(size, room // count)), max(1, min(count, room))
    means, parts = [], []
    for some in cut(inputs, together):
        moved: list[Tensor] = []
        for start in range(0, count, step):
            few = {n: v[start : start + step] for n, v in directions.items()}
            mean, along = push(network, some, few, check=not moved)
            moved.append(widened(along))
        means.append(widened(mean))
        parts.append(joined(moved))
    check_finite(parts, "the derivatives of the outputs", 0)
    return joined(means), joined(parts, dim=1)
