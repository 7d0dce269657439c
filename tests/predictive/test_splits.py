"""Total = aleatoric + epistemic: entropies, the variances of Kwon et al., the law of total variance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import NotDefined
from whence.predictive.links import predict_draws


def close(a: Tensor, b: Tensor) -> None:
    assert torch.allclose(a, b, atol=1e-12, rtol=1e-10)


@pytest.fixture
def outputs() -> Tensor:
    return 2 * torch.randn(40, 7, 4, dtype=torch.float64)


def test_classes(outputs: Tensor) -> None:
    prediction = predict_draws(whence.Categorical(), outputs)
    p = outputs.softmax(-1)
    close(prediction.entropy, prediction.aleatoric + prediction.epistemic)
    split = prediction.variance_split()
    close(split.total, split.aleatoric + split.epistemic)
    close(split.epistemic, p.var(0, correction=0))
    close(split.total, prediction.probs * (1 - prediction.probs))
    full = prediction.variance_split(full=True)
    close(full.total, full.aleatoric + full.epistemic)
    close(full.total.diagonal(dim1=1, dim2=2), split.total)
    wanted = torch.stack([torch.stack([torch.diag(q) - torch.outer(q, q) for q in draw]) for draw in p]).mean(0)
    close(full.aleatoric, wanted)
    off = p - p.mean(0)
    close(full.epistemic, (off.unsqueeze(-1) * off.unsqueeze(-2)).mean(0))
    close(full.total.sum(-1), torch.zeros(7, 4, dtype=torch.float64))


def test_the_split_is_that_of_drawn_labels() -> None:
    """The variance of labels drawn from draws, by counting."""
    torch.manual_seed(0)
    p = (2 * torch.randn(6, 1, 3, dtype=torch.float64)).softmax(-1)
    prediction = predict_draws(whence.Categorical(), p.log())
    which = torch.randint(6, (200_000,))
    labels = torch.multinomial(p[which, 0], 1).squeeze(1)
    indicators = nn.functional.one_hot(labels, 3).double()
    assert torch.allclose(prediction.variance_split(full=True).total[0], indicators.T.cov(correction=0), atol=5e-3)


def test_binary_labels(outputs: Tensor) -> None:
    prediction = predict_draws(whence.Bernoulli(), outputs)
    split = prediction.variance_split()
    close(split.total, split.aleatoric + split.epistemic)
    close(prediction.entropy, prediction.aleatoric + prediction.epistemic)
    with pytest.raises(NotDefined, match="omit full"):
        prediction.variance_split(full=True)


def test_numbers(outputs: Tensor) -> None:
    prediction = predict_draws(whence.Gaussian(noise=0.5), outputs)
    close(prediction.variance, prediction.aleatoric + prediction.epistemic)
    close(prediction.epistemic, outputs.var(0, correction=0))
    noisy = predict_draws(whence.HeteroscedasticGaussian(), outputs)
    means, noise = outputs.chunk(2, -1)
    close(noisy.variance, means.var(0, correction=0) + noise.exp().mean(0))
    torch.manual_seed(0)
    drawn = means[:, 0] + noise[:, 0].exp().sqrt() * torch.randn(20_000, *means[:, 0].shape, dtype=torch.float64)
    assert torch.allclose(drawn.flatten(0, 1).var(0), noisy.variance[0], rtol=0.05)


def test_links_without_draws_have_no_split() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(20, 3), torch.randint(3, (20,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    split = posterior.predict(x).variance_split()
    assert torch.allclose(split.total, split.aleatoric + split.epistemic, atol=1e-6)
    with pytest.raises(NotDefined, match="link='mc'"):
        posterior.predict(x, link="probit").variance_split()
