"""Relative priors: scaled by the signal that each weight carries, so they follow any rescaling of the network.

``Relative(τ)``: the weight from input i to output o has prior variance V_oi = r_o / (τ D (A_ii + ν κ_i)), with A_ii the
mean square of input i over the training data (1 for the bias), r_o = Σ_i w_oi² A_ii without the bias, and D the number
of inputs. Averaged over the training data each pre-activation then has prior variance r_o / τ, to which every input
contributes equally. Multiply a unit's incoming weights by c and divide its outgoing ones by it: all V follow.
docs/numbers.md has the rules for other kinds of parameter, and what they do not cover.

Index legend: E Kronecker pairs, O outputs, I input channels, K kernel positions, D inputs (I · K, and 1 for the bias).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.curvature.signals import Signal, Signals, kernel_of
from whence.engine.memory import remembered
from whence.errors import BadOption, NotDefined
from whence.functional import Network
from whence.linalg.ratios import PerWeight, Ratio, Separable
from whence.numerals import number
from whence.priors.precision import BlockPrior, PriorPrecision, by_layer, positive
from whence.recording.blocks import Block, Param
from whence.recording.roles import Role, matrices

FLOOR = 0.01  # ν
SLOPE = 1.0  # prior variance of a PReLU slope, times τ: slopes do not depend on the network's scales
SMALLEST = 1e-16  # of a scale relative to the usual one: weight decay shrinks those of dead units beyond float32


@dataclass(frozen=True)
class Relative:
    """A prior relative to the signal in the network, to pass as ``prior_precision``: ``Relative(10.0)``.

    ``tau`` is its overall precision: one number, or a mapping from layer names (globs) to numbers. ``floor`` is ν:
    a lower bound on the signal of an input, relative to the signal that its weights imply. It matters for
    inputs that are rarely active.
    """

    tau: float | Mapping[str, float] = 1.0
    floor: float = FLOOR

    def check(self) -> None:
        """Refuse invalid values."""
        for name, value in self.tau.items() if isinstance(self.tau, Mapping) else [("", self.tau)]:
            positive(value, f"τ of {name!r}" if name else "τ")
        if not 0 <= self.floor < float("inf"):
            raise BadOption(f"floor={self.floor} must be a number that is not negative; {FLOOR} is the default.")


RELATIVE = Relative()  # the default


@dataclass(frozen=True, eq=False)
class RelativePrecision(PriorPrecision):
    """Precision τ D of each block, with D from the trained weights and the sums over the data."""

    taus: Mapping[str, float]  # by block
    shapes: Mapping[str, Ratio]  # D; in the native shape for a matrix, otherwise flat
    blocks: tuple[Block, ...]
    floor: float = FLOOR
    notes: tuple[str, ...] = ()  # deviations from the requested prior

    @property
    def values(self) -> Mapping[str, float | Tensor]:  # type: ignore[override]
        return {name: value for block in self.blocks for name, value in self._of_block(block).items()}

    def flat(self, params: Sequence[Param]) -> Tensor:
        block_of = _block_of(self)
        blocks = {block_of[p.name].name: block_of[p.name] for p in params}
        known = {name: value for block in blocks.values() for name, value in self._of_block(block).items()}
        return torch.cat([known[p.name].reshape(-1) for p in params])

    def _of_block(self, block: Block) -> dict[str, Tensor]:
        return block.scatter(self._flat(block) * self.taus[block.name])

    def _flat(self, block: Block) -> Tensor:
        shape = self.shapes[block.name]
        if isinstance(shape, Separable):
            assert block.form is not None
            return block.form.unpack(shape.dense())
        return shape.dense()

    def _joined(self, blocks: Sequence[Block], keep: Tensor | None) -> BlockPrior:
        tau = self.taus[blocks[0].name]
        if len(blocks) > 1 or keep is not None:
            flat = torch.cat([self._flat(b) * (self.taus[b.name] / tau) for b in blocks])
            return BlockPrior(tau, PerWeight(flat if keep is None else flat[keep.cpu()]))
        (block,), shape = blocks, self.shapes[blocks[0].name]
        if isinstance(shape, Separable) and not block.matrix_structured:
            shape = PerWeight(self._flat(block))
        return BlockPrior(tau, shape)

    def scaled_by(self, factors: Mapping[str, float]) -> PriorPrecision:
        by_block = {b.name: {factors.get(p.name, 1.0) for p in b.params} for b in self.blocks}
        if any(len(each) > 1 for each in by_block.values()):
            raise NotDefined("a relative prior has one τ per layer; weight and bias cannot be scaled separately.")
        return replace(self, taus={name: tau * by_block[name].pop() for name, tau in self.taus.items()})

    def levelled(self) -> RelativePrecision:
        """The same shape with τ = 1 everywhere."""
        return replace(self, taus=dict.fromkeys(self.taus, 1.0))

    def restricted(self, blocks: Sequence[Block]) -> PriorPrecision:
        taus = {b.name: self.taus[b.name] for b in blocks}
        shapes = {b.name: self.shapes[b.name] for b in blocks}
        return replace(self, taus=taus, shapes=shapes, blocks=tuple(blocks), notes=())

    def spec(self) -> dict[str, Any]:
        return {"relative": dict(self.taus), "floor": self.floor}

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def given(self) -> Relative:
        taus = set(self.taus.values())
        return Relative(taus.pop() if len(taus) == 1 else dict(self.taus), self.floor)

    def describe(self) -> str:
        low, high = min(self.taus.values()), max(self.taus.values())
        return f"Relative(τ = {number(low)}{'' if low == high else f' … {number(high)} by layer'})"


@remembered
def _block_of(prior: RelativePrecision) -> dict[str, Block]:
    """By parameter."""
    return {p.name: block for block in prior.blocks for p in block.params}


def relative_precision(
    given: Relative, blocks: Sequence[Block], network: Network, signals: Signals
) -> RelativePrecision:
    """The prior of a network's blocks from its weights and the sums over the data."""
    given.check()
    missing = [b.name for b in blocks if b.name not in signals]
    if missing:
        raise NotDefined(
            f"a relative prior needs sums over the data that this posterior does not have (for {missing[0]!r}): it was "
            "made by an older version. Fit it again, or pass a number for an isotropic prior."
        )
    taus = by_layer(given.tau, blocks) if isinstance(given.tau, Mapping) else dict.fromkeys(
        (b.name for b in blocks), float(given.tau)
    )  # fmt: skip
    shapes: dict[str, Ratio] = {}
    notes: list[str] = []
    for block in blocks:
        weights = {p.name: network.params[p.name].detach().double().cpu() for p in block.params}
        shape, note = shape_of(block, weights, signals[block.name].to("cpu"), given.floor)
        shapes[block.name] = shape
        notes += [note] if note else []
    return RelativePrecision(taus, shapes, tuple(blocks), given.floor, tuple(notes))


