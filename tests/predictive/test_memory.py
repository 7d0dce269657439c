"""Predictions, tuning and draws where memory runs out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.curvature.running_out import FULL, data, dense_network, fitted
from whence.errors import Notice, TooLarge
from whence.predictive import linearised, sampled


def predictor() -> Any:
    return fitted(dense_network())


def test_linearised_predictions_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = predictor(), torch.randn(11, 4, dtype=torch.float64)
    whole = posterior.predict(x)
    record, sizes = linearised.record, []

    def limited(one: Any, inputs: Tensor) -> Any:
        sizes.append(len(inputs))
        if len(inputs) > 3:
            raise torch.OutOfMemoryError(str(FULL))
        return record(one, inputs)

    monkeypatch.setattr(linearised, "record", limited)
    with pytest.warns(Notice, match=r"the prediction ran out of memory"):
        halved = posterior.predict(x)
    torch.testing.assert_close(halved.probs, whole.probs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(halved.logit_cov, whole.logit_cov, rtol=1e-12, atol=1e-12)
    sizes.clear()
    posterior.predict(x)
    assert max(sizes) <= 3, "what fits is known by then"


def test_tuning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, validation = predictor(), data(2)
    wanted = posterior.tune(validation, progress=False)
    record = linearised.record

    def limited(one: Any, inputs: Tensor) -> Any:
        if len(inputs) > 2:
            raise torch.OutOfMemoryError(str(FULL))
        return record(one, inputs)

    monkeypatch.setattr(linearised, "record", limited)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = posterior.tune(validation, progress=False)
    assert found.prior_precision == wanted.prior_precision
    assert abs(found.tuning.score - wanted.tuning.score) < 1e-12


def test_one_input_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise torch.OutOfMemoryError(str(FULL))

    posterior = predictor()
    monkeypatch.setattr(linearised, "record", never)
    with pytest.raises(TooLarge, match=r"of one input does not fit .* method='sampled'"):
        posterior.predict(torch.randn(3, 4, dtype=torch.float64))


@pytest.mark.parametrize(("draws", "inputs"), [(3, 99), (1, 2), (99, 4)])
def test_sampled_predictions_take_fewer_draws_then_fewer_inputs(
    draws: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, x = predictor(), torch.randn(9, 4, dtype=torch.float64)
    fixed = posterior.draw(10, generator=torch.Generator().manual_seed(0))
    whole = fixed.outputs(x)
    together = sampled.torch.func.vmap

    def vmap(function: Any, in_dims: Any) -> Any:
        run = together(function, in_dims=in_dims)

        def limited(params: dict[str, Tensor], piece: Tensor) -> Tensor:
            if len(next(iter(params.values()))) > draws or len(piece) > inputs:
                raise torch.OutOfMemoryError(str(FULL))
            return run(params, piece)

        return limited

    monkeypatch.setattr(sampled.torch.func, "vmap", vmap)
    with pytest.warns(Notice, match="draw|example"):
        found = fixed[:].outputs(x)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


def test_draws_that_do_not_fit_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = predictor()

    def never(*_: Any, **__: Any) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(torch, "randn", never)
    with pytest.raises(TooLarge, match=r"0: 1000 draws of its 30 weights need 0.2 MiB, .*num_samples"):
        posterior.sample(1000)
