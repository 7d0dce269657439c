"""Answers at real sizes and the limit of predictions: networks, rows, processes and aims; at toy sizes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import answers, answers_report, profile_predictions
from benchmarks.answers_networks import NETWORKS, Subject
from benchmarks.answers_works import JOBS, OURS, WORKS, Asked, rows

WEIGHTS = {
    "small_cnn": 206_922, "resnet18": 11_173_962, "resnet50_1000": 25_557_032, "vit_s": 21_669_514,
    "vit_b_1000": 86_567_656, "bert": 109_482_242, "gpt2": 124_439_808, "unet": 31_038_088,
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_networks_have_their_real_sizes(name: str) -> None:
    spec = NETWORKS[name]
    with torch.device("meta"):
        model = spec.make(spec.classes, False)
    assert sum(p.numel() for p in model.parameters()) == WEIGHTS[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_a_finite_loss_on_its_data(name: str) -> None:
    subject = Subject(name, tiny=True)
    (x, y), *_ = subject.batches(8)
    assert bool(subject.loss(x, y).isfinite())
    assert torch.equal(x, Subject(name, tiny=True).data(8, 1)[0])


def test_works_give_rows_with_their_ratios() -> None:
    wanted = ("fit", "tune", "predict", "where", "novelty")
    asked = Asked(Subject("vit_s", tiny=True), {"inputs": 3})
    found = {row["work"]: row for row in rows(asked, {(w, OURS): JOBS[w, OURS] for w in wanted}) if "work" in row}
    assert list(found) == list(wanted)
    assert not any("error" in row for row in found.values())
    assert found["fit"]["epoch"] > 0 and found["predict"]["inputs"] == 3
    for work in ("tune", "where", "novelty"):
        assert found[work]["prediction"] > 0 and found[work]["forward"] > 0
    json.dumps(found)


def test_what_a_contender_says_is_its_row() -> None:
    def refuse(asked: Asked) -> Any:
        raise NotImplementedError("no rule for this layer")

    *_, row = rows(Asked(Subject("small_cnn", tiny=True)), {("fit", "peer"): refuse})
    assert row == {"work": "fit", "contender": "peer", "error": "NotImplementedError: no rule for this layer"}


# Processes


def slow() -> Iterator[dict[str, Any]]:
    yield {"began": "preparing"}
    yield {"work": "fit", "contender": OURS, "seconds": 1.0}
    yield {"began": "running"}
    time.sleep(60)


def killed() -> Iterator[dict[str, Any]]:
    yield {"began": "running"}
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_is_ended_after_its_time_and_keeps_what_it_has() -> None:
    first, last = answers.forked(slow, limit=3.0)
    assert first["seconds"] == 1.0
    assert last == {"error": "no result within 3 s (running)"}


def test_a_process_is_ended_with_the_run_or_when_nothing_more_is_asked() -> None:
    """What was cut is no error: a later run tries it again."""
    start = time.perf_counter()
    assert [row["work"] for row in answers.forked(slow, 30.0, start + 3.0)] == ["fit"]
    next(answers.forked(slow, 30.0))
    assert time.perf_counter() - start < 40.0


def test_a_process_that_dies_is_an_error_and_one_that_ends_is_none() -> None:
    assert list(answers.forked(killed, 10.0)) == [{"error": "the process ended with status -9 (running)"}]
    assert list(answers.forked(lambda: iter([{"work": "fit"}]), 10.0)) == [{"work": "fit"}]


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit had to be ended: what needs its posterior is not tried, and a later run starts nothing twice."""
    asked: list[float] = []

    def fake(make: Any, limit: float, until: float) -> Iterator[dict[str, Any]]:
        asked.append(limit)
        yield {"error": "no result within 1 s (running)"}

    monkeypatch.setattr(answers, "forked", fake)
    path = tmp_path / "a.json"
    arguments = ["--tiny", "--networks", "vit_s", "--works", "fit", "where", "audit", "--out", str(path)]
    found = answers.main(arguments)
    said = {(row["work"], row["contender"]): row["error"] for row in found["rows"]}
    assert said["where", OURS] == "no posterior: no result within 1 s (running)"
    assert len(asked) == 3  # fit, audit, and the fit of the last layer
    answers.main([*arguments, "--resume"])
    assert len(asked) == 3
    with pytest.raises(SystemExit, match="toy sizes"):
        answers.main(["--networks", "vit_s", "--out", str(path)])


# Aims


def row(network: str, work: str, **more: Any) -> dict[str, Any]:
    return {"network": network, "work": work, "contender": OURS, "batch": 1, "inputs": 1000} | more


