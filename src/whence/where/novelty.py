"""Novelty: how much an input differs from the training data, by layer and overall.

Per input and layer ``unexplained`` = tr V_b(x) / tr V_b(x; prior): the fraction of the prior variance that training did
not remove. Relative to in-distribution reference inputs it gives a p-value for each layer; combined, they give a score
and an overall p-value, which is uniform on new in-distribution inputs, whatever the dependence between layers.

A prior tuned for prediction is often so strong that everything is unexplained. Novelty uses its own: the shape
D of a relative prior, and for every layer the δ under which the training data leave a small part of their own
curvature, tr[H' δ (s H' + δ)⁻¹] / tr H' = left with H' = D^{-1/2} H D^{-1/2}. It depends only on network and data, so
novelty changes neither with the prior precision nor with the data scale. (EKFAC and low rank keep the shape of the
prior that they were fitted with.)

Index legend: N inputs, B layers, n reference inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.engine.batches import bare
from whence.errors import BadData, BadOption, NotDefined, Notice, explains_keywords, notice
from whence.labels import argument_names
from whence.numerals import p_value
from whence.posteriors.base import require_posterior
from whence.predictive.linearised_draws import Probes, check_probes
from whence.tables import SHORT, Table, html, text
from whence.where.novelty_prior import LEFT, measured, novelty_precision, unexplained_under, with_novelty_prior
from whence.where.p_values import Combination, Combine, conformal, p_value_among, reference_scores
from whence.where.question import ProbesOption
from whence.where.with_entropy import WithEntropy, entropy_of_inputs, flagged, with_entropy

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

ENOUGH = 100  # reference inputs, for p-values of 1%
DESCRIBED = 10  # inputs that describe() lists


@dataclass(frozen=True)
class Novelty:
    """Made by :func:`whence.novelty`. Small p-values: the input differs from reference and training data."""

    names: tuple[str, ...]  # of the layers
    unexplained: Tensor  # [N, B], float64 on the CPU
    p_values: Tensor  # [N, B]
    score: Tensor  # [N], higher is more novel; it still rises where p-values have reached 1 / (n + 1)
    p_value: Tensor  # [N], overall
    reference: Reference
    combine: str
    entropy: Tensor | None = None  # [N], of the plain network's prediction; None if it does not predict labels
    with_entropy: WithEntropy | None = None  # novelty and entropy as one score, with a p-value of its own

    def __len__(self) -> int:
        return len(self.score)

    @property
    def layer(self) -> tuple[str, ...]:
        """The layer with the smallest p-value for each input; the earliest among equal ones."""
        return tuple(self.names[b] for b in self.p_values.argmin(1).tolist())

    def flag(self, level: float = 0.01) -> Tensor:
        """Whether each input is novel, bool [N]; a fraction ``level`` of new in-distribution inputs is flagged."""
        return flagged(self.p_value, level, self.reference.size)

    def words(self, index: int, level: float = 0.01) -> str:
        """One input in words."""
        if not -len(self) <= index < len(self):
            raise BadOption(f"there is no input {index} among {len(self)}.")
        index %= len(self)
        p, by_layer = float(self.p_value[index]), self.p_values[index]
        most = int(by_layer.argmin())

        def named(layer: int) -> str:
            return f"layer `{self.names[layer]}` (p = {p_value(float(by_layer[layer]))})"

        if p > level:
            return f"input {index} {self._not_novel(p, float(by_layer[most]), self.names[most], level)}"
        below = (by_layer <= level).nonzero().flatten().tolist()
        if not below:
            return f"input {index} differs from the training data over all layers (p = {p_value(p)}), in no single one."
        equal = (by_layer == by_layer[most]).nonzero().flatten().tolist()
        start = f"input {index} differs from the training data (p = {p_value(p)})"
        if len(equal) > 1:
            more = f"{len(equal) - 1} more {'layer' if len(equal) == 2 else 'layers'}"
            words = f"{start}, most in `{self.names[most]}` and {more} (all with p = {p_value(float(by_layer[most]))})."
        else:
            words = f"{start}, most in {named(most)}."
        if most != below[0]:
            words += f" It is noticed as early as {named(below[0])}."
        others = len(below) - len({below[0], *equal})
        more = "One more layer notices" if others == 1 else f"{others} more layers notice"
        return f"{words} {more} it." if others else words

    def _not_novel(self, p: float, smallest: float, layer: str, level: float) -> str:
        """``smallest`` is the p-value of a layer, which counts if it is small for the smallest of so many."""
        corrected = min(1.0, smallest * len(self.names))  # Bonferroni
        if corrected > level:
            return f"is not flagged as novel (p = {p_value(p)} over all layers)."
        return (
            f"differs from the training data in layer `{layer}` (p = {p_value(corrected)}, corrected for "
            f"{len(self.names)} layers), but not significantly over all layers together (p = {p_value(p)})."
        )

    def describe(self, level: float = 0.01) -> str:
        """The summary, and the most novel inputs in words."""
        flagged = int(self.flag(level).sum())
        order = self.score.argsort(descending=True, stable=True)[: min(flagged, DESCRIBED)].tolist()
        lines = [str(self), *(self.words(i, level) for i in order)]
        if flagged > DESCRIBED:
            lines.append(f"… and {flagged - DESCRIBED:,} more.")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """One row for each input, as a ``pandas.DataFrame``."""
        columns: dict[str, Any] = {"input": range(len(self)), "score": self.score, "p_value": self.p_value}
        columns["layer"] = self.layer
        if self.with_entropy is not None:
            columns |= {"entropy": self.entropy, "score_with_entropy": self.with_entropy.score}
            columns |= {"p_value_with_entropy": self.with_entropy.p_value}
        columns |= {f"p_value:{name}": self.p_values[:, b] for b, name in enumerate(self.names)}
        columns |= {f"unexplained:{name}": self.unexplained[:, b] for b, name in enumerate(self.names)}
        return Table(columns).to_pandas()

    def __str__(self) -> str:
        head, columns, rows = self._summary()
        return f"{head}\n{text(columns, rows)}"

    def __repr__(self) -> str:
        head, columns, rows = self._summary()
        if len(rows) <= SHORT:
            return f"{head}\n{text(columns, rows)}"
        return f"{head}\n{text(columns, rows[:SHORT])}\n… {len(rows) - SHORT} more layers: print it."

    def _repr_html_(self) -> str:
        head, columns, rows = self._summary()
        return html(columns, rows[:SHORT], f"Novelty: {head}", more=len(rows) - SHORT)

    def _summary(self) -> tuple[str, tuple[str, ...], list[list[str]]]:
        """What was found in a sentence, and a table of the layers."""
        level = max(0.01, 1 / (self.reference.size + 1))
        novel = self.flag(level)
        head = (
            f"{int(novel.sum()):,} of {len(self):,} inputs have p ≤ {level:.2g} (about {level * len(self):.0f} would "
            f"if none were novel; {self.reference.size:,} reference inputs, layers combined by {self.combine!r})"
        )
        if self.with_entropy is not None:
            head += f"; {int(self.with_entropy.flag(level).sum()):,} if entropy counts too"
        firsts = [name for name, flagged in zip(self.layer, novel.tolist(), strict=True) if flagged]
        here, usual = self.unexplained.median(0).values, self.reference.unexplained.median(0).values
        below = (self.p_values <= level).sum(0)
        rows = [
            [name, f"{here[b]:.3g}", f"{usual[b]:.3g}", f"{int(below[b]):,}", f"{firsts.count(name):,}"]
            for b, name in enumerate(self.names)
        ]
        columns = ("layer", "unexplained", "in reference", f"p ≤ {level:.2g}", "smallest p of novel inputs")
        return head, columns, rows


@explains_keywords
def novelty(
    posterior: Laplace, x: Any, *, reference: Any = None, combine: Combination = "auto", probes: ProbesOption = "auto"
) -> Novelty:
    """How unlike the training data the inputs are.

    ``reference``: in-distribution inputs that were not trained on, or :func:`whence.reference_of` them, made once;
    ``None`` takes what the posterior was tuned on. ``combine``: how layers become one score. ``"gauss"`` (``"auto"``)
    asks how likely it is that some layers are shifted, given how layers correlate; ``"fisher"`` sums log p-values,
    ``"smallest"`` takes the smallest, and ``"cauchy"`` is between the two. ``probes``: random output columns,
    the same for all inputs, as for :meth:`whence.Laplace.where`; a reference has its own.
    """
    chosen = Combine.asked(combine)
    posterior = require_posterior(posterior, "the posterior of novelty").as_laplace("novelty")
    known = posterior.reference if reference is None else reference
    if known is None:
        raise NotDefined(
            "novelty is measured relative to in-distribution inputs, but this posterior has none: tune it on "
            "validation data, or pass reference=validation_inputs (not the training data)."
        )
    if isinstance(known, Reference):
        known = known.check(posterior, probes)
    else:
        known = reference_of(posterior, known, probes=probes)
    unexplained, _, entropy = measured(posterior, x, known.precision_for(posterior), known.probes or "exact")
    return novelty_given(known, unexplained, chosen, entropy)


def novelty_given(
    known: Reference, unexplained: Tensor, combine: Combine = Combine.GAUSS, entropy: Tensor | None = None
) -> Novelty:
    """The novelty of inputs whose unexplained variance [N, B] and entropy [N] are known."""
    own, score = reference_scores(known.unexplained, unexplained, combine)
    both = None
    if known.entropy is not None and entropy is not None:
        both = with_entropy((own, known.entropy), (score, entropy))
    return Novelty(
        names=known.names,
        unexplained=unexplained,
        p_values=conformal(known.unexplained, unexplained),
        score=score,
        p_value=p_value_among(own, score),
        reference=known,
        combine=combine.value,
        entropy=entropy,
        with_entropy=both,
    )


# The reference


@dataclass(frozen=True)
class Reference:
    """tr V_b / tr V_b(prior) of in-distribution inputs that the network was not trained on."""

    names: tuple[str, ...]  # of the layers
    unexplained: Tensor  # [n, B], float64 on the CPU
    left: float = LEFT  # unexplained share of the training data's curvature under the prior of novelty
    network: str = ""  # hash of the weights
    precision: tuple[float, ...] = ()  # δ / s of every layer that follows from ``left``; empty: to be computed again
    probes: int = 0  # random output columns, the same for all inputs; 0: exact
    entropy: Tensor | None = None  # [n], of the plain network's labels, float64 on the CPU

    @property
    def size(self) -> int:
        """Number of inputs."""
        return len(self.unexplained)

    def precision_for(self, posterior: Laplace) -> tuple[float, ...]:
        """δ / s of every layer under the prior of novelty."""
        return self.precision or novelty_precision(posterior, self.left)

    def check(self, posterior: Laplace, probes: ProbesOption = "auto") -> Reference:
        """Refuse a reference of another network, or with other columns."""
        if check_probes(probes) not in (Probes.AUTO, self.probes or Probes.EXACT):
            raise BadOption(f"probes={probes!r}: the reference has {self.probes or 'exact'!r}. Make another one.")
        names = tuple(b.name for b in posterior.blocks)
        remedy = "Create one with whence.reference_of(posterior, validation_inputs)."
        if self.names != names:
            raise BadOption(
                f"the reference has the layers {_few(self.names)}, the posterior has {_few(names)}. {remedy}"
            )
        if self.network and posterior.network.hash and self.network != posterior.network.hash:
            raise BadOption(f"the reference belongs to a network with other weights. {remedy}")
        return self

    def __repr__(self) -> str:
        return f"Reference({self.size:,} inputs, {len(self.names)} layers)"


@explains_keywords
def reference_of(posterior: Laplace, data: Any, *, left: float = LEFT, probes: ProbesOption = "auto") -> Reference:
    """The reference of in-distribution inputs: validation data, a loader of it, or an (inputs, targets) pair.

    Not the training data: the network fits them better than new data, which would then seem novel.
    ``left`` is the share of the training data's curvature that stays unexplained under the prior of novelty.
    """
    precision = novelty_precision(posterior, left)
    inputs = bare(data, argument_names(posterior.network.module))
    unexplained, columns, entropy = measured(posterior, inputs, precision, probes)
    return reference_given(posterior, unexplained, precision, left, columns, entropy)


def reference_given(
    posterior: Laplace, unexplained: Tensor, precision: tuple[float, ...], left: float = LEFT, columns: int = 0,
    entropy: Tensor | None = None,
) -> Reference:  # fmt: skip
    """The reference of inputs whose unexplained variance [N, B] and entropy [N] are known."""
    count = len(unexplained)
    if count < 2:
        raise BadData(f"a reference needs at least two inputs, not {count}; use {ENOUGH} or more.")
    if count < ENOUGH:
        notice(
            f"the reference has {count} inputs, so no p-value can be below {1 / (count + 1):.2g}; use {ENOUGH} or more."
        )
    names = tuple(b.name for b in posterior.blocks)
    return Reference(names, unexplained, left, posterior.network.hash, precision, columns, entropy)


def with_reference(
    posterior: Laplace, validation: Any, known: Callable[[Laplace], tuple[Tensor, Tensor] | None] = lambda _: None
) -> Laplace:
    """The posterior with the reference of its validation inputs; unchanged if novelty is not defined.

    ``known`` gives the variance of these inputs under a posterior and its prior, [N, B] each, where that costs little.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # a small reference matters only if novelty is used
        try:
            precision = novelty_precision(posterior)
            weak = with_novelty_prior(posterior, precision)
            found = known(weak)
            if found is None:
                return replace(posterior, reference=reference_of(posterior, validation))
            unexplained, entropy = unexplained_under(weak, *found), entropy_of_inputs(posterior, validation)
            reference = reference_given(posterior, unexplained, precision, entropy=entropy)
            return replace(posterior, reference=reference)
        except (NotDefined, BadData):
            return posterior


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
