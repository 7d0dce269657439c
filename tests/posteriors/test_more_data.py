"""update and merge give what one fit on all the data gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, likelihood_of
from tests.reference.cases import Case
from tests.reference.networks import ALL

CASES = ["mlp", "conv2d", "conv2d_depthwise", "cross_attention", "batchnorm2d", "embedding", "regression_2", "lstm"]


def fit(case: Case, part: slice, structure: str, **options) -> whence.Laplace:
    x = {k: v[part] for k, v in case.x.items()} if isinstance(case.x, dict) else case.x
    x = tuple(t[part] for t in x) if isinstance(x, tuple) else x[part] if isinstance(x, torch.Tensor) else x
    options.setdefault("likelihood", likelihood_of(case))
    return whence.laplace(case.model, (x, case.y[part]), structure=structure, prior_precision=0.4, **options)


def same(mine: whence.Laplace, theirs: whence.Laplace) -> None:
    assert_close(mine.covariance(), theirs.covariance(), 1e-9)
    assert mine.record.loss == pytest.approx(theirs.record.loss)
    assert mine.record.data_size == theirs.record.data_size
    assert float(mine.log_evidence()) == pytest.approx(float(theirs.log_evidence()))


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("structure", ["full", "block", "kron", "diag"])
@pytest.mark.parametrize("name", CASES)
def test_parts_add_up(name: str, structure: str) -> None:
    case = ALL[name](0)
    whole = fit(case, slice(None), structure)
    first, second = fit(case, slice(0, 2), structure), fit(case, slice(2, None), structure)
    same(whence.merge(first, second), whole)
    rest = (case.x[2:] if isinstance(case.x, torch.Tensor) else tuple(t[2:] for t in case.x), case.y[2:])
    same(first.update(rest), whole)


@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
def test_estimated_noise_is_pooled(curvature: str) -> None:
    case = ALL["regression_2"](1)
    whole = fit(case, slice(None), "kron", likelihood="regression", curvature=curvature)
    parts = [fit(case, s, "kron", likelihood="regression", curvature=curvature) for s in (slice(0, 2), slice(2, None))]
    merged = whence.merge(*parts)
    assert float(merged.likelihood.noise) == pytest.approx(float(whole.likelihood.noise))
    same(merged, whole)


def test_passes_and_data_size_average_back() -> None:
    case = ALL["conv2d"](2)
    once = fit(case, slice(None), "kron")
    twice = fit(case, slice(None), "kron", passes=3)
    same(twice, once)
    doubled = whence.laplace(
        case.model,
        (torch.cat([case.x] * 2), torch.cat([case.y] * 2)),
        likelihood=likelihood_of(case),
        prior_precision=0.4,
        data_size=len(case.y),
    )
    same(doubled, once)
    assert doubled.record.seen == 2 * len(case.y)


def test_what_cannot_be_added_is_refused_in_words() -> None:
    case = ALL["mlp"](3)
    for structure in ("ekfac", "lowrank"):
        posterior = fit(case, slice(None), structure)
        with pytest.raises(whence.errors.NotDefined, match="Fit again on all the data"):
            posterior.update((case.x, case.y))
        with pytest.raises(whence.errors.NotDefined, match="Fit again on all the data"):
            whence.merge(posterior, posterior)
    kron, diag = fit(case, slice(None), "kron"), fit(case, slice(None), "diag")
    with pytest.raises(whence.errors.BadOption, match="structure"):
        whence.merge(kron, diag)
    other = ALL["mlp"](4)
    with pytest.raises(whence.errors.BadOption, match="different weights"):
        whence.merge(kron, fit(other, slice(None), "kron"))


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_fits_with_other_thin_factors_do_not_merge() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.arange(60) % 3
    with pytest.warns(whence.errors.Notice, match="smaller structure"):
        thin = whence.laplace(model, (x[30:], y[30:]), likelihood="classification", max_factor=5)
    plain = whence.laplace(model, (x[:30], y[:30]), likelihood="classification")
    with pytest.raises(whence.errors.BadOption, match="max_factor"):
        whence.merge(plain, thin)


def test_more_data_says_what_it_leaves_out() -> None:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    model, x, y = network()
    data = TensorDataset(x, y)
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False))
    with pytest.warns(whence.errors.Notice):
        posterior.update(loader, progress=False)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


def test_a_sampled_fit_that_is_updated_is_the_fit_on_everything() -> None:
    model, (x, y) = mlp(), classes()
    options = {"likelihood": "classification", "curvature": "mc"}
    whole = whence.laplace(model, (x, y), generator=torch.Generator().manual_seed(0), **options)
    part = whence.laplace(model, (x[:10], y[:10]), generator=torch.Generator().manual_seed(0), **options)
    assert_close(part.update((x[10:], y[10:])).covariance(), whole.covariance(), 1e-4)