def results(device: str, *found: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "c", "cores": 2, "memory_gb": 1, "system": "s"}
    made = {"device": device, "rows": list(found), "machine": machine, "torch": "2", "whence": "0", "date": "d"}
    return made | {"threads": 2, "gpu": None, "tiny": False}


def test_aims_are_read_from_rows() -> None:
    found = answers_report.bars(
        results(
            "cuda",
            row("resnet18", "predict", seconds=4.0),
            row("resnet18", "where", seconds=5.0, prediction=4.0),
            row("vit_s_1000", "where", seconds=5.0, forward=0.1, standard_error=0.06),
            row("resnet18", "audit", error="no result within 60 s"),
        )
    )
    by = {bar.what: bar for bar in found}
    assert by["ResNet-18, 32², 10 classes: linearised prediction, ms an input"].figure == pytest.approx(4.0)
    assert by["ResNet-18, 32², 10 classes: linearised prediction, ms an input"].met is False
    assert by["ResNet-18, 32², 10 classes: where, predictions"].met is True
    assert by["ViT-S, 224², 1,000 classes: where, forward passes"].figure == pytest.approx(50)
    assert by["ViT-S, 224², 1,000 classes: where, standard error of a share in the share"].met is False
    assert by["ResNet-18, 32², 10 classes: audit, epochs"].met is None


def test_aims_name_networks_and_works_that_are_there() -> None:
    for aims in answers_report.AIMS.values():
        assert all(aim.network in NETWORKS and aim.work in WORKS for aim in aims)


def test_the_table_holds_every_row_and_what_was_said() -> None:
    made = answers_report.markdown(
        results("cpu", row("small_cnn", "audit", seconds=9.0, epoch=1.0), row("unet", "fit", error="out of memory"))
    )
    assert "| small_cnn | audit | whence | 1,000 | 1 | 9 | 9 | 9 |" in made
    assert "out of memory" in made and "| ≤ 25 | 9 | met |" in made


# The limit of predictions


def counted(compute: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


@pytest.mark.parametrize(("t", "o", "d", "k"), [(50, 4, 6, 2), (3, 8, 30, 5), (3, 30, 8, 5), (40, 30, 2, 3)])
def test_the_limit_is_the_cheapest_of_all_orders(t: int, o: int, d: int, k: int) -> None:
    """Counted on the products themselves; a Gram matrix of rows needs its upper triangle only."""
    a, g, left, right = torch.ones(t, d), torch.ones(k, t, o), torch.ones(o, o), torch.ones(d, d)

    def order(inputs_first: bool, outputs_first: bool) -> None:
        x = a @ right if inputs_first else a
        y = g @ left if outputs_first else g
        rows = y.mT @ x  # [K, O, D]
        rows = rows if inputs_first else rows @ right
        rows = rows if outputs_first else left @ rows

    every = [counted(lambda i=i, j=j: order(i, j)) for i in (True, False) for j in (True, False)]  # type: ignore[misc]
    gram = k * (k + 1) * o * d
    assert profile_predictions.Layer("convolution", t, o, d).flops(k) == min(every) + gram


def test_one_position_needs_no_rows() -> None:
    a, g, w = torch.ones(1, 7), torch.ones(3, 5), torch.ones(7, 5)
    turned = counted(lambda: (a @ torch.ones(7, 7), g @ torch.ones(5, 5), a @ w))
    assert profile_predictions.Layer("linear", 1.0, 5, 7).flops(3) == turned + 3 * 4 * 5


def test_layers_are_counted_with_their_positions() -> None:
    asked = Asked(Subject("small_cnn", tiny=True))
    found = dict(profile_predictions.layers(asked.posterior, asked.examples))
    sizes = [(one.kind, one.positions, one.outputs, one.inputs) for pairs in found.values() for one in pairs]
    assert sizes == [
        ("convolution", 784, 4, 10), ("convolution", 196, 6, 37), ("linear", 1, 16, 295), ("linear", 1, 4, 17),
    ]  # fmt: skip


def test_a_prediction_is_taken_apart() -> None:
    (found,) = profile_predictions.rows("cpu", True, ["vit_s"], 1e9)
    seconds, limit = found["seconds"], found["limit"]
    assert seconds["forward"] > 0 and seconds["backward"] > 0
    assert limit["backward"] == pytest.approx(4 * limit["forward"])  # four outputs
    assert len(profile_predictions.cells(found)) == len(profile_predictions.HEAD)
