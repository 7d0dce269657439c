"""Dropout masks as draws: the same network with different units dropped (Gal & Ghahramani 2016).

Index legend: S draws, N examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, check_count, joined, map_tensors, size_of, tensors_in
from whence.engine.contexts import fused_attention_off
from whence.engine.follow import is_followed
from whence.engine.memory import sizes
from whence.engine.randomness import seed_from
from whence.errors import BadData, BadOption, NotDefined, explains_keywords, one_of
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Likelihood
from whence.linalg.dense import widened
from whence.posteriors.base import LayerStructure
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.dropout.masking import MaskMode, Masks
from whence.posteriors.dropout.sites import (
    LOOKED_FOR,
    DropoutSites,
    can_be_fixed,
    certainly_none,
    known_sites,
    sites_of,
    with_fixed_masks,
    with_known_sites,
)
from whence.posteriors.ensembles.posterior import resolve_without_data
from whence.predictive.sampled import BATCH, FunctionDraws, largest_activation

if TYPE_CHECKING:
    from whence.where.where import Where

HASH_SEED = 20160608
MASKS = "the draws are masks: there is no distribution of weights, and shares are by dropout site."


@explains_keywords
def dropout(
    model: nn.Module,
    *,
    likelihood: Likelihood | Literal["classification", "binary"],
    p: float | None = None,
    per_input: bool = False,
    probe: Any = None,
) -> Dropout:
    """Use a network trained with dropout as a posterior: its masks are the draws.

    Args:
        model: any ``nn.Module`` with dropout, in modules or by ``F.dropout`` in its forward pass. It is copied, and
            run in evaluation mode except for dropout: batch normalisation keeps its statistics.
        likelihood: as for :func:`whence.laplace`; for regression ``whence.Gaussian(noise=σ)``.
        p: one rate for all sites; by default each keeps its own.
        per_input: whether each input has its own masks, instead of one set of masks for all inputs of a draw.
        probe: inputs on which the dropout sites are found now instead of at the first prediction.
    """
    resolved = resolve_without_data(likelihood, "dropout")
    if p is not None and not (isinstance(p, (int, float)) and 0 < p < 1):
        raise BadOption(f"p={p} is not a dropout rate; pass a number between 0 and 1.")
    network = Network.snapshot(model)
    refuse_batch_statistics(network)
    if certainly_none(network.module, p):
        raise BadData(f"the network has no dropout, so there are no masks to draw. Supported: {LOOKED_FOR}.")
    posterior = Dropout(network, resolved, None if p is None else float(p), per_input)
    if probe is not None:
        posterior.sites(probe)
    return posterior


@dataclass(frozen=True, eq=False)
class Dropout(DrawnPosterior):
    """Made by :func:`whence.dropout`."""

    network: Network
    likelihood: Likelihood
    p: float | None = None
    per_input: bool = False

    kind: ClassVar[str] = "dropout"

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Output shape of one example; None before the first input."""
        known = known_sites(self.network)
        return None if known is None else known.output_shape

    def sites(self, x: Any = None) -> list[str]:
        """The dropout sites in the order of their calls; known after the first inputs, here or in a prediction."""
        return self.found(x).names()

    def rates(self, x: Any = None) -> dict[str, float]:
        """Site → its dropout rate."""
        return {s.name: s.rate for s in self.found(x).sites}

    def found(self, x: Any = None) -> DropoutSites:
        """The sites, found on the first example of ``x`` if they are not known yet."""
        known = known_sites(self.network)
        if known is None and x is None:
            raise NotDefined("the dropout sites are known only after the first inputs; pass some: sites(x).")
        return known or sites_of(self.network, next(self.network.pieces(x, 1)), self.p)

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> DropoutDraws:
        """Sets of masks as functions x → raw outputs: the same for every call and batch size."""
        return self.draw_sites(num_samples, None, generator)

    def draw_sites(
        self, num_samples: int, sites: set[str] | None, generator: torch.Generator | None = None
    ) -> DropoutDraws:
        """The same with masks at these sites only (None: all); other sites drop nothing, as in evaluation mode.

        The masks of a site are those that ``draw`` gives it for the same generator.
        """
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        if sites is not None and known_sites(self.network) is not None:
            for name in sites:
                one_of(name, self.sites(), "dropout site")
        chosen = None if sites is None else frozenset(sites)
        return DropoutDraws(self, seed_from(generator), range(num_samples), chosen)

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    @property
    def snapshots(self) -> tuple[Network, ...]:
        return (self.network,)

    def layers(self) -> dict[str, list[str]]:
        """Empty: the draws are masks, not weights."""
        return {}

    @property
    def structures(self) -> dict[str, LayerStructure]:
        return {}

    @property
    def parameters(self) -> int:
        """Number of weights of the network."""
        return sum(p.numel() for p in self.network.params.values())

    @property
    def no_weights(self) -> str:
        return MASKS

    def _where(self, x: Any) -> Where:
        from whence.where.sampled import where_dropout

        return where_dropout(self, x)

    def state(self) -> State:
        return State({"p": self.p, "per_input": self.per_input}, {})

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Dropout:
        return cls(Network.snapshot(models[0]), likelihood, state.meta["p"], state.meta["per_input"])

    def to(self, *args: Any, **kwargs: Any) -> Dropout:
        return replace(self, network=with_known_sites(self.network, self.network.to(*args, **kwargs)))

    def __repr__(self) -> str:
        found = known_sites(self.network)
        known = "sites not yet looked for" if found is None else f"{len(found.sites)} sites"
        rate = "their own rates" if self.p is None else f"rate {self.p:g}"
        masks = "separate masks for each input" if self.per_input else "the same masks for all inputs of a draw"
        return f"Dropout({known}, {rate}, {masks}; {self.likelihood!r})"


