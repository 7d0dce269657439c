"""Networks and how they are trained; what is chosen is chosen on validation data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.bayesian_cnn.data import Data, load
from reproductions.experiment import Context
from whence import zoo
from whence.engine.files import digest_of_values, read_tensors, write_tensors
from whence.functional import load_tensors, tensors_of

Choice = dict[str, Any]
GREY: Choice = {"epochs": 6, "batch_size": 128, "nesterov": True, "weight_decay": 5e-4, "schedule": "cosine"}
COLOUR = GREY | {"epochs": 30}


@dataclass(frozen=True)
class Cell:
    """An architecture on a data set."""

    name: str
    network: str
    data: str
    side: int
    options: Choice = field(default_factory=dict)
    training: Choice = field(default_factory=lambda: dict(GREY))
    rates: tuple[float, ...] = (0.02, 0.05)  # learning rates of SGD to choose from
    epochs: int = 6  # of variational training
    seeds: tuple[int, ...] = (0, 1, 2)

    def load(self, seed: int, context: Context, fraction: float = 1.0, novel: int = 2000) -> Data:
        return load(self.data, seed, context.device, self.side, fraction, novel)

    def build(self, data: Data, seed: int, context: Context, **options: Any) -> nn.Module:
        """The network before training."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            made = zoo.networks.network(self.network, data.shape, data.classes, **self.options, **options)
        return made.to(context.device)


CELLS = {
    cell.name: cell
    for cell in (
        Cell("mnist-lenet5", "lenet5", "mnist", 28),
        Cell("mnist-alexnet", "alexnet", "mnist", 32),
        Cell("fashion-lenet5", "lenet5", "fashion", 28),
        Cell("fashion-alexnet", "alexnet", "fashion", 32),
        Cell("cifar-lenet5", "lenet5", "cifar", 32, training=COLOUR, epochs=20),
        Cell("cifar-lenet5-half", "lenet5", "cifar", 32, {"width": 0.5}, COLOUR, epochs=20),
        Cell("cifar-alexnet", "alexnet", "cifar", 32, training=COLOUR, rates=(0.01, 0.02), epochs=20),
        Cell("cifar-alexnet-half", "alexnet", "cifar", 32, {"width": 0.5}, COLOUR, (0.01, 0.02), 20),
        Cell("cifar-vgg11", "vgg", "cifar", 32, training=COLOUR, epochs=20),
    )
}
SMALL = GREY | {"epochs": 6}
QUICK = (Cell("digits-lenet5", "lenet5", "digits", 16, {"width": 0.5}, SMALL, (0.05,), 2, (0, 1)),)


@dataclass(frozen=True)
class Chosen:
    """What validation data preferred, and what its training cost."""

    model: Any
    choice: Choice
    losses: list[float]  # of all choices, on validation data
    seconds: float  # an epoch
    memory: float | None  # largest, in MB; None on a CPU


def best(choices: Sequence[Choice], fit: Callable[[Choice], tuple[Any, float, float]], device: str) -> Chosen:
    """``fit`` gives the model, its validation loss and seconds an epoch; the least loss wins."""
    found: list[tuple[float, Choice, Any, float, float | None]] = []
    for choice in choices:
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        model, loss, seconds = fit(choice)
        memory = torch.cuda.max_memory_allocated() / 1e6 if device.startswith("cuda") else None
        found.append((loss, choice, model, seconds, memory))
    loss, choice, model, seconds, memory = min(found, key=lambda row: row[0])
    return Chosen(model, choice, [row[0] for row in found], seconds, memory)


def plain(cell: Cell, data: Data, seed: int, context: Context, **options: Any) -> Chosen:
    """The trained network, from the cache where it is; the rate is chosen."""
    settings = cell.training | {k: options.pop(k) for k in ("l1",) if k in options}

    def fit(choice: Choice) -> tuple[nn.Module, float, float]:
        network = cell.build(data, seed, context, **options)
        described = [asdict(cell) | {"seeds": ()}, settings, options, choice, data.train.size, seed]
        kept = context.cache / f"bcnn-{cell.name}-{digest_of_values(described)[:20]}.safetensors"
        if kept.exists():
            tensors, about = read_tensors(kept)
            load_tensors(network, tensors)
            network.eval()
            return network, about["loss"], about["seconds"]
        start = time.perf_counter()
        zoo.train(
            network, data.train, seed=seed, device=context.device, progress=False,
            capture=context.device.startswith("cuda") and data.train.size >= settings["batch_size"],
            **settings, **choice,
        )  # fmt: skip
        seconds = (time.perf_counter() - start) / settings["epochs"]
        loss = zoo.evaluate(network, data.validation)["loss"]
        context.cache.mkdir(parents=True, exist_ok=True)
        write_tensors(kept, tensors_of(network), {"loss": loss, "seconds": seconds})
        return network, loss, seconds

    return best([{"lr": rate} for rate in cell.rates], fit, context.device)


def dropout(cell: Cell, data: Data, seed: int, context: Context, rates: Sequence[float]) -> Chosen:
    """MC dropout; the rate of dropout is chosen, with the learning rate of each."""

    def fit(choice: Choice) -> tuple[Any, float, float]:
        made = plain(cell, data, seed, context, dropout=choice["dropout"])
        posterior = whence.dropout(made.model, likelihood="classification")
        return posterior, validation_loss(posterior, data, seed), made.seconds

    return best([{"dropout": p} for p in rates], fit, context.device)


def variational(
    network: Callable[[], nn.Module], cell: Cell, data: Data, seed: int, context: Context, choices: Sequence[Choice],
    **options: Any,
) -> Chosen:  # fmt: skip
    """The variational posterior that validation data prefer."""
    x, y = data.train.tensors()

    def fit(choice: Choice) -> tuple[Any, float, float]:
        given = {"epochs": cell.epochs, "batch_size": 256, "lr": 2e-3, "lr_std": 1e-2} | options | choice
        posterior = whence.variational(
            network(), (x, y), likelihood="classification", seed=seed, progress=False, **given
        )
        return posterior, validation_loss(posterior, data, seed), posterior.history[-1].seconds / len(posterior.history)

    return best(choices, fit, context.device)


@torch.no_grad()
def validation_loss(posterior: Any, data: Data, seed: int, draws: int = 10) -> float:
    """Mean negative log likelihood of the averaged prediction."""
    x, y = data.validation.tensors()
    generator = torch.Generator().manual_seed(seed)
    probs = posterior.predict(x, num_samples=draws, generator=generator).probs
    return float(-probs.double().clamp(min=1e-30).log().gather(1, y[:, None]).mean())


@torch.no_grad()
def logits(network: nn.Module, x: Tensor) -> Tensor:
    """In double precision on the CPU."""
    return torch.cat([network(part).double().cpu() for part in x.split(1000)])
