"""Which pixels, columns or tokens an uncertainty comes from: gradients of a prediction in its inputs.

Integrated gradients (Sundararajan et al. 2017, eq. 1) from a baseline b, by the midpoint rule:

    a_i = (x_i − b_i) ∫₀¹ ∂u(b + α (x − b)) / ∂x_i dα,    Σ_i a_i = u(x) − u(b)

Token ids have no gradient; theirs is taken in the embedding, and summed over its dimensions.

Index legend: N inputs, T tokens, E dimensions of an embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.batches import Inputs, cut, size_of, take
from whence.engine.follow import graph_kept
from whence.engine.memory import sizes
from whence.engine.options import Option
from whence.engine.randomness import seed_from
from whence.errors import BadData, BadOption, NotDefined, UnsupportedLayer, first_line, notice
from whence.numerals import percent
from whence.predictive.dispatch import Method
from whence.tables import Table, html_of
from whence.where.moved_embedding import MovedEmbedding
from whence.where.weights import spearman

if TYPE_CHECKING:
    from whence.posteriors.base import Posterior

STEPS = 32
USUAL = ("input_ids", "pixel_values", "inputs_embeds", "x", "inputs")  # names of what is looked at, in mappings
MUCH = 0.1  # residual relative to the difference of the uncertainties
TINY = 1e-12
BUDGETS = 4  # memory budgets (of one tensor) that the graph of a prediction may take


class Part(Option):
    """Which uncertainty is attributed."""

    EPISTEMIC = "epistemic"
    ALEATORIC = "aleatoric"
    TOTAL = "total"


class Along(Option):
    """Where the gradient is taken."""

    INTEGRATED = "integrated"  # along the line from the baseline
    GRADIENT = "gradient"  # at the input


@dataclass(frozen=True)
class Asked:
    """What is attributed, and how; the same for every input."""

    part: Part
    along: Along
    steps: int
    baseline: Any
    at: Any
    to: Any
    options: dict[str, Any]  # of predict
    seed: int | None  # of its draws


@dataclass(frozen=True)
class Attribution:
    """How much each part of an input adds to, or takes from, the uncertainty of its prediction."""

    values: Tensor  # in the shape of the inputs; [N, T] for token ids
    uncertainty: Tensor  # u(x), [N]
    at_baseline: Tensor | None  # u(baseline), [N]; None for plain gradients
    of: Part
    method: Along
    pieces: tuple[Inputs, ...] = field(repr=False)
    looked_at: Tensor = field(repr=False)  # the tensor of the inputs that is attributed
    posterior: Posterior = field(repr=False)
    asked: Asked = field(repr=False)

    @property
    def residual(self) -> Tensor:
        """Σ values − (u(x) − u(baseline)) of every input, [N]; small with many steps if u does not jump on the way."""
        if self.at_baseline is None:
            raise NotDefined("plain gradients do not add up to anything; method='integrated' does.")
        return self.values.flatten(1).sum(1) - (self.uncertainty - self.at_baseline)

    @property
    def map(self) -> Tensor:
        """Summed over the channels of images, [N, H, W]; otherwise ``values``."""
        return self.values.sum(1) if self.values.dim() in (4, 5) else self.values

    def top(self, index: int = 0, count: int = 10, names: Any = None) -> Table:
        """The parts of one input with the largest attributions: columns by ``names``, tokens by what they are."""
        values = self.map[index]
        flat = values.flatten()
        order = flat.abs().argsort(descending=True)[:count]
        places = torch.stack(torch.unravel_index(order, values.shape), 1).tolist()
        labels = [_label(place, names) for place in places]
        return Table({"part": labels, "attribution": flat[order].tolist()}, f"input {index}, of={self.of.value!r}")

    def sanity_check(self, seed: int = 0, *, cascade: bool = True) -> Table:
        """Attributions again with randomised weights: from the last layer on, one layer more in every row.

        ``cascade=False`` randomises all layers at once, in a single row. ``correlation`` is Spearman's rank
        correlation of the absolute attributions with the original ones, averaged over the inputs. It falls for an
        attribution that depends on what the network has learned (Adebayo et al. 2018); one that stays high shows the
        inputs, not the network.
        """
        return _sanity_check(self, seed, cascade)

    def plot(self, index: int = 0, *, names: Any = None, ax: Any = None) -> Any:
        """A map beside the image, or bars for the columns or tokens with the largest attributions."""
        from whence.report import figures

        return figures.attribution(self, index, names, ax=ax)

    def __repr__(self) -> str:
        shape = list(self.values.shape)
        return f"Attribution(of={self.of.value!r}, method={self.method.value!r}, values {shape})"

    def _repr_html_(self) -> str:
        return html_of(self.top(), repr(self))


def _label(place: list[int], names: Any) -> str:
    if names is None:
        return ", ".join(map(str, place))
    return str(names[place[0]]) if len(place) == 1 else f"{names[place[0]]}, " + ", ".join(map(str, place[1:]))


@torch.inference_mode(False)
def attribute(
    posterior: Posterior,
    x: Any,
    of: str,
    method: str,
    baseline: Any,
    steps: int,
    at: Any,
    to: Any,
    num_samples: int | None,
    generator: torch.Generator | None,
) -> Attribution:
    """See :meth:`whence.Posterior.attribute`."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BadOption(f"steps={steps!r} must be a whole number of 1 or more.")
    repeatable = posterior.usual_method is Method.LINEARISED and generator is None
    asked = Asked(
        Part.parse(of, "of"),
        Along.parse(method, "method"),
        steps,
        baseline,
        at,
        to,
        {} if num_samples is None else {"num_samples": num_samples},
        None if repeatable else 0 if generator is None else seed_from(generator),
    )
    network = posterior.snapshots[0]
    parts = [_of_piece(posterior, piece, asked) for piece in network.pieces(network.only_inputs(x), 2**31)]
    if not parts:
        raise BadData("there are no inputs.")
    if len({part.values.shape[1:] for part in parts}) > 1:
        raise BadData("the batches have inputs of different shapes; attribute them batch by batch.")
    bases = [part.at_baseline for part in parts if part.at_baseline is not None]
    found = replace(
        parts[0],
        values=torch.cat([part.values for part in parts]),
        uncertainty=torch.cat([part.uncertainty for part in parts]),
        at_baseline=torch.cat(bases) if bases else None,
        looked_at=torch.cat([part.looked_at for part in parts]),
        pieces=tuple(piece for part in parts for piece in part.pieces),
    )
    if found.at_baseline is not None:
        left = float(found.residual.abs().sum() / (found.uncertainty - found.at_baseline).abs().sum().clamp(min=TINY))
        if left > MUCH:
            notice(
                f"the attributions miss {percent(left, 0)} of u(input) − u(baseline). If more steps do not help, u "
                "jumps on the way (with ReLU where a unit switches), or the embedding of the tokens is uncertain "
                "itself: see the limits in docs/attribution.md."
            )
    return found


