"""Networks as draws: an ensemble (Lakshminarayanan et al. 2017), equal or weighted.

Index legend: M members, S draws, N examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, as_inputs, check_count, check_finite, size_of
from whence.engine.contexts import fused_attention_off
from whence.engine.follow import is_followed
from whence.engine.memory import sizes
from whence.errors import BadData, BadOption, explains_keywords
from whence.functional import Network, tensors_of
from whence.likelihoods import Likelihood, resolve
from whence.linalg.dense import widened
from whence.posteriors.base import PERMUTED, LayerStructure, by_owner, layer_structures
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.ensembles.mixture import allotted, check_weights, mixture, shares
from whence.posteriors.ensembles.vectorised import StackedNetworks, difference, slower_vectorised
from whence.predictive.dispatch import Method
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction
from whence.predictive.sampled import BATCH, FunctionDraws, largest_activation
from whence.predictive.serving import Logits, Members
from whence.predictive.sources import Drawn, Source

if TYPE_CHECKING:
    from whence.where.where import Where


@explains_keywords
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
            same shape and meaning, on one device and in one floating-point dtype. They are copied.
        likelihood: as for :func:`whence.laplace`; for regression ``whence.Gaussian(noise=σ)``.
        weights: one number per member; equal by default.
        probe: inputs on which the members are compared now instead of at the first prediction.
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
    """An ensemble of networks (not copied), after checking that they match."""
    if not networks:
        raise BadData("an ensemble needs at least one network; none was given.")
    first = networks[0]
    for index, network in enumerate(networks):
        for what in ("device", "dtype"):
            mine, its = getattr(network, what), getattr(first, what)
            if mine != its:
                raise BadData(f"member {index} has {what} {mine} and member 0 {its}; use .to() to make them the same.")
    posterior = Ensemble(tuple(networks), likelihood, check_weights(weights, len(networks)), tuple(history))
    if probe is None:
        return posterior
    outputs = posterior.draw().outputs(next(as_inputs(probe, first.device, first.dtype, 2)))
    return replace(posterior, output_shape=tuple(outputs.shape[2:]))


def resolve_without_data(likelihood: Likelihood | str, verb: str) -> Likelihood:
    """The likelihood for functions without data, which cannot estimate a noise."""
    found, estimate = resolve(likelihood)
    if estimate:
        raise BadOption(
            f"likelihood='regression' estimates the noise from training residuals, but {verb} has no data; pass "
            "likelihood=whence.Gaussian(noise=σ)."
        )
    return found


def check_output_shapes(shapes: Mapping[int, tuple[int, ...]]) -> None:
    """Refuse members that predict different things, by the shape of their outputs for one input."""
    first, expected = next(iter(shapes.items()))
    for member, shape in shapes.items():
        if shape != expected:
            raise BadData(
                f"member {member} has outputs of shape {list(shape)} for one input and member {first} of shape "
                f"{list(expected)}; members must agree on what they predict."
            )


class MemberPosterior(DrawnPosterior):
    """Members without common weight coordinates. Layers and structures are the first member's."""

    at_trained_weights = False  # the first member is the plain network only if it is the only one

    def networks(self) -> list[nn.Module]:
        return [network.module for network in self.snapshots]

    def layers(self) -> dict[str, list[str]]:
        return by_owner(list(self.snapshots[0].params))

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return layer_structures(self.snapshots[0], self.layers(), lambda _: "members")

    @property
    def parameters(self) -> int:
        """Weights of all members."""
        return sum(p.numel() for network in self.snapshots for p in network.params.values())

    @property
    def no_weights(self) -> str:
        return PERMUTED.format(members="members of an ensemble")

    def comparable(self) -> list[nn.Module]:
        return self.networks()

    def _where(self, x: Any) -> Where:
        from whence.where.sampled import where_members

        return where_members(self, x)


