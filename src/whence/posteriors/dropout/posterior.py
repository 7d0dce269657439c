"""Dropout masks as draws: the same network with other units left out (Gal & Ghahramani 2016).

Index legend: S draws, N examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs, joined, map_tensors, size_of, tensors_in
from whence.copies import copy_module
from whence.curvature.jacobian import budget, widened
from whence.errors import BadData, BadOption, NotDefined, one_of
from whence.functional import Network, fused_attention_off, refuse_batch_statistics
from whence.likelihoods import Likelihood
from whence.posteriors.drawn import DrawnPosterior, FunctionDraws, State
from whence.posteriors.dropout.mode import MaskMode, Masks
from whence.posteriors.dropout.serving import can_be_fixed, fixed
from whence.posteriors.dropout.sites import LOOKED_FOR, Found, certainly_none, find
from whence.posteriors.ensembles.loss import resolve_without_data
from whence.predictive.sampled import BATCH, largest_activation
from whence.randomness import seed_from

HASH_SEED = 20160608


def dropout(
    model: nn.Module,
    *,
    likelihood: Likelihood | Literal["classification", "binary"],
    p: float | None = None,
    per_input: bool = False,
    probe: Any = None,
) -> Dropout:
    """A network that was trained with dropout as a posterior: its masks are the draws.

    Args:
        model: any ``nn.Module`` that drops out, in modules or by ``F.dropout`` in its forward pass. It is copied, and
            evaluated in evaluation mode but for the dropout: batch normalisation keeps its statistics.
        likelihood: as everywhere; for regression ``whence.Gaussian(noise=σ)``.
        p: one rate for all sites; by default each keeps its own.
        per_input: each input has masks of its own, rather than one set of masks for all inputs of a draw.
        probe: inputs on which the dropout sites are looked for at once, rather than at the first prediction.
    """
    resolved = resolve_without_data(likelihood, "dropout")
    if p is not None and not (isinstance(p, (int, float)) and 0 < p < 1):
        raise BadOption(f"p={p} is no dropout rate: a number between 0 and 1 is expected.")
    network = Network.snapshot(model)
    refuse_batch_statistics(network)
    if certainly_none(network.module, p):
        raise BadData(f"the network drops nothing out, so it has no masks to draw. Looked for: {LOOKED_FOR}.")
    posterior = Dropout(network, resolved, None if p is None else float(p), per_input)
    if probe is not None:
        posterior.sites(probe)
    return posterior


@dataclass(frozen=True, eq=False)
class Dropout(DrawnPosterior):
    """Made by :func:`whence.dropout`."""

    network: Network
    likelihood: Likelihood  # type: ignore[misc]
    p: float | None = None
    per_input: bool = False
    _found: list[Found] = field(default_factory=list, repr=False)

    kind: ClassVar[str] = "dropout"

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Of one example; None before any input was seen."""
        return self._found[0].output_shape if self._found else None

    def sites(self, x: Any = None) -> list[str]:
        """The dropout sites in the order of their calls; known once inputs have been seen, here or in a prediction."""
        return self.found(x).names()

    def rates(self, x: Any = None) -> dict[str, float]:
        """Site → the rate at which it drops out."""
        return {s.name: s.rate for s in self.found(x).sites}

    def found(self, x: Any = None) -> Found:
        """The sites, looked for on the first example of ``x`` if they are not known yet."""
        if not self._found:
            if x is None:
                raise NotDefined("the dropout sites are known once inputs have been seen; pass some: sites(x).")
            first = next(self.network.pieces(x, 1))
            self._found.append(find(self.network, first, self.p))
        return self._found[0]

    def draw(self, num_samples: int = 1, generator: torch.Generator | None = None) -> DropoutDraws:
        """Sets of masks as functions x → raw outputs: the same for every call, whatever the batches."""
        return self.draw_sites(num_samples, None, generator)

    def draw_sites(
        self, num_samples: int, sites: set[str] | None, generator: torch.Generator | None = None
    ) -> DropoutDraws:
        """The same with masks at these sites only (None: all); the others pass everything on, as in evaluation mode.

        The masks of a site are those that ``draw`` gives it for the same generator.
        """
        if num_samples < 1:
            raise BadOption(f"num_samples={num_samples} is not positive.")
        if sites is not None and self._found:
            for name in sites:
                one_of(name, self.sites(), "dropout site")
        chosen = None if sites is None else frozenset(sites)
        return DropoutDraws(self, seed_from(generator), range(num_samples), chosen)

    def networks(self) -> list[nn.Module]:
        return [self.network.module]

    def state(self) -> State:
        return State({"p": self.p, "per_input": self.per_input}, {})

    @classmethod
    def restored(cls, state: State, models: list[nn.Module], likelihood: Likelihood) -> Dropout:
        return cls(Network.snapshot(models[0]), likelihood, state.meta["p"], state.meta["per_input"])

    def to(self, *args: Any, **kwargs: Any) -> Dropout:
        return replace(self, network=self.network.to(*args, **kwargs), _found=list(self._found))

    def __repr__(self) -> str:
        known = f"{len(self._found[0].sites)} sites" if self._found else "sites not yet looked for"
        rate = "their own rates" if self.p is None else f"rate {self.p:g}"
        masks = "masks of their own for each input" if self.per_input else "the same masks for all inputs of a draw"
        return f"Dropout({known}, {rate}, {masks}; {self.likelihood!r})"


class DropoutDraws(FunctionDraws):
    """A fixed set of masks; draw by draw beside each other in one large batch."""

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
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(x))
        with fused_attention_off, torch.set_grad_enabled(wanted):
            return widened(joined((self._piece(piece) for piece in self._pieces(x)), dim=1))

    def modules(self) -> list[nn.Module]:
        found = self.posterior._found[0] if self.posterior._found else None
        if found is not None and not self.posterior.per_input and can_be_fixed(found):
            chosen = [self.chosen is None or s.name in self.chosen for s in found.sites]
            return [fixed(self.network, found, self.seed, s, chosen) for s in self.ids]
        own = replace(self.posterior, network=Network(copy_module(self.network.module).eval()))
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

    def _together(self, inputs: Inputs, found: Found) -> int:
        """How many draws go through in one batch; one by one where a site is shared by all examples."""
        if any(s.dim is None for s in found.sites):
            return 1
        if self._largest is None:
            few = tiled(next(self.network.pieces(inputs, 1)), 1)
            self._largest = largest_activation(self.network, few)
        return max(1, int(budget(self.network.device) // max(4 * self._largest * size_of(inputs), 1)))

    def _run(self, inputs: Inputs, ids: range, found: Found) -> Tensor:
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
        if len(out) != count * size:
            raise BadData(f"the network gives {len(out)} outputs for {count * size} inputs.")
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
    """The inputs ``count`` times, one whole set after the other; a copy, since a network may write into its inputs."""
    return map_tensors(
        lambda t: t.repeat(count, *([1] * (t.dim() - 1))) if t.dim() and count > 1 else t.clone(), inputs
    )


def input_keys(inputs: Inputs) -> Tensor:
    """A number for each input that depends on its values only, [N]: Σ_f bits_f · w_f in 64-bit arithmetic."""
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
        raise BadData("the inputs hold no tensor with an example dimension.")
    return total
