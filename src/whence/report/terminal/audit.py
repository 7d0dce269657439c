"""An audit's record in the terminal. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from whence.numerals import number, percent, share, share_range
from whence.report.record.audit import AuditRecord, Deferral, DeferralRule, Quality
from whence.report.record.common import Form
from whence.report.record.sections import Answer, Layer, Novelty, Shares
from whence.report.record.verdict import NextStep
from whence.report.terminal.comparison import comparison_sections
from whence.report.terminal.conformal import conformal_view, numbers_view
from whence.report.terminal.people import groups_section, label_sections
from whence.report.terminal.tables import (
    WIDE,
    add_row,
    bar,
    bullets,
    estimate,
    facts,
    missing_facts,
    new_table,
    run_facts,
    section,
    whole,
)
from whence.report.terminal.trace import trace_facts
from whence.report.uncertainty import threshold, threshold_label

STYLES = {"good": "green", "mixed": "yellow", "poor": "red", "note": "dim", "unknown": "dim"}
MARKS = {"good": "+", "mixed": "~", "poor": "!", "note": ">", "unknown": "?"}
ARROWS = {"lower": " ↓", "higher": " ↑"}
JUDGED = {"better": "green", "worse": "red"}


def audit_view(record: AuditRecord, width: int = 80) -> RenderableType:
    """The terminal view of an audit: verdict, quality, methods, deferral, layers, answers."""
    wide, compared = width >= WIDE, record.comparison
    parts: list[RenderableType | None] = [
        _verdict(record),
        _quality(record.quality, record.unit, wide) if record.quality else None,
        *(label_sections(record.quality, record.data.elements or "inputs", width) if record.quality else ()),
        Group(*comparison_sections(compared, width, record.unit), *bullets(compared.words)) if compared else None,
        conformal_view(record.conformal, record.unit, wide) if record.conformal else None,
        _deferral(record.deferral, record.unit, record.data.elements, wide) if record.deferral else None,
        groups_section(record.groups, width) if record.groups else None,
        _layers(record.layers, record.profile.words if record.profile else (), wide) if record.layers else None,
        _novelty(record.novelty) if record.novelty else None,
        _answers(record.answers) if record.answers else None,
        _next_steps(record.next_steps) if record.next_steps else None,
        section("About this audit", facts([*_posterior_facts(record), *run_facts(record.run)])),
        section("Where it comes from", facts(trace_facts(record.trace)), note="digests: SHA-256")
        if record.trace
        else None,
    ]
    return Group(*(part for part in parts if part is not None))


def verdict_view(record: AuditRecord, width: int = 80) -> RenderableType:
    """The verdict and its reliability, as printed at the end of an audit."""
    return Group(_verdict(record), facts(missing_facts(record.run)))


def _verdict(record: AuditRecord) -> RenderableType:
    found = record.verdict
    lead = found.words
    for point in found.points:
        lead = " ".join(lead.replace(point.words, "").split())  # do not repeat the points
    labels = [Text(f"{MARKS[point.tone]} {point.label}", style=STYLES[point.tone]) for point in found.points]
    points = facts([(label, point.words) for label, point in zip(labels, found.points, strict=True)])
    body: list[RenderableType] = [Text(lead), Text()] if lead and labels else [Text(lead)] if lead else []
    missing = [Text(f"Not judged. {' '.join(found.not_judged)}", style="dim")] if found.not_judged else []
    title = Text(record.title, style="bold")
    return Panel(
        Group(*body, points, *missing), title=title, subtitle=_subtitle(record), border_style=STYLES[found.tone]
    )


def _subtitle(record: AuditRecord) -> Text:
    data = record.data
    sets = {"train": data.train, "validation": data.validation, "test": data.test, "ood": data.ood}
    sizes = [f"{name} {whole(found.inputs)}" for name, found in sets.items() if found]
    parts = [f"{whole(record.network.parameters)} parameters", ", ".join(sizes)]
    return Text("; ".join(part for part in parts if part), style="dim")


def _quality(quality: Quality, unit: str | None, wide: bool) -> RenderableType:
    again = quality.baseline is not None
    table = new_table("", "plain>", *(["recalibrated>"] if again else []), "Bayesian>", "difference>")
    for row in quality.metrics:
        shown = [row.plain, *([row.recalibrated] if again else []), row.bayesian]
        apart = row.gain if again else row.difference
        difference = Text(estimate(apart), style=JUDGED.get(row.judge(apart) or "", ""))
        label = row.label_in(unit) + ARROWS.get(row.better, "")
        add_row(table, label, *(estimate(v, row.form, wide) for v in shown), difference)
    beside = f"recalibrated: plain after {quality.baseline.label}" if quality.baseline is not None else ""
    note = f"difference: Bayesian − {'recalibrated' if again else 'plain'}; ↓ lower is better, ↑ higher; 95% intervals"
    own = section("Quality on test data", table, quality.words, "; ".join(filter(None, [beside, note])))
    return Group(own, numbers_view(quality.numbers, again, wide)) if quality.numbers else own


def _deferral(deferral: Deferral, unit: str | None, elements: str | None, wide: bool) -> RenderableType:
    form: Form = "percent" if deferral.is_rate else "number"
    root = deferral.measure == "variance"
    table = new_table("target", "above>", "answered>", "error>", "others' error>")
    for row in deferral.rows:
        above = {"all": "never", "none": "always"}.get(row.answers) or threshold(row.threshold, root)
        answered = estimate(row.test.coverage, "percent", wide)
        errors = estimate(row.test.error, form), estimate(row.test.deferred_error, form, wide)
        add_row(table, _aim(row, deferral.is_rate), above, answered, *errors)
    note = f"above this {threshold_label(deferral, unit, elements)}; chosen on validation data, measured on test data"
    note += "" if deferral.is_rate else f"; error: {deferral.error}"
    note += "" if deferral.elements is None else f"; whole inputs with all their {deferral.elements}"
    note += "" if deferral.labels is None else f"; each of the {deferral.labels} labels of an input is an answer"
    return section("Deferral to a person", table, deferral.words, note)


def _aim(row: DeferralRule, rate: bool) -> str:
    """The target of a rule."""
    if row.aim == "coverage":
        return f"answer {percent(row.target)}"
    sure = f", {percent(row.confidence)} sure" if row.confidence else ""
    most = percent(row.target) if rate else number(row.target)
    return f"error ≤ {most}{sure}"


def _layers(rows: Sequence[Layer], words: Sequence[str], wide: bool) -> RenderableType:
    shared, outside = any(row.test for row in rows), any(row.ood for row in rows)
    ranged = any(row.test and row.test.share_low is not None for row in rows)
    columns = ["layer", *(["kind"] if wide or not shared else []), "weights>"]
    columns += ["identified>"] if wide or not shared else []
    columns += ["share of the variance" if wide else "share"] if shared else []
    columns += ["τ/10 … 10τ>"] if ranged else []
    columns += ["prior>", "explained>"] if shared else []
    columns += ["novel:\nshare>", "\nexplained>"] if outside else []
    table = new_table(*columns)
    for row in rows:
        test, ood = row.test or Shares(None, None, None), row.ood or Shares(None, None, None)
        cells: dict[str, RenderableType] = {
            "layer": row.name,
            "kind": row.kind,
            "weights>": whole(row.parameters),
            "identified>": share(row.identified),
            "share of the variance": bar(test.variance_share, 12),
            "share": bar(test.variance_share, 6),
            "τ/10 … 10τ>": _range(test),
            "prior>": share(test.prior_share),
            "explained>": share(test.explained),
            "novel:\nshare>": share(ood.variance_share),
            "\nexplained>": share(ood.explained),
        }
        add_row(table, *(cells[name] for name in columns))
    note = "share: of the output variance; prior: share before training; explained: reduction of the prior variance"
    note += (
        "; τ/10 … 10τ: its smallest and largest value under this prior, one ten times weaker and one ten times stronger"
        if ranged
        else ""
    )
    return section("Source of the uncertainty", table, words, note if shared else "")


def _range(shares: Shares) -> str:
    low, high = shares.share_low, shares.share_high
    return "" if low is None or high is None else share_range(shares.variance_share, low, high, "–")


def _novelty(novelty: Novelty) -> RenderableType:
    table = None
    if novelty.detectors:
        table = new_table("detector", "AUROC>", "FPR at 95%>")
        for row in novelty.detectors:
            add_row(table, row.label, estimate(row.auroc, "area"), estimate(row.fpr95, "percent"))
    words = novelty.words if novelty.choice is None else (*novelty.words, *novelty.choice.words)
    return section("Novelty", table, words)


def _next_steps(steps: Sequence[NextStep]) -> RenderableType:
    lines = (
        Text.assemble((f"{MARKS[step.tone]} {step.words}", STYLES[step.tone]), f" {step.because}") for step in steps
    )
    return section("What to do next", Group(*(Padding(line, (0, 0, 0, 2)) for line in lines)))


def _answers(answers: Sequence[Answer]) -> RenderableType:
    body: list[RenderableType] = []
    for row in answers:
        body += [Text(row.question, style="bold"), Padding(Text(row.words), (0, 0, 0, 2))]
    return section("Answers", Group(*body))


def _posterior_facts(record: AuditRecord) -> list[tuple[str | Text, str | Text]]:
    run, about = record.run, record.run.posterior
    described = about.describe
    if about.structure is not None:
        given = about.prior or (about.prior_precision and number(about.prior_precision))
        prior = f", prior precision {given}" if given else ""
        described = (
            f"{about.structure}, {about.curvature}{prior}, data scale {number(about.data_scale)}, "
            f"tuned on {about.tuned_on}"
        )
    covered = [] if run.covered is None else [("covered", f"{percent(run.covered)} of the parameters")]
    return [("posterior", described), *covered, *(("not covered", words) for words in run.not_covered)]
