"""The benchmark's own logic, and whence's jobs at tiny sizes; the peers take no part here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import compared, contenders_variational, contenders_whence, priors, report, sizes
from benchmarks.__main__ import options, selection
from benchmarks.bars import DECIDING, Bar, bars
from benchmarks.contenders import Stopwatch, Task, epoch, forward
from benchmarks.networks import NETWORKS, freeze_unknown, inputs, loader, network
from benchmarks.runner import Run, finished, row
from benchmarks.works import OURS, Contender, Work, works

# Networks and data


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_one_row_of_outputs_for_each_input(name: str) -> None:
    with torch.no_grad():
        out = network(name)(inputs(name, 2))
    assert out.shape == (2, NETWORKS[name].classes)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize(("name", "weights"), [("mlp", 1_863_690), ("lenet", 61_706), ("vgg", 9_225_610)])
def test_networks_have_the_size_that_is_claimed(name: str, weights: int) -> None:
    assert sum(p.numel() for p in network(name).parameters()) == weights


def test_networks_and_data_are_the_same_every_time() -> None:
    first, second = network("lenet"), network("lenet")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    batches = list(loader("lenet", 10, 4))
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([x for x, _ in batches]), inputs("lenet", 10, seed=0))


def test_only_plain_layers_are_left_trainable() -> None:
    left = [n for n, p in freeze_unknown(network("transformer")).named_parameters() if p.requires_grad]
    assert left and not any("attn" in n or "norm" in n for n in left)
    left = [n for n, p in freeze_unknown(network("wrn")).named_parameters() if p.requires_grad]
    assert all("conv" in n or "shortcut" in n or "head" in n for n in left)


# What is compared


def test_summaries_of_factors_are_those_of_the_dense_product() -> None:
    g, a = (m @ m.T for m in (torch.randn(n, n, dtype=torch.float64) for n in (3, 4)))
    dense = torch.kron(g, a)
    trace, norm, *forms = compared.of_factors(g, a)
    assert trace == pytest.approx(float(dense.trace()))
    assert norm == pytest.approx(float(dense.norm()))
    u, w = compared.probes(3)[0], compared.probes(4)[0]
    probe = torch.kron(u, w)
    assert forms[0] == pytest.approx(float(probe @ dense @ probe))


def test_the_difference_is_that_of_the_worst_layer() -> None:
    ours = {"a": [1.0, 0.0], "b": [100.0, 0.0]}
    assert compared.difference({"a": [1.5, 0.0], "b": [100.0, 0.0]}, ours) == pytest.approx(0.5)
    assert compared.difference({"c": [1.0]}, ours) is None
    assert compared.difference(None, ours) is None


# Bars and rows


def entry(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"contender": name, "note": "", "seconds": seconds, "scale": 1.0, "base": 1.0, "decomposition": 0.0} | more


def results(device: str, **named: list[dict[str, Any]]) -> dict[str, Any]:
    titled = {k.replace("__", ":").replace("_", "-"): rows for k, rows in named.items()}
    kept = {name: {"title": name, "base": "epoch", "rows": finished(rows)} for name, rows in titled.items()}
    return {
        "device": device, "works": kept, "machine": {"cpu": "c", "cores": 2, "memory_gb": 1, "system": "s"},
        "versions": {"peer": "1"}, "torch": "2", "whence": "0", "date": "2026-01-01", "threads": 2,
    }  # fmt: skip


def bar(found: list[Bar], start: str) -> Bar:
    return next(b for b in found if b.what.startswith(start))


def test_only_peers_with_the_same_numbers_count_for_the_exact_fit() -> None:
    summary = {"w": [1.0, 2.0]}
    rows = [
        entry(OURS, 1.0, summary=summary),
        entry("other numbers", 0.1, summary={"w": [5.0, 2.0]}),
        entry("same", 3.0, summary={"w": [1.0, 2.0 + 1e-5]}),
        entry("not compared", 0.2),
        {"contender": "refuses", "note": "", "error": "RuntimeError"},
    ]
    found = bar(bars(results("cpu", mlp__kron_ggn=rows)), "MLP, exact Kronecker fit, times")
    assert (found.figure, found.against, found.met, found.limit) == (pytest.approx(3.0), "same", True, 1.8)
    found = bar(bars(results("cuda", mlp__kron_ggn=rows)), "MLP, exact Kronecker fit, times")
    assert found.met is False and found.limit == 8


def test_a_bar_without_rows_is_not_decided() -> None:
    assert all(b.met is None and b.figure is None for b in bars(results("cpu")))
    assert all(b.verdict == "–" for b in bars(results("cpu")))


def test_epochs_and_predictions_are_counted() -> None:
    found = bars(
        results(
            "cpu",
            mlp__kron_mc=[entry(OURS, 3.0, base=2.0)],
            mlp__tune=[entry(OURS, 8.0, beside=2.0)],
            mlp__predict=[
                entry(OURS, 1.0, peak_mb=10.0),
                entry("laplace-torch, curvlinops (default), batches of 4", 900.0, peak_mb=400.0),
                entry("laplace-torch, BackPACK, batches of 4", 60.0, peak_mb=100.0),
            ],
        )
    )
    assert bar(found, "MLP, sampled Kronecker").figure == pytest.approx(1.5)
    assert bar(found, "MLP, tuning").figure == pytest.approx(4.0)
    assert bar(found, "MLP, linearised prediction, times faster than laplace").met is False
    assert bar(found, "MLP, linearised prediction, times faster than its fastest").figure == pytest.approx(60.0)
    assert bar(found, "MLP, linearised prediction, times less memory").figure == pytest.approx(40.0)


def test_growth_is_held_against_what_linear_would_be() -> None:
    rows = [entry("1 example", 1.0, peak_mb=10.0), entry("4 examples", 4.4, peak_mb=30.0)]
    found = bars(results("cpu", mlp__growth_data_mc=rows))
    assert bar(found, "sampled Kronecker fit of four times the examples, seconds").met is True
    assert bar(found, "sampled Kronecker fit of four times the examples, memory").met is False


def test_a_share_is_scaled_and_held_against_the_whole_network() -> None:
    ours = row(Contender(OURS, "j"), {"seconds": 2.0, "decomposition": 0.5, "base": 1.0})
    part = row(Contender("peer", "j", scale=10.0), {"seconds": 3.0, "decomposition": 0.0, "base": 0.01})
    _, peer = finished([ours, part])
    assert (peer["seconds"], peer["ratio"]) == (pytest.approx(30.0), pytest.approx(30.0))
    assert row(Contender("peer", "j"), {"error": "no"})["error"] == "no"


class Answers:
    """Stands for the processes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request["job"])
        return {"seconds": 1.0, "decomposition": 0.0, "base": 1.0, "others": 0.0}


