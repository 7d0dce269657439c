"""Products with a network's Jacobian and curvature over the data, without forming either.

H = Σₙ Jₙᵀ Λₙ Jₙ over all chosen weights together, so H v is a derivative along v (J v), a small product (Λ) and a
gradient (Jᵀ u). Several directions go through the network at once.

Index legend: R directions, P weights, N examples, M output positions, C outputs, K root columns.
"""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.batches import Data, Inputs, map_tensors, size_of, take, tensors_in
from whence.checks import Watch
from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.blocks import Block
from whence.curvature.capture import gradients
from whence.curvature.columns import Draws, columns_for
from whence.curvature.jacobian import budget, widened
from whence.curvature.memory import attempt, gib, release
from whence.curvature.passes import Passes
from whence.curvature.sweep import relevant
from whence.errors import BadData, TooLarge, UnsupportedLayer, is_out_of_memory
from whence.functional import Network, differentiable
from whence.likelihoods import Categorical, Likelihood
from whence.randomness import example_uniform, normal_from_uniform

ROOM = 4  # budgets that the directions of one piece may take together
AGREE = {True: 1e-8, False: 1e-3}  # relative difference of forward and backward derivatives, in float64 or not
SAME = 1e-4  # relative difference of the loss up to which two passes saw the same data


class Vector:
    """The chosen weights as one vector, block after block; of a subnetwork, its entries ``keep`` only."""

    def __init__(self, network: Network, blocks: Sequence[Block], keep: Tensor | None = None) -> None:
        self.names = [p.name for b in blocks for p in b.params]
        self.shapes = [network.params[n].shape for n in self.names]
        self.total = sum(s.numel() for s in self.shapes)
        self.keep = keep
        self.size = self.total if keep is None else len(keep)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """[R, P] → parameter name → [R, *shape]; zero outside a subnetwork."""
        if self.keep is not None:
            whole = flat.new_zeros(len(flat), self.total)
            whole[:, self.keep] = flat
            flat = whole
        pieces = flat.split([s.numel() for s in self.shapes], dim=1)
        return {n: v.reshape(len(v), *s) for n, v, s in zip(self.names, pieces, self.shapes, strict=True)}

    def join(self, values: Sequence[Tensor | None], count: int, like: Tensor) -> Tensor:
        """The inverse of :meth:`split`, in the type of ``like``; what does not reach the output is zero."""
        rows = [
            like.new_zeros(count, s.numel()) if v is None else v.reshape(count, -1).to(like.dtype)
            for v, s in zip(values, self.shapes, strict=True)
        ]
        flat = torch.cat(rows, dim=1)
        return flat if self.keep is None else flat[:, self.keep]


# One batch


def push(
    network: Network,
    inputs: Inputs,
    directions: Mapping[str, Tensor],
    outputs: Tensor | None = None,
    check: bool = True,
) -> tuple[Tensor, Tensor]:
    """Outputs f and J v along directions [R, *shape] by parameter name: [R, *outputs].

    By forward-mode differentiation where it agrees with the backward pass, else from the backward pass itself.
    ``outputs`` with their graph save a forward pass; ``check`` is False where these inputs were seen to agree.
    """
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(inputs))
    if network.forward_mode:
        try:
            found = _forward_mode(network, inputs, directions, wanted)
            if not check or _adjoint(network, inputs, directions, found[1], outputs):
                return found
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
        network.forward_mode = False
    return _twice_backward(network, inputs, directions, wanted)