def _of_piece(posterior: Posterior, inputs: Inputs, asked: Asked) -> Attribution:
    looked_at = chosen(inputs, asked.to)
    work = _by_embedding if not looked_at.is_floating_point() else _by_value
    step = 1 if work is _by_embedding else _inputs_that_fit(posterior, inputs, asked)
    found = [work(posterior, some, asked) for some in cut(inputs, step)]
    values, at_input, at_base = (
        None if column[0] is None else torch.cat(column) for column in zip(*found, strict=True)
    )
    assert values is not None and at_input is not None
    return Attribution(values, at_input, at_base, asked.part, asked.along, (inputs,), looked_at, posterior, asked)


def chosen(inputs: Inputs, to: Any) -> Tensor:
    """The tensor of the inputs that is attributed."""
    if isinstance(inputs, Tensor):
        if to is not None:
            raise BadOption(f"to={to!r} selects one of several inputs; the network has one.")
        return inputs
    named = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))  # type: ignore[arg-type]
    tensors = {name: t for name, t in named.items() if isinstance(t, Tensor)}
    if to is not None:
        if to not in tensors:
            raise BadOption(f"to={to!r} is none of the inputs: {list(tensors)}.")
        return tensors[to]
    usual = [name for name in USUAL if name in tensors]
    floating = [name for name, t in tensors.items() if t.is_floating_point()]
    if usual or len(floating) == 1:
        return tensors[(usual or floating)[0]]
    raise BadOption(f"the network has several inputs; pass to=, one of {list(tensors)}.")


