"""Whether the validation data that a posterior is tuned on contain examples that the network was trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.engine.batches import Data, Inputs, size_of, tensors_in
from whence.errors import notice
from whence.posteriors.base import Posterior

FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd 64-bit number
OFTEN, LEAST = 0.1, 2  # of the training examples that are looked for, before a notice is given
DISTINCT = 0.9  # of them must differ from each other: inputs with few values agree by chance
PASSES = 2  # over the validation data that are looked at


class Overlap:
    """Looks for the training examples that a posterior keeps in data that pass by."""

    def __init__(self, posterior: Posterior[Any]) -> None:
        kept = None if posterior.probe is None else row_hashes(posterior.probe[0])
        distinct = 0 if kept is None else len(kept.unique())
        self.known = kept if kept is not None and distinct >= max(LEAST, DISTINCT * len(kept)) else None
        self.found = None if self.known is None else torch.zeros_like(self.known, dtype=torch.bool)

    def watch(self, data: Data) -> None:
        """Look at the batches of ``data`` when they are read."""
        if self.known is None:
            return
        inner = data.check

        def check(inputs: Inputs) -> None:
            if inner is not None:
                inner(inputs)
            if data.read <= PASSES and self.known is not None and self.found is not None:
                self.found |= torch.isin(self.known, row_hashes(inputs).to(self.known.device))

        data.check = check

    def say(self) -> None:
        """Give a notice if training examples were seen."""
        if self.found is None:
            return
        count, of = int(self.found.sum()), len(self.found)
        if count >= max(LEAST, OFTEN * of):
            notice(
                f"the validation data contain training examples ({count} of the {of} that were looked for). The "
                "network fits those better than new data, so tuning on them makes it overconfident. Pass data that it "
                "was not trained on, or call tune() without data, which maximises the evidence."
            )


def row_hashes(inputs: Inputs) -> Tensor:
    """One 64-bit number for each example, exact and the same in any batch. Trailing zeros (padding) do not count."""
    total = torch.zeros(size_of(inputs), dtype=torch.int64, device=next(tensors_in(inputs)).device)
    for number, tensor in enumerate(t for t in tensors_in(inputs) if t.dim()):
        rows = _as_integers(tensor.detach()).reshape(len(total), -1)
        places = torch.arange(1, rows.shape[1] + 1, device=rows.device) * FACTOR + number
        mixed = rows * places
        total += (mixed ^ (mixed >> 29)).sum(1)
    return total


def _as_integers(tensor: Tensor) -> Tensor:
    """The bits of the numbers, as 64-bit integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.contiguous().double().view(torch.int64)
    return tensor.long()
