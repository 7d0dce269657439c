"""How well a plain network does: mean loss, and accuracy or root mean square error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whence.errors import BadData, BadOption
from whence.zoo.data import DataSet, Examples
from whence.zoo.feed import as_examples, batches, device_of, dtype_of, outputs_of, task_of
from whence.zoo.objective import Objective
from whence.zoo.settings import Loss, Settings

BATCH = 2048


def evaluate(network: nn.Module, data: Any, *, loss: str | Loss | None = None) -> dict[str, float]:
    """``loss`` and ``accuracy`` of labels; ``loss`` and ``rmse`` of numbers. Nothing about the network is changed.

    ``data`` is what ``train`` takes; of a :class:`DataSet` it is the test part. ``loss`` is what :class:`Settings`
    takes. For intervals, calibration and more see ``whence.metrics``.
    """
    part = data.test if isinstance(data, DataSet) else data
    if part is None:
        raise BadData("the data set has no such part.")
    with torch.random.fork_rng([]):  # a loader may shuffle
        source = as_examples(part, "data", dtype_of(network))
        objective = Objective.of(Settings(loss=loss), task_of(source))
        return score(network, source, objective)


@torch.no_grad()
def score(network: nn.Module, source: Examples | Iterable[Any], objective: Objective) -> dict[str, float]:
    """Means over all elements that count, whatever the batches."""
    device = device_of(network)
    if isinstance(source, Examples):
        source = source.to(device).with_(batch_size=BATCH)
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, hits or squares, elements
    kind: str | None = None
    with evaluation_mode(network), torch.random.fork_rng([]):
        for index, (x, y) in enumerate(batches(source, device)):
            out = outputs_of(network, x)
            if index == 0:
                objective.check(out, y)
            count = objective.counted(y)
            found = objective.score(out, y)
            kind = found[0] if found is not None else None
            second = found[1] if found is not None else torch.zeros((), device=device)
            totals += torch.stack([objective.loss(out, y).double() * count, second.double(), count.double()])
    loss, second, count = totals.tolist()
    if count == 0:
        raise BadData("there is nothing to evaluate: no element counts.")
    scores = {"loss": loss / count}
    if kind is not None:
        scores[kind] = second / count if kind == "accuracy" else (second / count) ** 0.5
    return scores


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode inside, and as it was outside."""
    modes = [(module, module.training) for module in network.modules()]
    if not any(True for _ in network.parameters()):
        raise BadOption("the network has no parameter.")
    try:
        network.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