def shape_of(block: Block, weights: Mapping[str, Tensor], signal: Signal, floor: float) -> tuple[Ratio, str]:
    """D of a block's prior precision τ D, and a note."""
    kind = signal.description.kind
    if kind is Role.MATRIX:
        return _of_matrix(block, weights, signal, floor)
    if kind is Role.RECURRENT:
        return _of_recurrent(block, weights, signal, floor)
    if kind is Role.AFFINE:
        variances, note = _of_affine(block, weights, signal, floor)
    elif kind is Role.SLOPE:
        variances, note = [torch.full_like(weights[p.name], SLOPE) for p in block.params], ""
    else:
        pieces = [_of_parameter(kind, weights[p.name], signal, _convolved(block)) for p in block.params]
        variances = [_filled(v) for v in pieces]
        note = _zeros(block) if any(not bool((v > 0).any()) for v in pieces) else ""
    flat = torch.cat([v.reshape(-1) for v in variances])
    flat = flat.clamp(min=SMALLEST**2 * flat.median())
    if kind is Role.BIAS and block.form is not None:
        return Separable(block.form.pack(1 / flat)[..., 0], torch.ones(block.form.pairs, 1, dtype=flat.dtype)), note
    return PerWeight(1 / flat), note


def _zeros(block: Block) -> str:
    return (
        f"all weights or all inputs of {block.name!r} ({block.kind}) are zero, so its prior cannot be relative to the "
        "signal. Its prior is isotropic, with precision τ."
    )


def _convolved(block: Block) -> bool:
    return "Conv" in block.kind


# Matrices


