"""Draws from N(θ*, (s H + Δ)⁻¹) with the whole H, which is never formed: perturb, then solve.

With ε₀, εₙ white and Λₙ = Rₙ Rₙᵀ, the right-hand side b = √s Σₙ Jₙᵀ Rₙ εₙ + Δ^{1/2} ε₀ has the covariance
s H + Δ =: A, so that z = A⁻¹ b has A⁻¹ A A⁻¹ = A⁻¹ (Papandreou & Yuille 2010; for linearised networks Antorán et al.
2023). It is solved in w = Δ^{1/2} z, where the matrix is I + s Δ^{-1/2} H Δ^{-1/2}: all eigenvalues are at least 1.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.options import CurvatureKind
from whence.curvature.products import Products, Vector
from whence.engine.options import Option
from whence.engine.progress import progress_bar
from whence.engine.randomness import derived_seed, seed_from
from whence.errors import BadOption, NotDefined, TooLarge, is_out_of_memory, notice
from whence.functional import refuse_batch_statistics
from whence.posteriors.unstructured.posterior import Solved, Unstructured, exact
from whence.posteriors.unstructured.solver import Preconditioner, solve

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

VECTORS = 8  # vectors per draw that the solver keeps
REFINED = "{} of a refined posterior are not defined: make them from the posterior before refined()."


class SolvedNear(Option):
    """What preconditions the solver: Δ alone, or the structured posterior too."""

    PRIOR = "prior"
    STRUCTURE = "structure"


@torch.inference_mode(False)
def unstructured(
    posterior: Laplace,
    data: Any,
    num_samples: int,
    tolerance: float,
    max_iterations: int,
    preconditioner: str,
    generator: torch.Generator | None,
    progress: bool,
) -> Unstructured:
    """See :meth:`whence.posteriors.laplace.posterior.Laplace.unstructured`."""
    _check(num_samples, tolerance, max_iterations)
    near = SolvedNear.parse(preconditioner, "preconditioner")
    products = products_of(posterior, data)
    start = time.perf_counter()
    with progress_bar(label="draws", unit="product", shown=progress) as bar:

        def report(done: int, residual: float) -> None:
            bar.update(done - bar.n)
            bar.set_postfix_str(f"residual {residual:.2g}, target {tolerance:g}")

        try:
            draws, solved = _drawn(
                posterior,
                products,
                num_samples,
                tolerance,
                max_iterations,
                near,
                seed_from(generator),
                report,
            )
        except Exception as error:
            if is_out_of_memory(error):
                raise TooLarge(_memory(products.vector.size, num_samples, products.dtype)) from error
            raise
    _notify_unconverged(solved, max_iterations)
    values = products.vector.split(draws)
    return Unstructured(
        network=products.network,
        likelihood=posterior.likelihood,
        deviations={n: values[n].to(products.network.params[n].dtype) for n in posterior.names()},
        prior=posterior.prior,
        data_scale=posterior.data_scale,
        solved=Solved(**solved, seconds=time.perf_counter() - start),
        groups={b.name: tuple(p.name for p in b.params) for b in posterior.blocks},
        output_shape=tuple(posterior.record.output_shape),
        parameters=products.vector.size,
        structured=posterior,
    )


def _check(num_samples: int, tolerance: float, max_iterations: int) -> None:
    for name, value in (("num_samples", num_samples), ("max_iterations", max_iterations)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadOption(f"{name}={value} must be a whole number, at least 1.")
    if not (isinstance(tolerance, (int, float)) and 0 < tolerance < 1):
        raise BadOption(f"tolerance={tolerance} must be between 0 and 1; 0.01 is a common choice.")


def products_of(posterior: Laplace, data: Any) -> Products:
    """Products with the curvature that the posterior approximates; exact for a sampled Fisher."""
    if posterior.network.shift is not None:
        raise NotDefined(REFINED.format("draws without structure"))
    kind = posterior.curvature.options.curvature
    if kind is CurvatureKind.HESSIAN:
        raise NotDefined(
            "draws without structure need a curvature with a root, which curvature='hessian' does not have: it may be "
            "indefinite. Fit with curvature='ggn'."
        )
    network = exact(posterior.network)
    refuse_batch_statistics(network)
    source = network.read(data)
    source.require_passes(2, "posterior.unstructured (one pass per product with the curvature)")
    vector = Vector(network, posterior.blocks, posterior.curvature.keep)
    kind = kind if kind is CurvatureKind.EMPIRICAL else CurvatureKind.GGN
    return Products(network, vector, source, posterior.likelihood, kind, posterior.curvature.options.draws)


def _drawn(
    posterior: Laplace,
    products: Products,
    count: int,
    tolerance: float,
    max_iterations: int,
    near: SolvedNear,
    seed: int,
    report: Any,
) -> tuple[Tensor, dict[str, Any]]:
    """The draws z [S, P], and statistics of the solver."""
    delta = prior_of(posterior, products)
    perturbation = products.noise(derived_seed(seed, "data"), count)  # Jᵀ R ε
    scale = scale_of(posterior, products)
    half = delta.rsqrt()
    c = math.sqrt(scale) * perturbation * half + white(seed, count, delta)

    def times(w: Tensor) -> Tensor:
        return scale * half * products.times(w * half)

    nearby = None if near is SolvedNear.PRIOR else structure_of(posterior)
    found = solve(times, c, tolerance, max_iterations, nearby, report)
    solved = {
        "iterations": found.iterations,
        "tolerance": tolerance,
        "residuals": tuple(found.residuals.tolist()),
        "effective": tuple(found.energies.tolist()),
        "converged": found.converged,
        "examples": products.seen,
        "preconditioner": near.value,
    }
    return found.x * half, solved


def prior_of(posterior: Laplace, products: Products) -> Tensor:
    """Δ of every weight, [P]."""
    delta = posterior.prior.flat([p for b in posterior.blocks for p in b.params])
    delta = delta.to(products.network.device, products.dtype)
    keep = products.vector.keep
    return delta if keep is None else delta[keep]


def white(seed: int, count: int, like: Tensor) -> Tensor:
    """ε₀ [S, P]: each draw's noise is independent of their number, and the same on every device and in every dtype."""
    rows = []
    for draw in range(count):
        generator = torch.Generator().manual_seed(derived_seed(seed, "prior", draw))
        rows.append(torch.randn(len(like), generator=generator, dtype=torch.float64).to(like))
    return torch.stack(rows)