def _with(inputs: Inputs, old: Tensor, new: Tensor) -> Inputs:
    """The inputs with one of their tensors replaced."""
    if isinstance(inputs, Tensor):
        return new
    if isinstance(inputs, Mapping):
        return {name: new if t is old else t for name, t in inputs.items()}
    return tuple(new if t is old else t for t in inputs)  # type: ignore[union-attr]


def uncertainty(posterior: Posterior, inputs: Inputs, asked: Asked) -> Tensor:
    """u(x), [N]: summed over the targets of an input, or over those that ``at`` selects."""
    generator = None if asked.seed is None else torch.Generator(posterior.snapshots[0].device).manual_seed(asked.seed)
    prediction: Any = posterior.predict(inputs, generator=generator, **asked.options)
    name = asked.part.value
    if asked.part is Part.TOTAL:
        name = "entropy" if hasattr(prediction, "entropy") else "variance"
    found: Tensor = getattr(prediction, name)
    if asked.at is not None:
        found = _selected(found, asked.at)
    return found.flatten(1).sum(1) if found.dim() > 1 else found


def _selected(found: Tensor, at: Any) -> Tensor:
    if found.dim() == 1:
        raise BadOption(f"at={at!r} selects targets; every input has one uncertainty here.")
    index = at if isinstance(at, tuple) else (at,)
    try:
        return found[(slice(None), *index)]
    except (IndexError, TypeError) as error:
        raise BadOption(f"at={at!r} does not select from uncertainties {list(found.shape[1:])}: {error}.") from None


def _by_value(posterior: Posterior, inputs: Inputs, asked: Asked) -> tuple[Tensor, Tensor, Tensor | None]:
    x = chosen(inputs, asked.to).detach()

    def gradient(at: Tensor) -> tuple[Tensor, Tensor]:
        point = at.detach().requires_grad_()
        return _gradient(lambda: uncertainty(posterior, _with(inputs, chosen(inputs, asked.to), point), asked), point)

    if asked.along is Along.GRADIENT:
        u, g = gradient(x)
        return g, u, None
    base = _baseline(asked.baseline, x)
    alphas = [(k + 0.5) / asked.steps for k in range(asked.steps)]
    total = sum((gradient(torch.lerp(base, x, alpha))[1] for alpha in alphas), torch.zeros_like(x))
    u, at_base = (_value(posterior, _with(inputs, chosen(inputs, asked.to), point), asked) for point in (x, base))
    return (x - base) * total / asked.steps, u, at_base


def _gradient(value: Callable[[], Tensor], leaf: Tensor) -> tuple[Tensor, Tensor]:
    """u [N] and ∂u/∂leaf; inputs do not see each other, so that the sum over them has the gradient of each."""
    with torch.enable_grad(), graph_kept():
        u = value()
        if not u.requires_grad:
            return u.detach(), torch.zeros_like(leaf)
        try:
            (g,) = torch.autograd.grad(u.sum(), leaf, allow_unused=True)
        except NotImplementedError as error:
            raise UnsupportedLayer(
                "an attribution needs second derivatives of the network where its outputs are linearised, and one "
                f"operation has none ({first_line(error)}). Write it with other operations."
            ) from error
    return u.detach(), torch.zeros_like(leaf) if g is None else g.detach()


def _value(posterior: Posterior, inputs: Inputs, asked: Asked) -> Tensor:
    with torch.no_grad():
        return uncertainty(posterior, inputs, asked).detach()