def _of_matrix(block: Block, weights: Mapping[str, Tensor], signal: Signal, floor: float) -> tuple[Ratio, str]:
    form, kernel = block.form, kernel_of(block)
    assert form is not None
    native = form.weight_to_native(weights[block.params[0].name].reshape(-1))  # [E, O, I · K]
    if signal.description.head and form.pairs == 1:
        native = native - native.mean(1, keepdim=True)  # softmax is invariant to a shift of all classes
    split = native.unflatten(-1, (-1, kernel)).square().sum(-1)  # [E, O, I]
    external = torch.tensor(signal.description.external)
    number = form.inputs + form.bias
    energy, worth, found = separable_scales(split, kernel, signal.mean_squares(), external, number, floor)
    columns = worth.repeat_interleave(kernel, 1)
    if form.bias:
        columns = torch.cat([columns, torch.ones(form.pairs, 1, dtype=columns.dtype)], 1)
    if found:
        return Separable(number / energy, columns), ""
    if not bool(native.any()):
        return Separable(torch.ones_like(energy), torch.ones_like(columns)), _zeros(block)
    bias = form.pack(torch.cat([weights[p.name].reshape(-1) for p in block.params]))[..., -1] if form.bias else None
    return _without_signal(native, bias), ""


def separable_scales(
    squares: Tensor, kernel: int, mean: Tensor, external: Tensor, number: int, floor: float
) -> tuple[Tensor, Tensor, bool]:
    """r [E, O] and A + ν κ [E, I], from Σ_k w² [E, O, I] and A [E, I]; False if no weight carries a signal.

    ν κ_i keeps inputs that are rarely active from taking all of the prior variance: κ_i = 1 / (D q_i) with q_i
    the mean over outputs (and kernel positions) of w_oi² / r_o is the signal that the weights imply for the input.
    """
    energy = (squares @ mean.unsqueeze(-1)).squeeze(-1)  # r, [E, O]
    live = energy > 0
    if not bool(live.any()):
        return energy, mean, False
    energy = _filled(energy)
    shown = torch.where(live.unsqueeze(-1), squares / energy.unsqueeze(-1), 0.0)
    q = shown.sum(1) / (live.sum(1, keepdim=True).clamp(min=1) * kernel)  # [E, I]
    kappa = torch.where(q > 0, 1 / (number * q.clamp(min=1e-300)), 0.0)
    typical = mean.mean(1, keepdim=True)
    kappa = torch.where(external.unsqueeze(1), torch.minimum(kappa, typical), kappa)
    worth = _filled(mean + floor * kappa, torch.Tensor.mean)
    return energy.clamp(min=SMALLEST * energy.median()), worth.clamp(max=worth.median() / SMALLEST), True


def _without_signal(weight: Tensor, bias: Tensor | None) -> Separable:
    """The shape for a layer whose inputs are never active, from its weights [E, O, D] and bias [E, O] alone."""
    rows, columns, size = two_way(weight.square())
    d, e = (1 / (size * rows.exp())).squeeze(-1), (-columns).exp().squeeze(-2)  # V = size · exp(row + column)
    if bias is not None:
        worth = (bias.square() * d).mean(1, keepdim=True)
        e = torch.cat([e, 1 / torch.where(worth > 0, worth, 1.0)], 1)
    return Separable(d, e)


def _filled(values: Tensor, typical: Any = torch.Tensor.median) -> Tensor:
    """Replace zeros by a typical value: of the same row if it has any, otherwise of all rows; 1 if there is none."""
    known = values > 0
    if bool(known.all()):
        return values
    everywhere = typical(values[known]) if bool(known.any()) else torch.ones((), dtype=values.dtype)
    if values.dim() < 2:
        return torch.where(known, values, everywhere)
    rows = [typical(row[k]) if bool(k.any()) else everywhere for row, k in zip(values, known, strict=True)]
    fill = torch.stack(rows).reshape(-1, *(1,) * (values.dim() - 1))
    return torch.where(known, values, fill)


def _of_recurrent(block: Block, weights: Mapping[str, Tensor], signal: Signal, floor: float) -> tuple[Ratio, str]:
    """The shape of a recurrent block: each matrix separately, with its own bias."""
    found: dict[str, Tensor] = {}
    note = ""
    widths = [p.shape[1] for p in matrices(block)]
    parts = zip(matrices(block), signal.squares.split(widths), signal.count, signal.description.external, strict=True)
    for p, squares, count, external in parts:
        bias = _partner(p.name, weights)
        mean = (squares / count.clamp(min=1e-300)).unsqueeze(0)
        number = p.shape[1] + (bias is not None)
        own = weights[p.name].square().unsqueeze(0)
        energy, worth, known = separable_scales(own, 1, mean, torch.tensor([external]), number, floor)
        rows, columns = number / energy[0], torch.cat([worth[0], worth.new_ones(1)])  # 1: the bias's input
        if not known and not bool(own.any()):
            rows, columns, note = torch.ones_like(rows), torch.ones_like(columns), _zeros(block)
        elif not known:
            shape = _without_signal(weights[p.name].unsqueeze(0), None if bias is None else weights[bias].unsqueeze(0))
            rows, columns = shape.rows[0], shape.columns[0]
        found[p.name] = rows.unsqueeze(1) * columns[: p.shape[1]]
        if bias is not None:
            found[bias] = rows * columns[-1]
    rest = {p.name: 1 / _filled(_two_way(weights[p.name], False)) for p in block.params if p.name not in found}
    return PerWeight(torch.cat([(found | rest)[p.name].reshape(-1) for p in block.params])), note