def _adjoint(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], moved: Tensor, outputs: Tensor | None
) -> bool:
    """Whether ⟨u, J v⟩ = ⟨Jᵀ u, v⟩ for a random mixture v of the directions and a random u.

    It is not, for example, where a backward pass leaves out the padding of an embedding and the forward one does not.
    """
    generator = torch.Generator().manual_seed(1)
    mixture = torch.randn(len(moved), generator=generator, dtype=torch.float64)
    along = torch.tensordot(mixture.to(moved), moved.detach(), 1).double()
    u = torch.randn(along.shape, generator=generator, dtype=torch.float64).to(along)
    with differentiable(network):
        if outputs is None:
            outputs = network(map_tensors(Tensor.detach, inputs))
        if not outputs.requires_grad:
            return not bool(moved.any())
        params = [network.params[n] for n in directions]
        back = torch.autograd.grad(outputs, params, u.to(outputs.dtype), retain_graph=True, allow_unused=True)
    there = torch.zeros_like(along.sum())
    for g, v in zip(back, directions.values(), strict=True):
        if g is not None:
            there += mixture.to(there) @ (v.reshape(len(v), -1) @ g.reshape(-1).to(v.dtype)).double()
    agree = AGREE[moved.dtype == torch.float64] * u.norm() * along.norm()
    return bool(((u * along).sum() - there).abs() <= agree)


