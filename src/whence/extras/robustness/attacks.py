"""The fast gradient sign method, single-step and iterative, on the averaged prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
from torch import Tensor, nn

from whence.engine.batches import as_source, check_finite, from_numpy, inputs_of, is_pair
from whence.errors import BadData, BadOption, whole_number
from whence.extras.robustness.averaged import AveragedPredictor
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior

BATCH = 512
SLACK = 1e-6  # tolerance of bounds, relative to their range


class AttackOptions(TypedDict, total=False):
    """Keywords of every attack; :mod:`whence.robustness` describes them."""

    scale: Any
    bounds: tuple[Any, Any] | None
    likelihood: Likelihood | Literal["classification"] | None
    method: Literal["linearised", "sampled"] | None
    num_samples: int | None
    generator: torch.Generator | None
    batch_size: int


def fgsm(
    posterior: Posterior | nn.Module,
    x: Any,
    step: float,
    *,
    labels: Any = None,
    target: Any = None,
    **options: Unpack[AttackOptions],
) -> Tensor:
    """Adversarial inputs by one step: x − η · scale · sgn(∇ₓ max_y log p(y|x)) (Goodfellow et al. 2014).

    p is the averaged prediction of the posterior, and the gradient goes through the average.

    Args:
        posterior: any posterior for classification, or a network with ``likelihood="classification"``.
        x: inputs [N, …], floating-point.
        step: η, the largest change of a dimension in units of ``scale`` (``eps`` in other libraries).
        labels: classes [N] to move away from, such as the true ones; None: the predicted ones.
        target: a class (or one for each input) to move towards instead.
        options: scale, bounds, likelihood, method, num_samples, generator, batch_size; see :mod:`whence.robustness`.
    """
    eta, inputs = step_size(step), one_tensor(x)
    if labels is not None and target is not None:
        raise BadOption("labels moves inputs away from classes, target towards one; pass only one of them.")
    attack = Attack.of(posterior, **options)
    start, steps = attack.start(inputs)
    given, name = (labels, "labels") if target is None else (target, "target")
    classes = None if given is None else attack.classes(given, start, name)
    signed = -eta if target is None else eta
    return torch.cat([steps.moved(piece, signed, some) for piece, some in attack.batches(start, classes)]).to(inputs)


@overload
def iterative(
    posterior: Posterior | nn.Module, x: Any, target: Any, step: float, steps: int, *, trace: Literal[False] = ...,
    **options: Unpack[AttackOptions],
) -> Tensor: ...  # fmt: skip


@overload
def iterative(
    posterior: Posterior | nn.Module, x: Any, target: Any, step: float, steps: int, *, trace: Literal[True],
    **options: Unpack[AttackOptions],
) -> Iterator[Tensor]: ...  # fmt: skip


def iterative(
    posterior: Posterior | nn.Module,
    x: Any,
    target: Any,
    step: float,
    steps: int,
    *,
    trace: bool = False,
    **options: Unpack[AttackOptions],
) -> Tensor | Iterator[Tensor]:
    """Inputs after ``steps`` updates x ← x + η · scale · sgn(∇ₓ log p(target|x)) (Kurakin et al. 2017).

    The draws are the same at every update. ``trace=True`` returns an iterator over x⁽⁰⁾ = x, x⁽¹⁾, …, x⁽ˢᵗᵉᵖˢ⁾, each
    computed on demand. The options are those of :func:`fgsm`.
    """
    eta, count, inputs = step_size(step), whole_number(steps, "steps", 0), one_tensor(x)
    attack = Attack.of(posterior, **options)
    start, moves = attack.start(inputs)
    classes = attack.classes(target, start, "target")
    if trace:
        return _trace(attack, moves, start, classes, eta, count, inputs)
    found = []
    for piece, some in attack.batches(start, classes):
        for _ in range(count):
            piece = moves.moved(piece, eta, some)
        found.append(piece)
    return torch.cat(found).to(inputs)


def _trace(
    attack: Attack, moves: Steps, x: Tensor, classes: Tensor, eta: float, count: int, like: Tensor
) -> Iterator[Tensor]:
    for t in range(count + 1):
        yield x.to(like, copy=True)
        if t < count:
            x = torch.cat([moves.moved(piece, eta, some) for piece, some in attack.batches(x, classes)])


@dataclass(frozen=True)
class Attack:
    """The target of an attack, and its options."""

    predictor: AveragedPredictor
    scale: Any
    bounds: Any
    batch_size: int

    @classmethod
    def of(
        cls,
        posterior: Posterior | nn.Module,
        *,
        scale: Any = None,
        bounds: Any = None,
        batch_size: int = BATCH,
        **prediction: Any,
    ) -> Attack:
        size = whole_number(batch_size, "batch_size")
        return cls(AveragedPredictor.of(posterior, **prediction), scale, bounds, size)

    @property
    def network(self) -> Network:
        return self.predictor.network

    def start(self, x: Tensor) -> tuple[Tensor, Steps]:
        """A copy of the inputs on the network's device, and the allowed steps."""
        x = placed(x, self.network)
        return x, Steps.make(self.predictor, x, self.scale, self.bounds)

    def classes(self, value: Any, x: Tensor, name: str) -> Tensor:
        """A class for each input, [N]."""
        return classes_of(value, len(x), self.predictor.classes(x), name).to(x.device)

    def batches(self, x: Tensor, classes: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        for start in range(0, len(x), self.batch_size):
            which = slice(start, start + self.batch_size)
            yield x[which], None if classes is None else classes[which]


@dataclass(frozen=True)
class Steps:
    """Steps x + η · scale · sign, clipped to bounds."""

    predictor: AveragedPredictor
    scale: Tensor | None = None  # broadcasts against one input
    low: Tensor | None = None
    high: Tensor | None = None

    @classmethod
    def make(cls, predictor: AveragedPredictor, x: Tensor, scale: Any, bounds: Any) -> Steps:
        """Check the keywords against inputs [N, …]."""

        def read(value: Any, name: str) -> Tensor:
            return _broadcastable(value, x.shape[1:], name).to(x)

        size = None if scale is None else read(scale, "scale")
        if size is not None and bool((size < 0).any()):
            raise BadOption(f"scale has negative values (down to {float(size.min()):g}); it must be 0 or more.")
        if bounds is None:
            return cls(predictor, size)
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise BadOption(f"bounds must be a pair (low, high), not {bounds!r}.")
        low, high = read(bounds[0], "bounds[0]"), read(bounds[1], "bounds[1]")
        if bool((low > high).any()):
            raise BadOption("bounds=(low, high): low is above high.")
        slack = SLACK * (high - low)
        if bool(((x < low - slack) | (x > high + slack)).any()):
            raise BadData(
                f"inputs are in [{float(x.min()):g}, {float(x.max()):g}], outside the bounds from {float(low.min()):g} "
                f"to {float(high.max()):g}. Bounds apply to the network's inputs: normalised inputs have "
                "other limits than 0 and 1."
            )
        return cls(predictor, size, low, high)

    def signs(self, direction: Tensor | None) -> Tensor:
        """The change by a unit step."""
        assert direction is not None
        return direction.sign() if self.scale is None else direction.sign() * self.scale

    def add(self, x: Tensor, step: float, signs: Tensor) -> Tensor:
        found = x + step * signs
        return found if self.low is None else found.clamp(self.low, self.high)

    def moved(self, x: Tensor, step: float, classes: Tensor | None) -> Tensor:
        """One step towards the classes [N] (None: the predicted ones), or away if ``step`` is negative."""
        return self.add(x, step, self.signs(self.predictor.predict(x, classes, gradient=True).direction))


# Arguments


def one_tensor(x: Any, what: str = "x") -> Tensor:
    """Inputs as one floating-point tensor [N, …] of finite numbers."""
    x = from_numpy(x)
    if not isinstance(x, Tensor):
        raise BadData(
            f"{what} is a {type(x).__name__}; an attack changes one tensor [N, …]. Wrap a network with several "
            "inputs in a module that takes only the one to change."
        )
    if not x.is_floating_point():
        raise BadData(
            f"{what} is of type {x.dtype}, but only real numbers have gradients. Pass floating-point "
            "inputs; for tokens attack the network from their embeddings on."
        )
    if x.dim() < 2 or not x.numel():
        raise BadData(f"{what} of shape {list(x.shape)} has no inputs; pass [N, …] with N > 0.")
    check_finite(x, f"{what}: the inputs", 0)
    return x


def placed(x: Tensor, network: Network) -> Tensor:
    """A copy on the network's device, without a graph."""
    return x.detach().to(network.device, network.dtype, copy=True)


def step_size(step: Any, name: str = "step") -> float:
    if not isinstance(step, Real) or isinstance(step, bool):
        raise BadOption(f"{name}={step!r} must be a number, 0 or more.")
    value = float(step)
    if not math.isfinite(value) or value < 0:
        raise BadOption(
            f"{name}={value:g} must be finite and 0 or more. The attack sets the direction; target=… moves "
            "towards a class."
        )
    return value


def _as_tensor(value: Any, name: str, expected: str) -> Tensor:
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"{name} is a {type(value).__name__}; pass {expected}.") from error


