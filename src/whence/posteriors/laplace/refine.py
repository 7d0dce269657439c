"""The optimum of the linearised model, and the posterior there.

The linear model f*(x) + J(x) δ has the loss

    L(δ) = s Σ_n −log p(y_n | f*(x_n) + J_n δ) + ½ (θ* + δ − μ₀)ᵀ Δ (θ* + δ − μ₀),

which is convex for the likelihoods here. Its gradient is zero at θ* only if training ended at a mode. Newton's method,
with the step from conjugate gradients in w = Δ^{1/2} p:  (I + s Δ^{-1/2} H Δ^{-1/2}) w = −Δ^{-1/2} ∇L  (Immer et al.
2021, section 3.4; Antorán et al. 2022, "Adapting the linearised Laplace model evidence for modern deep learning").

Index legend: P weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.fit import fit_more
from whence.curvature.jvp import push, shifted
from whence.curvature.options import CurvatureKind
from whence.curvature.products import ForwardedExamples, Products
from whence.engine.batches import Inputs
from whence.engine.progress import progress_bar
from whence.engine.ranks import Ranks
from whence.errors import BadOption, NotConverged, NotDefined, notice
from whence.linalg.dense import widened
from whence.posteriors.laplace.more_data import refuse_unless_additive, same_selection
from whence.posteriors.unstructured.front import prior_of, products_of, scale_of, structure_of
from whence.posteriors.unstructured.solver import dots, solve
from whence.recording.plan import Plan

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

HALVINGS = 30  # of one step
EXACTLY = 1e-3  # relative error of a step's solution
PRODUCTS = 200  # for one step


class LinearModel(Products):
    """Products at the outputs of the linear model, with the loss there."""

    shift: dict[str, Tensor]
    losses: Tensor | float = 0.0

    def _at(self, inputs: Inputs, outputs: Tensor) -> Tensor:
        along = {n: v.unsqueeze(0) for n, v in self.shift.items()}
        _, moved = push(self.network, inputs, along, outputs, check=False)
        return outputs.detach() + moved[0].detach()

    def loss_and_gradient(self, delta: Tensor) -> tuple[float, Tensor]:
        """Σ −log p, and its gradient [1, P], for δ [P]."""
        self.shift, self.losses = self._shift(delta), 0.0

        def slope(_: slice, piece: ForwardedExamples) -> Tensor:
            at = widened(piece.at)
            self.losses = self.losses + self.likelihood.nll(at, piece.targets).double().sum()
            return self.likelihood.gradient(at, piece.targets).unsqueeze(0)

        found = self._summed(1, delta.unsqueeze(0), slope)
        return float(self.losses), found

    def _shift(self, delta: Tensor) -> dict[str, Tensor]:
        return {n: v[0] for n, v in self.vector.split(delta.unsqueeze(0)).items()}


@torch.inference_mode(False)
def refined(posterior: Laplace, data: Any, tolerance: float, max_steps: int, progress: bool) -> Laplace:
    """See :meth:`whence.Laplace.refined`."""
    _check(posterior, tolerance, max_steps)
    plain = replace(posterior, plan=_on(posterior.plan, shifted(posterior.network, None)))
    products = products_of(plain, data)
    model = LinearModel(products.network, products.vector, products.batches.data, posterior.likelihood)
    delta = optimum(posterior, plain, model, tolerance, max_steps, progress)
    shift = {n: v[0] for n, v in model.vector.split(delta.unsqueeze(0)).items()}
    return _fitted(posterior, shifted(plain.network, shift), data, progress)


def _check(posterior: Laplace, tolerance: float, max_steps: int) -> None:
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise BadOption(f"max_steps={max_steps!r} must be a whole number, at least 1.")
    if not (isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool) and tolerance > 0):
        raise BadOption(f"tolerance={tolerance} must be positive: nats by which the loss may exceed its minimum.")
    if posterior.curvature.options.curvature in (CurvatureKind.HESSIAN, CurvatureKind.KFRA):
        kind = posterior.curvature.options.curvature
        raise NotDefined(f"curvature={kind!r} is not that of the linear model; fit with curvature='ggn'.")
    refuse_unless_additive(posterior, "refined")


def _on(plan: Plan, network: Any) -> Plan:
    return Plan(network, plan.blocks, plan.inspection, plan.descriptions)


def optimum(
    posterior: Laplace, plain: Laplace, model: LinearModel, tolerance: float, max_steps: int, progress: bool
) -> Tensor:
    """δ [P] in float64 or float32, within ``tolerance`` nats of the minimum by Newton's estimate ½ gᵀ A⁻¹ g."""
    precision = prior_of(plain, model)
    start = _flat(posterior, model)
    centre = _deviation(plain, model)  # θ* − μ₀
    half = precision.rsqrt()
    nearby = structure_of(plain)
    model.loss_and_gradient(start)  # counts the examples
    delta, scale = start, scale_of(plain, model)

    def objective(at: Tensor) -> tuple[float, Tensor]:
        loss, gradient = model.loss_and_gradient(at)
        away = centre + at
        squares = float(dots(away[None] * precision, away[None]))
        return scale * loss + 0.5 * squares, scale * gradient[0] + precision * away

    def times(w: Tensor) -> Tensor:
        return scale * half * model.times(w * half)

    with progress_bar(label="refine", unit="step", shown=progress) as bar:
        value, gradient = objective(delta)
        for _ in range(max_steps):
            found = solve(times, -(half * gradient)[None], EXACTLY, PRODUCTS, nearby)
            step = half * found.x[0]
            left = -0.5 * float(dots(gradient[None], step[None]))
            bar.set_postfix_str(f"{left:.2g} nats left, target {tolerance:g}")
            if left < tolerance:
                return delta
            delta, value, gradient = _moved(objective, delta, step, value, left)
            bar.update()
    notice(f"the linear model's optimum was not reached in max_steps={max_steps}: about {left:.2g} nats are left.")
    return delta


