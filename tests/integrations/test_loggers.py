"""TensorBoard and MLflow: a track and an audit in event files and in a SQLite database."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.integrations.pages import run_page
from whence.errors import BadOption, MissingExtra, Notice
from whence.integrations.scalars import of_audit, of_record, plain_name


@pytest.fixture(scope="module")
def made() -> tuple[whence.Track, whence.Audit]:
    """A track and an audit of a small training."""
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = (x[:, 0] > 0.2 * torch.randn(200)).long()
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    track = whence.track(model, (x[:120], y[:120]), likelihood="classification", every=10)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:120]), y[:120]).backward()
        optimiser.step()
        track.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        audit = whence.audit(
            model, (x[:120], y[:120]), likelihood="classification", validation=(x[120:160], y[120:160]),
            test=(x[160:], y[160:]), quick=True, inputs=2, progress=False,
        )  # fmt: skip
    return track, audit


def test_the_numbers_are_those_of_the_tables(made: Any) -> None:
    track, audit = made
    found = of_record(track.records[1])
    row = track.records[1].layers[1]
    assert found["whence/identified/2"] == row.identified and found["whence/explained/2"] == row.explained
    assert found["whence/loss"] == track.records[1].loss and "whence/variance" not in found  # none for classes
    numbers = of_audit(audit)
    nll = next(m for m in audit.results.quality.metrics if m.name == "nll")
    assert numbers["whence/audit/nll/bayesian"] == nll.bayesian.value
    assert numbers["whence/audit/nll/plain"] == nll.plain.value
    assert numbers["whence/audit/variance_share/0"] == audit.results.layers[0].test.variance_share
    assert plain_name("a.b/c d:é[0]") == "a.b/c_d_é_0_"


def test_tensorboard(made: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from whence.integrations.tensorboard import TensorBoard

    track, audit = made
    board = TensorBoard(tmp_path)
    board.track(track)
    board.audit(audit, step=30)
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("whence/identified/0")] == [
        (r.step, pytest.approx(r.layers[0].identified)) for r in track.records
    ]
    assert events.Scalars("whence/audit/ece/bayesian")[0].step == 30
    (words,) = events.Tensors("whence/audit/text_summary")
    text = words.tensor_proto.string_val[0].decode()
    assert audit.results.verdict.words in text and "What to do next" in text
    with pytest.raises(BadOption, match="pass a SummaryWriter"):
        TensorBoard(3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Iterator[Any]:
    """MLflow on a SQLite database, with an experiment whose artifacts are files."""
    tmp_path = tmp_path_factory.mktemp("mlflow")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("one", (tmp_path / "artifacts").as_uri()))
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def test_mlflow(made: Any, store: Any, tmp_path: Path) -> None:
    from whence.integrations.mlflow import MLflow

    track, audit = made
    with pytest.raises(BadOption, match="no active run"):
        MLflow()
    with store.start_run() as run:
        log = MLflow()
        log.track(track)
        log.audit(audit, step=30)
    client = store.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "whence/identified/0")
    assert [(m.step, m.value) for m in history] == [(r.step, r.layers[0].identified) for r in track.records]
    data = client.get_run(run.info.run_id).data
    assert data.metrics["whence/audit/ece/bayesian"] == of_audit(audit)["whence/audit/ece/bayesian"]
    assert data.tags["whence.verdict"] == audit.results.verdict.tone
    assert data.tags["whence.digest"] == audit.results.trace.record
    names = {Path(file.path).name for file in client.list_artifacts(run.info.run_id, "whence")}
    assert names == {"audit.json", "audit.html", "verdict.md"}
    path = Path(client.download_artifacts(run.info.run_id, "whence/audit.json", str(tmp_path)))
    assert json.loads(path.read_text()) == audit.record
    other = client.create_run(run.info.experiment_id)
    MLflow(other.info.run_id, client=client, page=False).record(track.records[0])
    assert client.get_run(other.info.run_id).data.metrics["whence/loss"] == track.records[0].loss


@pytest.mark.parametrize("package", ["mlflow", "tensorboard"])
def test_a_missing_package_is_named(package: str, monkeypatch: Any, tmp_path: Path) -> None:
    from whence.integrations.mlflow import MLflow
    from whence.integrations.tensorboard import TensorBoard

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'whence\[{package}\]'"):
        MLflow("x") if package == "mlflow" else TensorBoard(tmp_path)


@pytest.mark.parametrize("page", ["tensorboard", "mlflow"])
def test_page(page: str, tmp_path: Path, monkeypatch: Any, request: Any) -> None:
    pytest.importorskip(page, reason=f"{page} is not installed")
    if page == "mlflow":
        request.getfixturevalue("store")
    run_page(page, tmp_path, monkeypatch)