def test_a_run_that_was_cut_goes_on_where_it_stopped() -> None:
    work = Work("mlp:x", "t", "epoch", {"size": 8, "batch": 4}, (Contender("a", "one"), Contender("b", "two")))
    kept: dict[str, Any] = {"works": {}}
    saves: list[int] = []
    answers = Answers()
    run = Run(answers, kept, lambda: saves.append(1), quiet=False)  # type: ignore[arg-type]
    assert run.work(work, resume=True, deadline=-math.inf) is False
    assert answers.asked == [] and kept["works"] == {}
    kept["works"]["mlp:x"] = {"rows": [row(work.contenders[0], answers.ask({"job": "before"}))]}
    assert run.work(work, resume=True, deadline=math.inf) is True
    assert answers.asked == ["before", "two"]
    assert [r["contender"] for r in kept["works"]["mlp:x"]["rows"]] == ["a", "b"]
    assert kept["works"]["mlp:x"]["rows"][1]["batch"] == 4
    assert saves


# Report


def test_tables_and_the_page_hold_every_row(tmp_path: Path) -> None:
    rows = [entry(OURS, 0.5, peak_mb=1.0), {"contender": "peer", "note": "n", "error": "out of memory: 40 GiB more"}]
    found = results("cpu", mlp__kron_ggn=rows)
    report.save(found, tmp_path)
    assert json.loads((tmp_path / "cpu.json").read_text())["bars"]
    assert "out of memory: 40 GiB more" in (tmp_path / "cpu.md").read_text()
    assert "out of memory" in report.text(found, ["mlp:kron-ggn"])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- cpu begin -->\nold\n<!-- cpu end -->\nafter\n")
    report.fill_page(tmp_path, page)
    filled = page.read_text()
    assert filled.startswith("before") and filled.endswith("after\n") and "old" not in filled
    assert filled == report.between(filled, "cpu", report.markdown(report.saved(tmp_path, "cpu")))


def test_the_page_in_the_documentation_has_the_places() -> None:
    content = report.PAGE.read_text()
    places = ("{}", "profile_{}", "predictions_{}", "answers_{}")
    for name in (place.format(device) for place in places for device in report.DEVICES):
        assert report.between(content, name, "x\n") != content


# Works


