"""``whence.audit``: read the data, fit and tune a posterior, compute the sections, assemble the record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.auditing.attributed import attributed
from whence.auditing.comparison import comparison
from whence.auditing.conformal import LEVELS, check_levels, conformal_section
from whence.auditing.context import Context
from whence.auditing.data import check_targets, read_examples
from whence.auditing.deferral import deferral
from whence.auditing.dense import read_tokens
from whence.auditing.fitting import CurvatureName, FitOptions, Sets, StructureName
from whence.auditing.given import answer_count, check_counts, check_score, feature_names, output_shape
from whence.auditing.grouping import read_groups
from whence.auditing.groups import groups as group_tables
from whence.auditing.input_scores import input_scores
from whence.auditing.inputs import inputs as shown_inputs
from whence.auditing.limits import limits
from whence.auditing.novelty import novelty
from whence.auditing.priors_used import priors_used
from whence.auditing.profile import profile
from whence.auditing.quality import quality
from whence.auditing.results import Audit
from whence.auditing.run import OnLeft, OnStep, Progress, now, progress_over
from whence.auditing.tables import answers, pruning, sensitivity
from whence.auditing.tables import layers as layer_table
from whence.auditing.tasks import task_of
from whence.auditing.tracing import Tracer
from whence.auditing.units import read_outputs
from whence.auditing.verdict import PENDING, judged
from whence.auditing.weight_maps import weight_maps
from whence.curvature.options import CurvatureKind
from whence.engine.memory import with_sizes
from whence.engine.options import Execution
from whence.engine.randomness import resolve_seed
from whence.errors import BadOption, Notice, WhenceError, explains_keywords, one_of
from whence.likelihoods import Likelihood, LikelihoodName
from whence.linalg.structures import BlockStructure
from whence.metrics.conformal import Score, ScoreName
from whence.posteriors.base import Posterior, is_posterior
from whence.report.record import audit as record
from whence.report.record.convert import tidied
from whence.report.record.verdict import VerdictRules

LikelihoodOrName = Likelihood | LikelihoodName
NAMED = 4  # layers or parameters that a sentence names

SECTIONS: dict[str, Callable[[Context], Any]] = {
    "quality": quality,
    "comparison": comparison,
    "conformal": conformal_section,
    "deferral": deferral,
    "groups": group_tables,
    "layers": layer_table,
    "profile": profile,
    "sensitivity": sensitivity,
    "maps": weight_maps,
    "inputs": shown_inputs,
    "attribution": attributed,
    "novelty": novelty,
    "pruning": pruning,
    "answers": answers,
}


QUESTIONS = 20  # about shares of each set
QUICK = (300, 300, 6)  # examples of a set, inputs behind shares, inputs shown
QUICK_TUNED = 250  # validation inputs for tuning
IF_GIVEN = ("comparison", "groups")  # sections that are left out without a word unless their data are given
NEED_SHARES = {"layers", "profile", "sensitivity", "inputs", "novelty", "answers"}


@explains_keywords
def audit(
    model: Any,
    train: Any = None,
    *,
    likelihood: LikelihoodOrName | None = None,
    test: Any = None,
    validation: Any = None,
    ood: Any = None,
    classes: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    groups: Any = None,
    unit: str | Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    tokens: Any = None,
    title: str | None = None,
    structure: StructureName = "kron",
    curvature: CurvatureName = "auto",
    layers: Any = None,
    prior_precision: Any = None,
    tune: bool = True,
    examples: int = 10_000,
    profiled: int = 1_000,
    inputs: int = 12,
    levels: Sequence[float] = LEVELS,
    conformal_score: ScoreName | None = None,
    positive: str | int | None = None,
    sections: Sequence[str] | None = None,
    methods: Mapping[str, Posterior] | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    execution: Execution | None = None,
    quick: bool = False,
    rules: VerdictRules | None = None,
    progress: bool = True,
    on_step: OnStep | None = None,
    on_left: OnLeft | None = None,
) -> Audit:
    """Audit a network: how uncertain it is, how good its uncertainty is, and where it comes from.

    Args:
        model: a trained network, or a posterior of one.
        train: the data it was trained on; optional if a posterior is given.
        likelihood: as for :func:`whence.laplace`; a posterior has its own.
        test: data for evaluation; bare inputs give the profile without the scores.
        validation: held-out data for tuning, for thresholds, and as the reference of novelty.
        ood: out-of-distribution inputs, with or without targets.
        classes, features: names for texts and figures.
        groups: groups of test inputs to compare: one value for each test input, a column of tabular inputs (its name in
            ``features``, or its index), or a mapping of names to such. Many different numbers are cut at quantiles.
        unit: the unit of predicted numbers, shown with them; for outputs in different units one for each.
        targets: names of predicted numbers, one for each output.
        tokens: how ids of tokens are shown: a function from a list of ids to strings, a tokenizer with
            ``convert_ids_to_tokens``, or a list of strings.
        title: title of the page.
        structure, curvature, layers: as for :func:`whence.laplace`.
        prior_precision: as for :func:`whence.laplace`; by default ``whence.Relative()``, or the posterior's.
        tune: whether to tune an untuned posterior on ``validation``; False keeps its prior.
        examples: largest number of examples of each of test, validation and ood to keep in memory.
        profiled: largest number of inputs for shares, novelty, pruning and answers.
        inputs: number of most uncertain inputs to show.
        levels: of conformal prediction sets and intervals.
        conformal_score: their score, see :func:`whence.metrics.conformal`; by default "probability" for labels and
            "normalised" for numbers.
        positive: of two classes the one that a binary decision looks for: its name in ``classes``, or its index; by
            default the second.
        sections: those to compute, of ``whence.auditing.SECTIONS``; all by default.
        methods: other posteriors by name, to compare with this one on the same data.
        seed: seed of all draws (0); or a ``generator`` to draw it from.
        device: where to compute; by default where the model is.
        execution: how the fit is run, see :class:`whence.Execution`; a posterior keeps its own.
        quick: a first look, in a fraction of the time: sampled curvature (unless ``curvature`` is given), at most
            300 examples of each set, 250 of them for tuning, no pruning curve and no attributions (unless
            ``sections`` asks for them). The page says so.
        rules: the thresholds of the verdict, see :class:`whence.VerdictRules`.
        progress: whether to show a progress bar, with the time left.
        on_step: called with the name of each step before it begins, its number, and the number of steps.
        on_left: called with the estimated number of seconds left, before each step.

    A section that cannot be computed is omitted, and the record says why. Ctrl-C ends the audit and keeps what is
    finished, once there is a posterior.
    """
    tracer = Tracer(audit, locals())
    seed = resolve_seed(seed, generator)
    check_counts(examples=examples, profiled=profiled, inputs=inputs)
    chosen = _chosen(sections, {"comparison": not methods, "groups": groups is None}, quick)
    levels, decode = check_levels(levels), read_tokens(tokens)
    if conformal_score is not None:
        Score.parse(conformal_score, "conformal_score")
    if quick:
        examples, profiled, inputs = (min(a, b) for a, b in zip((examples, profiled, inputs), QUICK, strict=True))
        sampled = CurvatureKind.parse(curvature, "curvature") is CurvatureKind.AUTO and not is_posterior(model)
        curvature = "mc" if sampled else curvature
    examine = [] if NEED_SHARES.isdisjoint(chosen) else ["examine"]
    steps = ["data", "fit", *(["tune"] if validation is not None and tune else []), *examine, *chosen]
    with progress_over(steps, progress, on_step, on_left) as log, with_sizes(questions=QUESTIONS):
        with log.step("data"):
            sets: Sets = {
                "test": read_examples(test, "test", examples, of=model),
                "validation": read_examples(validation, "validation", examples, of=model),
                "ood": read_examples(ood, "ood", examples, targets=False, of=model),
            }
            given_groups = read_groups(groups, sets["test"], features, test)
            tracer.read(sets)
        bars = progress and on_step is None
        fit = FitOptions(
            structure,
            curvature,
            layers,
            prior_precision,
            tune,
            seed,
            device,
            execution,
            bars,
            profiled,
            QUICK_TUNED if quick else None,
        )
        fitted = fit.posterior(model, tracer.train, likelihood, sets, log)
        posterior = fitted.posterior
        sets = {name: one and one.counted(posterior.likelihood) for name, one in sets.items()}
        for one in filter(None, sets.values()):
            check_targets(posterior.snapshots[0], posterior.likelihood, one)
        task, shape = task_of(posterior.likelihood), output_shape(posterior, sets)
        check_score(conformal_score, task)
        context = Context(
            posterior,
            tracer.given,
            sets,
            task.class_names(classes, answer_count(posterior.likelihood, shape)),
            feature_names(features, sets),
            profiled,
            inputs,
            seed,
            dict(methods or {}),
            profile_posterior=posterior,
            wants_shares=bool(examine),
            note=_quick_words(curvature) if quick else "",
            validation_prediction=fitted.validation,
            groups=given_groups,
            outputs=read_outputs(posterior.likelihood, shape, unit, targets),
            levels=levels,
            score=conformal_score,
            positive=task.positive_class(positive, classes, answer_count(posterior.likelihood, shape)),
            decode=decode,
            rules=rules or VerdictRules(),
        )
        context, found = _sections(context, chosen, log)
    whole = judged(_record(context, found, log, title), context.rules)
    return Audit(tracer.traced(whole, posterior), context.with_reference(), context.profile_posterior)


# Options


def _chosen(sections: Sequence[str] | None, missing: dict[str, bool], quick: bool) -> list[str]:
    if sections is None:
        left_out = {**missing, "attribution": quick, "pruning": quick}
        return [name for name in SECTIONS if not left_out.get(name)]
    if isinstance(sections, str):
        raise BadOption(f"sections={sections!r} is one name; pass a list: [{sections!r}].")
    names = [one_of(name, SECTIONS, "section") for name in sections]
    return [name for name in SECTIONS if name in names]


def _quick_words(curvature: str) -> str:
    sampled = "sampled curvature, " if CurvatureKind(curvature) is CurvatureKind.MC else ""
    return (
        f"This is a quick audit: {sampled}at most {QUICK[0]:,} examples of each set, {QUICK_TUNED:,} of them for "
        "tuning. Run it without quick=True for the whole."
    )


# The record


def _sections(context: Context, chosen: list[str], log: Progress) -> tuple[Context, dict[str, Any]]:
    """Compute the chosen sections, and log why any of them cannot be computed."""
    found: dict[str, Any] = dict.fromkeys(SECTIONS)
    try:
        if context.wants_shares:
            with log.step("examine"):
                context = context.with_profile()
        for name in chosen:
            with log.step(name):
                try:
                    found[name] = tidied(SECTIONS[name](context))
                except WhenceError as error:
                    log.leave_out(name, str(error))
    except KeyboardInterrupt:
        log.interrupted = log.steps[log.done]
        for name in log.steps[log.done :]:
            log.leave_out(name, "the audit was interrupted before it was computed.")
        warnings.warn(f"interrupted during {log.interrupted!r}; finished sections are kept.", Notice, stacklevel=4)
    for name in SECTIONS:
        if name not in chosen and name not in IF_GIVEN:
            log.leave_out(name, "it was not requested.")
    return context, found


def _task_words(context: Context) -> str:
    return f"{context.task.name} of {context.elements}" if context.elements else context.task.name


def _record(context: Context, found: dict[str, Any], log: Progress, title: str | None) -> record.AuditRecord:
    posterior, sets = context.posterior, context.sets
    trained_on, shown = posterior.summary().examples, sets["test"] or sets["ood"]
    return record.AuditRecord(
        schema="whence.audit/1",
        created=now(),
        title=(title or f"{context.network_name}, {_task_words(context)}") + (" (quick)" if context.note else ""),
        task=context.task.name,
        classes=context.classes,
        network=record.NetworkSize(
            context.network_name,
            context.parameters,
            posterior.parameters,
            len(posterior.layers()),
            len(posterior.snapshots) if len(posterior.snapshots) > 1 else None,
        ),
        data=record.Data(
            train=None if trained_on is None else record.TrainingSize(trained_on),  # type: ignore[arg-type]
            **{name: None if one is None else one.size for name, one in sets.items()},  # type: ignore[arg-type]
            input_shape=tuple(shown.inputs.shape[1:]) if shown and isinstance(shown.inputs, Tensor) else None,
            overlap=context.overlap,
            elements=context.elements,
            profiled=record.ProfiledInputs(**{name: len(one) for name, one in context.profiled.items()}),
        ),
        verdict=PENDING,
        **found,
        run=_run(context, log),
        unit=context.outputs.unit,
        scores=input_scores(context) if found["quality"] is not None else None,
    )


def _run(context: Context, log: Progress) -> record.AuditRun:
    """The run, the main values of the posterior, and limitations."""
    posterior, summary = context.posterior, context.posterior.summary()
    training = record.TrainingFit(summary.examples, summary.accuracy, summary.confidence)
    about = record.PosteriorSummary(
        type(posterior).__name__,
        " ".join(repr(posterior).split())[:300],
        summary.structure,
        summary.curvature,
        summary.prior_precision,
        summary.data_scale,
        summary.tuned_on,  # type: ignore[arg-type]
        summary.log_evidence,
        None if summary.examples is None else training,
        summary.prior,
    )
    structures = tuple(
        record.BlockStructure(name, one.kind, one.parameters, one.structure, one.reason)
        for name, one in posterior.structures.items()
    )
    run = log.run(context.network.device, context.seed)
    covered, not_covered = posterior.parameters / context.parameters, tuple(_not_covered(context))
    return tidied(
        record.AuditRun(
            **vars(run),
            posterior=about,
            structures=structures,
            covered=covered,
            not_covered=not_covered,
            interrupted=log.interrupted,
            priors=tuple(priors_used(context)),
        )
    )


def _not_covered(context: Context) -> list[str]:
    """Weights outside the posterior, and uncertainty that is not included."""
    posterior, params, found = context.posterior, context.network.params, []
    chosen = set(posterior.names()) or set(params)
    outside = {name: p.numel() for name, p in params.items() if name not in chosen}
    if outside:
        more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
        names = ", ".join(list(outside)[:NAMED]) + more
        found.append(f"{sum(outside.values()):,} of {context.parameters:,} weights are not Bayesian: {names}.")
    if posterior.has_curvature:
        slow = [name for name, s in posterior.structures.items() if s.structure == BlockStructure.DIAG and s.reason]
        if slow:
            found.append(f"Correlations between the weights of {', '.join(slow[:NAMED])} are ignored.")
        if not posterior.as_laplace("correlations").curvature.joint:
            found.append("Correlations between layers are ignored.")
    return [
        *([context.note] if context.note else []),
        *found,
        "Uncertainty about the architecture, the training procedure and the data themselves is not covered.",
        *limits(context.has("validation"), context.has("ood")),
    ]
