"""Networks as draws: an ensemble (Lakshminarayanan et al. 2017), equal or weighted.

Index legend: M members, S draws, N examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs, as_inputs, check_finite, size_of, tensors_in
from whence.copies import copy_module
from whence.curvature.jacobian import budget, widened
from whence.errors import BadData, BadOption
from whence.functional import Network, fused_attention_off, tensors_of
from whence.likelihoods import Likelihood
from whence.posteriors.drawn import DrawnPosterior, FunctionDraws, State
from whence.posteriors.ensembles.loss import resolve_without_data
from whence.posteriors.ensembles.mixture import allotted, check_weights, mixture, shares
from whence.posteriors.ensembles.stack import Stack, difference, slow_together
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction
from whence.predictive.sampled import BATCH, largest_activation
from whence.predictive.serving import Logits, served


def ensemble(
    models: Iterable[nn.Module],
    *,
    likelihood: Likelihood | Literal["classification", "binary"],
    weights: Any = None,
    probe: Any = None,
) -> Ensemble:
    """Trained networks as a posterior: the members are the draws.

    Args:
        models: two or more networks (one is allowed), of the same or of different architectures, with outputs of the
            same shape and meaning, on one device and in one floating-point type. They are copied.
        likelihood: as everywhere; for regression ``whence.Gaussian(noise=σ)``.
        weights: one number for each member, in proportion to which they count; equal by default.
        probe: inputs on which the members are compared at once, rather than at the first prediction.
    """
    resolved = resolve_without_data(likelihood, "ensemble")
    if isinstance(models, nn.ModuleList):
        models = list(models)
    if isinstance(models, nn.Module) or not isinstance(models, Iterable):
        raise BadData(f"ensemble takes a list of networks, not a {type(models).__name__}.")
    return make([Network.snapshot(model) for model in models], resolved, weights, probe=probe)


def make(
    networks: Sequence[Network],
    likelihood: Likelihood,
    weights: Any = None,
    history: Sequence[Any] = (),
    probe: Any = None,
) -> Ensemble:
    """Networks that the ensemble may keep, checked against each other."""
    if not networks:
        raise BadData("an ensemble needs at least one network; none was given.")
    first = networks[0]
    for index, network in enumerate(networks):
        for what in ("device", "dtype"):
            mine, its = getattr(network, what), getattr(first, what)
            if mine != its:
                raise BadData(f"member {index} is on {what} {mine} and member 0 on {its}; bring them to one by .to().")
    posterior = Ensemble(tuple(networks), likelihood, check_weights(weights, len(networks)), tuple(history))
    if probe is not None:
        few = next(as_inputs(probe, first.device, first.dtype, 2))
        posterior.draw().outputs(few)
    return posterior


@dataclass(frozen=True, eq=False)
class Ensemble(DrawnPosterior):
    """Made by :func:`whence.ensemble` or :func:`whence.fit_ensemble`."""

    members: tuple[Network, ...]
    likelihood: Likelihood  # type: ignore[misc]
    weights: Tensor | None = None  # [M], float64, sum 1; None: equal
    history: tuple[Any, ...] = field(default=(), repr=False)  # of each member's training: one row for each epoch
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    kind: ClassVar[str] = "ensemble"

    def __len__(self) -> int:
        return len(self.members)

    @property
    def default_draws(self) -> int:  # type: ignore[override]
        """The number of members."""
        return len(self.members)

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Of one example; None before any input was seen."""
        return self._cache.get("output_shape")

    def predict(
        self,
        x: Any,
        *,
        method: Literal["sampled"] | None = None,
        link: None = None,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        joint: bool = False,
    ) -> Prediction:
        """The prediction of all members, each by its weight; with ``num_samples`` that of so many draws of members."""
        self._refuse_closed_forms(method, link, joint)
        draws = self.draw(num_samples, generator=generator)
        with torch.set_grad_enabled(any(t.requires_grad for t in tensors_in(x))):
            return draws.predict(x)

    def draw(self, num_samples: int | None = None, generator: torch.Generator | None = None) -> EnsembleDraws:
        """Members as functions x → raw outputs.

        None: all of them, in order, with their weights. A number: so many draws in proportion to the weights, each
        member ⌊S w⌋ or ⌈S w⌉ times; with equal weights as many draws as members are all of them in order, fewer are a
        random subset, more repeat them.
        """
        if num_samples is None:
            return EnsembleDraws(self, list(range(len(self))), self.weights)
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        if self.weights is None and num_samples == len(self):
            return EnsembleDraws(self, list(range(len(self))), None)
        weights = torch.full((len(self),), 1 / len(self)).double() if self.weights is None else self.weights
        return EnsembleDraws(self, allotted(weights, num_samples, generator), None)

    def as_module(self, num_samples: int | None = None, generator: torch.Generator | None = None) -> nn.Module:
        """A module of the members that returns (mean, uncertainty, epistemic).

        Weights enter as whole numbers of repetitions: exactly where 256 or fewer can say them, else rounded.
        """
        if num_samples is None and self.weights is not None:
            places = [m for m, count in enumerate(shares(self.weights)) for _ in range(count)]
            return served(self.likelihood, EnsembleDraws(self, places, None).modules())
        return served(self.likelihood, self.draw(num_samples, generator=generator).modules())

    def with_weights(self, weights: Any) -> Ensemble:
        """The same members with other weights; None for equal ones."""
        return replace(self, weights=check_weights(weights, len(self)))

    def networks(self) -> list[nn.Module]:
        return [n.module for n in self.members]

    def state(self) -> State:
        weights = None if self.weights is None else self.weights.tolist()
        return State({"weights": weights, "history": list(self.history)}, {})

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Ensemble:
        networks = [Network.snapshot(m) for m in models]
        return make(networks, likelihood, state.meta["weights"], state.meta["history"])

    def to(self, *args: Any, **kwargs: Any) -> Ensemble:
        return replace(self, members=tuple(n.to(*args, **kwargs) for n in self.members), _cache={})

    def outputs(self, x: Any, which: Sequence[int]) -> Tensor:
        """Raw outputs of the members ``which``, [S, N, …]; each is asked once."""
        unique = sorted(set(which))
        network = self.members[0]
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(x))
        with fused_attention_off, torch.set_grad_enabled(wanted):
            pieces = network.pieces(x, BATCH)
            found = torch.cat([self._piece(piece, unique) for piece in pieces], dim=1)
        places = {member: place for place, member in enumerate(unique)}
        rows = [places[member] for member in which]
        return found if rows == list(range(len(unique))) else found[rows]

    def _piece(self, inputs: Inputs, unique: list[int]) -> Tensor:
        if len(unique) == len(self) and (stack := self._stacked(inputs)) is not None:
            return widened(stack.outputs(inputs))
        size, outputs = size_of(inputs), []
        for member in unique:
            out = self.members[member](inputs)
            self._check_shape(member, out, size)
            outputs.append(widened(out))
        return torch.stack(outputs)

    def _check_shape(self, member: int, out: Tensor, size: int) -> None:
        """Against what the first member that was asked gave."""
        shape = tuple(out.shape[1:])
        if len(out) != size:
            raise BadData(f"member {member} gives {len(out)} outputs for {size} inputs.")
        first, expected = self._cache.setdefault("first", (member, shape))
        if shape != expected:
            raise BadData(
                f"member {member} gives outputs of shape {list(shape)} for one input and member {first} of shape "
                f"{list(expected)}; members must agree on what they predict."
            )
        self._cache["output_shape"] = expected

    def _stacked(self, inputs: Inputs) -> Stack | None:
        """The members as one, where they are alike, small beside the memory budget, and vmap gives the same."""
        if "stack" not in self._cache:
            self._cache["stack"] = self._try_stack(inputs)
        stack: Stack | None = self._cache["stack"]
        if stack is None or 4 * self._cache["largest"] * size_of(inputs) * len(self) > budget(self.members[0].device):
            return None
        return stack

    def _try_stack(self, inputs: Inputs) -> Stack | None:
        modules = self.networks()
        if len(self) < 2 or difference(modules) is not None:
            return None
        first = self.members[0]
        held = sum(t.numel() * t.element_size() for t in tensors_of(first.module).values())
        if held * len(self) > budget(first.device) or slow_together(first.module, first.device):
            return None
        few = next(as_inputs(inputs, first.device, first.dtype, 1))
        with torch.no_grad():
            self._check_shape(0, first(few), 1)
        self._cache["largest"] = largest_activation(first, few)
        try:
            stack = Stack(modules)
        except RuntimeError:  # frozen in one member and not in another
            return None
        return stack if stack.agrees(modules, inputs) is None else None

    def __repr__(self) -> str:
        kinds = sorted({type(n.module).__name__ for n in self.members})
        weighted = (
            "equal weights" if self.weights is None else f"weights {[round(w, 4) for w in self.weights.tolist()]}"
        )
        return f"Ensemble({len(self)} members: {', '.join(kinds)}; {weighted}; {self.likelihood!r})"