def _forward_mode(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], wanted: bool
) -> tuple[Tensor, Tensor]:
    """One forward pass that carries values and derivatives."""
    at = {n: network.params[n].detach() for n in directions}
    toward = {n: v.to(at[n].dtype) for n, v in directions.items()}

    def along(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = torch.func.jvp(lambda p: network.functional(p, inputs), (at,), (v,))
        return found[0], found[1]

    with warnings.catch_warnings(), differentiable(network), torch.set_grad_enabled(wanted):
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # inside torch's forward mode
        outputs, moved = torch.func.vmap(along, out_dims=(None, 0))(toward)  # type: ignore[arg-type]
    return outputs, moved


def _twice_backward(
    network: Network, inputs: Inputs, directions: Mapping[str, Tensor], wanted: bool
) -> tuple[Tensor, Tensor]:
    """Derivative of the backward pass, which is linear in what is sent backward."""
    try:
        with differentiable(network):
            outputs = network(inputs)
            params = [network.params[n] for n in directions]
            sent = torch.zeros_like(outputs, requires_grad=True)
            first = torch.autograd.grad(outputs, params, sent, create_graph=True, allow_unused=True)
            parts = [
                (g.reshape(-1), v.reshape(len(v), -1))
                for g, v in zip(first, directions.values(), strict=True)
                if g is not None and g.requires_grad
            ]
            count = len(next(iter(directions.values())))
            if not parts:
                return outputs, outputs.new_zeros(count, *outputs.shape)
            linear, along = torch.cat([g for g, _ in parts]), torch.cat([v for _, v in parts], dim=1)
            (moved,) = gradients(network, linear, [sent], along.to(outputs.dtype), wanted)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedLayer(
            "derivatives along directions of the weights need forward-mode differentiation, or a backward pass that "
            f"can be differentiated; an operation here allows neither ({error}). Use structure='kron' or 'diag'."
        ) from error
    return outputs, outputs.new_zeros(count, *outputs.shape) if moved is None else moved


def forward_bytes(network: Network, inputs: Inputs) -> int:
    """Bytes that one forward pass keeps for its backward pass, weights left out."""
    own = {p.data_ptr() for p in network.params.values()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with differentiable(network), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        outputs = network(inputs)
    return sum(seen.values()) + outputs.numel() * outputs.element_size()


# The curvature of the loss in the outputs


class OutputCurvature(ABC):
    """Λ = R Rᵀ of one batch, as products."""

    width: int  # K: white numbers that one position of an example takes

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """Λ v for v [R, N, M, C]."""

    @abstractmethod
    def colour(self, noise: Tensor) -> Tensor:
        """R ε for ε [R, N, M, K]: covariance Λ if the noise is white."""


class Softmax(OutputCurvature):
    """diag(p) − p pᵀ, with the root diag(√p) − p √pᵀ; neither is formed."""

    def __init__(self, probs: Tensor, mask: Tensor) -> None:
        self.p, self.mask = probs, mask.unsqueeze(-1)  # [N, M, C], [N, M, 1]
        self.width = probs.shape[-1]

    def times(self, v: Tensor) -> Tensor:
        weighted = self.p * v
        return (weighted - self.p * weighted.sum(-1, keepdim=True)) * self.mask

    def colour(self, noise: Tensor) -> Tensor:
        weighted = self.p.sqrt() * noise
        return (weighted - self.p * weighted.sum(-1, keepdim=True)) * self.mask


class Rooted(OutputCurvature):
    """From a root [N, M, C, K]."""

    def __init__(self, root: Tensor) -> None:
        self.root = root
        self.width = root.shape[-1]

    def times(self, v: Tensor) -> Tensor:
        return self.colour((self.root.mT @ v.unsqueeze(-1)).squeeze(-1))

    def colour(self, noise: Tensor) -> Tensor:
        return (self.root @ noise.unsqueeze(-1)).squeeze(-1)


def output_curvature(
    curvature: str, likelihood: Likelihood, outputs: Tensor, targets: Tensor, draws: Draws, rows: Tensor
) -> OutputCurvature:
    """``curvature`` is "ggn" or "empirical"; a likelihood without an exact root takes the Fisher by its draws."""
    outputs = widened(outputs.detach())
    if curvature == "ggn" and type(likelihood) is Categorical:
        return Softmax(likelihood.flatten(outputs).softmax(-1), likelihood.mask(targets))
    if curvature == "ggn" and not likelihood.fisher_draws:
        return Rooted(likelihood.root(outputs, targets))
    columns = columns_for(curvature, likelihood, outputs, targets, draws, rows)
    assert columns.given is not None
    return Rooted(columns.given.movedim(0, -1))


# The whole data set


@dataclass(frozen=True)
class Piece:
    """Some examples that went forward."""

    inputs: Inputs
    outputs: Tensor  # with their graph
    output: OutputCurvature
    rows: Tensor  # numbers of the examples in the data


class Products:
    """H v and Jᵀ R ε summed over data that must be the same in each pass."""

    def __init__(
        self,
        network: Network,
        vector: Vector,
        data: Data,
        likelihood: Likelihood,
        curvature: str = "ggn",
        draws: Draws | None = None,
    ) -> None:
        self.network, self.vector, self.likelihood = network, vector, likelihood
        self.curvature, self.draws = curvature, draws or Draws()
        self.batches = Passes(data)
        self.dtype = accumulation_dtype(network.dtype)
        self.seen = 0  # examples of a pass
        self._checked = False  # whether forward and backward derivatives were compared on all of the data
        self._loss: float | None = None
        self._bytes: int | None = None  # of activations, for one example
        self._most: int | None = None  # directions that fitted into memory together

    def times(self, v: Tensor) -> Tensor:
        """H v for v [R, P]."""

        def weigh(which: slice, piece: Piece) -> Tensor:
            along, check = self.vector.split(v[which]), not self._checked
            _, moved = push(self.network, piece.inputs, along, piece.outputs, check)
            flat = self.likelihood.flatten(widened(moved.detach()).flatten(0, 1))
            return piece.output.times(flat.unflatten(0, moved.shape[:2]))  # [R, N, M, C]

        total = self._summed(len(v), v, weigh)
        self._checked = True
        return total

    def noise(self, seed: int, count: int) -> Tensor:
        """Jᵀ R ε, [R, P]: draws with covariance H. ε belongs to an example's number in the data, not to its batch."""
        like = torch.zeros((), dtype=self.dtype, device=self.network.device)

        def draw(which: slice, piece: Piece) -> Tensor:
            shape = (*self.likelihood.flatten(piece.outputs).shape[:2], piece.output.width)
            uniform = (example_uniform(seed, r, piece.rows, shape) for r in range(which.start, which.stop))
            return piece.output.colour(torch.stack([normal_from_uniform(u).to(like.dtype) for u in uniform]))

        return self._summed(count, like, draw)

    def _summed(self, count: int, like: Tensor, columns: Callable[[slice, Piece], Tensor]) -> Tensor:
        """Σₙ Jₙᵀ u over one pass, u [R, N, M, C] made piece by piece for some directions at a time."""
        total = like.new_zeros(count, self.vector.size)
        for piece in self._pass():
            start = 0
            while start < count:
                which = slice(start, start + self._step(len(piece.rows), count - start))
                found = attempt(functools.partial(self._pulled, columns, which, piece, total))
                if found is None:
                    self._shrink(which.stop - start)
                    continue
                total[which] += found
                start = which.stop
        return total

    def _pulled(self, columns: Callable[[slice, Piece], Tensor], which: slice, piece: Piece, total: Tensor) -> Tensor:
        """Jᵀ u of one piece for some directions."""
        outputs, params = piece.outputs, [self.network.params[n] for n in self.vector.names]
        sent = self.likelihood.unflatten(columns(which, piece), outputs).to(outputs.dtype)
        with differentiable(self.network):
            back = gradients(self.network, outputs, params, sent, False)
        return self.vector.join(back, which.stop - which.start, total)

    def _pass(self) -> Iterator[Piece]:
        """The data in pieces whose activations fit the budget."""
        seen, loss = 0, torch.zeros((), dtype=torch.float64, device=self.network.device)
        with Watch():
            for batch in self.batches.passes(1, False, "products"):
                batch, numbers = relevant(batch, self.likelihood)
                if not len(numbers):
                    continue
                step = self._examples(batch.inputs)
                for start in range(0, len(numbers), step):
                    which = slice(start, start + step)
                    inputs, rows = take(batch.inputs, which), numbers[which]
                    with differentiable(self.network):
                        outputs = self.network(inputs)
                    targets = self.likelihood.check(outputs, batch.targets[which], batch.index)
                    loss = loss + self.likelihood.nll(widened(outputs.detach()), targets).double().sum()
                    seen += len(rows)
                    if outputs.requires_grad:
                        yield Piece(inputs, outputs, self._output(outputs, targets, rows), rows)
        self._same(float(loss), seen)

    def _output(self, outputs: Tensor, targets: Tensor, rows: Tensor) -> OutputCurvature:
        return output_curvature(self.curvature, self.likelihood, outputs, targets, self.draws, rows)

    def _same(self, loss: float, seen: int) -> None:
        """Refuse data that change from pass to pass; the loss is a checksum."""
        if not seen:
            raise BadData("the data hold no target that counts: every label is ignore_index.")
        if not loss - loss == 0:
            raise BadData(f"the loss over the data is {loss}; the network's outputs are not finite.")
        if self._loss is None:
            self._loss, self.seen = loss, seen
        elif seen != self.seen or abs(loss - self._loss) > SAME * (abs(self._loss) + 1e-12):
            raise BadData(
                f"the data changed between two passes ({self.seen} examples with loss {self._loss:.6g}, then {seen} "
                f"with {loss:.6g}): random augmentation, dropped batches, or dropout that stays on in evaluation "
                "mode? Every product needs the same data; draw them once and pass them as tensors."
            )

    # Memory

    def _examples(self, inputs: Inputs) -> int:
        """Examples that go through together."""
        if self._bytes is None:
            few = take(inputs, slice(0, 2))
            self._bytes = max(1, forward_bytes(self.network, few) // size_of(few))
        return max(1, int(ROOM * budget(self.network.device) // self._bytes))

    def _step(self, examples: int, left: int) -> int:
        """Directions that go through together."""
        assert self._bytes is not None
        item = torch.finfo(self.dtype).bits // 8
        each = self._bytes * examples + 2 * self.vector.total * item
        step = max(1, int(ROOM * budget(self.network.device) // each))
        return min(step, left, self._most or left)

    def _shrink(self, step: int) -> None:
        release(self.network.device)
        if step == 1:
            raise TooLarge(
                f"one direction of {self.vector.total:,} weights does not fit into the memory of "
                f"{self.network.device} (its activations alone take {gib(self._bytes or 0)} for each example). Pass "
                "smaller batches, or select fewer weights with layers=…."
            )
        self._most = step // 2
