"""What a pruning curve shows, in words that hold for the whole of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from whence.extras.pruning.curve import PruneRow
from whence.numerals import between, percent, points, points_range

CRITERIA = {
    "snr": "signal to noise",
    "identified": "how well they are identified",
    "saliency": "saliency",
    "magnitude": "size",
    "random": "chance",
}
RANDOM = "random"
LOST = 0.01  # loss of accuracy, or relative increase of the error


def most_frequent(targets: Tensor | None) -> tuple[int, float] | None:
    """The most frequent label and its share, which guessing would get right; None without labels."""
    if targets is None or not targets.numel():
        return None
    labels = targets.reshape(-1)
    labels, counts = labels[labels >= 0].long().unique(return_counts=True)
    return None if not len(counts) else (int(labels[counts.argmax()]), float(counts.max() / counts.sum()))


def pruning_words(rows: Sequence[PruneRow], chance: float | None = None) -> str:
    """How much each criterion can prune before performance drops.

    A fraction counts only if every smaller one is acceptable too: what a curve does after it has collapsed does not.
    """
    whole = rows[0]
    if chance is not None and whole.accuracy is not None and whole.accuracy <= chance + LOST:
        return (
            f"The network with all its weights answers {percent(whole.accuracy)} of the inputs correctly"
            f"{_count(whole)}, {_beside(whole.accuracy, chance)} always giving the most frequent answer "
            f"({percent(chance)}), so an accuracy that stays the same does not show that pruning costs nothing: see "
            "the log loss in the table."
        )
    curves = {by: sorted((r for r in rows if r.by == by), key=lambda r: r.sparsity) for by in _criteria(rows)}
    kept = {by: _acceptable(curve, whole) for by, curve in curves.items()}
    best = max((by for by in kept), key=lambda by: (kept[by][-1].sparsity, by != RANDOM))
    last = kept[best][-1]
    tied = [by for by in kept if by not in (best, RANDOM) and kept[by][-1].sparsity == last.sparsity]
    following = next((row for row in curves[best] if row.sparsity > last.sparsity), None)
    if not last.sparsity:
        return _nothing(following, whole, best)
    part = percent(last.sparsity, 0)
    names = " or ".join(f"by {CRITERIA[by]}" for by in (best, *tied))
    words = f"Ranked {names}, {part} of the weights (without biases) can be removed with {_allowed(whole)}"
    if best != RANDOM and RANDOM in kept:
        random = kept[RANDOM][-1].sparsity
        words += f"; at random, {percent(random, 0) if random else 'not even the smallest fraction that was tried'}"
    which = f" (by {CRITERIA[best]})" if tied else ""
    words += f". With {part} removed{which} the {_score(whole)} {_moved(last, whole)}{_interval(last, whole)}."
    if _may_exceed(last, whole):
        words += f" The interval does not rule out {_more(whole)}."
    if any(_fits(row, whole) for by in kept for row in curves[by] if row.sparsity > kept[by][-1].sparsity):
        words += " A fraction counts only if all smaller ones stay within that limit too."
    words += _chosen(len(kept) - (RANDOM in kept), best, bool(tied))
    if following is not None:
        words += f" With {percent(following.sparsity, 0)} removed{which} it {_moved(following, whole)}."
        if any(_fits(row, whole) for row in curves[best] if row.sparsity > following.sparsity):
            words += " Larger fractions at which it recovers are not counted."
    return words


def _chosen(criteria: int, best: str, tied: bool) -> str:
    """That the criterion was chosen by these results."""
    if best == RANDOM or criteria < 2:
        return ""
    what = "No other criterion goes further" if tied else f"This criterion goes furthest of {criteria}"
    return f" {what} on these inputs; the best of several looks slightly better than it is."


def _beside(accuracy: float, chance: float) -> str:
    if accuracy == chance:
        return "as many as"
    return f"only {points(accuracy - chance)} percentage points more than" if accuracy > chance else "less than"


def _criteria(rows: Sequence[PruneRow]) -> list[str]:
    return list(dict.fromkeys(row.by for row in rows))


def _acceptable(curve: Sequence[PruneRow], whole: PruneRow) -> list[PruneRow]:
    """The rows up to the first that is worse than the whole network; at least the first."""
    found = [curve[0]]
    for row in curve[1:]:
        if not _fits(row, whole):
            break
        found.append(row)
    return found if _fits(curve[0], whole) else [whole]


def _fits(row: PruneRow, whole: PruneRow) -> bool:
    if row.accuracy is not None and whole.accuracy is not None:
        return row.accuracy >= whole.accuracy - LOST
    if row.rmse is not None and whole.rmse is not None:
        return row.rmse <= whole.rmse * (1 + LOST)
    return row.nll <= whole.nll + LOST


def _nothing(first: PruneRow | None, whole: PruneRow, by: str) -> str:
    if first is None:
        return "No fraction was tried."
    return (
        f"By no criterion can {percent(first.sparsity, 0)} of the weights, the smallest fraction that was "
        f"tried, be removed before {_loss(whole)}: ranked by {CRITERIA[by]}, it {_moved(first, whole)}"
        f"{_interval(first, whole)}."
    )


def _may_exceed(row: PruneRow, whole: PruneRow) -> bool:
    """Whether the interval of the change reaches beyond the loss that counts as acceptable."""
    if row.change_low is None or row.change_high is None:
        return False
    if whole.accuracy is not None:
        return row.change_low < -LOST
    return row.change_high > LOST * (whole.rmse if whole.rmse is not None else 1.0)


def _loss(whole: PruneRow) -> str:
    if whole.accuracy is not None:
        return "the accuracy falls by more than one percentage point"
    return "the error grows by more than 1%" if whole.rmse is not None else "the log loss grows by more than 0.01 nats"


def _more(whole: PruneRow) -> str:
    """More than the loss that counts as acceptable."""
    if whole.accuracy is not None:
        return "a loss of more than one percentage point"
    return "a growth of more than 1%" if whole.rmse is not None else "a growth of more than 0.01 nats"


def _allowed(whole: PruneRow) -> str:
    if whole.accuracy is not None:
        return "a measured loss of at most one percentage point of accuracy"
    error, most = ("error", "1%") if whole.rmse is not None else ("log loss", "0.01 nats")
    return f"a measured growth of the {error} of at most {most}"


def _score(whole: PruneRow) -> str:
    return "accuracy" if whole.accuracy is not None else "error" if whole.rmse is not None else "log loss"


def _moved(row: PruneRow, whole: PruneRow) -> str:
    if row.accuracy is not None and whole.accuracy is not None:
        by = row.accuracy - whole.accuracy
        size = points(abs(by))
        return "stays the same" if float(size) == 0 else f"{'falls' if by < 0 else 'rises'} by {size} percentage points"
    if row.rmse is not None and whole.rmse is not None:
        by = row.rmse / whole.rmse - 1
        return f"{'grows' if by > 0 else 'falls'} by {percent(abs(by))}"
    by = row.nll - whole.nll
    return f"{'grows' if by > 0 else 'falls'} by {abs(by):.3f} nats"


def _interval(row: PruneRow, whole: PruneRow) -> str:
    """The 95% interval of the change (of its size, where the sign is clear), and the number of examples."""
    low, high = row.change_low, row.change_high
    if low is None or high is None:
        return ""
    clear = low > 0 or high < 0
    low, high = sorted((abs(low), abs(high))) if clear else (low, high)
    if whole.accuracy is not None:
        shown = f"{points_range(low, high)} percentage points"
    elif whole.rmse is not None:
        shown = f"{points_range(low / whole.rmse, high / whole.rmse)}%"
    else:
        shown = between(low, high, "nats")
    return f" (95% interval{'' if clear else ' of the change'} {shown}, n = {row.examples or 0:,})"


def _count(row: PruneRow) -> str:
    return "" if row.examples is None else f" (n = {row.examples:,})"
