"""The fast gradient sign method, once and again and again, through the averaged prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from whence.errors import BadOption
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior
from whence.robustness.asking import averaged
from whence.robustness.averaged import Averaged
from whence.robustness.moving import Moves, amount, classes_of, one_tensor, placed, whole

BATCH = 512
Method = Literal["linearised", "sampled"]


def fgsm(
    posterior: Posterior | nn.Module,
    x: Any,
    step: float,
    *,
    labels: Any = None,
    target: Any = None,
    scale: Any = None,
    bounds: tuple[Any, Any] | None = None,
    likelihood: Likelihood | Literal["classification"] | None = None,
    method: Method | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int = BATCH,
) -> Tensor:
    """Adversarial inputs by one step: x − η · scale · sgn(∇ₓ max_y log p(y|x)) (Goodfellow et al. 2014).

    p is the averaged prediction of the posterior, and the gradient goes through the average.

    Args:
        posterior: any posterior for classification, or a plain network with ``likelihood="classification"``.
        x: inputs [N, …], floating-point.
        step: η, the largest change of a dimension in units of ``scale`` (``eps`` in other libraries).
        labels: classes [N] to move away from, such as the true ones; None: those predicted.
        target: a class (or one for each input) to move towards instead.
        scale: what one unit of step is in each dimension; broadcasts against one input. None: 1. See :func:`span`.
        bounds: (low, high) that the result is clipped to; None: no clipping.
        likelihood: of a plain network.
        method, num_samples, generator: as for ``posterior.predict``; the draws are the same for all inputs.
        batch_size: inputs at a time. Draws are taken in chunks that fit into memory.
    """
    eta, inputs = amount(step), one_tensor(x)
    if labels is not None and target is not None:
        raise BadOption("labels moves away from classes and target towards one; pass one of the two.")
    average = averaged(posterior, likelihood, method, num_samples, generator)
    moving, moves = prepared(average, inputs, scale, bounds)
    given, name = (labels, "labels") if target is None else (target, "target")
    classes = None
    if given is not None:
        classes = classes_of(given, len(moving), average.classes(moving), name).to(moving.device)
    sign = -1.0 if target is None else 1.0
    found = [
        moves.moved(piece, sign * eta, signs_at(average, moves, piece, some))
        for piece, some in cut(moving, classes, whole(batch_size, "batch_size"))
    ]
    return torch.cat(found).to(inputs)


@overload
def iterative(
    posterior: Posterior | nn.Module, x: Any, target: Any, step: float, steps: int, *, trace: Literal[False] = ...,
    scale: Any = ..., bounds: tuple[Any, Any] | None = ..., likelihood: Any = ..., method: Method | None = ...,
    num_samples: int | None = ..., generator: torch.Generator | None = ..., batch_size: int = ...,
) -> Tensor: ...  # fmt: skip


@overload
def iterative(
    posterior: Posterior | nn.Module, x: Any, target: Any, step: float, steps: int, *, trace: Literal[True],
    scale: Any = ..., bounds: tuple[Any, Any] | None = ..., likelihood: Any = ..., method: Method | None = ...,
    num_samples: int | None = ..., generator: torch.Generator | None = ..., batch_size: int = ...,
) -> Iterator[Tensor]: ...  # fmt: skip


def iterative(
    posterior: Posterior | nn.Module,
    x: Any,
    target: Any,
    step: float,
    steps: int,
    *,
    trace: bool = False,
    scale: Any = None,
    bounds: tuple[Any, Any] | None = None,
    likelihood: Likelihood | Literal["classification"] | None = None,
    method: Method | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    batch_size: int = BATCH,
) -> Tensor | Iterator[Tensor]:
    """Inputs after ``steps`` updates x ← x + η · scale · sgn(∇ₓ log p(target|x)) (Kurakin et al. 2017).

    The draws are the same at every update. ``trace=True`` gives an iterator over x⁽⁰⁾ = x, x⁽¹⁾, …, x⁽ˢᵗᵉᵖˢ⁾, each
    computed when it is asked for. The other options are those of :func:`fgsm`.
    """
    eta, count, inputs = amount(step), whole(steps, "steps", 0), one_tensor(x)
    size = whole(batch_size, "batch_size")
    average = averaged(posterior, likelihood, method, num_samples, generator)
    moving, moves = prepared(average, inputs, scale, bounds)
    classes = classes_of(target, len(moving), average.classes(moving), "target").to(moving.device)
    if trace:
        return _trace(average, moves, moving, classes, eta, count, size, inputs)
    found = []
    for piece, some in cut(moving, classes, size):
        for _ in range(count):
            piece = moves.moved(piece, eta, signs_at(average, moves, piece, some))
        found.append(piece)
    return torch.cat(found).to(inputs)


def _trace(
    average: Averaged, moves: Moves, x: Tensor, classes: Tensor, eta: float, steps: int, size: int, like: Tensor
) -> Iterator[Tensor]:
    for t in range(steps + 1):
        yield x.to(like, copy=True)
        if t < steps:
            pairs = cut(x, classes, size)
            x = torch.cat([moves.moved(piece, eta, signs_at(average, moves, piece, some)) for piece, some in pairs])


def prepared(average: Averaged, x: Tensor, scale: Any, bounds: Any) -> tuple[Tensor, Moves]:
    """The inputs where the network is, and how they may move."""
    moving = placed(x, average.network)
    moves = Moves.make(moving.shape[1:], average.network, scale, bounds)
    moves.check(moving)
    return moving, moves


def signs_at(average: Averaged, moves: Moves, x: Tensor, classes: Tensor | None) -> Tensor:
    """What one unit of step towards the classes (None: those predicted) adds to each input."""
    direction = average.look(x, classes, gradient=True).direction
    assert direction is not None
    return moves.signs(direction)


def cut(x: Tensor, classes: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    for start in range(0, len(x), size):
        which = slice(start, start + size)
        yield x[which], None if classes is None else classes[which]
