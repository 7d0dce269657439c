"""One format for the state of long work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from whence.engine import checkpoint
from whence.engine.checkpoint import CheckpointFile
from whence.engine.files import read_tensors, write_tensors
from whence.errors import BadFile


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    file = CheckpointFile.at(tmp_path / "c", "fit")
    file.try_out()
    assert file.read() is None and not list(tmp_path.iterdir())
    with pytest.raises(BadFile, match="there is no file"):
        file.existing()
    for step in (1, 2):
        file.write({"x": torch.full((2,), float(step))}, {"step": step})
    tensors, meta = file.existing()
    assert tensors["x"].tolist() == [2.0, 2.0] and meta["step"] == 2
    file.remove()
    assert not list(tmp_path.iterdir())


def test_others_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "c"
    CheckpointFile(path, "training").write({"x": torch.zeros(2)}, {})
    with pytest.raises(BadFile, match=r"cannot be used: it is not the checkpoint of a fit\. Choose another name"):
        CheckpointFile(path, "fit").read()
    tensors, meta = read_tensors(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadFile, match="its content has changed"):
        CheckpointFile(path, "training").read()
    write_tensors(path, tensors, meta | {"format": meta["format"] + 1})
    with pytest.raises(BadFile, match="a different version of whence"):
        CheckpointFile(path, "training").read()
    path.write_bytes(b"no")
    with pytest.raises(BadFile, match="not a readable safetensors file"):
        CheckpointFile(path, "training").read()


def test_places_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFile, match=r"cannot write the checkpoint .* is missing"):
        CheckpointFile.at(tmp_path / "missing" / "c", "fit")
    with pytest.raises(BadFile, match=r"the checkpoint of a fit must be a file, but .* is a folder"):
        CheckpointFile.at(tmp_path, "fit")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("U", (), {"free": 10})())
    with pytest.raises(BadFile, match="MiB are free"):
        CheckpointFile.at(tmp_path / "c", "fit").require_space([torch.zeros(100)])
