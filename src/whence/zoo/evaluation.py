"""How well a plain network does: mean loss, and accuracy or root mean square error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from whence.errors import BadData
from whence.zoo.data import DataSet, Examples
from whence.zoo.feed import as_examples, batches, outputs_of
from whence.zoo.settings import Loss

BATCH = 2048


@torch.no_grad()
def evaluate(network: nn.Module, data: Any, *, loss: Loss | None = None) -> dict[str, float]:
    """``loss`` and ``accuracy`` of class labels; ``loss`` and ``rmse`` of numbers. The network's mode is put back.

    ``data`` is what ``train`` takes; of a :class:`DataSet` it is the test part. For intervals, calibration and more see
    ``whence.metrics``.
    """
    device = next(network.parameters()).device
    source = _readable(data.test if isinstance(data, DataSet) else data, device)
    mode, count, scored = network.training, 0, 0
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    classes = True
    try:
        network.eval()
        for x, y in batches(source, device):
            out = outputs_of(network, x)
            classes = not y.is_floating_point()
            value = (loss or (F.cross_entropy if classes else F.mse_loss))(out, y)
            right = (out.argmax(1) == y) if classes and out.dim() > 1 else (out.reshape(y.shape) - y).square()
            totals += torch.stack([value * len(y), right.sum()]).double()
            count, scored = count + len(y), scored + right.numel()
    finally:
        network.train(mode)
    if count == 0:
        raise BadData("there is nothing to evaluate: the data are empty.")
    mean_loss, second = float(totals[0]) / count, float(totals[1]) / scored
    return {"loss": mean_loss, "accuracy": second} if classes else {"loss": mean_loss, "rmse": second**0.5}


def _readable(data: Any, device: torch.device) -> Examples | Iterable[Any]:
    if data is None:
        raise BadData("the data set has no such part.")
    source = as_examples(data, "data")
    return source.to(device).with_(batch_size=BATCH) if isinstance(source, Examples) else source
