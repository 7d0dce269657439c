"""Data sets read into memory, so that a shuffling loader gives every section the same inputs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.batches import (
    Inputs,
    as_source,
    as_targets,
    check_finite,
    check_lengths,
    concatenate,
    from_numpy,
    inputs_of,
    is_pair,
    map_tensors,
    size_of,
    split_batch,
    take,
    tensors_in,
    to_device,
)
from whence.engine.padding import counted_positions, same_length
from whence.errors import BadData
from whence.functional import Network, source_for
from whence.likelihoods import Likelihood
from whence.posteriors.base import is_posterior
from whence.predictive.links import predict_draws
from whence.recording.independence import remedy
from whence.report.record.common import SetSize

IDS = ("input_ids", "tokens", "ids")  # names of token ids in a mapping


@dataclass(frozen=True)
class Examples:
    """Inputs, with targets if there are any, on the CPU."""

    name: str  # "test", "validation", "ood"
    inputs: Inputs
    targets: Tensor | None
    cut: bool = False  # whether examples were dropped
    index: Tensor | None = None  # their positions in the data as given, if some are left out
    given: int | None = None  # number of examples as given, if known

    def __len__(self) -> int:
        return size_of(self.inputs)

    @property
    def size(self) -> SetSize:
        return SetSize(len(self), self.cut)

    @property
    def pair(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets, with zeros for missing targets: always a pair."""
        return self.inputs, torch.zeros(len(self)) if self.targets is None else self.targets

    def at(self, index: Tensor) -> Examples:
        """The examples at these indices."""
        targets = None if self.targets is None else self.targets[index]
        return Examples(self.name, take(self.inputs, index), targets, self.cut, self.positions[index], self.given)

    @property
    def positions(self) -> Tensor:
        """Which of the examples as given these are."""
        return torch.arange(len(self)) if self.index is None else self.index

    @functools.cached_property
    def counted_positions(self) -> Tensor | None:
        """Which positions of the sequences are tokens, bool [N, T]; None if the inputs do not say."""
        return counted_positions(self.inputs)

    def positions_of(self, prediction: Any) -> Tensor | None:
        """The same, if the prediction has one label or number for every position."""
        counted = self.counted_positions
        shape = getattr(prediction, "labels", getattr(prediction, "mean", None)).shape  # type: ignore[union-attr]
        return counted if counted is not None and shape[:2] == counted.shape else None

    def thinned(self, most: int) -> Examples:
        """At most ``most`` examples, evenly spaced."""
        return self if len(self) <= most else self.at(spaced(len(self), most))

    def counted(self, likelihood: Likelihood) -> Examples:
        """Drop examples whose label the likelihood ignores."""
        counts = None if self.targets is None else likelihood.counts(self.targets)
        if counts is None or bool(counts.all()):
            return self
        if not bool(counts.any()):
            raise BadData(f"{self.name}: all {len(self):,} labels are ignored.")
        return self.at(counts.nonzero().flatten())


def spaced(total: int, count: int) -> Tensor:
    """``count`` of the numbers below ``total``, evenly spaced."""
    return torch.linspace(0, total - 1, count, dtype=torch.float64).round().long()


def source_of(data: Any, of: Any, role: str = "train") -> Any:
    """Data for a network or a posterior as tensors or a loader."""
    module = of if isinstance(of, nn.Module) else of.networks()[0] if is_posterior(of) else None
    return as_source(data, role=role) if module is None else source_for(module, data, role)


def read_examples(data: Any, name: str, most: int, targets: bool = True, of: Any = None) -> Examples | None:
    """Read at most ``most`` examples. Bare inputs are accepted too; ``targets=False`` ignores targets.

    ``of``: the network or posterior that they are for, which says what columns of a data set it takes.
    """
    if data is None:
        return None
    if isinstance(data, Mapping) and len({len(x) if hasattr(x, "__len__") else None for x in data.values()}) > 1:
        raise BadData(f"{name}: the values of the mapping have different lengths. {several_sets(name, data)}")
    data = source_of(data, of, name)
    if is_pair(data):
        inputs, given = data
        check_lengths(inputs, given, name)
        return _whole(name, inputs, given if targets else None, most)
    if isinstance(data, Mapping) and any(key in data for key in ("labels", "label", "targets", "target")):
        inputs, given = split_batch(data, 0)
        return _whole(name, inputs, as_targets(given, name, 0) if targets else None, most)
    if isinstance(data, (Tensor, Mapping)) or (isinstance(data, tuple) and all(isinstance(t, Tensor) for t in data)):
        return _whole(name, data, None, most)
    if not isinstance(data, Iterable):
        raise BadData(f"{name} is a {type(data).__name__}, which is neither a loader nor tensors.")
    return _read(name, data, most, targets)


def several_sets(name: str, given: Mapping) -> str:
    """What to write instead of a mapping of sets."""
    keys = ", ".join(map(repr, given))
    return (
        f"A mapping is one batch of named inputs (here {keys}), not several sets: pass one set as {name}=, and make an "
        "audit for each of them."
    )