def _partner(name: str, weights: Mapping[str, Tensor]) -> str | None:
    """The bias of a recurrent matrix: ``weight_ih_l0`` has ``bias_ih_l0``."""
    owner, dot, own = name.rpartition(".")
    bias = f"{owner}{dot}{own.replace('weight_', 'bias_', 1)}"
    return bias if bias in weights and weights[bias].shape[0] == weights[name].shape[0] else None


# Others


def _of_affine(block: Block, weights: Mapping[str, Tensor], signal: Signal, floor: float) -> tuple[list[Tensor], str]:
    """γ and β of a normalisation: two inputs, x̂ and 1, of an output with r = γ² E[x̂²] + β²; γ alone has γ²."""
    scale, *shift = (weights[p.name].reshape(-1) for p in block.params)
    scale = scale + signal.description.offset
    if not shift:
        return [_filled(scale.square())], "" if bool(scale.any()) else _zeros(block)
    mean = signal.mean_squares()
    energy = scale.square() * mean + shift[0].square()
    note = "" if bool((energy > 0).any()) else _zeros(block)
    energy = _filled(energy)
    kappa = torch.where(scale != 0, energy / (2 * scale.square().clamp(min=1e-300)), 0.0)
    worth = _filled(mean + floor * kappa, torch.Tensor.mean)
    return [energy / (2 * worth), energy / 2], note


def _of_parameter(kind: Role, value: Tensor, signal: Signal, convolved: bool) -> Tensor:
    """V τ of a parameter in its shape; zero where nothing is known."""
    if kind is Role.BIAS:
        return signal.mean_squares().reshape(value.shape)
    if kind is Role.SHIFT:  # x + b is like a normalisation with fixed γ = 1
        return (signal.mean_squares().reshape(value.shape) + value.square()) / 2
    if kind is Role.TABLE:
        often = signal.squares / signal.count.clamp(min=1e-300)  # how often each row is looked up
        often = often if bool(often.any()) else torch.full_like(often, 1 / len(often))
        return (often @ value.square()).expand_as(value)
    if kind is Role.ADDED:
        return value.square().reshape(-1, value.shape[-1]).mean(0).expand_as(value)
    return _two_way(value, convolved)


def _two_way(value: Tensor, convolved: bool) -> Tensor:
    """A row-and-column fit to a parameter's squares in its shape, where its use is unknown.

    Rows and columns are the last two dimensions, or the first two of a convolution.
    """
    squares = value.square()
    if value.dim() < 2:
        return squares
    moved = squares.flatten(2).movedim(-1, 0) if convolved and value.dim() > 2 else squares
    known = moved > 0
    rows, columns, size = two_way(moved)
    found = size * (rows + columns).exp()
    found = torch.where(known.any(-1, keepdim=True) & known.any(-2, keepdim=True), found, 0.0)
    return found.movedim(0, -1).reshape(value.shape) if moved is not squares else found


def two_way(squares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(row, column, size) with w² ≈ size · exp(row + column): it is equivariant to rescaling of rows and columns.

    Least squares in log w² over non-zero entries; ``size`` corrects for the mean of logarithms, which is below the
    logarithm of the mean. Rows and columns are the last two dimensions.
    """
    known = squares > 0
    logs, counted = torch.where(known, squares.clamp(min=1e-300).log(), 0.0), known.double()
    rows, columns = torch.zeros_like(logs[..., :1]), torch.zeros_like(logs[..., :1, :])
    for _ in range(100):
        before = rows + columns
        rows = ((logs - columns) * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
        columns = ((logs - rows) * counted).sum(-2, keepdim=True) / counted.sum(-2, keepdim=True).clamp(min=1)
        if float((rows + columns - before).abs().max()) < 1e-12:
            break
    ratio = squares / (rows + columns).exp()
    return rows, columns, ratio[known].mean() if bool(known.any()) else torch.ones((), dtype=squares.dtype)
