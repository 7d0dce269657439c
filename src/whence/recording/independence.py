"""Checks on the first batch that examples do not depend on each other.

Everything here is a sum over examples. A network in which examples interact (nodes of one graph, attention over
the wrong dimension, N × N similarities) would silently give wrong numbers, and so would a kernel that is wrong for
batches of one. Rounding can also change outputs and gradients: other kernels are chosen for other batch sizes, and a
ReLU close to 0 may then switch. Therefore a difference is computed again in double precision before a network is
refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.engine import memory
from whence.engine.batches import Inputs, is_inputs, map_tensors, size_of, take, to_device
from whence.errors import BadData, UnsupportedLayer, first_line, is_out_of_memory, notice
from whence.functional import Network, described, differentiable
from whence.recording.backward import TOLERANCE, densified, gradients
from whence.recording.recorder import Pass, forward, probe_like

LOOKED_AT = 64  # examples of the first batch whose outputs are compared
OUTPUTS_APART = {torch.float64: 1e-6, torch.float32: 2e-3}  # rounding error relative to the largest output
SUSPECT = 1e-4  # the same in single precision on a CPU; what differs by more is computed again in double precision
COARSE = 0.05  # tolerated difference of gradients where double precision is not possible
SINGLE = 1e-5  # that of networks in double precision: some compute a norm or a softmax in single precision all the same
FAILURES = {RuntimeError, IndexError, KeyError, ValueError, AssertionError, AttributeError, NotImplementedError}
GRAPH = (
    "If they are nodes of one graph, use the node indices as inputs, in a module whose forward(nodes) returns "
    "network(features, edges)[nodes]."
)


def first_outputs(network: Network, inputs: Any) -> Tensor:
    """Outputs of the first examples; of fewer if they do not fit into memory."""
    count = min(LOOKED_AT, size_of(inputs))
    while True:
        found = memory.none_if_out_of_memory(lambda n=count: _outputs(network, inputs, n))  # type: ignore[misc]
        if found is not None:
            return found
        if count == 1:
            return _outputs(network, inputs, 1)  # raises what went wrong
        memory.release(network.device)
        count //= 2


@contextlib.contextmanager
def failures_explained(network: Network, x: Any) -> Iterator[None]:
    """If the network itself fails on these inputs, raise BadData with their shapes instead of its own error."""
    try:
        yield
    except Exception as error:
        if type(error) in FAILURES and not is_out_of_memory(error) and is_inputs(x):
            first_outputs(network, next(network.pieces(x, LOOKED_AT)))
        raise


def check_independent(network: Network, inputs: Any, outputs: Tensor) -> None:
    """Refuse a network whose outputs for an example depend on its batch; give a notice if they are random."""
    whole, half = len(outputs), len(outputs) // 2
    if not half or not outputs.is_floating_point() or whole > size_of(inputs):
        return
    for part in (slice(0, half), slice(half, whole)):  # both: a maximum over the batch is the same in one of them
        if _is_random(network, inputs, outputs, part):
            return


def _is_random(network: Network, inputs: Inputs, outputs: Tensor, part: slice) -> bool:
    """Whether the outputs of some examples differ at random, which is said; refuse a network if they differ else."""
    again = memory.none_if_out_of_memory(lambda: _outputs_of(network, inputs, part))
    if again is None:
        return False
    if again.shape != outputs[part].shape:
        raise BadData(
            f"in a batch of {len(outputs)} examples each has outputs of shape {list(outputs.shape[1:])}, in a batch of "
            f"{part.stop - part.start} of shape {list(again.shape[1:])}: they depend on the batch size. If they are "
            "similarities of all pairs (as CLIP's logits are), wrap the network in a module that compares one input "
            "with fixed others."
        )
    off = _relative_difference(network, outputs, again, part)
    if off is None:
        return False
    repeated = memory.none_if_out_of_memory(lambda: _outputs_of(network, inputs, part))
    by = f"by {off:.2g} relative to their size"
    if repeated is not None and not torch.equal(repeated, again):
        notice(
            f"the outputs of the same examples differ {by} from one pass to the next: something is random in "
            "evaluation mode (F.dropout without training=self.training?). Curvature and predictions are then random "
            "too."
        )
        return True
    if outputs.dtype != torch.float64 and _only_rounding(network, inputs, len(outputs), part, off):
        return False
    raise UnsupportedLayer(
        f"the outputs of an example change {by} in a smaller batch, so the examples depend on each other "
        "(attention without batch_first=True, a mean over the batch, routing with a capacity?). A posterior needs "
        f"independent examples. {GRAPH}"
    )


def _relative_difference(network: Network, whole: Tensor, again: Tensor, part: slice) -> float | None:
    """The relative difference of outputs; None if it is within rounding."""
    size = whole.abs().max()
    tolerance = SUSPECT if whole.dtype == torch.float32 and not whole.is_cuda else OUTPUTS_APART.get(whole.dtype, 5e-2)
    tolerance = tolerance if network.autocast is None else 5e-2
    off = (again - whole[part]).abs().max()
    return float(off / size) if bool(off > tolerance * size) else None


def _only_rounding(network: Network, inputs: Any, whole: int, part: slice, off: float) -> bool:
    """Whether double precision shows no difference; where it is not possible, whether the difference is small."""
    exact = doubled(network, take(inputs, slice(0, whole)))
    if exact is None:
        return off <= OUTPUTS_APART.get(network.dtype, 0.0)
    every = slice(0, whole)
    return _relative_difference(exact[0], _outputs_of(*exact, every), _outputs_of(*exact, part), part) is None


def doubled(network: Network, inputs: Any) -> tuple[Network, Any] | None:
    """The network and inputs in double precision; None if they do not run in it, or do not fit into memory."""
    try:
        moved = network.to(torch.float64)
        moved.autocast = None
        wide = map_tensors(lambda t: t.double() if t.is_floating_point() else t, inputs)
        with differentiable(moved), torch.no_grad():
            found = moved(wide)
    except Exception:
        return None
    return (moved, wide) if found.dtype == torch.float64 else None


def _outputs(network: Network, inputs: Any, count: int) -> Tensor:
    """Outputs of the first examples."""
    return _outputs_of(network, inputs, slice(0, count))


def _outputs_of(network: Network, inputs: Any, part: slice) -> Tensor:
    """Outputs of some examples, with torch's errors explained."""
    few, count = take(inputs, part), part.stop - part.start
    try:
        with differentiable(network), torch.no_grad():
            return network(few)
    except Exception as error:
        if type(error) not in FAILURES or is_out_of_memory(error):
            raise  # the network's own error
        if count < size_of(inputs) and _runs(network, inputs):
            raise _parts_fail(size_of(inputs), count, error) from error
        raise BadData(
            f"the network failed on inputs {described(few)} with {type(error).__name__}: {first_line(error)}"
            f"{remedy(network, inputs)}"
        ) from error