def _whole(name: str, inputs: Inputs, targets: Tensor | None, most: int) -> Examples:
    count = size_of(inputs)
    if not count:
        raise BadData(f"{name} is empty: it contains no example.")
    check_finite(inputs, f"{name}: the inputs", 0)
    if targets is not None:
        check_finite(targets, f"{name}: the targets", 0)
    found = Examples(name, _on_cpu(inputs), None if targets is None else _on_cpu(targets), count > most, given=count)
    return found.thinned(most)


def _read(name: str, loader: Iterable[Any], most: int, targets: bool) -> Examples:
    inputs, given, seen, cut = [], [], 0, False
    for index, batch in enumerate(loader):
        if seen >= most:
            cut = True
            break
        x, y = _split(batch, index, name, targets)
        check_finite(x, f"{name}: the inputs", index)
        size = size_of(x)
        if size > most - seen:
            size, cut = most - seen, True
            x = take(x, slice(0, size))
        inputs.append(_on_cpu(x))
        seen += size
        if y is not None:
            check_finite(y, f"{name}: the targets", index)
            given.append(_on_cpu(y)[:size])
    if not seen:
        raise BadData(f"{name} is empty: it yielded no example. If it is a generator, it may be exhausted.")
    inputs, given = same_length(inputs, given, name)
    total = None if cut else seen
    return Examples(name, _joined(inputs, name), _joined(given, name) if given else None, cut, given=total)


def _joined(parts: list[Inputs], name: str) -> Inputs:
    try:
        return concatenate(parts)
    except RuntimeError as error:
        shapes = {str([list(t.shape[1:]) for t in tensors_in(part)]) for part in parts}
        some = ", ".join(sorted(shapes)[:4])
        raise BadData(
            f"{name}: examples of different shapes ({some}) cannot be concatenated. Pad all batches to one length, or "
            "pass mappings with an attention_mask [N, T], which are padded here."
        ) from error


def _split(batch: Any, index: int, name: str, targets: bool) -> tuple[Inputs, Tensor | None]:
    if isinstance(batch, Tensor) and not targets:
        return batch, None
    if not isinstance(batch, (Tensor, Mapping, tuple, list)):
        raise BadData(
            f"{name}: batch {index} is a {type(batch).__name__}. A batch is (inputs, targets), or a mapping with "
            "'labels'."
        )
    if not targets:
        x = from_numpy(inputs_of(batch))
    else:
        x, y = split_batch(batch, index) if not isinstance(batch, Tensor) else (batch, None)
        x, y = from_numpy(x), None if y is None else as_targets(y, name, index)
    if not any(True for _ in tensors_in(x)):
        raise BadData(f"{name}: the inputs of batch {index} are a {type(x).__name__}, which contains no tensor.")
    return x, (y if targets else None)


def _on_cpu(value: Any) -> Any:
    return map_tensors(lambda t: t.detach().cpu(), value)


def token_ids(inputs: Any) -> Tensor | None:
    """Whole numbers [N, T]."""
    if isinstance(inputs, Mapping):
        named = [inputs[key] for key in IDS if key in inputs]
        inputs = named[0] if named else None
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
        return None
    return inputs


def try_out(network: Network, inputs: Inputs, name: str, trained_on: str = "") -> Tensor:
    """Run one example through the network; errors are explained with the shapes."""
    one = to_device(take(inputs, slice(0, 1)), network.device, network.dtype)
    try:
        with torch.no_grad():
            return network(one)
    except (RuntimeError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, BadData):
            raise
        came = ", ".join(str(list(t.shape)) for t in tensors_in(one))
        expected = f"the training inputs are {trained_on}" if trained_on else _first_layer(network.module)
        expected = f" ({expected})" if expected else ""
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadData(
            f"{name}: the network fails on inputs of shape {came}{expected}: {reason}{remedy(network, inputs)}"
        ) from error


def _first_layer(module: nn.Module) -> str:
    """Describe the inputs that the first registered layer takes."""
    for name, part in module.named_modules():
        layer = f"the first layer, {name or 'the network'} ({type(part).__name__}), takes"
        if isinstance(getattr(part, "in_features", None), int):
            return f"{layer} inputs that end in {part.in_features} features"
        if isinstance(getattr(part, "in_channels", None), int):
            return f"{layer} inputs with {part.in_channels} channels"
        if isinstance(part, nn.Embedding):
            return f"{layer} whole numbers below {part.num_embeddings}"
    return ""


def check_targets(network: Network, likelihood: Likelihood, examples: Examples) -> None:
    """Refuse targets that do not match the network's outputs."""
    if examples.targets is not None:
        one = try_out(network, examples.inputs, examples.name).cpu()
        try:
            likelihood.check(one.expand(len(examples), *one.shape[1:]), examples.targets)
        except BadData as error:
            raise BadData(f"{examples.name}: {str(error).removeprefix('batch 0: ')}") from error


def plain_outputs(network: Network, inputs: Inputs, batch: int = 512) -> Tensor:
    """The outputs of the trained network, on the CPU."""
    found = []
    with torch.no_grad():
        for start in range(0, size_of(inputs), batch):
            piece = to_device(take(inputs, slice(start, start + batch)), network.device, network.dtype)
            found.append(network(piece).cpu())
    return torch.cat(found)


def plain_prediction(network: Network, likelihood: Likelihood, inputs: Inputs) -> Any:
    """The prediction of the trained network, on the CPU."""
    return predict_draws(likelihood, plain_outputs(network, inputs)[None])
