"""Memory that runs out in the middle of something, and memory that is known to be too little."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.curvature.running_out import FULL, Failing, assert_same, data, dense_network, fitted, shared_network
from whence.curvature import accumulate, memory, sweep
from whence.curvature.affine import Affine
from whence.curvature.capture import Pass
from whence.curvature.jacobian import Gradients, Recording
from whence.curvature.memory import Needs, Room, needs
from whence.curvature.plan import Plan
from whence.curvature.record import Recorder
from whence.errors import Notice, TooLarge, WhenceError, is_out_of_memory
from whence.predictive import linearised, sampled

PLACES: dict[str, tuple[Any, str]] = {
    "forward": (Plan, "record"),
    "record": (Recorder, "add"),
    "quality": (Recorder, "_quality"),
    "columns": (sweep, "columns_for"),
    "backward": (Recording, "differentiate"),
    "inputs": (Affine, "gram"),
    "factors": (accumulate, "gram_of_positions"),
    "rows": (Gradients, "rows"),
    "squares": (accumulate, "matrix_squares"),
    "products": (accumulate, "gram"),
}
STRUCTURES = [
    {"structure": "kron"},
    {"structure": "kron", "sharing": "reduce"},
    {"structure": "kron", "curvature": "mc", "draws": 3},
    {"structure": "kron", "max_factor": 3},
    {"structure": "ekfac"},
    {"structure": "diag"},
    {"structure": "block"},
    {"structure": "full"},
]


@pytest.mark.parametrize("options", STRUCTURES, ids=lambda o: "-".join(map(str, o.values())))
def test_sums_are_right_wherever_memory_runs_out(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network = shared_network()
    monkeypatch.setattr(sweep, "CPU_COLUMNS", 1)  # one column at a time, so that halving reaches the examples
    torch.manual_seed(3)
    undisturbed = fitted(network, **options)
    monkeypatch.setattr(memory, "release", lambda device: None)  # there is nothing to hand back
    reached = 0
    for name, (owner, function) in PLACES.items():
        for at in (1, 4, 9):
            with monkeypatch.context() as patch:
                failing = Failing(at + (2 if name == "forward" else 0))
                patch.setattr(owner, function, failing.wrap(getattr(owner, function)))
                torch.manual_seed(3)
                assert_same(fitted(network, **options), undisturbed)
                reached += failing.failed
    assert reached >= 9


@pytest.mark.parametrize("fits", [1, 2, 3])
@pytest.mark.parametrize("structure", ["kron", "diag", "block"])
def test_columns_are_halved_until_they_fit(structure: str, fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact curvature over 8 outputs; more than ``fits`` columns at a time do not go backward."""
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 9)).double()
    undisturbed = fitted(network, structure=structure)
    backward, seen, failures = Pass.backward, [], []

    def limited(self: Pass, columns: Tensor, which: Any, create_graph: bool = False) -> Any:
        seen.append(len(columns))
        if len(columns) > fits and len(seen) > 2:  # the inspection of the first batch is not what is tested
            failures.append(len(columns))
            raise torch.OutOfMemoryError(str(FULL))
        return backward(self, columns, which, create_graph)

    monkeypatch.setattr(Pass, "backward", limited)
    monkeypatch.setattr(Plan, "confirm", lambda *_: None)
    with pytest.warns(Notice, match=r"ran out of memory and went on with \d root columns? \(not 8\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", structure=structure, progress=False)
    assert_same(found, undisturbed)
    assert len(failures) <= 3, "what was found out on the first batch holds for the others"


def test_examples_are_halved_where_columns_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    network = dense_network()
    undisturbed = fitted(network)
    record, sizes = Plan.record, []

    def limited(self: Plan, inputs: Any, size: int, keep_graph: bool = False) -> Recording:
        sizes.append(size)
        if size > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return record(self, inputs, size, keep_graph)

    monkeypatch.setattr(Plan, "record", limited)
    with pytest.warns(Notice, match=r"with 1 example \(not 6\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", progress=False)
    assert_same(found, undisturbed)
    assert sizes == [6, 3] + [1] * 18


def test_one_example_that_does_not_fit_is_said_with_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(accumulate, "gram_of_positions", never)
    with pytest.raises(TooLarge, match="one example with one root column does not fit") as caught:
        fitted(dense_network())
    for word in (
        "the gradients of 0",
        "Inputs and gradients of one example",
        "Curvature",
        "offload=True",
        "max_factor",
    ):
        assert word in str(caught.value)


def test_other_errors_are_not_mistaken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(accumulate, "gram_of_positions", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fitted(dense_network())


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (FULL, True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (TooLarge("out of memory, said in words"), False),
        (WhenceError("out of memory"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, wanted: bool) -> None:
    assert is_out_of_memory(error) is wanted


def test_room_halves_columns_then_examples() -> None:
    room = Room()
    assert room.shrink(8, 5) and (room.examples, room.columns) == (None, 2)
    assert room.shrink(8, 2) and room.columns == 1
    assert room.shrink(8, 1) and room.examples == 4
    assert room.shrink(1, 2)
    assert not room.shrink(1, 1)


# Predictions


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
    with pytest.raises(TooLarge, match=r"0: 1000 draws of its 30 weights take 0.2 MiB, .*num_samples"):
        posterior.sample(1000)


# What is needed


@pytest.mark.parametrize("options", STRUCTURES[:-1], ids=lambda o: "-".join(map(str, o.values())))
def test_the_estimate_is_what_is_kept(options: dict[str, Any]) -> None:
    posterior = fitted(shared_network(), **options)
    for (gaussian, blocks), structure in zip(posterior.gaussians(), posterior.curvature.structures, strict=True):
        found = needs(blocks[0], 8)
        held = sum(t.numel() * t.element_size() for k, t in structure.tensors().items() if k != "count")
        if structure.kind == "ekfac":
            assert found.kept >= held
            continue
        assert 0 <= found.sums - held <= 8 * sum(blocks[0].native), "the sums, and the ends of thin factors"
        kept = [v for v in vars(gaussian.spectral).values() if isinstance(v, Tensor)]
        if structure.kind != "diag":
            assert found.decomposition == pytest.approx(sum(t.numel() * 8 for t in kept), rel=0.2)
        assert posterior.structures[blocks[0].name].memory == found.kept


def test_too_little_memory_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    monkeypatch.setattr(sweep, "run", None)
    with pytest.raises(TooLarge, match=r"needs .* and cpu has .* left") as caught:
        fitted(dense_network())
    for word in ("0 (Linear, factors of 6 outputs and 5 inputs)", "layers=", "max_factor", "offload", "'diag'"):
        assert word in str(caught.value)


def test_offloading_needs_less_on_the_device() -> None:
    blocks = fitted(shared_network()).blocks
    assert memory.total(blocks, True, 4) < memory.total(blocks, False, 4)
    assert Needs(3, 4).kept == 7
    assert (memory.available(torch.device("cpu")) or 1) > 0
