"""Results of audits and comparisons: a record, shown as a page, as JSON, or in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from whence.auditing.tracing import sealed
from whence.auditing.verdict import judged
from whence.auditing.verification import Verification, unchanged, verify
from whence.errors import need, one_of
from whence.posteriors.base import Posterior
from whence.report import figures
from whence.report.card import card
from whence.report.record.audit import AuditRecord
from whence.report.record.comparison import ComparisonRecord
from whence.report.record.convert import to_json
from whence.report.record.difference import DiffRecord
from whence.report.record.files import json_schema, read_record, schema_id, write_page, write_record
from whence.report.record.trace import record_digest
from whence.report.record.verdict import VerdictRules
from whence.tables import html, text

RECORDS: dict[str, type[Any]] = {"audit": AuditRecord, "comparison": ComparisonRecord, "diff": DiffRecord}


def schema(of: Literal["audit", "comparison", "diff"] = "audit") -> dict[str, Any]:
    """The JSON schema of a record (draft 2020-12)."""
    return json_schema(RECORDS[one_of(of, RECORDS, "schema")])


class _Shown:
    """Reading, writing and showing a record."""

    results: Any
    record_type: ClassVar[type[Any]]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file written by :meth:`json`."""
        return cls(read_record(path, cls.record_type))  # type: ignore[call-arg]

    @property
    def record(self) -> dict[str, Any]:
        """``results`` as plain JSON, as :meth:`json` writes it: a new dictionary each time."""
        return dict(to_json(self.results))

    def html(self, path: str | Path) -> Path:
        """Write one self-contained page; it opens from disk and requests nothing from the network."""
        from whence.report.page import render

        return write_page(path, render(self.results))

    def pdf(self, path: str | Path) -> Path:
        """Print the page to a PDF: A4, details open. Needs Chromium, Chrome or Edge on this machine."""
        from whence.report.browser import find_browser, print_page
        from whence.report.page import render

        find_browser()  # before the work
        return print_page(render(self.results), Path(path))

    def tables(self, folder: str | Path) -> list[Path]:
        """Write every table as CSV to a folder; returns the files."""
        from whence.report.export import write_tables

        return write_tables(self.results, folder)

    def figures(self, folder: str | Path, kind: Literal["png", "svg"] = "png") -> list[Path]:
        """Write every figure of the page to a folder; returns the files. Needs Chromium, Chrome or Edge."""
        from whence.report.export import write_figures

        return write_figures(self.results, folder, kind)

    def json(self, path: str | Path) -> Path:
        """Write the record; :func:`whence.auditing.schema` describes it."""
        return write_record(path, self.results)

    def show(self) -> None:
        """Print it in the terminal."""
        from whence.report.terminal import show_record

        show_record(self.results)


@dataclass(frozen=True)
class Audit(_Shown):
    """Made by :func:`whence.audit`. Everything that is shown is in ``results``; ``record`` is the same as JSON.

    ``posterior`` predicts; ``profile_posterior`` is the one for the profile and the layers. The two differ
    if the tuned prior is too strong for a profile. Both are ``None`` for an audit read from a file.
    """

    results: AuditRecord = field(repr=False)
    posterior: Posterior | None = field(default=None, repr=False)
    profile_posterior: Posterior | None = field(default=None, repr=False)
    read_digest: str | None = field(default=None, repr=False, compare=False)  # of the file that it was read from
    record_type: ClassVar[type[AuditRecord]] = AuditRecord
    schema: ClassVar[str] = schema_id(AuditRecord)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file written by :meth:`json`. :meth:`verify` says whether it was changed since."""
        results = read_record(path, cls.record_type)
        return cls(results, read_digest=record_digest(json.loads(Path(path).read_text(encoding="utf-8"))))

    def verify(
        self,
        model: Any = None,
        *,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        ood: Any = None,
        digest: str | None = None,
    ) -> Verification:
        """Check that the record is unchanged, and that a network and data are those that were audited.

        ``model`` is the network, its state dict or a posterior (for an ensemble also a list of networks); ``digest``
        is the record's SHA-256 from another source, or at least its first 12 digits.
        """
        trace = self.results.trace
        found = self.read_digest or record_digest(self.record)
        same = unchanged("record", found, None if trace is None else trace.record)
        data = {"train": train, "validation": validation, "test": test, "ood": ood}
        return verify(trace, same, model, data, digest)

    def card(self, path: str | Path) -> Path:
        """Write a model card: Markdown with Hugging Face's front matter. Fields for you to fill in are marked."""
        return write_page(path, card(self.results))

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return self.results.run.interrupted is not None

    @property
    def verdict(self) -> str:
        """The verdict in one paragraph."""
        return self.results.verdict.words

    def judged(self, rules: VerdictRules | None = None) -> Audit:
        """The same audit, judged by other rules; without any, by those of this version of whence."""
        found = judged(self.results, rules or VerdictRules())
        return replace(self, results=found if found.trace is None else sealed(found), read_digest=None)

    def _repr_html_(self) -> str:
        rows = [[point.label, point.words] for point in self.results.verdict.points]
        stopped = f"Stopped during {self.results.run.interrupted}." if self.interrupted else ""
        note = " ".join(filter(None, (stopped, "Write the whole report by .html('report.html').")))
        return html(["", "Verdict"], rows, f"{self.results.title}\n{self.verdict}", note, left=2)

    def __str__(self) -> str:
        points = "\n".join(f"  {point.label}: {point.words}" for point in self.results.verdict.points)
        stopped = f"\nStopped during {self.results.run.interrupted}." if self.interrupted else ""
        return f"{self.results.title}\n{points}{stopped}"

    __repr__ = __str__


