"""Which rows are trained on, validated on and tested on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.zoo.data import make
from whence.errors import BadOption
from whence.zoo.data import DataSet, folds, load, splits


def rows_of(data: DataSet) -> dict[str, set[tuple[float, ...]]]:
    return {name: {tuple(row) for row in part.raw.flatten(1).tolist()} for name, part in data.parts()}


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint_and_cover(seed: int) -> None:
    rows = splits.seeded(101, 15, 20, seed)
    assert [len(rows.train), len(rows.validation), len(rows.test)] == [66, 20, 15]
    assert sorted([*rows.train, *rows.validation, *rows.test]) == list(range(101))


def test_seed_decides() -> None:
    first, again, other = (splits.seeded(101, 15, 20, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.test, again.test) and np.array_equal(first.validation, again.validation)
    assert not np.array_equal(first.test, other.test) and not np.array_equal(first.validation, other.validation)


PERMUTATION = [2, 0, 1, 5, 6, 7, 3, 4]


def test_permutation_is_the_same_on_every_machine() -> None:
    assert splits.permutation(8, 0, splits.TEST).tolist() == PERMUTATION
    assert splits.permutation(8, 0, splits.VALIDATION).tolist() != PERMUTATION


def test_permutation_is_even() -> None:
    firsts = np.bincount([splits.permutation(5, seed, 0)[0] for seed in range(2000)], minlength=5)
    assert (np.abs(firsts - 400) < 5 * np.sqrt(320)).all()


def test_validation_as_count_and_fraction() -> None:
    assert splits.count(7, 100) == 7 and splits.count(0.25, 100) == 25 and splits.count(0, 100) == 0
    for bad in (-1, 100, 1.5, -0.1, True, "many"):
        with pytest.raises(BadOption) as error:
            splits.count(bad, 100)  # type: ignore[arg-type]
        make.line(error, repr(bad))


def test_test_part_does_not_depend_on_the_validation_part() -> None:
    pytest.importorskip("sklearn")
    for name in ("iris", "digits"):
        small, large = load(name, validation=5), load(name, validation=0.4)
        assert small.test is not None and large.test is not None
        assert torch.equal(small.test.raw, large.test.raw)


def test_official_test_part_is_the_same_for_every_seed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.mnist(monkeypatch, tmp_path / "mnist")
    one, two, again = (load("mnist", seed=seed, root=tmp_path) for seed in (0, 1, 0))
    assert one.test is not None and two.test is not None and one.train is not None and again.train is not None
    assert torch.equal(one.test.raw, two.test.raw) and torch.equal(one.train.raw, again.train.raw)
    assert rows_of(one)["train"] != rows_of(two)["train"]
    for data in (one, two):
        rows = rows_of(data)
        assert len(rows["train"]) == 8 and len(rows["validation"]) == 4 and not rows["train"] & rows["validation"]


def test_seventy_fifteen_fifteen() -> None:
    pytest.importorskip("sklearn")
    data = load("digits")
    sizes = {name: part.size for name, part in data.parts()}
    assert sizes == {"train": 1257, "validation": 270, "test": 270}
    assert load("digits", validation=0).validation is None


def test_gap_is_the_middle_third() -> None:
    column = np.array([5.0, 1.0, 9.0, 3.0, 7.0, 2.0, 8.0])
    train, test = splits.gap(column)
    assert sorted(column[test]) == [3.0, 5.0, 7.0]  # 7 rows: from the 3rd to the 5th
    assert sorted([*train, *test]) == list(range(7))


@pytest.mark.parametrize(
    ("size", "held"), [(506, 168), (1030, 344), (768, 256), (8192, 2730), (308, 102), (45730, 15244)]
)
def test_gap_sizes_are_the_published_ones(size: int, held: int) -> None:
    train, test = splits.gap(np.random.default_rng(0).normal(size=size))
    assert len(test) == held and len(train) == size - held


def test_gap_of_equal_values() -> None:
    train, test = splits.gap(np.zeros(9))
    assert test.tolist() == [3, 4, 5] and len(train) == 6


def test_folds_are_stratified_and_disjoint() -> None:
    pytest.importorskip("sklearn")
    every = list(folds("iris", k=10, seed=3))
    assert len(every) == 10 and all(data.validation is None for data in every)
    seen = []
    for data in every:
        assert data.train is not None and data.test is not None
        assert data.train.size == 135 and data.test.targets.bincount().tolist() == [5, 5, 5]
        seen.append(data.test.raw)
    rows = torch.cat(seen)
    whole = load("iris", validation=0)
    assert whole.train is not None and whole.test is not None
    expected = torch.cat([whole.train.raw, whole.test.raw])
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_folds_of_uneven_classes() -> None:
    labels = np.array([0] * 7 + [1] * 5 + [2] * 2)
    fold = splits.stratified(labels, 3, 0)
    assert sorted(np.bincount(fold)) == [4, 5, 5]
    for label in range(3):
        counts = np.bincount(fold[labels == label], minlength=3)
        assert counts.max() - counts.min() <= 1
    assert not np.array_equal(fold, splits.stratified(labels, 3, 1))
    assert np.array_equal(fold, splits.stratified(labels, 3, 0))


def test_folds_refuse() -> None:
    for call in (
        lambda: folds("cubic"),
        lambda: folds("mnist"),
        lambda: folds("iris", k=1),
    ):
        with pytest.raises(BadOption) as error:
            call()
        make.line(error)
    with pytest.raises(TypeError, match="validation"):
        folds("iris", validation=3)  # type: ignore[call-arg]
