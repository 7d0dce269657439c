"""How like real images samples are, by features of our own LeNet-5: not comparable with Inception's numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reproductions.store import Values
from whence import metrics


@torch.no_grad()
def features(judge: nn.Sequential, images: Tensor) -> Tensor:
    """The last hidden layer, [N, D], in double precision."""
    body = judge[:-1]
    return torch.cat([body(part).double().cpu() for part in images.split(500)])


def root(matrix: Tensor) -> Tensor:
    """The symmetric square root of a covariance."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def frechet(one: Tensor, other: Tensor) -> float:
    """|μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁ C₂)^½) of two sets of features: the FID's formula (Heusel et al. 2017)."""
    (m1, c1), (m2, c2) = ((x.mean(0), torch.cov(x.T)) for x in (one, other))
    half = root(c1)
    cross = torch.linalg.eigvalsh(half @ c2 @ half).clamp(min=0).sqrt().sum()
    return float((m1 - m2).square().sum() + c1.trace() + c2.trace() - 2 * cross)


def precision_recall(real: Tensor, fake: Tensor, k: int = 3) -> tuple[float, float]:
    """Share of samples inside the manifold of real images, and the reverse (Kynkäänniemi et al. 2019)."""

    def inside(points: Tensor, support: Tensor) -> float:
        radius = torch.cdist(support, support).kthvalue(k + 1, dim=1).values  # the nearest is the point itself
        return float((torch.cdist(points, support) <= radius).any(1).double().mean())

    return inside(fake, real), inside(real, fake)


@torch.no_grad()
def modes(judge: nn.Sequential, images: Tensor) -> Values:
    """Classes that at least 1% of the samples belong to, and the entropy of the classes in nats."""
    labels = torch.cat([judge(part).argmax(-1).cpu() for part in images.split(500)])
    shares = torch.bincount(labels, minlength=int(judge[-1].out_features)).double() / len(labels)
    return {"classes": int((shares >= 0.01).sum()), "class entropy": float(-torch.xlogy(shares, shares).sum())}


def nearest(fake: Tensor, real: Tensor) -> Tensor:
    """Distance of each sample to the nearest real image."""
    return torch.cdist(fake, real).min(1).values


def area(inside: Tensor, outside: Tensor) -> float:
    """AUROC of telling the second from the first by larger values."""
    both = torch.cat([inside, outside])
    return float(metrics.auroc(both, torch.arange(len(both)) >= len(inside), resamples=0))
