"""Where files are found, and what is refused."""

from __future__ import annotations

import functools
import gzip
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.zoo.data import make
from whence.errors import BadFile, BadOption
from whence.zoo.data import datasets, files, load
from whence.zoo.data.description import File


def test_roots_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("WHENCE_DATA", os.pathsep.join(["/a", "", "/b"]))
    assert files.roots("/first") == [Path("/first"), Path("/a"), Path("/b"), own_cache / "data"]
    monkeypatch.delenv("WHENCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert files.cache() == Path("/x/whence")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.cache() == Path.home() / ".cache" / "whence"


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("compress", [True, False])
def test_layouts_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, compress: bool) -> None:
    make.mnist(monkeypatch, tmp_path / folder, compress=compress)
    data = load("mnist", root=tmp_path, download=False, validation=0)
    assert data.train is not None and data.test is not None and data.validation is None
    assert torch.equal(data.train.raw[:, 0], torch.from_numpy(make.pixels(make.TRAIN, 28, 28)))
    assert data.train.targets.tolist() == [i % 10 for i in range(make.TRAIN)]
    assert data.test.size == make.TEST and data.shape == (1, 28, 28)


@pytest.mark.parametrize("validation", [0, 5])
def test_normalisation_is_of_all_training_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: int
) -> None:
    make.mnist(monkeypatch, tmp_path / "mnist", mean=None, std=None)
    data = load("mnist", root=tmp_path, validation=validation, dtype=torch.float64)
    pixels = make.pixels(make.TRAIN, 28, 28) / 255
    for _, part in data.parts():
        assert part.mean is not None and part.std is not None
        assert float(part.mean) == pytest.approx(pixels.mean(), rel=1e-12)
        assert float(part.std) == pytest.approx(pixels.std(), rel=1e-12)
    plain = load("mnist", root=tmp_path, normalise=False)
    assert plain.test is not None and plain.test.mean is None
    assert torch.equal(plain.test.inputs, plain.test.raw / 255)


def test_environment_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    make.mnist(monkeypatch, tmp_path / "env" / "mnist", parts="train")
    monkeypatch.setenv("WHENCE_DATA", os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "env")]))
    with pytest.raises(BadFile):
        load("mnist", download=False)
    make.mnist(monkeypatch, own_cache / "data" / "mnist", parts="t10k")
    data = load("mnist", download=False)
    assert {path.parent for path in data.where} == {tmp_path / "env" / "mnist", own_cache / "data" / "mnist"}


def test_the_named_root_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.mnist(monkeypatch, tmp_path / "a" / "mnist")
    make.mnist(monkeypatch, tmp_path / "b" / "mnist")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path / "a"))
    assert load("mnist", root=tmp_path / "b").where[0].parent == tmp_path / "b" / "mnist"
    assert load("mnist").where[0].parent == tmp_path / "a" / "mnist"


def test_missing_set_says_where_and_how(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path / "r", download=False)
    make.line(error, "mnist", tmp_path / "r", own_cache / "data", "train-images-idx3-ubyte.gz", "https://")
    make.line(error, "$WHENCE_DATA is not set", "download=True")
    with pytest.raises(BadFile) as error:
        load("uci/concrete", root=tmp_path / "r")
    make.line(error, "uci/concrete", "git clone", tmp_path / "r", own_cache / "data")


def test_missing_cifar_says_that_the_subset_is_there(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").touch()
    with pytest.raises(BadFile) as error:
        load("cifar10", root=tmp_path, download=False)
    make.line(error, "cifar10 was not found", "'cifar10-subset' is available")
    with pytest.raises(BadFile) as error:
        load("cifar10", root=tmp_path / "elsewhere", download=False)
    assert "subset" not in make.line(error)


@pytest.mark.parametrize("broken", ["truncated", "other", "plain", "empty"])
def test_damaged_gzip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = make.mnist(monkeypatch, tmp_path / "mnist")["train-images-idx3-ubyte.gz"]
    content = path.read_bytes()
    path.write_bytes(
        {
            "truncated": content[:-100],
            "other": gzip.compress(make.idx(make.pixels(make.TRAIN, 28, 28, seed=9))),
            "plain": gzip.decompress(content),
            "empty": b"",
        }[broken]
    )
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path)
    make.line(error, path, {"other": "sha256"}.get(broken, ""), "elete it")


