"""Downloads are whole and checked, or leave nothing behind."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tqdm import tqdm

from tests.zoo.data import make
from whence.errors import BadFile
from whence.zoo.data import files as downloads
from whence.zoo.data import load
from whence.zoo.data.description import File
from whence.zoo.data.files import fetch

CONTENT = bytes(range(256)) * 1000
Server = Callable[..., str]


class _Handler(http.server.BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, bytes, int | None]]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body, length = self.answers.get(self.path, (404, b"", None))
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Site:
    """A server on this machine with the answers one sets."""

    def __init__(self) -> None:
        self.handler = type("Handler", (_Handler,), {"answers": {}, "asked": []})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def give(self, path: str, body: bytes, *, status: int = 200, length: int | None = -1) -> str:
        self.handler.answers[path] = (status, body, len(body) if length == -1 else length)
        return f"http://127.0.0.1:{self.server.server_port}{path}"


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.shutdown()
    made.server.server_close()


def file_of(*urls: str, content: bytes = CONTENT) -> File:
    return File("a.bin", md5=make.md5(content), urls=urls)


def test_download(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.bin"
    fetch(file_of(site.give("/a.bin", CONTENT)), target, progress=False)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_without_a_length(site: Site, tmp_path: Path) -> None:
    fetch(file_of(site.give("/a.bin", CONTENT, length=None)), tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"body": CONTENT[:-10], "length": len(CONTENT)}, "interrupted after 255,990 of 256,000 bytes"),
        ({"body": CONTENT[:-10]}, "md5"),
        ({"body": CONTENT[:-10], "length": None}, "md5"),
        ({"body": CONTENT[:-1] + b"x"}, "md5"),
        ({"body": b"gone", "status": 404}, "HTTP 404"),
        ({"body": b"", "status": 503}, "HTTP 503"),
    ],
)
def test_failures_leave_nothing(site: Site, tmp_path: Path, answer: dict, says: str) -> None:
    url = site.give("/a.bin", **answer)
    with pytest.raises(BadFile) as error:
        fetch(file_of(url), tmp_path / "a.bin", progress=False)
    make.line(error, "a.bin", url, says, tmp_path, "manually")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_was_there(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"before")
    with pytest.raises(BadFile):
        fetch(file_of(site.give("/a.bin", b"other")), tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_mirrors_in_order(site: Site, tmp_path: Path) -> None:
    urls = [site.give("/1", b"", status=404), site.give("/2", b"wrong"), site.give("/3", CONTENT), site.give("/4", b"")]
    fetch(file_of("http://127.0.0.1:9/closed", *urls), tmp_path / "a.bin", progress=False)
    assert site.handler.asked == ["/1", "/2", "/3"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as error:
        fetch(file_of("http://127.0.0.1:9/a.bin"), tmp_path / "a.bin", progress=False)
    make.line(error, "http://127.0.0.1:9/a.bin", "refused")
    assert list(tmp_path.iterdir()) == []


def test_interruption_leaves_nothing(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Interrupting(tqdm):
        def update(self, n: int = 1) -> None:
            seen.extend(tmp_path.iterdir())
            raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "progress_bar", lambda **_: Interrupting(disable=True))
    with pytest.raises(KeyboardInterrupt):
        fetch(file_of(site.give("/a.bin", CONTENT)), tmp_path / "a.bin", progress=False)
    assert len(seen) == 1 and seen[0].name.endswith(".part")
    assert list(tmp_path.iterdir()) == []


def test_two_at_once(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the middle of the file at the same time, and both end well."""
    meet = threading.Barrier(2, timeout=10)
    parts: set[str] = set()

    class Meeting(tqdm):
        def update(self, n: int = 1) -> None:
            meet.wait()
            parts.update(path.name for path in tmp_path.iterdir() if path.suffix == ".part")
            meet.wait()

    monkeypatch.setattr(downloads, "progress_bar", lambda **_: Meeting(disable=True))
    file, failures = file_of(site.give("/a.bin", CONTENT)), []

    def get() -> None:
        try:
            fetch(file, tmp_path / "a.bin", progress=False)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=get) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and len(parts) == 2
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and len(list(tmp_path.iterdir())) == 1


def test_checksum_of_the_uncompressed_content(site: Site, tmp_path: Path) -> None:
    url = site.give("/a.gz", gzip.compress(CONTENT))
    fetch(File("a.gz", make.sha256(CONTENT), urls=(url,)), tmp_path / "a.gz", progress=False)
    assert (tmp_path / "a.gz").is_file()
    with pytest.raises(BadFile) as error:
        fetch(File("b.gz", make.sha256(CONTENT[:-1]), urls=(url,)), tmp_path / "b.gz", progress=False)
    make.line(error, "b.gz", "sha256")
    assert not (tmp_path / "b.gz").exists()


def test_progress_is_shown(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whence.engine.progress.watched", lambda: True)
    fetch(file_of(site.give("/a.bin", CONTENT)), tmp_path / "a.bin", progress=True)
    assert "a.bin" in capsys.readouterr().err


def test_load_downloads_what_is_missing_into_the_cache(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    make.mnist(monkeypatch, tmp_path / "here" / "mnist", parts="train")
    files = []
    for name, data in make.mnist_contents().items():
        body = gzip.compress(data)
        files.append(File(name, make.sha256(data), make.md5(body), (site.give(f"/{name}", body),)))
    make.described(monkeypatch, "mnist", train_files=tuple(files[:2]), test_files=tuple(files[2:]))
    data = load("mnist", root=tmp_path / "here", progress=False)
    assert data.test is not None and data.test.size == make.TEST
    assert sorted(site.handler.asked) == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]
    assert sorted(p.name for p in (own_cache / "data" / "mnist").iterdir()) == [file.name for file in files[2:]]
    load("mnist", root=tmp_path / "here", progress=False)
    assert len(site.handler.asked) == 2


def test_no_download_without_a_checksum(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = site.give("/snelson.csv", b"x,y\n1,2\n")
    make.described(monkeypatch, "snelson", test_files=(File("snelson.csv", urls=(url,)),))
    with pytest.raises(BadFile) as error:
        load("snelson")
    assert "download=True" not in make.line(error, "snelson was not found")
    assert site.handler.asked == []
