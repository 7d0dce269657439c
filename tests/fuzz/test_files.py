"""Files that were cut, changed or made to harm: refused with an error of whence, or read as they were."""

from __future__ import annotations

import functools
import json
import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

import whence
from tests.contract.posteriors import MAKE, NEW, made
from tests.fuzz.budget import cases
from whence.engine.checkpoint import CheckpointFile
from whence.engine.files import META
from whence.errors import BadFile, WhenceError

HOSTILE: list[Any] = [None, True, -1, 1e308, "", "x" * 50, [], {}, [[]], {"a": {}}, "../../etc/passwd", "\x00", 2**70]


@st.composite
def damage(draw: Any, content: bytes) -> bytes:
    """The content cut, with changed bytes, with bytes inserted, or a part of it repeated."""
    kind = draw(st.sampled_from(["cut", "change", "insert", "repeat", "zeros"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        return content[:at]
    if kind == "change":
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if kind == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=16)) + content[at:]
    if kind == "repeat":
        return content[:at] + content[max(0, at - 32) :]
    return content[:at] + bytes(len(content) - at)


@st.composite
def replaced(draw: Any, value: Any) -> Any:
    """Plain values with one of them replaced, added or removed, at any depth."""
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(HOSTILE))
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    changed = dict(value) if isinstance(value, dict) else list(value)
    if draw(st.integers(0, 4)) == 0:
        del changed[key]
    else:
        changed[key] = draw(replaced(value[key]))
    return changed


@functools.cache
def saved(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p"
        made(name).save(path)
        return path.read_bytes()


def loaded(content: bytes, name: str) -> Any:
    networks = made(name).networks()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "p"
        path.write_bytes(content)
        return whence.load(path, networks[0] if len(networks) == 1 else networks)


@cases(60)
@given(st.data(), st.sampled_from(sorted(MAKE)))
def test_damaged_posteriors(data: st.DataObject, name: str) -> None:
    """Refused; or nothing that counts was changed, such as the name of the digest, and it predicts the same."""
    try:
        posterior = loaded(data.draw(damage(saved(name))), name)
    except BadFile:
        return
    before, after = (p.predict(NEW, generator=torch.Generator().manual_seed(0)).probs for p in (made(name), posterior))
    assert torch.equal(before, after)


@cases(120)
@given(st.data(), st.sampled_from(sorted(MAKE)))
def test_hostile_metadata(data: st.DataObject, name: str) -> None:
    """Loading such a file ends in an error of whence, or in a posterior; never in another error, and nothing is run."""
    whole = saved(name)
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    meta = json.loads(header["__metadata__"][META])
    content = save(load(whole), metadata={META: json.dumps(data.draw(replaced(meta)))})
    try:
        posterior = loaded(content, name)
    except WhenceError:
        return
    assert posterior.kind == meta["kind"]


@cases(40)
@given(st.data())
def test_damaged_checkpoints(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = CheckpointFile(Path(folder) / "c", "fit")
        file.write({"a": torch.arange(12.0), "b": torch.zeros(3, 2)}, {"stage": [1, 2], "note": "x"})
        whole = file.path.read_bytes()
        content = data.draw(damage(whole))
        file.path.write_bytes(content)
        try:
            tensors, _ = file.read() or ({}, {})
        except BadFile as error:
            if "cannot be used" not in str(error):
                raise
            return
        assert torch.equal(tensors["a"], torch.arange(12.0)) and torch.equal(tensors["b"], torch.zeros(3, 2))
