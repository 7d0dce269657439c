"""Whether the validation data that a posterior is tuned on contain examples that the network was trained on."""

from __future__ import annotations

from typing import Any

import torch

from whence.engine.batches import Data, Inputs
from whence.engine.content import row_hashes
from whence.errors import notice
from whence.posteriors.base import Posterior

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
