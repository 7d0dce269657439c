"""MLflow: a track and an audit as metrics, tags and artifacts of a run."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from whence.auditing import Audit
from whence.errors import BadOption, need
from whence.extras.tracking.records import TrackRecord
from whence.extras.tracking.track import Track
from whence.integrations.scalars import of_audit, of_record, records_of, words_of

FOLDER = "whence"  # of the artifacts
MOST = 1_000  # metrics that MLflow takes at once
LONGEST = 500  # letters of a tag


class MLflow:
    """Logs records of a track and audits to a run of MLflow.

    Args:
        run_id: the run; by default the active one (``mlflow.start_run()``).
        client: an ``mlflow.MlflowClient``; by default one for the current tracking URI.
        page: whether the audit's page is an artifact too, beside its JSON file; it needs ``whence[report]``.
    """

    def __init__(self, run_id: str | None = None, *, client: Any = None, page: bool = True) -> None:
        mlflow = need("mlflow", "mlflow")
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise BadOption("there is no active run of MLflow. Call mlflow.start_run() first, or pass run_id=….")
            run_id = active.info.run_id
        self.run_id, self.page = run_id, page
        self.client = mlflow.MlflowClient() if client is None else client

    def record(self, record: TrackRecord) -> None:
        """Log one record, as ``track.step()`` returns it, at its step."""
        self._metrics(of_record(record), record.step)

    def track(self, track: Track) -> None:
        """Log all records of a track."""
        for record in records_of(track):
            self.record(record)

    def audit(self, audit: Audit, step: int | None = None) -> None:
        """Log the numbers of an audit as metrics, its verdict as tags, and its JSON file and page as artifacts."""
        self._metrics(of_audit(audit), step or 0)
        verdict, trace = audit.results.verdict, audit.results.trace
        self.client.set_tag(self.run_id, "whence.verdict", verdict.tone)
        self.client.set_tag(self.run_id, "whence.verdict.words", verdict.words[:LONGEST])
        if trace is not None and trace.record is not None:
            self.client.set_tag(self.run_id, "whence.digest", trace.record)
        with tempfile.TemporaryDirectory() as folder:
            files = [audit.json(Path(folder) / "audit.json")]
            files += [audit.html(Path(folder) / "audit.html")] if self.page else []
            (Path(folder) / "verdict.md").write_text(words_of(audit), encoding="utf-8")
            for file in [*files, Path(folder) / "verdict.md"]:
                self.client.log_artifact(self.run_id, str(file), FOLDER)

    def _metrics(self, values: dict[str, float], step: int) -> None:
        entities, now = need("mlflow.entities", "mlflow"), int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), MOST):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + MOST])