def _broadcastable(value: Any, shape: torch.Size, name: str) -> Tensor:
    found = _as_tensor(value, name, "a number or a tensor")
    try:
        fits = torch.broadcast_shapes(found.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise BadOption(
            f"{name} of shape {list(found.shape)} does not broadcast against one input of shape {list(shape)}."
        )
    if not bool(torch.isfinite(found).all()):
        raise BadOption(f"{name} contains NaN or infinite values.")
    return found


def classes_of(value: Any, size: int, classes: int, name: str) -> Tensor:
    """A class for each input, [N], from one number or one per input."""
    found = _as_tensor(value, name, "a class number or a tensor of them")
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise BadOption(f"{name} must be whole numbers, not {found.dtype}.")
    if found.dim() and tuple(found.shape) != (size,):
        raise BadOption(
            f"{name} of shape {list(found.shape)} for {size} inputs; pass one class, or one for each input."
        )
    wrong = found[(found < 0) | (found >= classes)].flatten()
    if len(wrong):
        raise BadOption(
            f"{name}={int(wrong[0])} is out of range: the network has {classes} outputs, so classes are 0 to "
            f"{classes - 1}."
        )
    return found.long().expand(size)


def span(data: Any) -> Tensor:
    """max − min of each input dimension over a data set, to pass as ``scale``; in the shape of one input.

    A dimension that never varies has span 0, and an attack scaled by it does not change it.
    """
    data = as_source(data)
    if isinstance(data, Tensor):
        parts: Iterable[Any] = [data]
    elif is_pair(data):
        parts = [data[0]]
    elif isinstance(data, Iterable):
        parts = (inputs_of(batch) for batch in data)
    else:
        raise BadData(f"span needs inputs or a loader, not a {type(data).__name__}.")
    low: Tensor | None = None
    high: Tensor | None = None
    for part in parts:
        x = one_tensor(np.asarray(part) if isinstance(part, list) else part, "data").detach()
        low = x.amin(0) if low is None else torch.minimum(low, x.amin(0))
        high = x.amax(0) if high is None else torch.maximum(high, x.amax(0))
    if low is None or high is None:
        raise BadData("data is empty: it yielded no example.")
    return high - low