@dataclass(frozen=True)
class Comparison(_Shown):
    """Made by :func:`whence.compare`: one row for each method, one column for each metric.

    Everything that is shown is in ``results``; ``record`` is the same as JSON.
    """

    results: ComparisonRecord = field(repr=False)
    posteriors: Mapping[str, Posterior] = field(default_factory=dict, repr=False)
    record_type: ClassVar[type[ComparisonRecord]] = ComparisonRecord
    schema: ClassVar[str] = schema_id(ComparisonRecord)

    @property
    def methods(self) -> list[str]:
        return self.results.names

    def __getitem__(self, method: str) -> dict[str, float | None]:
        """The values of one method, by metric."""
        if method not in self.methods:
            raise KeyError(f"{method!r} was not compared; compared: {', '.join(self.methods)}.")
        place = self.methods.index(method)
        values = {metric.name: metric.values[place] for metric in self.results.metrics}
        return {name: None if found is None else found.value for name, found in values.items()}

    def to_pandas(self) -> Any:
        """One row for each method; intervals as columns ``_low`` and ``_high``."""
        rows = []
        for place, method in enumerate(self.results.methods):
            row: dict[str, Any] = {"method": method.name, "seconds": method.seconds, "memory": method.memory}
            for metric in self.results.metrics:
                for end, key in (("value", ""), ("low", "_low"), ("high", "_high")):
                    row[metric.name + key] = getattr(metric.values[place], end, None)
            rows.append(row)
        return need("pandas", "pandas").DataFrame(rows)

    def plot_metrics(self) -> Any:
        """Every metric of every method, with its interval. All plots are matplotlib figures."""
        return figures.compare_metrics(self)

    def plot_layers(self) -> Any:
        """Shares of the methods side by side, layer by layer."""
        return figures.compare_layers(self)

    def plot_reliability(self) -> Any:
        """Accuracy of each method against its stated confidence."""
        return figures.compare_reliability(self)

    def plot_uncertainty(self) -> Any:
        """Inverse ECDF of the uncertainty, in and out of distribution."""
        return figures.compare_uncertainty(self)

    def plot_rejection(self) -> Any:
        """Error of the kept inputs against the share that is kept."""
        return figures.compare_rejection(self)

    def plot_agreement(self) -> Any:
        """Rank agreement between the shares of methods."""
        return figures.compare_agreement(self)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Names of the columns, and a row for each method; an asterisk after the best values."""
        rows = []
        for place, method in enumerate(self.results.methods):
            cells = [
                "" if (value := metric.values[place]) is None else f"{value.value:.4g}{' *' * metric.best[place]}"
                for metric in self.results.metrics
            ]
            rows.append([method.name, *cells, f"{method.seconds:.2g} s"])
        return ["method", *(metric.label for metric in self.results.metrics), "time"], rows

    def __str__(self) -> str:
        return "\n".join([self.results.title, text(*self._table()), *self._notes(), *self.results.words])

    def _notes(self) -> list[str]:
        """Why methods are not marked as best."""
        return [metric.note for metric in self.results.metrics if metric.note]

    def _repr_html_(self) -> str:
        head, rows = self._table()
        return html(
            head,
            [[cell.removesuffix(" *") for cell in row] for row in rows],
            self.results.title,
            "\n".join(["Bold: best, or not significantly worse.", *self._notes(), *self.results.words]),
            bold=lambda r, c: rows[r][c].endswith(" *"),
        )

    __repr__ = __str__


@dataclass(frozen=True)
class Diff(_Shown):
    """Made by :func:`whence.diff`: what changed between two audits. False if nothing did, except dates and times."""

    results: DiffRecord = field(repr=False)
    record_type: ClassVar[type[DiffRecord]] = DiffRecord
    schema: ClassVar[str] = schema_id(DiffRecord)

    def __bool__(self) -> bool:
        return not self.results.is_empty

    def __str__(self) -> str:
        return "\n".join([self.results.title, *self.results.words])

    __repr__ = __str__
