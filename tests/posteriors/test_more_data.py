"""update and merge give what one fit on all the data gives."""

from __future__ import annotations

import pytest
import torch

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
