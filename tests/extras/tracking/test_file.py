"""The file of a track survives kills, goes on, and says what is wrong."""

from __future__ import annotations

import functools
import json
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.extras.tracking.cases import small, two_classes
from tests.processes import process
from whence.errors import BadData, BadFile, BadOption, NotDefined, NothingSelected, Notice, UnsupportedLayer
from whence.extras.tracking.records import TrackedLayer, TrackFile, TrackRecord, read
from whence.extras.tracking.track import Track

track = functools.partial(whence.track, every=1)


def test_reopened_track_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    net, data = small(), two_classes()
    t = track(net, data, likelihood="classification", path=path)
    t.step()
    t.record("end — ünïcode")
    again = Track.load(path)
    assert again.records == t.records and str(again) == str(t) and again.steps == 1
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()[1:]] == [1, 1]
    with pytest.raises(NotDefined, match="resume=True"):
        again.step()
    with pytest.raises(NotDefined, match="has no network"):
        _ = again.subset


def test_resume_appends(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    net, data = small(), two_classes()
    first = track(net, data, likelihood="classification", path=path, resume=True)  # nothing there yet
    first.step()
    first.step()
    with path.open("a") as file:
        file.write('{"step": 3, "label": "", "lay')  # a torn line
    assert Track.load(path).records == first.records
    second = track(net, data, likelihood="classification", path=path, resume=True, every=2)
    assert second.records == first.records and second.steps == 2
    assert second.step() is None and second.step() is not None
    assert [r.step for r in Track.load(path).records] == [1, 2, 4]
    second.step(2)  # from an earlier checkpoint
    loaded = Track.load(path)
    assert [r.step for r in loaded.records] == [1, 2, 4] and loaded.records == second.records
    assert len(read(path)[1]) == 4


def test_resume_refuses_other_options(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    net, data = small(), two_classes()
    track(net, data, likelihood="classification", path=path, layers=["0"], prior_precision={"0": 2.0}).step()
    with pytest.raises(BadOption, match="structure='kron', not 'diag'"):
        track(net, data, likelihood="classification", path=path, resume=True, structure="diag")
    with pytest.raises(BadOption, match=r"layers=\['0'\], not None"):
        track(net, data, likelihood="classification", path=path, resume=True)
    same: dict[str, Any] = {"path": path, "resume": True, "layers": ["0"], "prior_precision": {"0": 2.0}}
    with pytest.warns(Notice, match="may jump"):
        track(net, (data[0] + 1, data[1]), likelihood="classification", **same)
    assert len(track(net, data, likelihood="classification", **same).records) == 1


def steps_of(path: Path, count: int | None, told: Connection) -> None:
    """A loop that tells each step it has recorded; without a count it starts anew and ends when it is killed."""
    torch.manual_seed(0)
    x, net = torch.randn(100, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    data = (x, (x[:, 0] > 0).long())
    t = track(net, data, likelihood="classification", path=path, resume=count is not None)
    for _ in range(100_000 if count is None else count):
        t.step()
        told.send(t.steps)


def started(path: Path, count: int | None = None) -> tuple[ForkServerProcess, Iterator[int]]:
    """The process, and the steps that it tells until its end."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    running = process(steps_of, path, count, sender)
    running.start()
    sender.close()

    def steps() -> Iterator[int]:
        with suppress(EOFError):
            while True:
                yield receiver.recv()

    return running, steps()


def test_a_killed_loop_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    running, steps = started(path)
    told = [next(steps) for _ in range(5)]
    running.kill()
    told += steps
    running.join(60)
    assert running.exitcode == -signal.SIGKILL
    kept = [r.step for r in Track.load(path).records]
    assert kept[: len(told)] == told and len(kept) <= len(told) + 1
    running, steps = started(path, 2)
    assert list(steps) == [len(kept) + 1, len(kept) + 2]
    running.join(60)
    assert [r.step for r in Track.load(path).records] == [*kept, len(kept) + 1, len(kept) + 2]


def test_every_tear_is_readable(tmp_path: Path) -> None:
    path, torn = tmp_path / "track.jsonl", tmp_path / "torn.jsonl"
    net, data = small(), two_classes()
    t = track(net, data, likelihood="classification", path=path)
    t.step()
    t.step()
    content = path.read_bytes()
    ends = [i + 1 for i, c in enumerate(content) if c == 10]
    for size in [*range(0, len(content), 97), *(e + d for e in ends for d in (-1, 0, 1) if e + d <= len(content))]:
        torn.write_bytes(content[:size])
        whole = sum(e <= size for e in ends) - 1
        if whole < 0:
            with pytest.raises(BadFile, match="not a track"):
                Track.load(torn)
        else:
            assert Track.load(torn).records == t.records[:whole]
    torn.write_bytes(content[: ends[0] // 2])  # killed inside the header
    assert track(net, data, likelihood="classification", path=torn, resume=True).records == ()
    assert Track.load(torn).records == ()


def test_an_exception_leaves_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    t = track(small(), two_classes(), likelihood="classification", path=path)

    def loop() -> None:
        for epoch in range(5):
            t.step()
            if epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert [r.step for r in Track.load(path).records] == [1, 2, 3]


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    log = TrackFile.start(path, {"network": "x", "options": {}})
    layer = TrackedLayer("a", "Linear", 1, float("nan"), 0.5, 1.0, float("inf"))
    log.append(TrackRecord(1, layers=(layer,), loss=float("inf")))
    (record,) = Track.load(path).records
    assert record.loss is None and record.layers[0].std != record.layers[0].std and record.layers[0].identified == 0.5


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "track.jsonl"
    t = track(small(), two_classes(), likelihood="classification", path=path)
    t.step()
    opened = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "ab":
            with opened(self, mode) as file:
                file.write(b'{"step": ')
            raise OSError(28, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.warns(Notice, match="No space left"):
            t.step()
    t.step()
    assert [r.step for r in t.records] == [1, 2, 3]
    assert [r.step for r in Track.load(path).records] == [1, 3]


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    net, data = small(), two_classes()
    statistics = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, track_running_stats=False))

    def made(**options: Any) -> Track:
        return track(net, options.pop("data", data), **{"likelihood": "classification", **options})

    with pytest.raises(BadOption, match="Did you mean 'classification'"):
        made(likelihood="classificaton")
    with pytest.raises(BadFile, match=r"there is no folder .*create it first"):
        made(path=tmp_path / "missing" / "track.jsonl")
    with pytest.raises(BadFile, match="is a folder"):
        made(path=tmp_path)
    made(path=tmp_path / "there.jsonl")
    with pytest.raises(BadOption, match="Pass resume=True"):
        made(path=tmp_path / "there.jsonl")
    (tmp_path / "other.txt").write_text("hello\nworld\n")
    with pytest.raises(BadFile, match="not JSON"):
        made(path=tmp_path / "other.txt", resume=True)
    with pytest.raises(BadFile, match="could not be read"):
        Track.load(tmp_path / "nothing")
    with pytest.raises(BadOption, match="path= as well"):
        made(resume=True)
    with pytest.raises(BadData, match=r"one-shot iterator: .*exhaust it"):
        made(data=iter([data]))
    with pytest.raises(BadData, match=r"probe's inputs have shape \[N, 5\], the data's \[N, 4\]"):
        made(probe=torch.randn(3, 5))
    with pytest.raises(BadData, match=r"probe's inputs have shape \[N, 4, 2\], the data's \[N, 4\]"):
        made(probe=torch.randn(3, 4, 2))
    with pytest.raises(BadData, match="3 inputs but 2 targets"):
        made(probe=(torch.randn(3, 4), torch.zeros(2).long()))
    with pytest.raises(UnsupportedLayer, match="uses the statistics of the batch"):
        track(statistics, data, likelihood="classification")
    with pytest.raises(BadOption, match="every=0"):
        made(every=0)
    with pytest.raises(BadOption, match=r"subset=1\.5"):
        made(subset=1.5)
    with pytest.raises(BadOption, match="cannot be combined with"):
        made(structure="lowrank", curvature="mc")
    with pytest.raises(BadOption, match="draws=0"):
        made(draws=0)
    with pytest.raises(NothingSelected, match="matches no module"):
        made(layers=["head"])
    with pytest.raises(BadOption, match="unknown structure"):
        made(structure="kronecker")
    with pytest.raises(BadData, match="cannot be concatenated"):
        made(data=[(torch.randn(3, 4), torch.zeros(3).long()), (torch.randn(3, 5), torch.zeros(3).long())])
    bad = data[1].clone()
    bad[50:] = 7
    with pytest.raises(BadData, match="label 7 is out of range"):
        made(data=(data[0], bad))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "track.jsonl"
    track(small(), two_classes(), likelihood="classification", path=path).step()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:50], lines[1]]) + "\n")
    with pytest.raises(BadFile, match="line 2"):
        Track.load(path)
    path.write_text("\n".join([lines[0].replace('"version": 1', '"version": 9'), lines[1]]) + "\n")
    with pytest.raises(BadFile, match="version 9"):
        Track.load(path)
    path.write_text("\n".join([lines[0], '{"step": 1}']) + "\n")
    with pytest.raises(BadFile, match="not a record"):
        Track.load(path)
