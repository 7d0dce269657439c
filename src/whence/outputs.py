"""What a network returns, as one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whence.engine.batches import Inputs, tensors_in
from whence.errors import BadData


def output_tensor(output: Any, inputs: Inputs = ()) -> Tensor:
    """The tensor of raw outputs: the module's result or its ``logits``; one number per example as [N, 1].

    The dimension of one example alone is restored where the network drops it, as ``.squeeze()`` does.
    """
    logits = output
    if not isinstance(output, Tensor):
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        alone = {len(t) for t in tensors_in(inputs) if t.dim()} == {1}
        logits = logits.unsqueeze(0) if alone and (logits.dim() == 0 or len(logits) != 1) else logits
        return logits.unsqueeze(-1) if logits.dim() == 1 else logits
    raise BadData(
        f"the network returns a {type(output).__name__}{_tensors_inside(output)}; whence needs one tensor, or an "
        "object with 'logits'. Wrap the network in a module whose forward returns the tensor you want uncertainty for."
    )


def _tensors_inside(output: Any) -> str:
    """Which tensors an output contains, with the expression that takes each of them."""
    items = (
        output.items()
        if isinstance(output, Mapping)
        else enumerate(output)
        if isinstance(output, (tuple, list))
        else ()
    )
    found = [f"output[{key!r}] {list(value.shape)}" for key, value in items if isinstance(value, Tensor)]
    if not found:
        return ""
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f" with the tensors {', '.join(found[:5])}{more}"
