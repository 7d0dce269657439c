"""The outputs of layers: how much they vary under draws of the weights, and how much members disagree.

Index legend: S draws or members, N inputs, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine.batches import as_inputs
from whence.errors import BadOption, NotDefined
from whence.functional import arguments, call_with
from whence.outputs import output_tensor
from whence.recording.blocks import owner_of
from whence.tables import Table

if TYPE_CHECKING:
    from whence.posteriors.base import WeightPosterior

MOST_INPUTS = 512  # for measuring variation
COMPARED_INPUTS, COMPARED_MEMBERS = 256, 20  # for disagreement, whose cost grows with the square of both
FEWEST = 3  # inputs

Hook = Callable[[str, nn.Module, tuple[Any, ...], Tensor], None]  # name, module, inputs, output


@contextmanager
def hooked(modules: Mapping[str, nn.Module], hook: Hook) -> Iterator[None]:
    """Call ``hook`` with the output of each module (the first of several) inside this context."""

    def wrapped(name: str) -> Callable[..., None]:
        def call(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor):
                hook(name, module, inputs, value)

        return call

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(wrapped(name)).remove)
        yield


@contextmanager
def layer_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """The output of each module in its last call, filled inside this context."""
    found: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> None:
        found[name] = output.detach()

    with hooked(modules, keep):
        yield found


@torch.no_grad()
def activations(
    posterior: WeightPosterior, x: Any, num_samples: int = 20, generator: torch.Generator | None = None
) -> Table:
    """One row for each layer: ``spread`` of its output under draws, spread ``over_inputs``, and their ratio.

    Root mean squares over inputs and features of the standard deviation over draws, and of that over inputs of the mean
    over draws. Draws change all layers together, so the variation of a layer includes that of earlier layers.
    """
    if num_samples < 2:
        raise BadOption(f"num_samples={num_samples}: at least two draws are needed.")
    network = posterior.network
    args, kwargs = arguments(next(iter(network.pieces(x, MOST_INPUTS))))
    draws = posterior.sample(num_samples, generator=generator)
    owners = dict.fromkeys(owner_of(name) for name in posterior.names())
    modules = {name: network.module.get_submodule(name) for name in owners if name}
    sums: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for s in range(num_samples):
        with layer_outputs(modules) as outputs:
            call_with(network.module, {name: values[s] for name, values in draws.items()}, args, kwargs)
        for name, value in outputs.items():
            value = value.double()
            sums[name] = sums[name] + value if name in sums else value
            squares[name] = squares[name] + value.square() if name in squares else value.square()
    spread, over_inputs = [], []
    for name in sums:
        mean = sums[name] / num_samples
        variance = (squares[name] / num_samples - mean.square()).clamp(min=0) * num_samples / (num_samples - 1)
        spread.append(float(variance.mean().sqrt()))
        over_inputs.append(float(mean.var(0, correction=1 if len(mean) > 1 else 0).mean().sqrt()))
    ratio = [a / b if b else float("inf") for a, b in zip(spread, over_inputs, strict=True)]
    return Table({"name": list(sums), "spread": spread, "over_inputs": over_inputs, "ratio": ratio})


# Disagreement
#
# Members of an ensemble, or draws of a chain, have no common weight coordinates, and their hidden units none either:
# units may be permuted or rotated. So layers are compared by their outputs for a set of inputs: 1 − CKA (Kornblith et
# al. 2019), averaged over pairs, is 0 if two layers separate inputs in the same way, whatever the order of units, and
# near 1 if they have nothing in common.


@torch.no_grad()
def disagreement(modules: list[nn.Module], x: Any, weights: Sequence[float] | None = None) -> Table:
    """One row for each layer that all members have; the last row is the output. None if CKA is not defined.

    ``weights`` of the members; a pair is weighted by their product.
    """
    given = [1.0] * len(modules) if weights is None else [float(w) for w in weights]
    different: dict[int, tuple[nn.Module, float]] = {}
    for module, weight in zip(modules, given, strict=True):
        different.setdefault(id(module), (module, weight))
    members = list(different.values())[:COMPARED_MEMBERS]
    if len(members) < 2:
        raise NotDefined(f"disagreement needs at least two different members, but there is {len(members)}.")
    layers = [_with_parameters(module) for module, _ in members]
    common = [name for name in layers[0] if all(name in other for other in layers[1:])]
    grams: dict[str, list[Tensor | None]] = {name: [] for name in [*common, "output"]}
    for (module, _), own in zip(members, layers, strict=True):
        like = next(module.parameters())
        args, kwargs = arguments(next(iter(as_inputs(x, like.device, like.dtype, COMPARED_INPUTS))))
        with layer_outputs({name: own[name] for name in common}) as outputs:
            output = output_tensor(module(*args, **kwargs), (args, kwargs))
        if len(output) < FEWEST:
            raise NotDefined(f"disagreement needs at least {FEWEST} inputs, but there is {len(output)}.")
        for name, value in [*outputs.items(), ("output", output)]:
            if value.dim() > 0 and len(value) == len(output):
                grams[name].append(centred_gram(value))
    kept = {name: found for name, found in grams.items() if len(found) == len(members)}
    return Table(
        {"name": list(kept), "disagreement": [_distance(found, [w for _, w in members]) for found in kept.values()]},
        "1 − CKA of the layer's outputs, averaged over pairs of members",
    )


def _with_parameters(module: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters of their own, by dotted name, in order."""
    return {n: m for n, m in module.named_modules() if n and any(True for _ in m.parameters(recurse=False))}


def _distance(grams: list[Tensor | None], weights: list[float]) -> float | None:
    """1 − CKA; None if a layer's output is the same for all inputs."""
    there = [g for g in grams if g is not None]
    return max(0.0, 1 - mean_alignment(there, weights)) if len(there) == len(grams) else None


def centred_gram(values: Tensor) -> Tensor | None:
    """H K H with K = F Fᵀ, of norm 1, [N, N]; None if it vanishes."""
    features = values.double().reshape(len(values), -1)
    scale = features.norm()
    features = features - features.mean(0)
    gram = features @ features.mT
    norm = gram.norm()
    return gram / norm if bool(norm > (1e-12 * scale) ** 2) and bool(norm > 0) else None


def mean_alignment(grams: list[Tensor], weights: Sequence[float] | None = None) -> float:
    """Linear CKA averaged over pairs: ⟨K, L⟩ / (‖K‖ ‖L‖)."""
    stacked = torch.stack([g.flatten() for g in grams])
    similar = stacked @ stacked.mT
    w = torch.ones(len(grams)) if weights is None else torch.tensor(weights)
    pairs = w.to(similar).unsqueeze(1) * w.to(similar)
    pairs.fill_diagonal_(0)
    return float((similar * pairs).sum() / pairs.sum())
