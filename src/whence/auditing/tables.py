"""Sections that reuse tables of the library: layers, sensitivity, pruning, answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from torch import Tensor

from whence.auditing.answered import several_labels
from whence.auditing.context import Context
from whence.auditing.pruning_words import most_frequent, pruning_words
from whence.errors import NotDefined
from whence.extras.pruning.curve import prune_curve
from whence.metrics import nll
from whence.numerals import number
from whence.report.record.sections import Answer, Layer, OneAnswer, PrunedNetwork, Pruning, Sensitivity, Shares
from whence.where.answers import Answer as GivenAnswer
from whence.where.answers import answers_given
from whence.where.layer_rows import LayerRow

COLUMNS = [one.name for one in fields(Layer) if one.name not in ("structure", "test", "ood")]


def layers(context: Context) -> tuple[Layer, ...]:
    """The layer table, with shares for each set."""
    tables = {name: context.where(name).layers for name in ("test", "ood") if context.has(name)}
    rows = tables.get("test") or tables.get("ood") or context.profile_posterior.where().layers
    if not rows:
        raise NotDefined(context.profile_posterior.where().why_not)
    structures, kind = context.posterior.structures, type(context.posterior).__name__
    return tuple(
        Layer(
            **{name: getattr(row, name) for name in COLUMNS},
            structure=structures[row.name].structure if row.name in structures else kind,
            test=_shares(tables["test"][i], context.sensitivity) if "test" in tables else None,
            ood=_shares(tables["ood"][i], ()) if "ood" in tables else None,
        )
        for i, row in enumerate(rows)
    )


def _shares(row: LayerRow, sensitivity: Sequence[Sensitivity]) -> Shares:
    """Shares with the smallest and largest share of the layer under other priors."""
    others = [s.variance_share for s in sensitivity if s.name == row.name and s.variance_share is not None]
    low, high = (min(others), max(others)) if others else (None, None)
    errors = row.variance_share_error, row.explained_error
    return Shares(row.variance_share, row.prior_share, row.explained, low, high, *errors)


def sensitivity(context: Context) -> tuple[Sensitivity, ...]:
    """Shares and explained under a prior ten times weaker and stronger."""
    context.need("test")
    context.posterior.as_laplace("sensitivity to the prior")
    return context.sensitivity


def pruning(context: Context) -> Pruning:
    """Performance as weights are pruned, by criterion."""
    context.need_targets("test")
    posterior = context.posterior.as_weights("pruning")
    guess = most_frequent(context.profiled["test"].targets) if context.task.has_labels else None
    rows = prune_curve(posterior, context.profiled["test"].pair, seed=context.seed, progress=False).rows
    return Pruning(
        tuple(PrunedNetwork(**asdict(row)) for row in rows),
        (pruning_words(rows, guess and guess[1]),),
        None if guess is None else OneAnswer(_answer_name(context, guess[0]), guess[1]),
    )


def _answer_name(context: Context, label: int) -> str | None:
    """The name of a class; None for the values of several labels."""
    return None if several_labels(context) else context.class_name(label)


def answers(context: Context) -> tuple[Answer, ...]:
    """Answers to the main questions about a profile."""
    targets = context.need_targets("test")
    profile = context.profile_posterior.as_laplace("this")
    if context.has_dense_outputs:
        raise NotDefined("they need one vector of outputs for each input; this network has one for each position.")
    outside = context.examined("ood") if context.has("ood") else None
    inside = context.examined("test")
    found = answers_given(inside, targets[context.profiled_index("test")], outside, profile)
    same, all_of = context.profile_posterior is context.posterior, _on_all(context, targets)
    return tuple(
        Answer(
            one.question,
            one.words + (all_of if "whole" in one.numbers else "") + ("" if same else _priors(one)),
            one.numbers,
        )
        for one in found.items
    )


def _on_all(context: Context, targets: Tensor) -> str:
    """The NLL of all test inputs, where the answers are of some."""
    some, every = len(context.profiled["test"]), len(targets)
    if some == every:
        return ""
    found = float(nll(context.prediction("test"), targets, resamples=0))
    return (
        f" These are {some:,} of the {every:,} test inputs, evenly spaced; on all of them the NLL is {number(found)}."
    )


def _priors(one: GivenAnswer) -> str:
    """Which prior the numbers of an answer belong to, where shares and predictions have different ones."""
    shares = any(key in one.numbers for key in ("explained", "share", "moved"))
    if shares and "NLL" in one.words:
        return (
            " The shares are under the prior that the evidence prefers, the scores under the tuned one, which leaves "
            "the weights hardly any uncertainty."
        )
    return " This is under the prior that the evidence prefers." if shares else ""
