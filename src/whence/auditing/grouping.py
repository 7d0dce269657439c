"""``groups=``: arrays, columns or mappings of them → which test inputs belong to which group."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from whence.auditing.data import Examples
from whence.errors import BadOption, NotDefined, one_of

DISTINCT = 10  # numbers that are groups of their own
QUANTILES = 4  # groups of more numbers than that
MOST = 20  # groups; rarer ones are one group together
MISSING = "missing"
ABSENT = ("NAType", "NaTType")  # of pandas
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GivenGroups:
    """Groupings as given, by name: one value for each input of the data as given, or a column of the inputs."""

    values: Mapping[str, Values | int]
    note: str = ""
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the groups, where they are given

    def of(self, examples: Examples) -> list[Divided]:
        """The groups of these examples, which are among those that the groups were read for."""
        return [
            divided(name, self._values(given, examples), self.note, self.orders.get(name, ()))
            for name, given in self.values.items()
        ]

    def _values(self, given: Values | int, examples: Examples) -> Values:
        if not isinstance(given, int):
            return given[examples.positions.numpy()]
        assert isinstance(examples.inputs, Tensor)  # checked
        return examples.inputs[:, given].double().numpy()


@dataclass(frozen=True)
class Divided:
    """Inputs divided into groups."""

    name: str
    about: str
    names: tuple[str, ...]
    place: Tensor  # [N] of the group in names


def read_groups(
    groups: Any, test: Examples | None, features: Sequence[str] | None, source: Any = None
) -> GivenGroups | None:
    """Check ``groups=``; None if it was not given. ``source`` is where the test data came from."""
    if groups is None:
        return None
    if test is None:
        raise BadOption("groups= divides the test data, but no test data were given; pass test=.")
    values: dict[str, Values | int] = {}
    orders: dict[str, tuple[str, ...]] = {}
    notes = set()
    for name, given in _named(groups, features):
        if isinstance(given, str | int) and not isinstance(given, bool):
            values[name] = _column(given, test, features)
        else:
            if isinstance(getattr(source, "sampler", None), RandomSampler):
                raise BadOption(
                    f"groups: {name!r} has one value for each test input in their order, but the test loader shuffles; "
                    "pass a loader with shuffle=False, or a column of the inputs."
                )
            values[name], note = _array(given, name, test)
            notes.add(note)
            orders[name] = _order_of(given)
    return GivenGroups(values, " ".join(sorted(notes - {""})), orders)


def _order_of(given: Any) -> tuple[str, ...]:
    """The categories of a pandas Categorical, or of a column of such; empty for other values."""
    categories = getattr(getattr(given, "cat", given), "categories", None)
    return () if categories is None else tuple(map(_word, categories))


def _named(groups: Any, features: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    """Groupings with their names; a data frame is a mapping of columns."""
    if isinstance(groups, Mapping) or (hasattr(groups, "columns") and hasattr(groups, "items")):
        if not len(groups):
            raise BadOption("groups= is empty; pass an array, a column, or a mapping of names to arrays.")
        yield from ((str(name), given) for name, given in groups.items())
    elif isinstance(groups, int) and not isinstance(groups, bool):
        named = features is not None and 0 <= groups < len(features)
        yield (features[groups] if named and features else f"column {groups}"), groups
    else:
        yield (groups if isinstance(groups, str) else str(getattr(groups, "name", None) or "group")), groups


def _column(given: str | int, test: Examples, features: Sequence[str] | None) -> int:
    """The index of a column of tabular inputs, by its name in ``features`` or its index."""
    inputs = test.inputs
    if not isinstance(inputs, Tensor) or inputs.dim() != 2:
        raise BadOption(
            f"groups={given!r} is a column, but the test inputs are not rows of a table; pass an array with one value "
            "for each test input."
        )
    if isinstance(given, str):
        if features is None:
            raise BadOption(
                f"groups={given!r} is the name of a column, but columns have no names; pass features=, or the index "
                "of the column."
            )
        given = list(features).index(one_of(given, list(features), "column"))
    if not 0 <= given < inputs.shape[1]:
        raise BadOption(
            f"groups={given} is not a column of the test inputs; they have columns 0 to {inputs.shape[1] - 1}."
        )
    return given


def _array(given: Any, name: str, test: Examples) -> tuple[Values, str]:
    """One value for each input as given, and a sentence if there are more values than inputs that were read."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    found = np.asarray(given, dtype=object) if isinstance(given, list | tuple) else np.asarray(given)
    if found.ndim > 1 and found.size == len(found):
        found = found.reshape(-1)
    if found.ndim != 1:
        raise BadOption(f"groups: {name!r} has shape {found.shape}; pass one value for each test input.")
    read = len(test)
    if test.given is not None and len(found) != test.given:
        hint = " For several columns pass a mapping: {'name': column}." if isinstance(given, list | tuple) else ""
        raise BadOption(f"groups: {name!r} has {len(found):,} values for {test.given:,} test inputs.{hint}")
    if len(found) < read:
        raise BadOption(f"groups: {name!r} has {len(found):,} values, but at least {read:,} test inputs.")
    if len(found) == read:
        return found, ""
    which = "spread evenly over them" if test.index is not None else "the first ones"
    return (
        found,
        f"Of {len(found):,} values in groups=, the {read:,} of the test inputs that were read are used: {which}.",
    )


