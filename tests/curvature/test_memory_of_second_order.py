"""Memory that runs out in second derivatives, products with the curvature, and ``where``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.curvature.running_out import FULL, Failing, data, dense_network, fitted, small_network
from whence.curvature import hessian, kfra, lowrank
from whence.curvature.result import RecordSums
from whence.engine import memory
from whence.errors import Notice, TooLarge
from whence.recording.calls import Recording

SECOND: list[tuple[dict[str, Any], list[tuple[Any, str]]]] = [
    ({"curvature": "hessian", "structure": "full"}, [(hessian, "gradients"), (RecordSums, "add")]),
    ({"curvature": "hessian", "structure": "diag"}, [(hessian, "gradients"), (RecordSums, "add")]),
    ({"curvature": "hessian", "structure": "block", "passes": 2}, [(hessian, "gradients"), (RecordSums, "add")]),
    ({"structure": "lowrank", "rank": 5}, [(lowrank, "push"), (lowrank, "gradients"), (RecordSums, "add")]),
    ({"structure": "lowrank", "curvature": "empirical", "rank": 9}, [(lowrank, "push"), (lowrank, "gradients")]),
]


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize(("options", "places"), SECOND, ids=[str(i) for i in range(len(SECOND))])
def test_second_derivatives_and_products_go_on_too(
    options: dict[str, Any],
    places: list[tuple[Any, str]],
    one_at_a_time: bool,
    monkeypatch: pytest.MonkeyPatch,
    set_sizes: Callable[..., None],
) -> None:
    if one_at_a_time:  # so that halving reaches the examples
        set_sizes(hessian_rows=1, directions=1)
    network = small_network()
    undisturbed = fitted(network, prior_precision=100.0, **options)
    monkeypatch.setattr(memory, "release", lambda device: None)
    for owner, function in places:
        for at in (1, 2, 7):
            with monkeypatch.context() as patch:
                failing = Failing(at)
                patch.setattr(owner, function, failing.wrap(getattr(owner, function)))
                found = fitted(network, prior_precision=100.0, **options)
                assert failing.failed or at == 7
                torch.testing.assert_close(found.covariance(), undisturbed.covariance(), rtol=1e-9, atol=1e-12)
                assert found.record.data_size == undisturbed.record.data_size
                assert found.record.loss == pytest.approx(undisturbed.record.loss, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "module", "words"),
    [
        ({"curvature": "hessian", "structure": "full"}, hessian, "one row of the Hessian of one example does not fit"),
        ({"structure": "lowrank", "rank": 5}, lowrank, "a single direction for a single example does not fit"),
    ],
)
def test_what_never_fits_is_said(
    options: dict[str, Any], module: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(network: Any, outputs: Tensor, edges: Any, columns: Tensor, create_graph: bool) -> Any:
        tried.append(len(columns))
        raise torch.OutOfMemoryError(str(FULL))

    tried: list[int] = []
    monkeypatch.setattr(module, "gradients", limited)
    with pytest.raises(TooLarge, match=words):
        fitted(dense_network(), **options)
    assert tried[-1] == 1


def test_rows_of_a_hessian_are_halved_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    network, options = dense_network(), {"curvature": "hessian", "structure": "full", "prior_precision": 100.0}
    undisturbed, plain = fitted(network, **options), hessian.gradients

    def limited(network: Any, outputs: Tensor, edges: Any, columns: Tensor, create_graph: bool) -> Any:
        if len(columns) > 9:
            raise torch.OutOfMemoryError(str(FULL))
        return plain(network, outputs, edges, columns, create_graph)

    monkeypatch.setattr(hessian, "gradients", limited)
    with pytest.warns(Notice, match=r"continued with 8 rows \(not 64\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", progress=False, **options)
    torch.testing.assert_close(found.covariance(), undisturbed.covariance())


def test_too_many_examples_are_not_taken_for_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    network, options = dense_network(), {"curvature": "hessian", "structure": "full", "prior_precision": 100.0}
    undisturbed, plain = fitted(network, **options), torch.autograd.grad

    def limited(outputs: Any, inputs: Any, *args: Any, **how: Any) -> Any:
        if how.get("materialize_grads") and sizes[-1] > 3:
            raise torch.OutOfMemoryError(str(FULL))
        return plain(outputs, inputs, *args, **how)

    sizes: list[int] = [0]
    add = hessian._SecondDerivatives.add
    monkeypatch.setattr(
        hessian._SecondDerivatives,
        "add",
        lambda self, examples: (sizes.append(len(examples.rows)), add(self, examples))[1],
    )
    monkeypatch.setattr(torch.autograd, "grad", limited)
    with pytest.warns(Notice, match=r"continued with 3 examples \(not 6\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", progress=False, **options)
    torch.testing.assert_close(found.covariance(), undisturbed.covariance())


def test_kfra_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfra, "gram", Failing(1).wrap(kfra.gram))
    with pytest.raises(TooLarge, match=r"a batch of 6 examples does not fit .* pass smaller batches"):
        fitted(dense_network(), curvature="kfra")


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_where_goes_on_with_fewer_inputs(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = fitted(dense_network(), structure=structure), data(1, 11)[0][0]
    undisturbed = posterior.where(x)
    differentiate = Recording.differentiate

    def limited(self: Recording, *args: Any, **options: Any) -> Any:
        if self.size > 3:
            raise torch.OutOfMemoryError(str(FULL))
        return differentiate(self, *args, **options)

    monkeypatch.setattr(Recording, "differentiate", limited)
    with pytest.warns(Notice, match=r"where\(\) ran out of memory and continued"):
        found = posterior.where(x)
    for ours, wanted in zip(found.layers, undisturbed.layers, strict=True):
        assert ours.variance_share == pytest.approx(wanted.variance_share, rel=1e-12)
        assert ours.explained == pytest.approx(wanted.explained, rel=1e-12)
    unit, wanted_unit = found.units("0"), undisturbed.units("0")
    torch.testing.assert_close(unit["variance_share"], wanted_unit["variance_share"])
