"""A trained network with its data; trained once, and read from the cache afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reproductions.experiment import Context
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.data import Data, load
from whence import zoo
from whence.engine.files import digest_of_values, read_tensors, write_tensors
from whence.functional import load_tensors, tensors_of
from whence.training.examples import Examples

BATCH = 500
DECIDES = ("network", "data", "training", "options", "changes", "train", "validation")  # the weights of a cell


@dataclass(frozen=True)
class Subject:
    """One network of a cell."""

    cell: Cell
    seed: int
    network: nn.Module
    data: Data

    @property
    def train(self) -> Examples:
        """Training data as the curvature sees them: not augmented, in order."""
        return self.data.train.with_(batch_size=BATCH, augment=None)

    @property
    def validation(self) -> tuple[Tensor, Tensor]:
        return self.data.validation.tensors()

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        return self.data.test.tensors()


def data_of(cell: Cell, seed: int, device: str) -> Data:
    return load(cell.data, seed, cell.train, cell.validation, cell.test, cell.novel, device)


def untrained(cell: Cell, seed: int, data: Data, device: str) -> nn.Module:
    """The network before training."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return cell.build(data.shape, data.classes).to(device)


def subject(
    cell: Cell, seed: int, context: Context, callback: Callable[..., Any] | None = None, **changes: Any
) -> Subject:
    """The network of a seed, from the cache where it is; ``changes`` of its training."""
    data = data_of(cell, seed, context.device)
    network = untrained(cell, seed, data, context.device)
    described = {
        k: v
        for k, v in asdict(cell).items()
        if k not in ("name", "seeds", "factor", "base", "test", "novel", "profiled")
    }
    kept = context.cache / f"kniebel-{cell.data}-{digest_of_values([described, changes, seed])[:20]}.safetensors"
    if callback is None and kept.exists():
        load_tensors(network, read_tensors(kept)[0])
        network.eval()
        return Subject(cell, seed, network, data)
    settings = {"schedule": "cosine", **cell.settings, **changes}
    if not context.device.startswith("cuda"):
        settings.pop("amp", None)
    train = data.train.with_(augment=cell.augment)
    zoo.train(
        network, train, seed=seed, device=context.device, progress=False, callback=callback,
        capture=context.device.startswith("cuda") and train.size >= cell.settings["batch_size"], **settings,
    )  # fmt: skip
    if callback is None:
        context.cache.mkdir(parents=True, exist_ok=True)
        write_tensors(kept, tensors_of(network), {})
    return Subject(cell, seed, network, data)


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """Raw outputs in double precision on the CPU."""
    return torch.cat([network(part).double().cpu() for part in x.split(BATCH)])
