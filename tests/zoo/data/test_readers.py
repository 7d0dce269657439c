"""Files that are whole are read; others are refused in one line that names them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.data import make
from whence.errors import BadFile
from whence.zoo.data import readers

HERE = Path("some/file")


def test_idx_gives_back_what_was_written() -> None:
    array = make.pixels(5, 3, 4)
    assert np.array_equal(readers.idx(make.idx(array), HERE, 3), array)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\0\0\x08", "truncated"),
        (b"\0\0\x0d\x03" + bytes(12), "begins with 00000d03"),
        (b"\x1f\x8b\x08\x03" + bytes(12), "begins with 1f8b0803"),
        (make.idx(np.zeros((2, 3), np.uint8)) + bytes(8), "begins with 00000802"),
        (make.idx(np.zeros((2, 3, 4), np.uint8))[:-1], "has 23 values, but its header says 2 x 3 x 4 = 24"),
        (make.idx(np.zeros((2, 3, 4), np.uint8)) + b"\0", "has 25 values"),
    ],
)
def test_idx_refuses(content: bytes, says: str) -> None:
    with pytest.raises(BadFile) as error:
        readers.idx(content, HERE, 3)
    make.line(error, HERE, says)


def test_cifar_record() -> None:
    content = make.cifar(3)
    images, labels = readers.cifar(content, HERE, 1)
    assert images.shape == (3, 3, 32, 32) and labels.tolist() == [0, 1, 2]
    assert images[1, 2, 0, 5] == content[3073 + 1 + 2048 + 5]


def test_cifar100_takes_the_fine_label() -> None:
    _, labels = readers.cifar(make.cifar(3, label_bytes=2), HERE, 2)
    assert labels.tolist() == [1, 3, 5]


@pytest.mark.parametrize("cut", [1, 3000])
def test_cifar_refuses_part_of_a_record(cut: int) -> None:
    with pytest.raises(BadFile) as error:
        readers.cifar(make.cifar(3)[:-cut], HERE, 1)
    make.line(error, HERE, "not a multiple of its 3073-byte records")


def test_cifar_refuses_an_empty_file() -> None:
    with pytest.raises(BadFile) as error:
        readers.cifar(b"", HERE, 1)
    make.line(error, HERE)


def svhn_bytes(tmp_path: Path, **arrays: np.ndarray) -> bytes:
    scipy_io = pytest.importorskip("scipy.io")
    scipy_io.savemat(tmp_path / "x.mat", arrays, do_compression=True)
    return (tmp_path / "x.mat").read_bytes()


def test_svhn_turns_ten_into_zero(tmp_path: Path) -> None:
    import scipy.io

    images = make.pixels(32, 32, 3, 4)
    content = svhn_bytes(tmp_path, X=images, y=np.array([[10], [1], [9], [10]], np.uint8))
    read, labels = readers.svhn(content, HERE, scipy.io)
    assert labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(read[2, 1], images[:, :, 1, 2])


@pytest.mark.parametrize("broken", ["cut", "rubbish", "names", "shape"])
def test_svhn_refuses(tmp_path: Path, broken: str) -> None:
    pytest.importorskip("scipy.io")
    import scipy.io

    x, y = make.pixels(32, 32, 3, 4), np.ones((4, 1), np.uint8)
    content = {
        "cut": lambda: svhn_bytes(tmp_path, X=x, y=y)[:2000],
        "rubbish": lambda: b"no matlab file" * 100,
        "names": lambda: svhn_bytes(tmp_path, images=x, y=y),
        "shape": lambda: svhn_bytes(tmp_path, X=x[:30], y=y),
    }[broken]()
    with pytest.raises(BadFile) as error:
        readers.svhn(content, HERE, scipy.io)
    make.line(error, HERE)


def test_npz_reads_only_plain_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.arange(3.0), y=np.arange(3))
    assert readers.npz(path, ["X", "y"])["X"].tolist() == [0, 1, 2]
    with pytest.raises(BadFile) as error:
        readers.npz(path, ["X", "z"])
    make.line(error, path, "'z'", "X, y")
    np.savez(path, X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadFile) as error:
        readers.npz(path, ["X"])
    make.line(error, path)


def test_npz_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    for content in (path.read_bytes(), b"text\n" * 50, b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(BadFile) as error:
            readers.npz(path, ["X"])
        make.line(error, path)


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_npz_refuses_a_truncated_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=100), y=np.arange(3))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadFile) as error:
        readers.npz(path, ["X"])
    make.line(error, path)


def test_npz_refuses_a_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=np.zeros(1000))
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadFile) as error:
        readers.npz(path, ["X"])
    make.line(error, path)


def test_csv_and_text(tmp_path: Path) -> None:
    assert readers.csv(b"x,y\n1,2\n3,4\n", HERE).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "one.txt").write_text("7\n")
    assert readers.text(tmp_path / "one.txt").tolist() == [7]


@pytest.mark.parametrize("content", [b"x,y\n1,2\n3\n", b"x,y\n1,two\n", b"x,y\n1,nan\n"])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_csv_refuses(content: bytes) -> None:
    with pytest.raises(BadFile) as error:
        readers.csv(content, HERE)
    make.line(error, HERE)


def test_missing_text_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as error:
        readers.text(tmp_path / "none.txt")
    make.line(error, tmp_path / "none.txt")


def test_digest_is_of_the_values() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert readers.digest_of(x) == readers.digest_of(np.asfortranarray(x)) == readers.digest_of(x.astype(np.float32))
    assert readers.digest_of(x) == make.sha256(struct.pack("<6d", *range(6)))
    assert readers.digest_of(x) != readers.digest_of(x + 1e-12)
    assert readers.digest_of(np.arange(3, dtype=np.int32)) == readers.digest_of(np.arange(3))


def test_labels_are_checked() -> None:
    images = np.zeros((3, 1, 2, 2), np.uint8)
    readers.check_labels(images, np.array([0, 1, 2]), 3, HERE)
    for labels, says in ((np.array([0, 1]), "2 labels for 3 images"), (np.array([0, 1, 3]), "not 0 to 2")):
        with pytest.raises(BadFile) as error:
            readers.check_labels(images, labels, 3, HERE)
        make.line(error, HERE, says)
    with pytest.raises(BadFile):
        readers.check_labels(images, np.array([0, 1, -1]), 3, HERE)
