"""The covariance of the outputs where they are those of the only Bayesian layer: J = I ⊗ aᵀ, so no backward pass.

V = B_G diag(v) B_Gᵀ with v_o = Σ_d ã_d² / (λ_od + δ): for C classes C² numbers of work for a variance, not C³.

Index legend: N examples, C outputs, D inputs of the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.jacobian import Recording
from whence.linalg.spectral import DiagonalSpectral, KroneckerSpectral, turn
from whence.posteriors.block import BlockGaussian

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace


@dataclass(frozen=True)
class Direct:
    """V by its eigenvalues in the basis of the output factor."""

    values: Tensor  # v, [N, C]
    basis: Tensor | None  # B_G, [C, C]; None for the identity

    def covariance(self) -> Tensor:
        """[N, C, C]."""
        if self.basis is None:
            return torch.diag_embed(self.values)
        return (self.basis * self.values.unsqueeze(1)) @ self.basis.mT

    def variance(self) -> Tensor:
        """Its diagonal, [N, C]."""
        return self.values if self.basis is None else self.values @ self.basis.square().mT


def direct(posterior: Laplace, recording: Recording) -> Direct | None:
    """V of a recorded batch, where this way is open."""
    if len(posterior.blocks) != 1 or posterior.curvature.joint or not recording.direct:
        return None
    ((gaussian, (block,)),) = posterior.gaussians()
    if block.form is None:
        return None
    ((_, a),) = recording.block_inputs(block)
    return _kronecker(gaussian, a.dense()[0, :, 0]) or _diagonal(gaussian, block.form.pack, a.dense()[0, :, 0])


def _kronecker(gaussian: BlockGaussian, a: Tensor) -> Direct | None:
    spectral = gaussian.spectral
    if not isinstance(spectral, KroneckerSpectral):
        return None
    turned = turn(a, spectral.right)[0] if spectral.right is not None else a  # [N, D]
    values = turned.square() @ (1 / gaussian.precision)[0].mT
    left = spectral.left
    if left is not None and left.dim() == 2:
        return Direct(values * left[0].square(), None)
    return Direct(values, None if left is None else left[0])


def _diagonal(gaussian: BlockGaussian, pack: Callable[[Tensor], Tensor], a: Tensor) -> Direct | None:
    if not isinstance(gaussian.spectral, DiagonalSpectral):
        return None
    return Direct(a.square() @ pack(gaussian.variance())[0].mT, None)