def _baseline(given: Any, x: Tensor) -> Tensor:
    """In the shape of the inputs; zeros if none is given."""
    if given is None:
        return torch.zeros_like(x)
    value = given if isinstance(given, Tensor) else torch.as_tensor(given)
    try:
        return value.to(x).expand_as(x).clone()
    except RuntimeError:
        raise BadOption(
            f"baseline has shape {list(value.shape)}, which does not fit inputs {list(x.shape)}; pass one input, or a "
            "number."
        ) from None


# Tokens


def _by_embedding(posterior: Posterior, inputs: Inputs, asked: Asked) -> tuple[Tensor, Tensor, Tensor | None]:
    """One input. A new delta for every point, because the network may embed its ids more than once."""
    ids = chosen(inputs, asked.to)
    baseline = asked.baseline
    if isinstance(baseline, Tensor) and baseline.dim():
        raise BadOption("the baseline of token ids is one id, or None for an embedding of zeros.")

    def at(alpha: float) -> tuple[Tensor, Tensor, Tensor]:
        moved = MovedEmbedding(ids, alpha, None if baseline is None else int(baseline))
        with torch.enable_grad(), graph_kept(), moved:
            u = uncertainty(posterior, inputs, asked)
            if moved.delta is None or moved.away is None:
                raise NotDefined(
                    "the network embeds no tensor that equals its token ids, so there is no gradient in them; pass "
                    "to=, the input that holds the ids."
                )
            (g,) = torch.autograd.grad(u.sum(), moved.delta, allow_unused=True)
        return u.detach(), torch.zeros_like(moved.away) if g is None else g.detach(), moved.away

    if asked.along is Along.GRADIENT:
        u, g, away = at(1.0)
        return (g * away).sum(-1), u, None
    found = [at((k + 0.5) / asked.steps) for k in range(asked.steps)]
    mean = torch.stack([g for _, g, _ in found]).mean(0)
    # An embedding that is uncertain itself is that of the tokens all along the line, so its end is not u(baseline).
    base = (
        at(0.0)[0] if baseline is None else _value(posterior, _with(inputs, ids, torch.full_like(ids, baseline)), asked)
    )
    return (mean * found[0][2]).sum(-1), at(1.0)[0], base


# Memory, and the check


def _inputs_that_fit(posterior: Posterior, inputs: Inputs, asked: Asked) -> int:
    """By what the graph of one input's prediction stores."""
    one, stored = take(inputs, slice(0, 1)), 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal stored
        stored += tensor.numel() * tensor.element_size()
        return tensor

    point = chosen(one, asked.to).detach().requires_grad_()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        uncertainty(posterior, _with(one, chosen(one, asked.to), point), asked)
    device = posterior.snapshots[0].device
    return max(1, min(size_of(inputs), BUDGETS * sizes().one_tensor(device) // max(stored, 1)))


def _sanity_check(found: Attribution, seed: int, cascade: bool) -> Table:
    posterior = copy.deepcopy(found.posterior)
    generator = torch.Generator().manual_seed(seed)
    rows: dict[str, list[Any]] = {"randomised": ["nothing"], "layers": [0], "correlation": [1.0]}
    values, layers = found.values, list(reversed(posterior.layers().items()))
    for count, (name, own) in enumerate(layers, 1):
        for network in posterior.snapshots:
            network.overwrite({n: _permuted(network.params[n], generator) for n in own})
        if not cascade and count < len(layers):
            continue
        values = torch.cat([_of_piece(posterior, piece, found.asked).values for piece in found.pieces])
        pairs = zip(found.values.flatten(1).abs().double(), values.flatten(1).abs().double(), strict=True)
        rows["randomised"].append(name if count == 1 else f"… and {name}" if cascade else "all layers")
        rows["layers"].append(count)
        rows["correlation"].append(sum(spearman(a.cpu(), b.cpu()) for a, b in pairs) / len(values))
    if torch.equal(values, found.values):
        raise NotDefined(f"the draws of a {type(posterior).__name__} hold their own weights, which are not randomised.")
    return Table(rows, "rank correlation of absolute attributions with the original ones")


def _permuted(weights: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers in another order."""
    order = torch.randperm(weights.numel(), generator=generator).to(weights.device)
    return weights.detach().flatten()[order].view_as(weights)
