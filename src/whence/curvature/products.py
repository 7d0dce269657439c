"""Products with a network's Jacobian and curvature over the data, without forming either.

H = Σₙ Jₙᵀ Λₙ Jₙ over all selected weights together, so H v is a derivative along v (J v), a small product (Λ) and a
gradient (Jᵀ u). Several directions go through the network at once.

Index legend: R directions, P weights, N examples, M output positions, C outputs, K root columns.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.curvature.columns import columns_for
from whence.curvature.jvp import forward_bytes, push
from whence.curvature.options import CurvatureKind, LabelDraws
from whence.engine.batches import Data, Inputs, counted_examples, size_of, take
from whence.engine.checks import DeferredChecks
from whence.engine.memory import none_if_out_of_memory, readable, release, sizes
from whence.engine.passes import Passes
from whence.engine.randomness import example_uniform, normal_from_uniform
from whence.errors import BadData, TooLarge
from whence.functional import Network, differentiable
from whence.likelihoods import Categorical, Likelihood
from whence.linalg.dense import accumulation_dtype, widened
from whence.recording.backward import gradients
from whence.recording.blocks import Block

BUDGETS = 4  # memory budgets (of one tensor) that the directions of one piece may take
SAME = 1e-4  # relative difference of the loss up to which two passes have the same data


class Vector:
    """The selected weights as one vector, block by block; for a subnetwork only the entries ``keep``."""

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
        """The inverse of :meth:`split`, with the dtype of ``like``; zero for weights that do not reach the output."""
        rows = [
            like.new_zeros(count, s.numel()) if v is None else v.reshape(count, -1).to(like.dtype)
            for v, s in zip(values, self.shapes, strict=True)
        ]
        flat = torch.cat(rows, dim=1)
        return flat if self.keep is None else flat[:, self.keep]


# The curvature of the loss with respect to the outputs


class OutputCurvature(ABC):
    """Λ = R Rᵀ of one batch, as products."""

    width: int  # K: noise values for one position of an example

    @abstractmethod
    def times(self, v: Tensor) -> Tensor:
        """Λ v for v [R, N, M, C]."""

    @abstractmethod
    def times_root(self, noise: Tensor) -> Tensor:
        """R ε for ε [R, N, M, K]: covariance Λ if the noise is white."""


class Softmax(OutputCurvature):
    """diag(p) − p pᵀ, with the root diag(√p) − p √pᵀ; neither is formed."""

    def __init__(self, probs: Tensor, mask: Tensor) -> None:
        self.p, self.mask = probs, mask.unsqueeze(-1)  # [N, M, C], [N, M, 1]
        self.width = probs.shape[-1]

    def times(self, v: Tensor) -> Tensor:
        weighted = self.p * v
        return (weighted - self.p * weighted.sum(-1, keepdim=True)) * self.mask

    def times_root(self, noise: Tensor) -> Tensor:
        weighted = self.p.sqrt() * noise
        return (weighted - self.p * weighted.sum(-1, keepdim=True)) * self.mask


class Rooted(OutputCurvature):
    """From a root [N, M, C, K]."""

    def __init__(self, root: Tensor) -> None:
        self.root = root
        self.width = root.shape[-1]

    def times(self, v: Tensor) -> Tensor:
        return self.times_root((self.root.mT @ v.unsqueeze(-1)).squeeze(-1))

    def times_root(self, noise: Tensor) -> Tensor:
        return (self.root @ noise.unsqueeze(-1)).squeeze(-1)


def output_curvature(
    curvature: CurvatureKind,
    likelihood: Likelihood,
    outputs: Tensor,
    targets: Tensor,
    draws: LabelDraws,
    rows: Tensor,
) -> OutputCurvature:
    """Λ of the Gauss–Newton matrix or the empirical Fisher; sampled for a likelihood without an exact root."""
    outputs = widened(outputs.detach())
    if curvature is CurvatureKind.GGN and type(likelihood) is Categorical:
        return Softmax(likelihood.flatten(outputs).softmax(-1), likelihood.mask(targets))
    if curvature is CurvatureKind.GGN and not likelihood.fisher_draws:
        return Rooted(likelihood.root(outputs, targets))
    columns = columns_for(curvature, likelihood, outputs, targets, draws, rows)
    assert columns.given is not None
    return Rooted(columns.given.movedim(0, -1))


# The whole data set


@dataclass(frozen=True)
class ForwardedExamples:
    """Examples with their outputs and Λ."""

    inputs: Inputs
    outputs: Tensor  # with their graph
    at: Tensor  # the outputs at which the loss is taken
    targets: Tensor  # checked
    output: OutputCurvature
    rows: Tensor  # indices of the examples in the data


class Products:
    """H v and Jᵀ R ε, summed over data that must be the same in each pass."""

    def __init__(
        self,
        network: Network,
        vector: Vector,
        data: Data,
        likelihood: Likelihood,
        curvature: CurvatureKind = CurvatureKind.GGN,
        draws: LabelDraws | None = None,
    ) -> None:
        self.network, self.vector, self.likelihood = network, vector, likelihood
        self.curvature, self.draws = curvature, draws or LabelDraws()
        self.batches = Passes(data)
        self.dtype = accumulation_dtype(network.dtype)
        self.seen = 0  # examples of a pass
        self._checked = False  # forward and backward derivatives were compared on all data
        self._loss: float | None = None
        self._bytes: int | None = None  # bytes of activations per example
        self._most: int | None = None  # directions that fitted into memory together

    def times(self, v: Tensor) -> Tensor:
        """H v for v [R, P]."""

        def times_curvature(which: slice, piece: ForwardedExamples) -> Tensor:
            along, check = self.vector.split(v[which]), not self._checked
            _, moved = push(self.network, piece.inputs, along, piece.outputs, check)
            flat = self.likelihood.flatten(widened(moved.detach()).flatten(0, 1))
            return piece.output.times(flat.unflatten(0, moved.shape[:2]))  # [R, N, M, C]

        total = self._summed(len(v), v, times_curvature)
        self._checked = True
        return total

    def noise(self, seed: int, count: int) -> Tensor:
        """Jᵀ R ε, [R, P]: draws with covariance H. ε depends on an example's index in the data, not on its batch."""
        like = torch.zeros((), dtype=self.dtype, device=self.network.device)

        def draw(which: slice, piece: ForwardedExamples) -> Tensor:
            shape = (*self.likelihood.flatten(piece.outputs).shape[:2], piece.output.width)
            uniform = (example_uniform(seed, r, piece.rows, shape) for r in range(which.start, which.stop))
            return piece.output.times_root(torch.stack([normal_from_uniform(u).to(like.dtype) for u in uniform]))

        return self._summed(count, like, draw)

    def _summed(self, count: int, like: Tensor, columns: Callable[[slice, ForwardedExamples], Tensor]) -> Tensor:
        """Σₙ Jₙᵀ u over one pass, with u [R, N, M, C] computed piece by piece for a few directions at a time."""
        total = like.new_zeros(count, self.vector.size)
        for piece in self._pass():
            start = 0
            while start < count:
                which = slice(start, start + self._step(len(piece.rows), count - start))
                found = none_if_out_of_memory(functools.partial(self._pulled, columns, which, piece, total))
                if found is None:
                    self._shrink(which.stop - start)
                    continue
                total[which] += found
                start = which.stop
        return total

    def _pulled(
        self,
        columns: Callable[[slice, ForwardedExamples], Tensor],
        which: slice,
        piece: ForwardedExamples,
        total: Tensor,
    ) -> Tensor:
        """Jᵀ u of one piece for some directions."""
        outputs, params = piece.outputs, [self.network.params[n] for n in self.vector.names]
        sent = self.likelihood.unflatten(columns(which, piece), outputs).to(outputs.dtype)
        with differentiable(self.network):
            back = gradients(self.network, outputs, params, sent, False)
        return self.vector.join(back, which.stop - which.start, total)

    def _pass(self) -> Iterator[ForwardedExamples]:
        """The data in pieces whose activations fit the budget."""
        seen, loss = 0, torch.zeros((), dtype=torch.float64, device=self.network.device)
        with DeferredChecks():
            for batch in self.batches.passes(1, False, "products"):
                batch, numbers = counted_examples(batch, self.likelihood.counts)
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
                        at = self._at(inputs, outputs)
                        yield ForwardedExamples(inputs, outputs, at, targets, self._output(at, targets, rows), rows)
        self._check_same_data(float(loss), seen)

    def _at(self, inputs: Inputs, outputs: Tensor) -> Tensor:
        """The outputs at which the loss is taken: those of the network."""
        return outputs.detach()

    def _output(self, outputs: Tensor, targets: Tensor, rows: Tensor) -> OutputCurvature:
        return output_curvature(self.curvature, self.likelihood, outputs, targets, self.draws, rows)

    def _check_same_data(self, loss: float, seen: int) -> None:
        """Refuse data that change from pass to pass; the loss is a checksum."""
        if not seen:
            raise BadData("the data contain no valid target: every label is ignore_index.")
        if not loss - loss == 0:
            raise BadData(f"the loss over the data is {loss}; the network's outputs must be finite.")
        if self._loss is None:
            self._loss, self.seen = loss, seen
        elif seen != self.seen or abs(loss - self._loss) > SAME * (abs(self._loss) + 1e-12):
            raise BadData(
                f"the data changed between two passes ({self.seen} examples with loss {self._loss:.6g}, then {seen} "
                f"with {loss:.6g}): random augmentation, dropped batches, or dropout that stays on in evaluation "
                "mode? Every product needs the same data: augment once, and pass the result as tensors."
            )

    # Memory

    def _examples(self, inputs: Inputs) -> int:
        """Examples per piece."""
        if self._bytes is None:
            few = take(inputs, slice(0, 2))
            self._bytes = max(1, forward_bytes(self.network, few) // size_of(few))
        return max(1, int(BUDGETS * sizes().one_tensor(self.network.device) // self._bytes))

    def _step(self, examples: int, left: int) -> int:
        """Directions per piece."""
        assert self._bytes is not None
        item = torch.finfo(self.dtype).bits // 8
        each = self._bytes * examples + 2 * self.vector.total * item
        step = max(1, int(BUDGETS * sizes().one_tensor(self.network.device) // each))
        return min(step, left, self._most or left)

    def _shrink(self, step: int) -> None:
        release(self.network.device)
        if step == 1:
            raise TooLarge(
                f"one direction of {self.vector.total:,} weights does not fit into the memory of "
                f"{self.network.device} (its activations alone take {readable(self._bytes or 0)} for each example). "
                "Pass smaller batches, or select fewer weights with layers=…."
            )
        self._most = step // 2
