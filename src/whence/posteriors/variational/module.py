"""An ``nn.Module`` with variational parameters, to train in any loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs
from whence.engine.contexts import fused_attention_off
from whence.engine.randomness import preserved_random_state
from whence.errors import BadOption, UnsupportedLayer, one_of, whole_numbers
from whence.functional import Network, arguments, call_with
from whence.outputs import output_tensor
from whence.posteriors.base import layer_blocks
from whence.posteriors.variational.blocks import BlockPass, VariationalBlock, begin_joined, joinable, kl_joined
from whence.posteriors.variational.estimators import ESTIMATORS, EstimatorName, Substitution, flipout
from whence.posteriors.variational.parameters import (
    Family,
    make_blocks,
    refuse_unconvertible,
    reset_parameters,
    selected_parameters,
)
from whence.posteriors.variational.priors import ScaleMixture, WeightPrior, make_prior
from whence.priors import PriorPrecision, check_prior
from whence.recording.blocks import Block, owner_of
from whence.recording.selection import Layers
from whence.tables import Table

FamilyName = Literal["mean_field", "alpha", "matrix_normal", "low_rank"]


@dataclass(frozen=True, eq=False)
class Unregistered:
    """Holds a module so that its owner does not register it as a submodule."""

    module: nn.Module


class VariationalModule(nn.Module):
    """A network whose weights are Gaussian: ``loss = nll_sum * N / batch + module.kl()`` in your own loop.

    In training mode every call draws new weights, by the estimator; in evaluation mode the weights are at their mean.
    The network itself always runs in evaluation mode: dropout is off, batch normalisation keeps its running statistics.
    ``parameters()`` and ``state_dict()`` hold the variational parameters alone: for independent weights twice as many
    as the network has. :meth:`counts` counts them by layer.

    Args:
        model: any ``nn.Module``. It is copied, and never changed.
        family: ``"mean_field"``: σ = softplus(ρ); ``"alpha"``: σ² = α μ²; ``"matrix_normal"``: U ⊗ V for each weight
            matrix with its bias (other parameters are mean-field); ``"low_rank"``: diag(σ²) + B Bᵀ over all weights.
        estimator: ``"local"`` reparameterisation, ``"flipout"``, or plain ``"weights"``.
        prior_precision: a number, a mapping from layer names to numbers, a :class:`whence.Prior`, or a
            :class:`ScaleMixture`.
        initial_std: initial standard deviations; relative to the weight for ``"alpha"``.
        start: the model's weights, or reinitialised by the layers' own ``reset_parameters``.
        layers: which weights are random: ``None`` all, patterns on module names, or a predicate.
        rank: the rank of ``"low_rank"``.
        generator: randomness of the start and of all draws.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        family: FamilyName = "mean_field",
        estimator: EstimatorName = "local",
        prior_precision: Any = 1.0,
        initial_std: float = 0.01,
        start: Literal["trained", "scratch"] = "trained",
        layers: Layers = None,
        rank: int = 8,
        generator: torch.Generator | None = None,
        _names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        chosen = check_options(family, estimator, initial_std, rank, prior_precision)
        anew = one_of(start, ("trained", "scratch"), "start") == "scratch"
        network = Network.snapshot(model)
        names = list(_names) if _names is not None else selected_parameters(network, layers)
        refuse_unconvertible(network, names)
        self.family, self.estimator, self.rank = chosen, estimator, rank
        self.origin_hash = network.hash
        self.generator = generator
        values = {n: network.params[n].detach().clone() for n in names}
        if anew:
            values = reset_parameters(network, names, generator)
        self.blocks = nn.ModuleList(make_blocks(network, names, values, chosen, initial_std, rank, generator))
        self.layer_blocks: list[Block] = layer_blocks(network, names)
        self.prior: WeightPrior = make_prior(prior_precision, self.layer_blocks)
        network.module.requires_grad_(False)
        self._given = Unregistered(network.module)
        self.names = names

    @property
    def model(self) -> nn.Module:
        """The network as it was given. It is no submodule: its weights are neither trained nor in ``state_dict()``."""
        return self._given.module

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> VariationalModule:
        """Move or convert the network inside too."""
        self.model._apply(fn)
        super()._apply(fn, recurse)
        return self

    def counts(self) -> Table:
        """How many numbers each layer has: as it was given, to train, and to store; the last row is the sum.

        ``parameters``: of the network. ``trainable``: of this module, as in ``parameters()``. ``stored``: what a
        prediction needs, which is ``trainable`` and the network's frozen parameters and buffers.
        """
        rows: dict[str, list[int]] = {}

        def add(layer: str, *numbers: int) -> None:
            rows[layer] = [a + b for a, b in zip(rows.get(layer, [0, 0, 0]), numbers, strict=True)]

        random = set(self.names)
        for block in self.variational_blocks():
            size = sum(p.numel() for p in block.parameters())
            add(block.layer, block.size, size, size)
        for name, p in self.model.named_parameters():
            if name not in random:
                add(owner_of(name) or name, p.numel(), 0, p.numel())
        for name, buffer in self.model.named_buffers():
            add(owner_of(name) or name, 0, 0, buffer.numel())
        add("total", *(sum(column) for column in zip(*rows.values(), strict=True)))
        columns = zip(*rows.values(), strict=True)
        named = dict(zip(("parameters", "trainable", "stored"), map(list, columns), strict=True))
        return Table({"name": list(rows), **named})

    def train(self, mode: bool = True) -> VariationalModule:
        """Switch draws on or off; the network inside stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def variational_blocks(self) -> list[VariationalBlock]:
        return list(self.blocks)  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs: random in training mode, otherwise at the mean."""
        if not self.training:
            with fused_attention_off:
                return call_with(self.model, self.mean(), args, kwargs)
        return self.stochastic(args, kwargs)[0]

    def outputs(self, inputs: Inputs) -> Tensor:
        """Raw outputs for the inputs of a loader's batch."""
        args, kwargs = arguments(inputs)
        return output_tensor(self(*args, **kwargs), (args, kwargs))

    def stochastic(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, set[str]]:
        """One random pass, and the parameters that it used."""
        means = self.mean()
        holders = {id(loc): name for name, loc in means.items()}
        passes: dict[str, BlockPass] = {}
        together = joinable(self.variational_blocks())
        if together:
            begun = begin_joined(together, self.generator)
            passes.update(zip((b.params[0].name for b in together), begun, strict=True))
        for block in self.variational_blocks():
            if block.names[0] not in passes:
                passes.update(dict.fromkeys(block.names, block.begin(self.generator)))
        mode = Substitution(holders, passes, ESTIMATORS[self.estimator], self.generator)
        with fused_attention_off, mode:
            out = call_with(self.model, means, args, kwargs)
        return out, mode.met

    # Weights

    def mean(self) -> dict[str, Tensor]:
        """Parameter name → μ, the variational parameter itself."""
        found = {n: v for block in self.variational_blocks() for n, v in block.mean().items()}
        return {n: found[n] for n in self.names}

    def sample(self, num_samples: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Parameter name → draws [S, *shape], differentiable in the variational parameters."""
        found: dict[str, Tensor] = {}
        for block in self.variational_blocks():
            found.update(block.sample(num_samples, generator if generator is not None else self.generator))
        return {n: found[n] for n in self.names}

    def kl(self, num_samples: int = 1) -> Tensor:
        """KL(q ‖ p), summed over all weights: closed-form for a Gaussian prior, by draws for a mixture."""
        together = joinable(self.variational_blocks())
        if together and isinstance(self.prior, PriorPrecision):
            value = kl_joined(together, self.prior)
            if value is not None:
                rest = [b.kl(self.prior) for b in self.variational_blocks() if b not in together]
                return torch.stack([value, *rest]).sum() if rest else value
        return torch.stack(list(self.kl_by_layer(num_samples).values())).sum()

    def kl_by_layer(self, num_samples: int = 1) -> dict[str, Tensor]:
        """The KL by layer; the sum is :meth:`kl`."""
        found: dict[str, Tensor] = {}
        for block in self.variational_blocks():
            if isinstance(self.prior, ScaleMixture):
                value = block.kl_by_draws(self.prior, num_samples, self.generator).mean()
            else:
                value = block.kl(self.prior)
            found[block.layer] = found[block.layer] + value if block.layer in found else value
        return found

    def check(self, inputs: Inputs) -> None:
        """Refuse a network whose outputs at the mean differ from before, and name the layer."""
        args, kwargs = arguments(inputs)
        with torch.no_grad(), fused_attention_off, preserved_random_state():
            own = {n: p.detach() for n, p in self.model.named_parameters()}
            plain = output_tensor(self.model(*args, **kwargs))
            again = output_tensor(call_with(self.model, own, args, kwargs))
            met = self.stochastic(args, kwargs)[1]
        used = used_parameters(self.model, self.names, inputs)
        hidden = [n for n in self.names if n in used and n not in met]
        if hidden:
            raise UnsupportedLayer(
                f"the layer {owner_of(hidden[0]) or hidden[0]!r} uses its {hidden[0]!r} where it cannot be intercepted "
                "(a reference kept outside of the module's attributes, or compiled code), so draws would not reach it; "
                "use self.<name> in its forward, or exclude it with layers=."
            )
        if not torch.allclose(plain, again, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise UnsupportedLayer("the network returns different outputs when called twice with the same weights.")


def used_parameters(model: nn.Module, names: Iterable[str], inputs: Inputs) -> set[str]:
    """The parameters on which the network's outputs depend."""
    args, kwargs = arguments(inputs)
    params = dict(model.named_parameters())
    leaves = {n: params[n] for n in names}
    with torch.enable_grad(), fused_attention_off:
        try:
            for p in leaves.values():
                p.requires_grad_(True)
            out = output_tensor(model(*args, **kwargs))
            if not out.requires_grad:
                return set()
            grads = torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True)
        finally:
            for p in leaves.values():
                p.requires_grad_(False)
    return {n for n, g in zip(leaves, grads, strict=True) if g is not None}


def check_options(family: str, estimator: str, initial_std: float, rank: int, prior: Any) -> Family:
    """Check the options before anything is copied."""
    chosen = Family.parse(family, "family")
    one_of(estimator, ESTIMATORS, "estimator")
    if chosen is Family.MATRIX_NORMAL and ESTIMATORS[estimator] is flipout:
        raise BadOption("estimator='flipout' needs independent weights; with family='matrix_normal' use 'local'.")
    if not isinstance(initial_std, (int, float)) or not (math.isfinite(initial_std) and initial_std > 0):
        raise BadOption(f"initial_std={initial_std!r} must be positive and finite; 0.01 is a common choice.")
    whole_numbers(rank=rank)
    if not isinstance(prior, ScaleMixture):
        check_prior(prior, relative=False)
    return chosen