def remedy(network: Network, inputs: Any) -> str:
    """What to pass instead, where the network runs on that; empty if nothing is known."""
    inputs = to_device(inputs, network.device, network.dtype)
    if _runs(network, map_tensors(lambda t: t[None] if t.dim() else t, inputs)):
        return ". It runs on x.unsqueeze(0): one example needs a batch dimension, here and in the data."
    floats = map_tensors(lambda t: t.to(network.dtype), inputs)
    if _runs(network, floats):
        return f". It runs on {str(network.dtype).removeprefix('torch.')} inputs: pass x.to({network.dtype})."
    known = ", ".join(str(list(shape)) for shape in network.example_shapes or ())
    return f". One example of the training data has shape {known}." if known else ""


def _runs(network: Network, inputs: Any) -> bool:
    try:
        with differentiable(network), torch.no_grad():
            network(inputs)
    except Exception:
        return False
    return True


def _parts_fail(whole: int, count: int, error: Exception) -> BadData:
    return BadData(
        f"the network runs on {whole} examples but fails on {count} of them ({first_line(error)}). It must accept any "
        "batch size: export it with a dynamic batch dimension (or pass the nn.Module itself), and keep examples "
        f"independent. {GRAPH}"
    )


# Alone and in a batch


def check_alone(network: Network, selected: list[str], few: Inputs, seen: Pass) -> None:
    """Refuse a network whose gradients for its first example depend on the rest of its batch."""
    found = _first_different(network, selected, few, seen)
    if found is not None and network.dtype != torch.float64:
        exact = doubled(network, few)
        if exact is not None:
            found = _first_different(exact[0], selected, exact[1], forward(*exact))
        elif found[1] < COARSE:
            return
    if found is not None:
        name, off = found
        raise UnsupportedLayer(
            f"the gradient of {name!r} for one example alone differs from that in a batch by {off:.2g} relative "
            "to its size, though the outputs are the same. Either something scales gradients by what is in the batch "
            "(an embedding with scale_grad_by_freq=True: switch it off), or a kernel of this torch build is wrong for "
            "batches of one: leave the layers before it out (layers=…), or use another device."
        )


def _first_different(network: Network, selected: list[str], few: Inputs, seen: Pass) -> tuple[str, float] | None:
    """The first parameter whose gradient differs by more than rounding, and the relative difference."""
    try:
        alone = forward(network, take(few, slice(0, 1)))
    except Exception:
        return None  # the network fails on one example; batches of one raise that error
    if alone.outputs.shape != (1, *seen.outputs.shape[1:]) or not alone.outputs.requires_grad:
        return None
    tolerance = TOLERANCE.get(network.dtype, 5e-2) if network.autocast is None else 5e-2
    apart, size = (alone.outputs[0] - seen.outputs[0]).norm(), seen.outputs[0].norm()
    if not bool(apart <= tolerance * size):
        return None  # examples depend on each other, which check_independent refuses
    params = [network.params[name] for name in selected]
    column = probe_like(seen.outputs)
    first = torch.zeros_like(column)
    first[0] = column[0]
    with differentiable(network):
        one = gradients(network, alone.outputs, params, column[:1].unsqueeze(0), False)
        many = gradients(network, seen.outputs, params, first.unsqueeze(0), False)
    pairs = [(n, densified(a[0]), densified(b[0])) for n, a, b in zip(selected, one, many, strict=True)
             if a is not None and b is not None]  # fmt: skip
    if not pairs:
        return None
    rows = torch.stack([torch.stack([b.norm(), (a - b).norm()]).double() for _, a, b in pairs]).tolist()
    largest = max(norm for norm, _ in rows)
    wrong = ((n, off / max(norm, 1e-300)) for (n, _, _), (norm, off) in zip(pairs, rows, strict=True)
             if off > max(10 * tolerance, SINGLE) * (norm + 1e-3 * largest))  # fmt: skip
    return next(wrong, None)
