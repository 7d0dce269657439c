"""A plain module with variational parameters, to be trained in any loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs
from whence.curvature.blocks import Block, Param, owner_of
from whence.curvature.selection import Last, Layers, Mask, selection
from whence.errors import BadOption, UnsupportedLayer, one_of
from whence.functional import Network, arguments, call_with, fused_attention_off, output_tensor
from whence.posteriors.variational.blocks import (
    OnePass,
    VariationalBlock,
    by_layer,
    fixed_entries,
    groups,
    layer_of,
    refuse_unconvertible,
)
from whence.posteriors.variational.elementwise import Alpha, MeanField, begin_joined, joined, kl_joined
from whence.posteriors.variational.estimators import ESTIMATORS, EstimatorName, Substitution
from whence.posteriors.variational.low_rank import LowRank
from whence.posteriors.variational.matrix_normal import MatrixNormal
from whence.posteriors.variational.priors import ScaleMixture, WeightPrior, make_prior
from whence.priors import PriorPrecision, check_prior

FamilyName = Literal["mean_field", "alpha", "matrix_normal", "low_rank"]
FAMILIES = ("mean_field", "alpha", "matrix_normal", "low_rank")
STARTS = ("trained", "scratch")
JOINT = "all layers together"


class VariationalModule(nn.Module):
    """A network whose weights are Gaussian: ``loss = nll_sum * N / batch + module.kl()`` in your own loop.

    In training mode every call draws anew, by the estimator; in evaluation mode the weights are at their mean. The
    network itself always runs in evaluation mode: dropout is off, batch normalisation keeps its running statistics.

    Args:
        model: any ``nn.Module``. It is copied, and never changed.
        family: ``"mean_field"``: σ = softplus(ρ); ``"alpha"``: σ² = α μ²; ``"matrix_normal"``: U ⊗ V for each weight
            matrix with its bias (other parameters are mean-field); ``"low_rank"``: diag(σ²) + B Bᵀ over all weights.
        estimator: ``"local"`` reparameterisation, ``"flipout"``, or plain ``"weights"``.
        prior_precision: a number, a mapping from layer names to numbers, a :class:`whence.Prior`, or a
            :class:`ScaleMixture`.
        initial_std: where standard deviations start; relative to the weight for ``"alpha"``.
        start: at the model's weights, or anew by the layers' own ``reset_parameters``.
        layers: which weights are random: ``None`` all, patterns on module names, or a predicate.
        rank: of ``"low_rank"``.
        generator: randomness of the start, and of all draws.
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
        check_options(family, estimator, initial_std, rank, prior_precision)
        one_of(start, STARTS, "start")
        network = Network.snapshot(model)
        names = list(_names) if _names is not None else chosen(network, layers)
        refuse_unconvertible(network, names)
        self.family, self.estimator, self.rank = family, estimator, rank
        self.origin_hash = network.hash
        self.generator = generator
        values = {n: network.params[n].detach().clone() for n in names}
        if start == "scratch":
            values = fresh(network, names, generator)
        self.blocks = nn.ModuleList(make_blocks(network, names, values, family, initial_std, rank, generator))
        self.layer_blocks: list[Block] = by_layer(network, names)
        self.prior: WeightPrior = make_prior(prior_precision, self.layer_blocks)
        network.module.requires_grad_(False)
        self.model = network.module
        self.names = names

    def train(self, mode: bool = True) -> VariationalModule:
        """Whether calls draw; the network inside stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def variational_blocks(self) -> list[VariationalBlock]:
        return list(self.blocks)  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns: under the estimator's randomness in training mode, else at the mean."""
        if not self.training:
            with fused_attention_off:
                return call_with(self.model, self.mean(), args, kwargs)
        return self.stochastic(args, kwargs)[0]

    def outputs(self, inputs: Inputs) -> Tensor:
        """Raw outputs for inputs as a loader gives them."""
        args, kwargs = arguments(inputs)
        return output_tensor(self(*args, **kwargs))

    def stochastic(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, set[str]]:
        """One pass with randomness of its own, and the parameters that it met."""
        means = self.mean()
        holders = {id(loc): name for name, loc in means.items()}
        passes: dict[str, OnePass] = {}
        together = joined(self.variational_blocks())
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

    # What it says of the weights

    def mean(self) -> dict[str, Tensor]:
        """Parameter name → μ, the live variational parameter."""
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
        together = joined(self.variational_blocks())
        if together and isinstance(self.prior, PriorPrecision):
            value = kl_joined(together, self.prior)
            if value is not None:
                rest = [b.kl(self.prior) for b in self.variational_blocks() if b not in together]
                return torch.stack([value, *rest]).sum() if rest else value
        return torch.stack(list(self.kl_by_layer(num_samples).values())).sum()

    def kl_by_layer(self, num_samples: int = 1) -> dict[str, Tensor]:
        """The same by layer; they add up to the whole."""
        found: dict[str, Tensor] = {}
        for block in self.variational_blocks():
            if isinstance(self.prior, ScaleMixture):
                value = block.kl_by_draws(self.prior, num_samples, self.generator).mean()
            else:
                value = block.kl(self.prior)
            name = JOINT if self.family == "low_rank" else layer_of(block.names[0])
            found[name] = found[name] + value if name in found else value
        return found

    def check(self, inputs: Inputs) -> None:
        """Refuse, by name, a network that does not compute at the mean what it computed before."""
        args, kwargs = arguments(inputs)
        with torch.no_grad(), fused_attention_off, torch.random.fork_rng(gpus(self.model)):
            own = {n: p.detach() for n, p in self.model.named_parameters()}
            plain = output_tensor(self.model(*args, **kwargs))
            again = output_tensor(call_with(self.model, own, args, kwargs))
            met = self.stochastic(args, kwargs)[1]
        used = used_parameters(self.model, self.names, inputs)
        hidden = [n for n in self.names if n in used and n not in met]
        if hidden:
            raise UnsupportedLayer(
                f"the layer {layer_of(hidden[0])!r} uses its {hidden[0]!r} by a way that cannot be seen (a reference "
                "kept outside of the module's attributes, or compiled code), so that draws would not reach it; use "
                "self.<name> in its forward, or leave it out by layers=."
            )
        if not torch.allclose(plain, again, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise UnsupportedLayer("the network gives other outputs when it is called twice with the same weights.")


def gpus(model: nn.Module) -> list[int]:
    """Indices of the GPUs whose random state a pass may touch."""
    return sorted({p.get_device() for p in model.parameters() if p.is_cuda})


def used_parameters(model: nn.Module, names: Iterable[str], inputs: Inputs) -> set[str]:
    """Those on which the plain network's outputs depend."""
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


def check_options(family: str, estimator: str, initial_std: float, rank: int, prior: Any) -> None:
    """Refuse what can be refused before anything is copied."""
    one_of(family, FAMILIES, "family")
    one_of(estimator, ESTIMATORS, "estimator")
    if family == "matrix_normal" and estimator == "flipout":
        raise BadOption(
            "estimator='flipout' needs independent weights, which family='matrix_normal' has not; use 'local'."
        )
    if not isinstance(initial_std, (int, float)) or not (math.isfinite(initial_std) and initial_std > 0):
        raise BadOption(f"initial_std={initial_std!r} must be positive and finite; 0.01 is a usual start.")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise BadOption(f"rank={rank!r} must be a whole number, at least 1.")
    if not isinstance(prior, ScaleMixture):
        check_prior(prior, relative=False)


def chosen(network: Network, layers: Layers, inputs: Inputs = None) -> list[str]:
    """The Bayesian parameters' names."""
    picked = selection(layers, network)
    if isinstance(picked, Mask):
        raise BadOption("layers is a mask of weights; pass None, patterns on module names, or a predicate.")
    if isinstance(picked, Last) and inputs is None:
        raise BadOption("layers='last' needs data to find the last layer with; name the layer instead.")
    return picked.resolve(network, inputs)


def fresh(network: Network, names: Sequence[str], generator: torch.Generator | None) -> dict[str, Tensor]:
    """New values by the layers' own ``reset_parameters``; parameters outside such a layer keep theirs."""
    again = network.to(network.device)
    owners = {owner_of(n) for n in names}
    seed = int(torch.randint(2**62, (1,), generator=generator, device="cpu" if generator is None else generator.device))
    with torch.random.fork_rng(gpus(network.module)), torch.no_grad():
        torch.manual_seed(seed)
        for path, part in again.module.named_modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if path in owners and callable(reset) and not hasattr(part, "parametrizations"):
                reset()
    return {n: again.params[n].detach().clone() for n in names}


def make_blocks(
    network: Network,
    names: Sequence[str],
    values: Mapping[str, Tensor],
    family: str,
    initial: float,
    rank: int,
    generator: torch.Generator | None,
) -> list[VariationalBlock]:
    """One block for each parameter, for each matrix with its bias, or for all of them."""
    free = fixed_entries(network, names)
    params = [Param(n, tuple(network.params[n].shape)) for n in names]
    if family == "low_rank":
        return [LowRank(params, values, min(rank, sum(p.numel for p in params)), initial, free, generator)]
    if family == "matrix_normal":
        found: list[VariationalBlock] = []
        for group in groups(network, names):
            if group.form is not None:
                found.append(MatrixNormal(group.params, values, group.form, initial))
            else:
                found += [MeanField(p, values, initial, free.get(p.name)) for p in group.params]
        return found
    kind = Alpha if family == "alpha" else MeanField
    return [kind(p, values, initial, free.get(p.name)) for p in params]