@pytest.mark.parametrize("scale", [sizes.CPU, sizes.CUDA, sizes.quick(sizes.CPU), sizes.quick(sizes.CUDA)])
def test_works_have_names_of_their_own_and_tasks_that_fit(scale: sizes.Sizes) -> None:
    found = works(scale, "cpu")
    assert len({work.name for work in found}) == len(found)
    for work in found:
        assert len({c.name for c in work.contenders}) == len(work.contenders), work.name
        for contender in work.contenders:
            task = Task(**(work.task | contender.task))
            assert task.size > 0 and task.batch > 0
            if contender.scale != 1 and not contender.job.endswith((":tune", "sampled")):
                assert contender.scale == pytest.approx(work.task["size"] / task.size)


def test_every_row_names_the_batch_that_its_contender_is_given() -> None:
    found = {work.name: work for work in works(sizes.CPU, "cpu")}
    predict = found["lenet:predict"]
    assert [predict.batch(c) for c in predict.contenders] == [1024, 1024, 64, 16, 16, 16]
    diagonal = found["lenet:diag-ggn"]
    assert {c.name: diagonal.batch(c) for c in diagonal.contenders}["laplace-torch, curvlinops (default)"] == 64
    assert diagonal.batch(diagonal.contenders[0]) == 512
    exact = found["wrn:kron-ggn"]
    assert exact.batch(exact.contenders[0]) == 8


def test_options_choose_works() -> None:
    chosen = selection(options(["--networks", "mlp", "--only", "kron-ggn", "sampled"]))
    assert [work.name for work in chosen] == ["mlp:kron-ggn", "mlp:sampled"]


def test_what_decides_the_bars_comes_first_and_is_there() -> None:
    names = [work.name for work in selection(options([]))]
    assert set(names[: len(DECIDING)]) == set(DECIDING)
    assert [work.name for work in selection(options(["--bars"]))] == names[: len(DECIDING)]


# whence's jobs


TINY = Task("lenet", size=8, batch=4, fit_size=8)


@pytest.mark.parametrize(("structure", "curvature"), [("kron", "ggn"), ("diag", "empirical")])
def test_fits_give_a_summary_of_every_weight(structure: str, curvature: str) -> None:
    job = contenders_whence.fit(TINY, structure, curvature)
    found = (job.result or pytest.fail)(job.work())
    weights = {n for n, _ in TINY.network().named_parameters() if n.endswith("weight")}
    assert weights <= set(found)
    again = contenders_whence.fit(TINY, structure, curvature)
    assert compared.difference((again.result or pytest.fail)(again.work()), found) == 0.0


def test_a_diagonal_fit_is_the_sum_of_squared_gradients() -> None:
    """What the peers are held against, from per-example gradients by autograd."""
    job = contenders_whence.fit(TINY, "diag", "empirical")
    model = TINY.network()
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for x, y in TINY.loader():
        for i in range(len(y)):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
            for n, p in model.named_parameters():
                total[n] += p.grad.square()  # type: ignore[union-attr]
    twin = {n: compared.of_vector(v) for n, v in total.items()}
    assert (compared.difference((job.result or pytest.fail)(job.work()), twin) or 0.0) < 1e-4


def test_predictions_and_tuning_run() -> None:
    probs = contenders_whence.predict(TINY).work()
    assert torch.allclose(probs.sum(-1), torch.ones(8), atol=1e-4)
    assert contenders_whence.sampled(TINY, draws=3).work().shape == (8, 10)
    job = contenders_whence.tune(TINY, values=4)
    assert math.isfinite(job.work())
    assert job.beside is not None and job.beside().shape == (8, 10)


def test_variational_and_plain_jobs_run() -> None:
    contenders_variational.epoch(TINY, "whence").work()
    epoch(TINY).work()
    assert forward(TINY).work().shape == (8, 10)


def test_the_stopwatch_counts_decompositions_or_leaves_them_out() -> None:
    plain = torch.linalg.eigh
    matrix = torch.diag(torch.tensor([3.0, 1.0]))
    watch = Stopwatch()
    with watch.running():
        values, _ = torch.linalg.eigh(matrix)
    assert watch.seconds > 0 and values.tolist() == [1.0, 3.0]
    with Stopwatch(placeholder=True).running():
        values, vectors = torch.linalg.eigh(matrix.expand(2, 2, 2))
    assert values.shape == (2, 2) and torch.equal(vectors[1], torch.eye(2))
    assert torch.linalg.eigh is plain


def test_both_priors_do_every_work() -> None:
    rows = priors.main(["--tiny", "--device", "cpu"])
    assert [(row["structure"], row["work"]) for row in rows] == [
        (structure, work) for structure in ("kron", "diag") for work in ("fit", "predict", "tune", "where")
    ]
    assert all(row["ratio"] == row["relative"] / row["isotropic"] > 0 for row in rows)
