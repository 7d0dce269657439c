"""A model card in Markdown with Hugging Face's front matter, from the record of an audit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from whence.numerals import number, percent
from whence.report.formatting import shown
from whence.report.notices import in_words
from whence.report.record.audit import AuditRecord, DeferralRule, Metric
from whence.report.record.common import Estimate, Form

FILL = "**[To be filled in]**"
COLUMNS = {"plain": "trained network", "recalibrated": "recalibrated", "bayesian": "with the posterior"}
TYPES = {"auroc": "roc_auc", "brier": "brier_score"}  # names of metrics at Hugging Face
TASK = {"classification": "classification", "binary": "classification", "regression": "regression"}
IMAGE_CHANNELS = (1, 3, 4)
BREAKS = "\x7f\x85\u2028\u2029\ufeff"  # letters that end a line or are not allowed in YAML
TODO = {
    "Intended use": "Who should use this network, for which inputs and decisions?",
    "Out-of-scope use": "For what should it not be used? Which inputs were never meant for it?",
    "Training data": "Where do the data come from, how were they collected and labelled, under which licence?",
    "Ethical considerations": "Who is affected by errors? Which groups were looked at?",
}


def card(record: AuditRecord) -> str:
    """The whole card. Fields that an audit cannot know are marked for the user."""
    parts = [_front(record), f"# {record.title}", _about(record), _todo("Intended use"), _todo("Out-of-scope use")]
    parts += [_results(record), _deferral(record), _limitations(record), _data(record), _todo("Ethical considerations")]
    parts += [_origin(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


# The front matter


def _front(record: AuditRecord) -> str:
    """YAML, in which every text is quoted as in JSON."""
    lines = ["---", "library_name: pytorch", "tags:", "- uncertainty-quantification", "- calibration", "- whence"]
    tag = pipeline_tag(record)
    lines += [f"pipeline_tag: {tag}"] if tag else ["# pipeline_tag: to be filled in, such as text-classification"]
    lines += ["# license: to be filled in, such as apache-2.0"]
    if record.quality and record.data.test:
        lines += ["model-index:", f"- name: {_quoted(record.title)}", "  results:"]
        for kind, name in COLUMNS.items():
            lines += _indexed(record, kind, name, tag)
    return "\n".join([*lines, "---"])


def _indexed(record: AuditRecord, kind: str, name: str, tag: str | None) -> Iterator[str]:
    """The metrics of one column of the table, as a result of the model index."""
    assert record.quality is not None and record.data.test is not None
    found = [(row, value) for row, value in _values(record.quality.metrics, kind) if value.value is not None]
    if not found:
        return
    yield "  - task:"
    yield f"      type: {tag or TASK.get(record.task, 'other')}"
    yield f"      name: {_quoted(f'{record.task}, {name}')}"
    yield "    dataset:"
    yield "      type: private  # to be filled in: the id of the data set, where it is public"
    yield f"      name: {_quoted(f'test data, {record.data.test.inputs:,} inputs')}"
    yield "    metrics:"
    for row, value in found:
        yield f"    - type: {TYPES.get(row.name, row.name)}"
        yield f"      value: {value.value}"
        yield f"      name: {_quoted(f'{row.label}, {name}')}"


def pipeline_tag(record: AuditRecord) -> str | None:
    """Hugging Face's name of the task, where the shape of the inputs tells it."""
    shape, task = record.data.input_shape, TASK.get(record.task)
    if shape is None or task is None:
        return None
    if len(shape) == 1:
        return f"tabular-{task}"
    image = len(shape) == 3 and shape[0] in IMAGE_CHANNELS
    return "image-classification" if image and task == "classification" else None


def _values(metrics: Sequence[Metric], kind: str) -> list[tuple[Metric, Estimate]]:
    pairs = ((row, getattr(row, kind)) for row in metrics)
    return [(row, value) for row, value in pairs if value is not None]


# Sections


def _about(record: AuditRecord) -> str:
    net, post = record.network, record.run.posterior
    tuned = f", tuned on {post.tuned_on}" if post.structure else ""
    return (
        f"{record.verdict.words}\n\n"
        f"This card was written by whence {record.run.versions.whence} from an audit of {record.created[:10]}. It "
        "states what was measured; fields that an audit cannot know are marked.\n\n"
        "## Model\n\n"
        f"- Network: {net.kind}, {net.parameters:,} parameters\n"
        f"- Task: {record.task}{_classes(record.classes)}\n"
        f"- Uncertainty: {_described(record)}{tuned}\n"
        f"- Licence, authors, contact: {FILL}"
    )


def _described(record: AuditRecord) -> str:
    post = record.run.posterior
    if post.structure is None:
        return post.describe
    return f"{post.kind} posterior over {record.network.bayesian:,} weights ({post.structure}, {post.curvature})"


def _classes(names: Sequence[str] | None) -> str:
    if not names:
        return ""
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"; {len(names)} classes: {_cell(listed)}"


