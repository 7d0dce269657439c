"""Memory that runs out in the middle of something, and memory that is known to be too little."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.curvature.running_out import FULL, Failing, assert_same, data, dense_network, fitted, shared_network
from whence.curvature import dense, diagonals, fit, kfac, needs, sweep
from whence.curvature.needs import Needs
from whence.curvature.result import RecordSums
from whence.engine import memory
from whence.errors import Notice, TooLarge
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients
from whence.recording.plan import Plan
from whence.recording.recorder import Pass

PLACES: dict[str, tuple[Any, str]] = {
    "forward": (Plan, "record"),
    "record": (RecordSums, "add"),
    "quality": (whence.Categorical, "quality"),
    "columns": (sweep, "columns_for"),
    "backward": (Recording, "differentiate"),
    "inputs": (kfac, "_add_gram"),
    "factors": (kfac, "gram_of_positions"),
    "rows": (Gradients, "rows"),
    "squares": (diagonals, "matrix_squares"),
    "products": (dense, "gram"),
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
def test_sums_are_right_wherever_memory_runs_out(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, set_sizes: Any
) -> None:
    network = shared_network()
    set_sizes(columns=1)  # one column at a time, so that halving reaches the examples
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
    with pytest.warns(Notice, match=r"ran out of memory and continued with \d root columns? \(not 8\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", structure=structure, progress=False)
    assert_same(found, undisturbed)
    assert len(failures) <= 3, "what was found out on the first batch holds for the others"


def test_examples_are_halved_where_columns_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    network = dense_network()
    undisturbed = fitted(network)
    record, sizes = Plan.record, []

    def limited(self: Plan, inputs: Any, size: int, keep_graph: bool = False, fused: bool = False) -> Recording:
        sizes.append(size)
        if size > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return record(self, inputs, size, keep_graph, fused)

    monkeypatch.setattr(Plan, "record", limited)
    with pytest.warns(Notice, match=r"with 1 example \(not 6\) at a time"):
        found = whence.laplace(network, data(), likelihood="classification", progress=False)
    assert_same(found, undisturbed)
    assert sizes == [6, 3] + [1] * 18


def test_one_example_that_does_not_fit_is_said_with_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(kfac, "gram_of_positions", never)
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

    monkeypatch.setattr(kfac, "gram_of_positions", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fitted(dense_network())


# What is needed


@pytest.mark.parametrize("options", STRUCTURES[:-1], ids=lambda o: "-".join(map(str, o.values())))
def test_the_estimate_is_what_is_kept(options: dict[str, Any]) -> None:
    posterior = fitted(shared_network(), **options)
    for (gaussian, blocks), structure in zip(posterior.gaussians(), posterior.curvature.structures, strict=True):
        found = needs.needs(blocks[0], 8)
        held = sum(t.numel() * t.element_size() for k, t in structure.tensors().items() if k != "count")
        if structure.kind == "ekfac":
            assert found.stored >= held
            continue
        assert 0 <= found.sums - held <= 8 * sum(blocks[0].native), "the sums, and the ends of thin factors"
        kept = [v for v in vars(gaussian.spectral).values() if isinstance(v, Tensor)]
        if structure.kind != "diag":
            assert found.decomposition == pytest.approx(sum(t.numel() * 8 for t in kept), rel=0.2)
        assert posterior.structures[blocks[0].name].memory == found.stored


def test_too_little_memory_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    monkeypatch.setattr(fit, "sum_over_data", None)
    with pytest.raises(TooLarge, match=r"needs .* and cpu has .* free") as caught:
        fitted(dense_network())
    for word in ("0 (Linear, factors of 6 outputs and 5 inputs)", "layers=", "max_factor", "offload", "'diag'"):
        assert word in str(caught.value)


def test_offloading_needs_less_on_the_device() -> None:
    blocks = fitted(shared_network()).blocks
    assert needs.total(blocks, True, 4) < needs.total(blocks, False, 4)
    assert Needs(3, 4).stored == 7
    assert (memory.available(torch.device("cpu")) or 1) > 0