class DropoutDraws(FunctionDraws):
    """A fixed set of masks; several draws are evaluated in one large batch."""

    def __init__(self, posterior: Dropout, seed: int, ids: range, sites: frozenset[str] | None) -> None:
        self.posterior, self.seed, self.ids, self.chosen = posterior, seed, ids, sites
        self.network, self.likelihood = posterior.network, posterior.likelihood
        self._largest: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return DropoutDraws(self.posterior, self.seed, self.ids[index], self.chosen)
        if not -len(self) <= index < len(self):
            raise IndexError(f"draw {index} of {len(self)}")
        one = DropoutDraws(self.posterior, self.seed, self.ids[index : index + 1 or None], self.chosen)
        return lambda x: one.outputs(x)[0]

    def outputs(self, x: Any) -> Tensor:
        wanted = torch.is_grad_enabled() and is_followed(x)
        with fused_attention_off, torch.set_grad_enabled(wanted):
            return widened(joined((self._piece(piece) for piece in self._pieces(x)), dim=1))

    def modules(self) -> list[nn.Module]:
        found = known_sites(self.network)
        if found is not None and not self.posterior.per_input and can_be_fixed(found):
            chosen = [self.chosen is None or s.name in self.chosen for s in found.sites]
            return [with_fixed_masks(self.network, found, self.seed, s, chosen) for s in self.ids]
        copied = with_known_sites(self.network, Network(copy_module(self.network.module).eval()))
        own = replace(self.posterior, network=copied)
        draws = DropoutDraws(own, self.seed, self.ids, self.chosen)
        return [Masked(draws[s : s + 1]) for s in range(len(self))]

    def _pieces(self, x: Any) -> Iterator[Inputs]:
        return self.network.pieces(x, BATCH)

    def _piece(self, inputs: Inputs) -> Tensor:
        found = self.posterior.found(inputs)
        for name in self.chosen or ():
            one_of(name, found.names(), "dropout site")
        step = self._together(inputs, found)
        return torch.cat([self._run(inputs, self.ids[i : i + step], found) for i in range(0, len(self), step)])

    def _together(self, inputs: Inputs, found: DropoutSites) -> int:
        """Number of draws in one batch; 1 if a site is shared by all examples."""
        if any(s.dim is None for s in found.sites):
            return 1
        if self._largest is None:
            few = tiled(next(self.network.pieces(inputs, 1)), 1)
            self._largest = largest_activation(self.network, few)
        return max(1, int(sizes().one_tensor(self.network.device) // max(4 * self._largest * size_of(inputs), 1)))

    def _run(self, inputs: Inputs, ids: range, found: DropoutSites) -> Tensor:
        """Outputs of some draws, [S, N, …]."""
        size, count = size_of(inputs), len(ids)
        keys = input_keys(inputs) if self.posterior.per_input else None
        draws = torch.tensor(list(ids), device=self.network.device)
        masks = Masks(self.seed, draws, size, keys)
        active = [self.chosen is None or s.name in self.chosen for s in found.sites]
        mode = MaskMode(self.posterior.p, [s.dim for s in found.sites], masks, active)
        with mode:
            out = self.network.functional({}, tiled(inputs, count))
        mode.finish()
        check_count(out, count * size)
        return out.reshape(count, size, *out.shape[1:])


class Masked(nn.Module):
    """The network with one fixed set of masks."""

    def __init__(self, draws: DropoutDraws) -> None:
        super().__init__()
        self.network = draws.network.module
        self.draws = [draws]
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.draws[0].outputs(x)
        return outputs[0]


def tiled(inputs: Inputs, count: int) -> Inputs:
    """The inputs ``count`` times, one set after another; a copy, since a network may change its inputs in place."""
    return map_tensors(
        lambda t: t.repeat(count, *([1] * (t.dim() - 1))) if t.dim() and count > 1 else t.clone(), inputs
    )


def input_keys(inputs: Inputs) -> Tensor:
    """A key of each input that depends only on its values, [N]: Σ_f bits_f · w_f in 64-bit arithmetic."""
    total: Tensor | None = None
    for place, t in enumerate(tensors_in(inputs)):
        if t.dim() == 0:
            continue
        flat = t.detach().reshape(len(t), -1).contiguous()
        if flat.is_floating_point():
            flat = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        generator = torch.Generator().manual_seed(HASH_SEED + place)
        factors = torch.randint(-(2**63), 2**63 - 1, (flat.shape[1],), generator=generator).to(flat.device)
        key = (flat.long() * factors).sum(1)
        total = key if total is None else total + key
    if total is None:
        raise BadData("the inputs contain no tensor with an example dimension.")
    return total