class EnsembleDraws(FunctionDraws):
    """Some members, perhaps repeated; ``weights`` where the draws do not count equally."""

    def __init__(self, posterior: Ensemble, which: list[int], weights: Tensor | None) -> None:
        self.posterior, self.which, self.weights = posterior, which, weights
        self.likelihood = posterior.likelihood

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            weights = None if self.weights is None else check_weights(self.weights[index], len(self.which[index]))
            return EnsembleDraws(self.posterior, self.which[index], weights)
        if not -len(self) <= index < len(self):
            raise IndexError(f"draw {index} of {len(self)}")
        return lambda x: self.posterior.outputs(x, [self.which[index]])[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def outputs(self, x: Any) -> Tensor:
        return self.posterior.outputs(x, self.which)

    def modules(self) -> list[nn.Module]:
        made: dict[int, nn.Module] = {}
        for member in set(self.which):
            network = self.posterior.members[member]
            module = copy_module(network.module).requires_grad_(False).eval()
            made[member] = Logits(module).eval() if network.returns_object else module
        return [made[member] for member in self.which]

    def predict(self, x: Any) -> Prediction:
        outputs = self.outputs(x)
        check_finite(outputs, "the outputs of the members", 0)
        if self.weights is None:
            return predict_draws(self.likelihood, outputs)
        return mixture([predict_draws(self.likelihood, outputs[i : i + 1]) for i in range(len(self))], self.weights)


def members_of(models: Any) -> list[nn.Module]:
    """The networks of an ensemble, or of a list."""
    if isinstance(models, Ensemble):
        return models.networks()
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise BadData("one network makes no ensemble; pass a list of networks, or an Ensemble.")
    found = list(models) if isinstance(models, Iterable) else []
    if not found:
        raise BadData(f"a list of networks or an Ensemble is needed, not {type(models).__name__}.")
    return found
