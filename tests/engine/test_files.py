"""Files that are whole or not there; tensors in them; digests."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.processes import process
from whence.engine import files
from whence.errors import BadFile


def test_what_is_written_takes_the_place_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary.parent == tmp_path
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_break_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), files.replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def write_half(path: Path) -> None:
    with files.replacing(path) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    killed = process(write_half, path)
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    files.remove(path)
    assert not list(tmp_path.iterdir()), "what was left beside it goes too"


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with files.replacing(path) as one, files.replacing(path) as other:
        assert one != other
        one.write_text("1")
        other.write_text("2")
    assert path.read_text() == "1", "the one that ends last"


def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write_tensors(tmp_path / "a", {"x": torch.zeros(2)}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match=r"cannot write .*file/a"):
        files.write_text(tmp_path / "file" / "a", "x")
    with pytest.raises(BadFile, match=r"cannot write .*missing/a"), files.replacing(tmp_path / "missing" / "a"):
        pass
    with pytest.raises(BadFile, match=r"cannot write the map .*: the folder .*missing is missing"):
        files.require_folder(tmp_path / "missing" / "a", "the map ")
    assert files.write_text(tmp_path / "new" / "a", "é").read_text(encoding="utf-8") == "é"


def test_tensors_and_values_come_back(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    tensors = {"a": base, "same": base, "part": base[2:4], "turned": base.reshape(2, 3).mT, "none": torch.zeros(0, 3)}
    files.write_tensors(tmp_path / "t", tensors, {"n": 1, "s": ["x"]})
    found, meta = files.read_tensors(tmp_path / "t")
    assert meta == {"n": 1, "s": ["x"]} == files.read_meta(tmp_path / "t")
    assert all(torch.equal(found[name], value) for name, value in tensors.items()) and found.keys() == tensors.keys()


def test_whatever_else_is_there_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(BadFile, match="there is no file"):
        files.read_tensors(path)
    path.write_bytes(b"no")
    with pytest.raises(BadFile, match="not a readable safetensors file"):
        files.read_tensors(path)
    save_file({"x": torch.zeros(1)}, str(path))
    with pytest.raises(BadFile, match="was not written by whence"):
        files.read_tensors(path)
    for text, words in (("{", "not JSON"), ("[1]", "is a list")):
        save_file({"x": torch.zeros(1)}, str(path), metadata={"whence": text})
        with pytest.raises(BadFile, match=words):
            files.read_meta(path)
    files.write_tensors(path, {"x": torch.zeros(1000)}, {})
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(BadFile, match="truncated"):
        files.read_tensors(path)


def test_digests_tell_types_shapes_order_and_values_apart() -> None:
    x = torch.arange(6)
    different = [[x], [x.int()], [x.reshape(2, 3)], [x, x], [x + 1], [x[:3], x[3:]], [], [torch.zeros(0)],
                 [torch.zeros(0, 2)]]  # fmt: skip
    assert len({files.digest(each) for each in different}) == len(different)
    assert files.digest([x]) != files.digest([x], start="a")
    assert files.digest([x.reshape(2, 3).mT]) == files.digest([x.reshape(2, 3).mT.contiguous()])
    assert files.digest([torch.tensor(1.5, dtype=torch.bfloat16)]) and files.digest([torch.tensor(True)])
    assert files.digest_of_values({"a": 1, "b": (2,)}) == files.digest_of_values(json.loads('{"b": [2], "a": 1}'))
