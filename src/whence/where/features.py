"""What layers put out, by forward hooks on the posterior's own copy of the network; they are always removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.batches import Batch, Inputs, as_inputs, from_numpy, is_pair, size_of
from whence.errors import BadData, NotDefined
from whence.functional import fused_attention_off

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

BATCH = 256
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Features:
    """Of N inputs, float64 on the CPU."""

    logits: Tensor  # [N, C]
    last: Tensor  # [N, D]: what goes into the last linear layer
    layers: dict[str, Tensor]  # name → [N, O]: outputs of linear, convolutional and attention layers, mean over places
    targets: Tensor | None = None  # [N]

    @classmethod
    def joined(cls, parts: list[Features]) -> Features:
        common = [name for name in parts[0].layers if all(name in p.layers for p in parts)]
        return cls(
            torch.cat([p.logits for p in parts]),
            torch.cat([p.last for p in parts]),
            {name: torch.cat([p.layers[name] for p in parts]) for name in common},
            torch.cat([p.targets for p in parts if p.targets is not None]) if parts[0].targets is not None else None,
        )


def bare(data: Any) -> Any:
    """Inputs or a loader, to be read as often as needed: of a pair the inputs."""
    data = from_numpy(data)
    if isinstance(data, Iterator):
        raise BadData("the inputs are a one-shot iterator, but detectors read them several times. Pass a loader.")
    return data[0] if is_pair(data) else data


def features_of(posterior: Laplace, data: Any, *, targets: bool = False) -> Features:
    """Features of inputs, a loader or a pair; with ``targets`` of data that has them."""
    return Features.joined([_features(posterior, piece) for piece in _pieces(posterior, data, targets)])


def _pieces(posterior: Laplace, data: Any, targets: bool) -> Iterator[Inputs | Batch]:
    network = posterior.network
    if targets:
        yield from network.read(data, "train")
        return
    yield from as_inputs(bare(data), network.device, network.dtype, BATCH)


def _features(posterior: Laplace, piece: Inputs | Batch) -> Features:
    inputs, targets = (piece.inputs, piece.targets) if isinstance(piece, Batch) else (piece, None)
    size = size_of(inputs)
    seen = _Seen(size)
    with torch.no_grad(), fused_attention_off, ExitStack() as hooks:
        for name, module in posterior.network.module.named_modules():
            if isinstance(module, (nn.Linear, nn.MultiheadAttention, *CONVOLUTIONS)):
                hooks.callback(module.register_forward_hook(seen.hook(name)).remove)
        logits = posterior.network(inputs)
    if seen.last is None:
        raise NotDefined("the network calls no nn.Linear on [N, D]; detectors of its last features are not defined.")
    labels = None if targets is None else targets.reshape(size, -1)[:, 0].cpu()
    return Features(logits.double().cpu().reshape(size, -1), seen.last, seen.layers, labels)


class _Seen:
    """What the hooks of one forward pass saw."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.layers: dict[str, Tensor] = {}
        self.last: Tensor | None = None

    def hook(self, name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            first = 2 if isinstance(module, CONVOLUTIONS) else 1  # of the places that are averaged over
            if len(output) == self.size and output.dim() >= 2:
                places = tuple(range(first, output.dim() if first == 2 else output.dim() - 1))
                self.layers[name] = (output.mean(places) if places else output).double().cpu()
            if isinstance(module, nn.Linear) and inputs and inputs[0].dim() == 2 and len(inputs[0]) == self.size:
                self.last = inputs[0].double().cpu()

        return keep