def _todo(title: str) -> str:
    return f"## {title}\n\n{FILL} {TODO[title]}"


def _results(record: AuditRecord) -> str:
    quality, test = record.quality, record.data.test
    if quality is None or test is None:
        return "## Results\n\nNothing was measured: the audit had no test data with targets."
    kinds = [kind for kind in COLUMNS if _values(quality.metrics, kind)]
    head = ["Metric", *(COLUMNS[kind].capitalize() for kind in kinds)]
    rows = [[_metric(row), *(_estimate(getattr(row, kind), row.form) for kind in kinds)] for row in quality.metrics]
    points = [f"- **{_cell(point.label)}** ({point.tone}): {point.words}" for point in record.verdict.points]
    note = f"{test.inputs:,} test inputs; 95% intervals in brackets."
    if quality.baseline:
        note += f" Recalibrated: {quality.baseline.label} on {quality.baseline.inputs:,} validation inputs."
    return "\n\n".join(["## Results", note, _table(head, rows), "\n".join(points)])


def _metric(row: Metric) -> str:
    arrows = {"lower": " ↓", "higher": " ↑"}
    label = f"{row.label} (percentage points)" if row.form == "points" else row.label
    return label + arrows.get(row.better, "")


def _deferral(record: AuditRecord) -> str:
    found = record.deferral
    if found is None or not found.rows:
        return ""
    rate = found.is_rate
    head = ["Rule", f"Hand over above ({found.label})", "Answered", f"{found.error.capitalize()} of the answered"]
    rows = [
        [_rule(row, found.error, rate), _threshold(row), _estimate(row.test.coverage, "percent"),
         _estimate(row.test.error, "percent" if rate else "number")]
        for row in found.rows
    ]  # fmt: skip
    words = "Thresholds were chosen on validation data; coverage and error were measured on test data."
    return "\n\n".join(["## When to hand over to a person", words, _table(head, rows)])


def _rule(row: DeferralRule, error: str, rate: bool) -> str:
    if row.by_coverage:
        return f"answer {percent(row.target)}"
    sure = f", {percent(row.confidence)} confidence" if row.confidence else ""
    return f"{error} at most {percent(row.target) if rate else number(row.target)}{sure}"


def _threshold(row: DeferralRule) -> str:
    return {"all": "never", "none": "always"}.get(row.answers) or number(row.threshold)


def _limitations(record: AuditRecord) -> str:
    poor = [f"{point.label}: {point.words}" for point in record.verdict.points if point.tone in ("poor", "mixed")]
    left = [f"Not part of the audit: {item.what} ({item.why.rstrip('.')})." for item in record.run.left_out]
    missing = [f"Not judged. {line}" for line in record.verdict.not_judged or ()]
    lines = [*poor, *missing, *record.run.not_covered, *left, *map(in_words, record.run.notices)]
    stopped = record.run.interrupted
    lines += [f"The audit was interrupted during {stopped}."] if stopped else []
    known = "\n".join(f"- {' '.join(line.split())}" for line in lines)
    return f"## Limitations\n\n{known or 'The audit found none.'}\n\n{FILL} Limitations that no test data show."


def _data(record: AuditRecord) -> str:
    data, trace = record.data, record.trace
    sets = {"train": data.train, "validation": data.validation, "test": data.test, "ood": data.ood}
    rows = []
    for name, found in sets.items():
        if found is not None:
            digest = None if trace is None else trace.data_of(name)
            sha = f"`{digest.sha256}`" if digest and digest.sha256 else "–"
            rows.append([name, f"{found.inputs:,}", sha])
    return "\n\n".join(["## Data", _table(["Set", "Inputs", "SHA-256"], rows), f"{FILL} {TODO['Training data']}"])


def _origin(record: AuditRecord) -> str:
    run, trace = record.run, record.trace
    versions = run.versions
    lines = [f"- whence {versions.whence}, torch {versions.torch}, numpy {versions.numpy}, python {versions.python}"]
    lines += [f"- Device: {run.device}; seed {run.seed}"]
    if trace is not None:
        lines += [f"- Weights (SHA-256): `{one}`" for one in trace.weights]
        lines += [f"- Record of the audit (SHA-256): `{trace.record}`"]
        lines += [f"- Git commit: {trace.git.words}"] if trace.git else []
        lines += ["- Check it: `whence verify audit.json model.pt`"]
    return "## How this was made\n\n" + "\n".join(lines)


# Text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _estimate(found: Estimate | None, form: Form = "number") -> str:
    if found is None or found.value is None:
        return "–"
    return " ".join(filter(None, shown(found, form)))


def _quoted(text: Any) -> str:
    """A string of YAML in double quotes, on one line."""
    found = json.dumps(str(text), ensure_ascii=False)
    return "".join(f"\\u{ord(letter):04x}" if letter in BREAKS else letter for letter in found)