def _moved(objective: Any, delta: Tensor, step: Tensor, value: float, left: float) -> tuple[Tensor, float, Tensor]:
    """The first of δ + p, δ + p / 2, … at which the loss is lower by a tenth of what the step promises."""
    size = 1.0
    for _ in range(HALVINGS):
        at = delta + size * step
        new, gradient = objective(at)
        if new <= value - 0.1 * size * left:
            return at, new, gradient
        size /= 2
    raise NotConverged(
        "no step along Newton's direction lowers the loss of the linear model; the network is too coarse in this "
        "precision. Use a network in float64, or a larger tolerance."
    )


def _flat(posterior: Laplace, model: LinearModel) -> Tensor:
    """The present δ, [P]."""
    zero = torch.zeros(model.vector.size, dtype=model.dtype, device=model.network.device)
    if posterior.network.shift is None:
        return zero
    values = [posterior.network.shift[n].unsqueeze(0) for n in model.vector.names]
    return model.vector.join(values, 1, zero)[0]


def _deviation(plain: Laplace, model: LinearModel) -> Tensor:
    """θ* − μ₀, [P]."""
    from whence.posteriors.laplace.evidence import deviation

    return deviation(plain, plain.blocks).to(model.network.device, model.dtype)


def _fitted(posterior: Laplace, network: Any, data: Any, progress: bool) -> Laplace:
    """The curvature at the outputs of the linear model, under the same prior, data scale and likelihood."""
    options = replace(posterior.curvature.options, progress=progress, passes=1, data_size=None, first=0)
    likelihood = posterior.likelihood
    found = fit_more(network, network.read(data), likelihood, same_selection(posterior), options, ranks=Ranks.of(None))
    wanted = posterior.curvature.record.data_size
    if abs(found.record.data_size - wanted) > 1e-6 * wanted:
        found = found.scaled(wanted / found.record.data_size)
    found = replace(found, signals=posterior.curvature.signals)  # scales of a relative prior stay those of the fit
    return type(posterior).make(
        _on(posterior.plan, network),
        found,
        likelihood,
        posterior.prior,
        prior_mean=posterior.prior_mean,
        data_scale=posterior.data_scale,
        damping=posterior.damping,
        probe=posterior.probe,
    )
