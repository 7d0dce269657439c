"""Check that one example has the same gradients alone as in a batch. If not, a kernel is wrong.

Rounding can also change them: other kernels are chosen for other batch sizes, and a ReLU close to 0 then switches. So a
difference is computed again in double precision before the network is refused.
"""

from __future__ import annotations

import torch

from whence.batches import Inputs, take
from whence.curvature.capture import Pass, densified, forward, gradients
from whence.curvature.independence import doubled
from whence.curvature.probes import TOLERANCE, probe_like
from whence.errors import UnsupportedLayer
from whence.functional import Network, differentiable

COARSE = 0.05  # relative difference that is refused where double precision cannot be tried


def check_alone(network: Network, selected: list[str], few: Inputs, seen: Pass) -> None:
    """Refuse a network whose gradients for its first example depend on whether others go through with it."""
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
            f"the gradient of {name!r} for one example alone differs from the one that it has in a batch, by {off:.2g} "
            "of its size, though the outputs are the same: a kernel of this torch build is wrong for batches of one. "
            "Leave the layers before it out (layers=…), or use another device."
        )


def _first_different(network: Network, selected: list[str], few: Inputs, seen: Pass) -> tuple[str, float] | None:
    """The first parameter whose gradient differs by more than rounding, and by how much of its size."""
    try:
        alone = forward(network, take(few, slice(0, 1)))
    except Exception:
        return None  # a network that does not take one example, which batches of one will show
    if alone.outputs.shape != (1, *seen.outputs.shape[1:]) or not alone.outputs.requires_grad:
        return None
    tolerance = TOLERANCE.get(network.dtype, 5e-2) if network.autocast is None else 5e-2
    apart, size = (alone.outputs[0] - seen.outputs[0]).norm(), seen.outputs[0].norm()
    if not bool(apart <= tolerance * size):
        return None  # examples see each other, which is said elsewhere
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
             if off > 10 * tolerance * (norm + 1e-3 * largest))  # fmt: skip
    return next(wrong, None)
