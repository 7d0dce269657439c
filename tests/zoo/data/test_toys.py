"""Toys, names and the table of sets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.zoo.data import make
from whence.errors import BadFile, BadOption
from whence.zoo.data import datasets, describe, load, toys
from whence.zoo.data.catalogue import KNOWN
from whence.zoo.data.description import File


def test_cubic_parts() -> None:
    data = load("cubic", seed=3, dtype=torch.float64)
    assert data.train is not None and data.validation is not None and data.test is not None
    assert {name: part.size for name, part in data.parts()} == {"train": 20, "validation": 20, "test": 100}
    x, y = data.test.tensors()
    assert torch.equal(y, x**3) and float(x.min()) == -6 and float(x.max()) == 6
    assert not torch.equal(data.train.inputs, data.validation.inputs)
    assert (data.target_mean, data.target_std) == (0.0, 1.0)


def test_cubic_statistics() -> None:
    x, y = toys.cubic(20_000, 0, 0, 3.0)
    noise = y - x**3
    assert -4 < float(x.min()) < -3.99 and 3.99 < float(x.max()) < 4
    assert abs(float(x.mean())) < 0.1 and abs(float(x.var()) - 64 / 12) < 0.15
    assert abs(float(noise.mean())) < 0.1 and abs(float(noise.std()) - 3) < 0.08
    assert abs(float((noise * x).mean())) < 0.25


def test_two_moons_statistics() -> None:
    x, y = toys.two_moons(10_000, 0, 0, 0.0)
    upper, lower = x[y == 0], x[y == 1]
    assert len(upper) == len(lower) == 5000
    assert torch.allclose(upper.norm(dim=1), torch.ones(5000).double()) and (upper[:, 1] >= 0).all()
    centre = torch.tensor([1.0, 0.5]).double()
    assert torch.allclose((lower - centre).norm(dim=1), torch.ones(5000).double()) and (lower[:, 1] <= 0.5).all()
    noisy, _ = toys.two_moons(10_000, 0, 0, 0.2)
    assert abs(float((noisy - x).std()) - 0.2) < 0.01 and abs(float((noisy - x).mean())) < 0.01


def test_two_moons_agree_with_sklearn() -> None:
    datasets_of = pytest.importorskip("sklearn.datasets")
    theirs, labels = datasets_of.make_moons(4000, noise=None)
    ours, mine = toys.two_moons(4000, 0, 0, 0.0)
    for label in (0, 1):
        a, b = torch.from_numpy(theirs[labels == label]), ours[mine == label]
        assert torch.allclose(a.mean(0), b.mean(0), atol=0.05) and torch.allclose(a.std(0), b.std(0), atol=0.05)


@pytest.mark.parametrize("name", ["cubic", "two-moons"])
def test_seed_decides(name: str) -> None:
    one, again, other = (load(name, seed=seed).train for seed in (0, 0, 1))
    assert one is not None and again is not None and other is not None
    assert torch.equal(one.raw, again.raw) and torch.equal(one.targets, again.targets)
    assert not torch.equal(one.raw, other.raw)


def test_noise_and_validation() -> None:
    exact = load("cubic", noise=0.0, validation=7, dtype=torch.float64)
    assert exact.train is not None and exact.validation is not None and exact.validation.size == 7
    assert torch.allclose(exact.train.targets, exact.train.inputs**3)
    assert load("cubic", validation=0).validation is None
    many = load("cubic", validation=50).validation
    assert many is not None and many.size == 50


def test_snelson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"x,y\n1.5,2.5\n3e0,-4\n0,1\n"
    (tmp_path / "snelson").mkdir()
    (tmp_path / "snelson" / "snelson.csv").write_bytes(content)
    with pytest.raises(BadFile) as error:
        load("snelson", root=tmp_path)
    make.line(error, "snelson.csv", "sha256")
    make.described(monkeypatch, "snelson", test_files=(File("snelson.csv", make.sha256(content)),))
    data = load("snelson", root=tmp_path)
    assert data.train is not None and data.test is None and data.validation is None
    assert data.train.inputs.tolist() == [[1.5], [3.0], [0.0]] and data.train.targets.tolist() == [[2.5], [-4.0], [1.0]]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("cubic", {"noise": -1}, "noise=-1"),
        ("iris", {"noise": 0.1}, "iris has no noise option"),
        ("cubic", {"split": 1}, "cubic has no published splits"),
        ("iris", {"gap": True}, "seed"),
        ("iris", {"validation": 128}, "128"),
        ("iris", {"seed": None}, "seed=None"),
        ("cubic", {"seed": 0.5}, "seed=0.5"),
        ("irsi", {}, "Did you mean 'iris'?"),
    ],
)
def test_refusals(name: str, options: dict, says: str) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(BadOption) as error:
        load(name, **options)
    make.line(error, says)


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("MNIST", "mnist"),
        ("fashion", "fashion-mnist"),
        ("FashionMNIST", "fashion-mnist"),
        ("CIFAR-10", "cifar10"),
        ("Two_Moons", "two-moons"),
        ("banana", "uci/banana"),
        ("UCI/Breast_Cancer", "uci/breast-cancer"),
        ("breast cancer", "breast-cancer"),
        ("wine", "wine"),
    ],
)
def test_names(name: str, means: str) -> None:
    assert describe(name).name == means


def test_every_description_is_whole() -> None:
    for about in KNOWN.values():
        assert about.task == "regression" or len(about.classes) >= 2, about.name
        assert about.licence and about.get and about.title and about.train + about.test > 0
        assert about.files or about.kind in ("sklearn", "toy")
        for file in (*about.files, *([about.archive] if about.archive else [])):
            assert all(url.startswith("http") and url.endswith(file.name) for url in file.urls)
            assert not file.urls or file.md5 or file.sha256, f"{about.name} offers {file.name} without a checksum"
            assert file.md5 is None or len(bytes.fromhex(file.md5)) == 16
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32
    aliases = [alias for about in KNOWN.values() for alias in about.aliases]
    assert len(set(aliases)) == len(aliases) and not set(aliases) & set(KNOWN)
    assert len(KNOWN["cifar100"].classes) == len(set(KNOWN["cifar100"].classes)) == 100
    assert list(KNOWN["cifar100"].classes) == sorted(KNOWN["cifar100"].classes)


def test_table_of_sets() -> None:
    sets = datasets()
    lines = repr(sets).splitlines()
    assert len(lines) == len(sets) + 2 == len(KNOWN) + 2
    assert "name" in lines[0] and lines[2].startswith("mnist") and "60,000" in lines[2]
    assert sets[0].name == "mnist" and [about.name for about in sets[:2]] == ["mnist", "fashion-mnist"]
    frame = pytest.importorskip("pandas") and sets.to_pandas()
    assert list(frame.columns) == ["name", "task", "classes", "shape", "train", "test", "licence", "here"]
    assert frame.set_index("name").loc["iris", "classes"] == 3


def test_description_and_set_can_be_read() -> None:
    pytest.importorskip("sklearn")
    text = str(load("iris"))
    assert "iris" in text and "3 classes" in text and "train 106, validation 22, test 22" in text and "licence" in text
    assert "no validation" in str(load("iris", validation=0))
    assert "accuracies cannot be compared" in str(describe("cifar10-subset"))
    assert "not the official crops" in describe("svhn-recropped").note
