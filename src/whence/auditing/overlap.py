"""Inputs of the test and validation data that also occur in the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.auditing.data import Examples
from whence.engine.batches import Inputs, as_source, from_numpy, inputs_of, is_pair, map_tensors, split_batch
from whence.engine.content import row_hashes
from whence.errors import WhenceError, notice
from whence.numerals import percent
from whence.report.record.audit import Data
from whence.report.record.verdict import Overlap

FACTOR = 6364136223846793005  # odd, so that no hash is lost; products wrap
MOST = 100_000  # training inputs that are compared
NOT_LOOKED_FOR = "Near copies, and inputs of the same patient, site or session, were not looked for."
NUMBERS = 2**24  # largest number of their targets that are kept


@dataclass(frozen=True)
class Training:
    """Training data, read once: hashes of the inputs, the same with their targets, and the targets."""

    inputs: Tensor  # [N]
    pairs: Tensor | None  # [N]
    targets: Tensor | None  # None where they are no tensors, or too many to keep


def read_training(train: Any, most: int = MOST) -> Training | None:
    """The first ``most`` training inputs; None without any, as of an iterator that the fit has used up."""
    parts: list[Tensor] = []
    pairs: list[Tensor | None] = []
    kept: list[Tensor | None] = []
    checked = numbers = 0
    for inputs, targets in _batches(train) if train is not None else ():
        found = row_hashes(inputs).cpu()
        parts.append(found[: most - checked])
        pairs.append(None if targets is None else _with_targets(found, targets)[: most - checked])
        numbers += 0 if targets is None else targets.numel()
        fits = targets is not None and len(targets) == len(found) and numbers <= NUMBERS
        kept.append(targets.detach().cpu()[: most - checked] if targets is not None and fits else None)
        checked += len(parts[-1])
        if checked >= most:
            break
    return Training(torch.cat(parts), _joined(pairs), _joined(kept)) if checked else None


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    same = len(known) == len(parts) and len({part.shape[1:] for part in known}) == 1
    return torch.cat(known) if same else None


def overlap(
    train: Any,
    test: Examples | None,
    validation: Examples | None,
    read: Callable[[Any], Training | None] = read_training,
) -> Overlap | None:
    """Compare inputs by content; None without training data, or without a set to compare it with."""
    sets = {one.name: row_hashes(one.inputs).cpu() for one in (test, validation) if one is not None}
    if train is None or not sets:
        return None
    if _augments(train):
        notice(
            "the training data give other inputs each time (random augmentation), so test and validation inputs that "
            "are also in the training data cannot be found. Pass them without augmentation to have that checked."
        )
        return None
    seen = read(train)
    if seen is None:
        return None
    counts = {name: int(torch.isin(found, seen.inputs).sum()) for name, found in sets.items()}
    between = int(torch.isin(sets["test"], sets["validation"]).sum()) if len(sets) == 2 else None
    same = None
    if test is not None and test.targets is not None and seen.pairs is not None:
        same = int(torch.isin(_with_targets(sets["test"], test.targets), seen.pairs).sum())
    return Overlap(len(seen.inputs), counts.get("test"), counts.get("validation"), between, same)


def _augments(train: Any) -> bool:
    """Whether a data set gives another first example when it is asked again."""
    source = getattr(train, "dataset", train)
    if isinstance(source, (Tensor, Mapping, tuple, list)) or not (
        hasattr(source, "__getitem__") and hasattr(source, "__len__") and len(source)
    ):
        return False
    try:
        first, second = (row_hashes(_one(source[0])) for _ in range(2))
    except (TypeError, ValueError, KeyError, IndexError, RuntimeError, StopIteration, WhenceError):
        return False  # not an example of tensors: what its loader makes of it is compared
    return not torch.equal(first, second)


def _one(example: Any) -> Inputs:
    """The inputs of one example as a batch."""
    found = from_numpy(example[0] if isinstance(example, (tuple, list)) else inputs_of(example))
    return map_tensors(lambda t: t[None], found)


def _with_targets(hashes: Tensor, targets: Tensor) -> Tensor:
    """Hashes of inputs and targets together, [N]."""
    own = row_hashes(targets.detach().double().reshape(len(targets), -1)).cpu()
    return hashes * FACTOR + own if len(own) == len(hashes) else hashes


def _batches(train: Any) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Inputs, with the targets where these are one tensor."""
    source = as_source(train)
    for batch in [source] if is_pair(source) or isinstance(source, Mapping) else source:
        inputs, targets = split_batch(batch, 0) if is_pair(batch) else (inputs_of(batch), None)
        yield from_numpy(inputs), targets if isinstance(targets := from_numpy(targets), Tensor) else None


# Words


def among(count: int, whole: int, what: str) -> str:
    """As the subject of a sentence: "1 of 230 test inputs (0.43%) is", "12 of 230 test inputs (5.2%) are"."""
    return f"{_some(count, whole, what)} {'is' if count == 1 else 'are'}"


def _some(count: int, whole: int, what: str) -> str:
    return f"{count:,} of {whole:,} {what} ({percent(count / whole)})"


def shared_in_words(data: Data, above: float = 0.0) -> str:
    """Which inputs are in two sets, if they are more than a part of their set; no full stop, empty if none is."""
    found, tests = data.overlap, data.test.inputs if data.test is not None else 0
    if found is None:
        return ""
    sets = ((found.test, data.test, "test inputs"), (found.validation, data.validation, "validation inputs"))
    known = [(n, one.inputs, what) for n, one, what in sets if n and one is not None and n > above * one.inputs]
    words = []
    if known:
        several = len(known) > 1 or known[0][0] > 1
        listed = " and ".join(_some(*one) for one in known)
        words.append(f"{listed} {'are' if several else 'is'} in the training data")
    if found.between and found.between > above * tests:
        words.append(f"{among(found.between, tests, 'test inputs')} in the validation data")
    return ", and ".join(words)


def copies_in_words(data: Data, found: Overlap) -> Iterator[str]:
    """What was compared, and which inputs are in more than one set."""
    tests, held = (0 if one is None else one.inputs for one in (data.test, data.validation))
    every = data.train is not None and data.train.inputs == found.checked
    training = f"the {found.checked:,} training inputs{'' if every else ' that were compared'}"
    if found.test:
        same = found.same_target
        targets = f", {same:,} of them with the same target" if same is not None and same < found.test else ""
        yield f"{among(found.test, tests, 'test inputs')} also in the training data{targets}."
    elif tests:
        more = f" or the {held:,} validation inputs" if held and found.between == 0 else ""
        yield f"None of the {tests:,} test inputs occurs among {training}{more}."
    if held and found.validation:
        yield f"{among(found.validation, held, 'validation inputs')} also in the training data."
    elif held and found.validation == 0:
        yield f"None of the {held:,} validation inputs occurs among {training}."
    if found.between:
        yield (
            f"{among(found.between, tests, 'test inputs')} also in the validation data, on which the prior and the "
            "thresholds were chosen."
        )
