"""Draws of the linearised network, for outputs that are too many for one backward pass each.

f*(x) ± J(x) z for directions z ~ N(0, Σ) in weight space, one forward-mode pass each. In pairs the mean over the draws
is exactly f*(x), and E[J z zᵀ Jᵀ] = J Σ Jᵀ, so the variance needs no correction for an estimated mean.

Index legend: S directions, N inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.curvature.jvp import room_for_tangents, tangents, with_shift
from whence.engine.batches import Inputs, cut, is_inputs, joined, size_of, take
from whence.engine.memory import ChunkLimits, in_parts_that_fit, sizes
from whence.engine.options import Option
from whence.engine.progress import over_inputs
from whence.errors import BadOption, EmptyData, NotDefined, notice
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood
from whence.predictive.directions import Directions, drawn
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.lattice_rows import FEW_OUTPUTS
from whence.predictive.linearised import bytes_of_one, fits, row_weights
from whence.predictive.links import predict_draws
from whence.predictive.predictions import CountPrediction, Prediction, RegressionPrediction, _Lazy, example_dim
from whence.predictive.sampled import BATCH, FunctionDraws
from whence.predictive.serving import LinearisedOutputs

DIRECTIONS = 32  # the variance of an output has a relative standard error of √(2 / 32) = 25%
BACKWARD = 4  # cost of one backward column in forward passes, roughly
FORWARD_MODE = 3  # cost of one direction, relative to a backward column
ROOM = 4  # copies of all outputs that a prediction holds


class LinearisedDraws(FunctionDraws):
    """A fixed set of functions x → f*(x) ± J(x) z, or with one sign ``alone`` f*(x) + J(x) z."""

    def __init__(
        self,
        network: Network,
        directions: Mapping[str, Tensor] | Directions,
        likelihood: Likelihood,
        alone: bool = False,
    ) -> None:
        self.network, self.likelihood, self.alone = network, likelihood, alone
        self._directions = directions if isinstance(directions, Directions) else Directions.held(dict(directions))
        self.pairs = self._directions.count

    @property
    def directions(self) -> Mapping[str, Tensor]:
        """z by parameter, [S, *shape]."""
        return self._directions.together()

    def __len__(self) -> int:
        return self.pairs if self.alone else 2 * self.pairs

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise NotDefined("draws of the linearised network come in pairs; take fewer with num_samples=.")
        if not -len(self) <= index < len(self):
            raise IndexError(f"draw {index} of {len(self)}")
        place = index % len(self)
        which, sign = place % self.pairs, 1.0 if place < self.pairs else -1.0
        one = {n: v[which : which + 1] * sign for n, v in self.directions.items()}
        alone = LinearisedDraws(self.network, one, self.likelihood)

        def function(x: Any) -> Tensor:
            mean, moved = alone.moved(x)
            return mean + moved[0]

        return function

    def modules(self) -> list[nn.Module]:
        """Not available: the linearised network is no plain module."""
        raise NotDefined("draws of the linearised network are no plain networks; as_module() serves them.")

    def module(self, example: Tensor) -> LinearisedOutputs:
        """A module x → outputs that can be exported, made from the network's graph on inputs like ``example``."""
        from whence.curvature.traced import traced_tangents

        shifted = self.network.shift is not None
        directions = with_shift(self.network, self.directions) if shifted else self.directions
        made = traced_tangents(self.network, example, directions)
        return LinearisedOutputs(made, max(1, room_for_tangents(self.network, example) // self.pairs), shifted)

    def pieces(self, x: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """f*(x) [N, …] and J(x) z [S, N, …] of some inputs at a time, as many as fit into memory."""
        step: int | None = None
        limits = ChunkLimits()
        for piece in over_inputs(self.network.pieces(x, BATCH), x, "predict"):
            if step is None:
                one = self.network(take(piece, slice(0, 1)))
                each = one.numel() * one.element_size() * len(self) * ROOM
                step = max(1, int(sizes().one_tensor(self.network.device) // max(each, 1)))
            for some in cut(piece, step):
                yield from self._in_parts(some, limits)
        limits.notify("the prediction")

    def _in_parts(self, inputs: Inputs, limits: ChunkLimits) -> Iterator[tuple[Tensor, Tensor]]:
        return in_parts_that_fit(
            inputs,
            self._tangents,
            limits=limits,
            size=size_of,
            split=lambda some, size: list(cut(some, size)),
            device=self.network.device,
            too_large=lambda _: (
                f"one input under {self.pairs} directions does not fit into the memory of {self.network.device}. Take "
                "fewer with num_samples=…, or select fewer weights with layers=…."
            ),
        )

    def _tangents(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        parts = [tangents(self.network, inputs, some) for some in self._directions.parts()]
        return parts[0][0], joined(moved for _, moved in parts)

    def moved(self, x: Any) -> tuple[Tensor, Tensor]:
        """f*(x) [N, …], and J(x) z of each direction [S, N, …]."""
        parts = list(self.pieces(x))
        return joined((mean for mean, _ in parts), dim=0), joined((moved for _, moved in parts), dim=1)

    def outputs(self, x: Any) -> Tensor:
        mean, moved = self.moved(x)
        return mean + self._signed(moved)

    def _signed(self, moved: Tensor) -> Tensor:
        return moved if self.alone else torch.cat([moved, -moved])

    def predict(self, x: Any) -> Prediction:
        """All inputs together, without keeping their draws."""
        parts: list[Any] = []
        known = _Lazy()
        for mean, moved in self.pieces(x):
            part: Any = self.predict_moved(mean, moved)
            if not isinstance(part, CountPrediction):  # the others have values that would keep the draws
                known = known if parts else part._lazy
                part = replace(part, _lazy=_Lazy())
            parts.append(part)
        if not parts:
            raise EmptyData("there are no inputs.")
        first = parts[0]
        values: dict[str, Any] = {}
        for f in fields(first):
            value = getattr(first, f.name)
            if isinstance(value, Tensor):
                values[f.name] = joined((getattr(p, f.name) for p in parts), dim=example_dim(f.name))
            else:
                values[f.name] = self._lazily(known, x) if isinstance(value, _Lazy) else value
        return type(first)(**values)  # type: ignore[no-any-return]

    def predict_moved(self, mean: Tensor, moved: Tensor) -> Prediction:
        """The prediction from outputs and their derivatives along the directions."""
        if not isinstance(self.likelihood, Gaussian) or self.alone:
            return predict_draws(self.likelihood, mean + self._signed(moved))
        noise = self.likelihood.variance(mean).reshape(mean.shape)
        covariance = None if moved.dim() != 3 else lambda: _covariance(moved)
        return RegressionPrediction(mean, noise, moved.square().mean(0), _lazy=_Lazy(covariance))

    def _lazily(self, known: _Lazy, x: Any) -> _Lazy:
        """What is computed from all inputs, again, when it is asked for."""

        def again(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
            def checked() -> Tensor:
                if not is_inputs(x):
                    raise NotDefined("draws for a loader are not kept; predict from a tensor, or batch by batch.")
                return compute()

            return checked

        covariance = None if known.covariance is None else again(lambda: _covariance(self.moved(x)[1]))
        samples: Callable[[], Tensor] | None = None
        if known.samples is not None:
            samples = again(lambda: self._samples(x))
        return _Lazy(covariance, samples, known.why_not)

    def _samples(self, x: Any) -> Tensor:
        found: Any = predict_draws(self.likelihood, self.outputs(x))
        return found.samples  # type: ignore[no-any-return]


def _covariance(moved: Tensor) -> Tensor:
    """Of the outputs, [N, C, C]."""
    return torch.einsum("snc,snd->ncd", moved, moved) / len(moved)


class Probes(Option):
    """What ``probes=`` says where it is no number: whether all outputs are differentiated.

    A number is of random columns in output space, which go backward, in ``where`` and ``novelty``; and of random
    directions in weight space, which go forward, in ``predict``.
    """

    AUTO = "auto"
    EXACT = "exact"


def check_probes(probes: Any) -> Probes | int:
    """What ``probes=`` asks for."""
    if isinstance(probes, str) and probes in list(Probes):
        return Probes(probes)
    if isinstance(probes, int) and not isinstance(probes, bool) and probes >= 2:
        return probes
    raise BadOption(f"probes={probes!r} must be 'auto', 'exact', or a whole number of 2 or more.")


def pairs_for(num_samples: int | None) -> int:
    """Directions for a number of draws."""
    return DIRECTIONS if num_samples is None else -(-num_samples // 2)


def directions_for(posterior: GaussianWeights, x: Any, probes: Probes | int, num_samples: int | None) -> int | None:
    """Number of directions for a prediction; None if all outputs are differentiated instead."""
    choice = Choice(posterior, pairs_for(num_samples))
    asked = choice.asked(probes, num_samples)
    if asked is not None or probes is Probes.EXACT or choice.few or not (is_inputs(x) or isinstance(x, Sized)):
        return asked
    first = next(posterior.network.pieces(x, BATCH))
    return choice.by_cost(first, size_of(x) if is_inputs(x) else size_of(first) * len(x))


@dataclass(frozen=True)
class Choice:
    """Whether outputs are differentiated, or ``wanted`` directions are drawn and sent forward ``passes`` times.

    Jacobians of many outputs are weighted for each of ``priors`` priors; of few ones a lattice stands for all of them.
    """

    posterior: GaussianWeights
    wanted: int
    what: str = "predict()"
    passes: int = 1
    priors: int = 0

    @property
    def cost(self) -> int:
        """In backward columns."""
        return FORWARD_MODE * self.wanted * self.passes

    @property
    def few(self) -> bool:
        """Whether the outputs are so few that they are differentiated in any case."""
        most = FEW_OUTPUTS if self.priors else FORWARD_MODE * DIRECTIONS
        return self.posterior.output_shape[0] <= min(self.cost, most)

    def asked(self, probes: Probes | int, num_samples: int | None) -> int | None:
        """The number of directions if it follows from the options, or from outputs that are dense."""
        if isinstance(probes, int):
            if num_samples is not None:
                raise BadOption("probes= and num_samples= both say how many draws; pass one of them.")
            return probes
        dense = len(self.posterior.output_shape) != 1
        if probes is Probes.EXACT and dense:
            raise NotDefined(
                f"{self.what} of dense outputs is by draws of the linearised network; pass probes= or num_samples= "
                "for their number."
            )
        return self.wanted if dense else None

    def by_cost(self, first: Inputs, inputs: int) -> int | None:
        """The number of directions for ``inputs`` inputs like the ``first``, unless differentiating is cheap enough."""
        posterior, outputs = self.posterior, self.posterior.output_shape[0]
        one = posterior.plan.record(take(first, slice(0, 1)), 1)
        device, column = posterior.network.device, BACKWARD * one.multiplications
        exact = outputs * column + self.priors * outputs**2 * row_weights(posterior, one)  # multiplications of an input
        ratio = exact / max(self.cost * column, 1)
        affordable = ratio <= 1 or inputs * exact <= sizes().exact_work(device)
        if one.is_last_layer or (affordable and fits(bytes_of_one(posterior, one), device)):
            return None
        longer = f"; probes='exact' takes about {ratio:,.0f} times as long" if not affordable else ""
        notice(
            f"{self.what} uses {2 * self.wanted} draws of the linearised network instead of differentiating all "
            f"{outputs:,} outputs{longer}."
        )
        return self.wanted


def linearised_draws(
    posterior: GaussianWeights, count: int, generator: torch.Generator | None = None
) -> LinearisedDraws:
    """``count`` directions of a posterior; the same ones every time unless a ``generator`` is passed."""
    device = posterior.network.device
    generator = torch.Generator(device).manual_seed(0) if generator is None else generator
    return LinearisedDraws(posterior.network, drawn(posterior, count, generator), posterior.likelihood)