def test_count_mismatch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make.mnist(monkeypatch, tmp_path / "mnist")["train-labels-idx1-ubyte.gz"]
    short = make.idx(np.arange(make.TRAIN - 1) % 10)
    images = File("train-images-idx3-ubyte.gz")
    make.described(monkeypatch, "mnist", train_files=(images, File(path.name, make.sha256(short))))
    path.write_bytes(gzip.compress(short))
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path)
    make.line(error, path, "11 labels for 12 images")


def test_labels_out_of_range_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make.mnist(monkeypatch, tmp_path / "mnist")["train-labels-idx1-ubyte.gz"]
    make.described(monkeypatch, "mnist", train_files=(File("train-images-idx3-ubyte.gz"), File(path.name)))
    path.write_bytes(gzip.compress(make.idx(np.full(make.TRAIN, 10))))
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path)
    make.line(error, path, "0 to 9")


def test_other_size_than_described_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make.mnist(monkeypatch, tmp_path / "mnist", train=make.TRAIN + 1)
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path)
    make.line(error, paths["train-images-idx3-ubyte.gz"], "13 x 1 x 28 x 28")


def test_published_md5_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make.mnist(monkeypatch, tmp_path / "mnist")["train-images-idx3-ubyte.gz"]
    labels = File("train-labels-idx1-ubyte.gz")
    make.described(monkeypatch, "mnist", train_files=(File(path.name, md5=make.md5(path.read_bytes())), labels))
    load("mnist", root=tmp_path)
    make.described(monkeypatch, "mnist", train_files=(File(path.name, md5="0" * 32), labels))
    with pytest.raises(BadFile) as error:
        load("mnist", root=tmp_path)
    make.line(error, path, "md5", "0" * 32)


def test_large_files_are_checked_once(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"content")
    check = functools.partial(files.check_md5, path, make.md5(b"content"), remember=3)
    check()
    assert len(list((own_cache / "verified").iterdir())) == 1
    state = path.stat()
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    check()  # same path, size and time: remembered
    os.utime(path, ns=(0, 0))
    with pytest.raises(BadFile) as error:
        check()
    make.line(error, path)


def cifar_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    members = {f"data_batch_{i}.bin": make.cifar(10, seed=i) for i in range(1, 6)}
    members["test_batch.bin"] = make.cifar(10, seed=9)
    known = tuple(File(name, make.sha256(data)) for name, data in members.items())
    make.described(monkeypatch, "cifar10", train=50, test=10, validation=5, train_files=known[:5], test_files=known[5:])
    return members


