"""Whether the examples of a batch are independent of each other, looked at on the first batch.

A sum over examples is what everything rests on. A network in which examples see each other (nodes of one graph,
attention over the wrong dimension, N × N similarities) would give numbers that are wrong without any sign of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.batches import map_tensors, size_of, take
from whence.curvature import memory
from whence.errors import BadData, UnsupportedLayer, is_out_of_memory, notice
from whence.functional import Network, described, differentiable

LOOKED_AT = 64  # examples of the first batch whose outputs are looked at
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}  # of the largest output, by which rounding may move others
FAILURES = {RuntimeError, IndexError, KeyError, ValueError, AssertionError, AttributeError, NotImplementedError}
GRAPH = (
    "If they are nodes of one graph, let the node numbers be the inputs, in a module whose forward(nodes) returns "
    "network(features, edges)[nodes]."
)


def first_outputs(network: Network, inputs: Any) -> Tensor:
    """Outputs of some of the first examples; of fewer, where they do not fit."""
    count = min(LOOKED_AT, size_of(inputs))
    while True:
        found = memory.attempt(lambda n=count: _outputs(network, inputs, n))  # type: ignore[misc]
        if found is not None:
            return found
        if count == 1:
            return _outputs(network, inputs, 1)  # raises what went wrong
        memory.release(network.device)
        count //= 2


def check_independent(network: Network, inputs: Any, outputs: Tensor) -> None:
    """Refuse a network whose outputs for an example depend on the others in its batch; say it if they are random."""
    whole, half = len(outputs), len(outputs) // 2
    if not half or not outputs.is_floating_point() or whole > size_of(inputs):
        return
    again = memory.attempt(lambda: _outputs(network, inputs, half))
    if again is None:
        return
    if again.shape != outputs[:half].shape:
        raise BadData(
            f"among {len(outputs)} examples one has outputs of shape {list(outputs.shape[1:])}, and among {half} of "
            f"shape {list(again.shape[1:])}: they depend on how many go through together. If they are similarities of "
            "all pairs (as CLIP's logits are), wrap the network in a module that compares one input with fixed others."
        )
    off = _apart(network, outputs, again)
    if off is None:
        return
    repeated = memory.attempt(lambda: _outputs(network, inputs, half))
    by = f"by {off:.2g} of their size"
    if repeated is not None and not torch.equal(repeated, again):
        notice(
            f"the outputs of the same examples differ {by} from one pass to the next: something is random in "
            "evaluation mode (F.dropout without training=self.training?). Curvature and predictions are then random "
            "too."
        )
        return
    if outputs.dtype != torch.float64 and _only_rounding(network, inputs, whole, half):
        return
    raise UnsupportedLayer(
        f"the outputs of an example change {by} when fewer others go through with it, so that examples see each other "
        "(attention without batch_first=True, a mean over the batch, routing with a capacity?). A posterior needs "
        f"independent examples. {GRAPH}"
    )


def _apart(network: Network, whole: Tensor, half: Tensor) -> float | None:
    """By how much of their size outputs differ, if it is more than rounding."""
    size = whole.abs().max()
    tolerance = TOLERANCE.get(whole.dtype, 5e-2) if network.autocast is None else 5e-2
    off = (half - whole[: len(half)]).abs().max()
    return float(off / size) if bool(off > tolerance * size) else None


def _only_rounding(network: Network, inputs: Any, whole: int, half: int) -> bool:
    """Whether double precision shows no difference."""
    exact = doubled(network, take(inputs, slice(0, whole)))
    if exact is None:
        return False
    return _apart(exact[0], _outputs(*exact, whole), _outputs(*exact, half)) is None


def doubled(network: Network, inputs: Any) -> tuple[Network, Any] | None:
    """The network and inputs in double precision; None if it does not run so, or does not fit."""
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
    """Of the first examples; what torch raises is put into words."""
    few = take(inputs, slice(0, count))
    try:
        with differentiable(network), torch.no_grad():
            return network(few)
    except Exception as error:
        if type(error) not in FAILURES or is_out_of_memory(error):
            raise  # the network's own
        if count < size_of(inputs) and _runs(network, inputs):
            raise _parts_fail(size_of(inputs), count, error) from error
        raise BadData(
            f"the network failed on inputs {described(few)} with {type(error).__name__}: {_first_line(error)}"
        ) from error


def _runs(network: Network, inputs: Any) -> bool:
    try:
        with differentiable(network), torch.no_grad():
            network(inputs)
    except Exception:
        return False
    return True


def _parts_fail(whole: int, count: int, error: Exception) -> BadData:
    return BadData(
        f"the network runs on {whole} examples and fails on {count} of them ({_first_line(error)}). It must take any "
        "number: export it with a dynamic batch dimension (or pass the nn.Module itself), and keep examples "
        f"independent. {GRAPH}"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
