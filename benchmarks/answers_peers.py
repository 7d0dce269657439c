"""laplace-torch beside whence at real sizes: its last layer with Kronecker factors, and diagonals of all weights.

The last layer is what it recommends for large networks. Where it refuses or runs out of memory or time, its row is what
it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.answers_works import Asked, Job

SHARE = 16  # inputs of its predictions, and examples of its fits of all weights
MANY = 1000  # outputs, from which on its Jacobians of a last layer take gigabytes for each input


@dataclass(frozen=True)
class Peer:
    """A posterior of laplace-torch."""

    subset: str
    structure: str

    def fitted(self, asked: Asked, batch: int) -> Any:
        from laplace import Laplace

        data = asked.subject.batches(self.examples(asked), size=batch)
        la = Laplace(
            asked.subject.model,
            "classification",
            subset_of_weights=self.subset,
            hessian_structure=self.structure,
        )
        la.fit(Loader(data))
        return la

    @property
    def last(self) -> bool:
        return self.subset == "last_layer"

    def examples(self, asked: Asked) -> int:
        return asked.examples if self.last else min(asked.examples, SHARE)

    def batch(self, asked: Asked) -> int:
        """Of a fit: one example at a time where a Jacobian of all weights is kept for each."""
        return asked.batch if self.last else 1

    def fit(self, asked: Asked) -> Job:
        batch = self.batch(asked)
        return Job(lambda: lambda: self.fitted(asked, batch), self.examples(asked), batch)

    def predict(self, asked: Asked) -> Job:
        """In pieces: its memory and time grow with the square of their size."""
        piece = (2 if asked.subject.classes >= MANY else 16) if self.last else 1
        piece = min(piece, asked.inputs)
        count = min(asked.inputs, SHARE)

        def prepare() -> Callable[[], Any]:
            la, x = self.fitted(asked, self.batch(asked)), asked.x[:count]
            return lambda: torch.cat([la(part) for part in x.split(piece)])

        return Job(prepare, count, piece)


class Loader(list[Any]):
    """Batches that say how many examples there are, as laplace-torch asks of a data loader."""

    @property
    def dataset(self) -> range:
        return range(sum(len(y) for _, y in self))


PEERS = {
    "laplace-torch, last layer, Kronecker": Peer("last_layer", "kron"),
    "laplace-torch, last layer, diagonal": Peer("last_layer", "diag"),
    "laplace-torch, all weights, diagonal": Peer("all", "diag"),
}
JOBS: dict[tuple[str, str], Callable[[Asked], Job]] = {
    **{("fit", name): peer.fit for name, peer in PEERS.items()},
    **{("predict", name): peer.predict for name, peer in PEERS.items()},
}