def scale_of(posterior: Laplace, products: Products) -> float:
    """s: the data scale, corrected for the number of examples."""
    counted = posterior.curvature.record.data_size
    if abs(counted - products.seen) > 1e-6 * counted:
        notice(
            f"the data have {products.seen:,} examples, but the posterior counts {counted:,.0f}: each is counted "
            f"{counted / products.seen:.3g} times."
        )
    return posterior.data_scale * counted / products.seen


def structure_of(posterior: Laplace) -> Preconditioner:
    """The structured posterior, in the coordinates w = Δ^{1/2} z."""

    def power(v: Tensor, exponent: float) -> Tensor:
        pieces = []
        at = 0
        for gaussian, blocks in posterior.gaussians():
            spectral = gaussian.spectral
            piece = v[:, at : at + spectral.size].to(spectral.values.dtype)
            at += spectral.size
            alone = len(blocks) == 1 and posterior.curvature.keep is None
            native = blocks[0].to_native(piece) if alone else piece
            rest = torch.ones_like(gaussian.null_precision)
            turned = spectral.apply_whitened((gaussian.precision / gaussian.delta) ** exponent, native, rest)
            pieces.append((blocks[0].to_flat(turned) if alone else turned).to(v.dtype))
        return torch.cat(pieces, dim=1)

    return Preconditioner(lambda v: power(v, -0.5), lambda v: power(v, 0.5))


def _notify_unconverged(solved: dict[str, Any], most: int) -> None:
    if solved["converged"]:
        return
    worst = max(solved["residuals"])
    ended = f"max_iterations={most} was reached" if solved["iterations"] >= most else "rounding prevents a smaller one"
    notice(
        f"the draws have a relative residual of {worst:.2g}, above tolerance={solved['tolerance']:g}, after "
        f"{solved['iterations']} products: {ended}. Allow more iterations, take more draws together (which speeds up "
        "convergence), use a larger prior precision or tolerance, or a network in float64."
    )


def _memory(size: int, count: int, dtype: torch.dtype) -> str:
    needed = VECTORS * count * size * (torch.finfo(dtype).bits // 8) / 2**30
    return (
        f"{count} draws of {size:,} weights need about {needed:.1f} GiB during the solution, and memory ran out. Pass "
        "a smaller num_samples, or select fewer weights with layers=… when fitting."
    )