# Groups


def divided(name: str, values: Values, note: str = "", order: Sequence[str] = ()) -> Divided:
    """Categories, or quantile groups of many different numbers; ``order`` of the categories, if they have one."""
    missing = _missing(values)
    if values.dtype.kind == "O" and all(map(_is_number, values[~missing])):
        values = np.where(missing, np.nan, values).astype(float)
    numeric = values.dtype.kind in "iuf" and not order
    distinct = np.unique(values[~missing]) if numeric else np.empty(0)
    if numeric and len(distinct) > DISTINCT:
        labels, names, about = _quantiles(values.astype(float), missing)
    else:
        words = np.array([MISSING if gone else _word(one) for one, gone in zip(values, missing, strict=True)])
        present = list(dict.fromkeys(map(_word, distinct))) if numeric else _ordered(set(words[~missing]), order)
        labels, names, about = _categories(words, [*present, *([MISSING] if missing.any() else [])])
    if len(names) < 2:
        raise NotDefined(f"all {len(values):,} test inputs are in the same group of {name!r} ({names[0]}).")
    return Divided(name, " ".join(filter(None, [about, note])), tuple(names), torch.from_numpy(labels))


def _ordered(words: Set[str], order: Sequence[str]) -> list[str]:
    """In the given order; otherwise sorted, with numbers inside words by their size: "5 to 9" before "10 to 14"."""
    return [word for word in order if word in words] if order else sorted(words, key=_natural)


def _natural(word: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", word) if part]


def _missing(values: Values) -> Values:
    """None and NaN."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([one is None or type(one).__name__ in ABSENT or one != one for one in values], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _word(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _quantiles(values: Values, missing: Values) -> tuple[Any, list[str], str]:
    """Groups of about equal size between quantiles; equal values stay together."""
    inside = np.quantile(values[~missing], np.linspace(0, 1, QUANTILES + 1)[1:-1])
    edges = np.unique(inside)
    edges = edges[edges < values[~missing].max()]
    place = np.searchsorted(edges, values)  # the group up to and including its upper edge
    digits = next((d for d in range(3, 17) if len({f"{edge:.{d}g}" for edge in edges}) == len(edges)), 17)
    shown = [f"{edge:.{digits}g}".replace("-", "−") for edge in edges]
    names = [
        f"up to {shown[0]}",
        *(f"{a} to {b}" for a, b in itertools.pairwise(shown)),
        f"above {shown[-1]}",
    ]
    if missing.any():
        place = np.where(missing, len(names), place)
        names.append(MISSING)
    about = (
        f"More than {DISTINCT} different numbers: groups are cut at quantiles of the test data, the upper end included."
    )
    return place.astype(np.int64), names, about


def _categories(words: Values, order: list[str]) -> tuple[Any, list[str], str]:
    """One group for each word; the rarest are one group if there are too many."""
    place = {word: i for i, word in enumerate(order)}
    labels = np.array([place[word] for word in words], dtype=np.int64)
    if len(order) <= MOST:
        return labels, order, ""
    counts = np.bincount(labels, minlength=len(order))
    kept = np.sort(np.argsort(-counts, kind="stable")[: MOST - 1])
    new = np.full(len(order), len(kept), dtype=np.int64)
    new[kept] = np.arange(len(kept))
    others = len(order) - len(kept)
    about = f"The {len(kept)} most frequent of {len(order):,} values are groups; the other {others:,} are one group."
    return new[labels], [*(order[i] for i in kept), f"{others:,} other values"], about