@dataclass(frozen=True, eq=False)
class Ensemble(MemberPosterior):
    """Made by :func:`whence.ensemble` or :func:`whence.fit_ensemble`."""

    members: tuple[Network, ...]
    likelihood: Likelihood
    weights: Tensor | None = None  # [M], float64, sum 1; None: equal
    history: tuple[Any, ...] = field(default=(), repr=False)  # each member's training, one row per epoch
    output_shape: tuple[int, ...] | None = None  # of one example; None if made without inputs

    kind: ClassVar[str] = "ensemble"

    def __len__(self) -> int:
        return len(self.members)

    @property
    def default_draws(self) -> int:  # type: ignore[override]
        """The number of members."""
        return len(self.members)

    @explains_keywords
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
        """The prediction of all members, weighted; with ``num_samples``, of that many draws of members."""
        self._refuse_closed_forms(method, link, joint)
        draws = self.draw(num_samples, generator=generator)
        with torch.set_grad_enabled(is_followed(x)):
            return draws.predict(x)

    def draw(self, num_samples: int | None = None, generator: torch.Generator | None = None) -> EnsembleDraws:
        """Members as functions x → raw outputs.

        None: all members in order, with their weights. A number: that many draws in proportion to the weights, each
        member ⌊S w⌋ or ⌈S w⌉ times; with equal weights, as many draws as members are all members in order, fewer are a
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

    def served_outputs(
        self, method: Method, num_samples: int | None, generator: torch.Generator | None, example: Tensor | None
    ) -> nn.Module:
        """The members. Weights become whole numbers of repetitions: exact if 256 suffice, otherwise rounded."""
        self._refuse_closed_forms(method, None, False)
        if num_samples is None and self.weights is not None:
            places = [m for m, count in enumerate(shares(self.weights)) for _ in range(count)]
            return Members(EnsembleDraws(self, places, None).modules())
        return Members(self.draw(num_samples, generator=generator).modules())

    def with_weights(self, weights: Any) -> Ensemble:
        """The same members with other weights; None for equal weights."""
        return replace(self, weights=check_weights(weights, len(self)))

    @property
    def snapshots(self) -> tuple[Network, ...]:
        return self.members

    def sources(
        self, method: str | None = None, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> list[Source]:
        """Members with positive weight; all together if they have equal weights."""
        self._refuse_closed_forms(method, None, False)
        draws, network = self.draw(num_samples, generator=generator), self.members[0]
        if draws.weights is None:
            return [Drawn(draws, network)]
        pairs = [(m, w) for m, w in zip(draws.which, draws.weights.tolist(), strict=True) if w > 0]
        weights = torch.tensor([w for _, w in pairs], dtype=torch.float64)
        return [Drawn(EnsembleDraws(self, [m for m, _ in pairs], None), network, weights)]

    def state(self) -> State:
        weights = None if self.weights is None else self.weights.tolist()
        return State({"weights": weights, "history": list(self.history), "output_shape": self.output_shape}, {})

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Ensemble:
        made = make([Network.snapshot(m) for m in models], likelihood, state.meta["weights"], state.meta["history"])
        shape = state.meta.get("output_shape")
        return made if shape is None else replace(made, output_shape=tuple(shape))

    def to(self, *args: Any, **kwargs: Any) -> Ensemble:
        return replace(self, members=tuple(n.to(*args, **kwargs) for n in self.members))

    def outputs(self, x: Any, which: Sequence[int]) -> Tensor:
        """Raw outputs of the members ``which``, [S, N, …]; each member is evaluated once."""
        unique = sorted(set(which))
        network = self.members[0]
        wanted = torch.is_grad_enabled() and is_followed(x)
        with fused_attention_off, torch.set_grad_enabled(wanted):
            pieces = network.pieces(x, BATCH)
            found = torch.cat([self._piece(piece, unique) for piece in pieces], dim=1)
        places = {member: place for place, member in enumerate(unique)}
        rows = [places[member] for member in which]
        return found if rows == list(range(len(unique))) else found[rows]

    def _piece(self, inputs: Inputs, unique: list[int]) -> Tensor:
        if len(unique) == len(self) and (stack := _stack_of(self.members, inputs)) is not None:
            return widened(stack.outputs(inputs))
        outputs = [self.members[member](inputs) for member in unique]
        for member, out in zip(unique, outputs, strict=True):
            check_count(out, size_of(inputs), f" of member {member}")
        check_output_shapes({member: tuple(out.shape[1:]) for member, out in zip(unique, outputs, strict=True)})
        return torch.stack([widened(out) for out in outputs])

    def __repr__(self) -> str:
        kinds = sorted({type(n.module).__name__ for n in self.members})
        weighted = (
            "equal weights" if self.weights is None else f"weights {[round(w, 4) for w in self.weights.tolist()]}"
        )
        return f"Ensemble({len(self)} members: {', '.join(kinds)}; {weighted}; {self.likelihood!r})"


@dataclass(frozen=True)
class _Stack:
    """Stacked networks of an ensemble; holds no reference to the members."""

    ids: tuple[int, ...]  # id() of the members
    networks: StackedNetworks | None  # None if they cannot be stacked
    largest: int = 0  # bytes of the largest activation of one member for one input


_stacks: WeakKeyDictionary[Network, _Stack] = WeakKeyDictionary()  # by the first member; made once


def _stack_of(members: tuple[Network, ...], inputs: Inputs) -> StackedNetworks | None:
    """The members stacked, if they have one architecture, fit the memory budget, and vmap gives the same outputs."""
    first = members[0]
    found = _stacks.get(first)
    if found is None or found.ids != tuple(map(id, members)):
        found = _stacks[first] = _stacked(members, inputs)
    needed = 4 * found.largest * size_of(inputs) * len(members)
    return None if needed > sizes().one_tensor(first.device) else found.networks


def _stacked(members: tuple[Network, ...], inputs: Inputs) -> _Stack:
    ids, modules, first = tuple(map(id, members)), [member.module for member in members], members[0]
    weights = sum(t.numel() * t.element_size() for t in tensors_of(first.module).values())
    if (
        len(members) < 2
        or difference(modules) is not None
        or weights * len(members) > sizes().one_tensor(first.device)
        or slower_vectorised(first.module, first.device)
    ):
        return _Stack(ids, None)
    try:
        stack = StackedNetworks(modules)
    except RuntimeError:  # a parameter is frozen in one member and not in another
        return _Stack(ids, None)
    if stack.differs(modules, inputs) is not None:
        return _Stack(ids, None)
    one = next(as_inputs(inputs, first.device, first.dtype, 1))
    return _Stack(ids, stack, largest_activation(first, one))


class EnsembleDraws(FunctionDraws):
    """Some members, perhaps repeated; ``weights`` if the draws are not equally weighted."""

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
        raise BadData("a single network is not an ensemble; pass a list of networks, or an Ensemble.")
    found = list(models) if isinstance(models, Iterable) else []
    if not found:
        raise BadData(f"pass a list of networks or an Ensemble, not a {type(models).__name__}.")
    return found