@pytest.mark.parametrize("layout", ["cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "archive"])
def test_layouts_of_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    members = cifar_files(tmp_path, monkeypatch)
    folder = tmp_path / ("cifar10" if layout == "archive" else layout)
    folder.mkdir(parents=True)
    if layout == "archive":
        make.tar(folder / "cifar-10-binary.tar.gz", members, "cifar-10-batches-bin")
    else:
        for name, data in members.items():
            (folder / name).write_bytes(data)
    data = load("cifar10", root=tmp_path, validation=0, download=False)
    assert data.train is not None and data.train.size == 50 and data.test is not None and data.test.size == 10
    first = np.frombuffer(members["data_batch_2.bin"], np.uint8)[1:3073].reshape(3, 32, 32)
    assert torch.equal(data.train.raw[10], torch.from_numpy(first.copy()))
    assert data.train.targets[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


@pytest.mark.parametrize("broken", ["cut", "changed", "lost", "rubbish"])
def test_damaged_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    members = cifar_files(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-binary.tar.gz"
    if broken == "changed":
        members["data_batch_3.bin"] = make.cifar(10, seed=77)
    if broken == "lost":
        del members["test_batch.bin"]
    make.tar(path, members, "cifar-10-batches-bin")
    if broken == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    if broken == "rubbish":
        path.write_bytes(b"no archive" * 1000)
    with pytest.raises(BadFile) as error:
        load("cifar10", root=tmp_path)
    make.line(error, path)


def test_emnist_letters_from_the_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make.pixels(4, 28, 28)
    path = tmp_path / "emnist" / "gzip.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        for part in ("train", "test"):
            for kind, array in (("images-idx3", images), ("labels-idx1", np.array([1, 26, 2, 3]))):
                file.writestr(f"gzip/emnist-letters-{part}-{kind}-ubyte.gz", gzip.compress(make.idx(array)))
    archive = File("gzip.zip", md5=make.md5(path.read_bytes()))
    make.described(monkeypatch, "emnist-letters", train=4, test=4, archive=archive)
    data = load("emnist-letters", root=tmp_path, validation=0)
    assert data.train is not None
    assert data.train.targets.tolist() == [0, 25, 1, 2] and data.classes[25] == "z"
    assert torch.equal(data.train.raw[0, 0], torch.from_numpy(images[0].T.copy()))  # upright
    make.described(monkeypatch, "emnist-letters", archive=File("gzip.zip", md5="0" * 32))
    with pytest.raises(BadFile) as error:
        load("emnist-letters", root=tmp_path)
    make.line(error, path, "md5")


@pytest.mark.parametrize("name", ["kmnist", "notmnist"])
def test_test_files_alone_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make.mnist(monkeypatch, tmp_path / name, parts="t10k")
    plain = tuple(File(file) for file in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"))
    make.described(monkeypatch, name, test=make.TEST, test_files=plain)
    data = load(name, root=tmp_path)
    assert data.train is None and data.validation is None and data.test is not None
    assert "training files were not found" in str(data)


def test_the_test_part_alone_needs_no_training_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.mnist(monkeypatch, tmp_path / "mnist")
    both = load("mnist", root=tmp_path)
    for path in (tmp_path / "mnist").glob("train-*"):
        path.unlink()
    with pytest.raises(BadFile):
        load("mnist", root=tmp_path, download=False)
    data = load("mnist", root=tmp_path, download=False, test_only=True)
    assert data.train is None and data.validation is None and data.test is not None and both.test is not None
    assert torch.equal(data.test.inputs, both.test.inputs)
    assert torch.equal(data.test.targets, both.test.targets)
    with pytest.raises(BadOption, match="omit test_only"):
        load("digits", test_only=True)


def test_npz_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.zoo.data.readers import digest_of

    images, labels = make.pixels(6, 32, 32, 3), np.arange(6, dtype=np.uint8)
    np.savez(tmp_path / "svhn.npz", x_test=images, y_test=labels)
    make.described(monkeypatch, "svhn-recropped", test=6, data_sha256=digest_of(images, labels))
    data = load("svhn-recropped", root=tmp_path)
    assert data.train is None and data.test is not None
    assert torch.equal(data.test.raw[2, 1], torch.from_numpy(images[2, :, :, 1].copy()))
    np.savez(tmp_path / "svhn.npz", x_test=images, y_test=labels[::-1])
    with pytest.raises(BadFile) as error:
        load("svhn-recropped", root=tmp_path)
    make.line(error, tmp_path / "svhn.npz", "sha256")
    np.savez(tmp_path / "svhn.npz", x_test=images / 255, y_test=labels)
    with pytest.raises(BadFile) as error:
        load("svhn-recropped", root=tmp_path)
    make.line(error, tmp_path / "svhn.npz", "float64")


def test_svhn_from_mat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    path = tmp_path / "svhn" / "test_32x32.mat"
    path.parent.mkdir()
    scipy_io.savemat(path, {"X": make.pixels(32, 32, 3, 4), "y": np.array([[10], [1], [2], [9]])})
    make.described(monkeypatch, "svhn", test=4, test_files=(File(path.name, md5=make.md5(path.read_bytes())),))
    data = load("svhn", root=tmp_path)
    assert data.train is None and data.test is not None and data.test.targets.tolist() == [0, 1, 2, 9]


def test_table_of_sets_knows_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make.mnist(monkeypatch, tmp_path / "mnist")
    sets = datasets(tmp_path)
    found = dict(zip((about.name for about in sets), sets.found, strict=True))
    assert found["mnist"] == str(tmp_path / "mnist")
    assert found["cifar100"] == "no; can be downloaded" and found["uci/yacht"] == "no" and found["cubic"] == "drawn"
