"""Files of data sets: finding, downloading and checking them."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from whence._version import __version__
from whence.engine.files import replacing
from whence.engine.progress import progress_bar
from whence.errors import BadFile
from whence.zoo.data.description import Description, File
from whence.zoo.data.readers import AGAIN, BROKEN, check_digest, first_line

REMEMBER_BYTES = 256 * 2**20  # checksums of larger files are computed once, not at every load
TIMEOUT = 30.0  # seconds without a response
PIECE = 1 << 20  # bytes of a download read at a time


def cache() -> Path:
    """The user's folder: ``$WHENCE_CACHE``, ``$XDG_CACHE_HOME/whence`` or ``~/.cache/whence``."""
    if own := os.environ.get("WHENCE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "whence"


def roots(root: str | Path | None = None) -> list[Path]:
    """Data folders in the order in which they are searched."""
    named = [] if root is None else [Path(root).expanduser()]
    listed = [Path(p).expanduser() for p in os.environ.get("WHENCE_DATA", "").split(os.pathsep) if p]
    return [*named, *listed, cache() / "data"]


@dataclass(frozen=True)
class Content:
    """The uncompressed content of a file."""

    data: bytes
    path: Path


@dataclass(frozen=True)
class Store:
    """The files of one set, anywhere in the data folders."""

    description: Description
    roots: tuple[Path, ...]

    @classmethod
    def of(cls, description: Description, root: str | Path | None = None) -> Store:
        return cls(description, tuple(roots(root)))

    def find(self, file: File) -> Path | None:
        """The first path of a file, compressed or not."""
        names = [file.name] + ([file.name.removesuffix(".gz")] if file.name.endswith(".gz") else [])
        for root in self.roots:
            for folder in self.description.folders:
                for name in names:
                    if (path := root / folder / name).is_file():
                        return path
        return None

    def found(self, file: File) -> Path:
        """The path of a file; an error if there is none."""
        path = self.find(file)
        if path is None:
            raise BadFile(f"{self.description.name}: {file.name} is missing.")
        return path

    def archive(self) -> Path | None:
        """The path of the set's archive."""
        return None if self.description.archive is None else self.find(self.description.archive)

    def has(self, files: Sequence[File]) -> bool:
        """Whether all of the files exist, separately or in the archive."""
        return self.archive() is not None or all(self.find(file) is not None for file in files)

    def alternative(self) -> Path | None:
        """A folder with the set in another layout."""
        places = (root / folder for root in self.roots for folder in self.description.also)
        return next((place for place in places if place.is_dir()), None)

    def where(self) -> Path | None:
        """Where the set, or a sufficient part of it, was found; None if it was not."""
        about = self.description
        needed = about.test_files if about.train_optional else about.files
        if not needed:
            return None
        loose = [self.find(file) for file in needed]
        if all(path is not None for path in loose):
            places = [path for path in dict.fromkeys(loose) if path is not None]
            return places[0] if len(places) == 1 else places[0].parent
        return self.archive() or self.alternative()

    def read(self, files: Sequence[File]) -> list[Content]:
        """Checked contents of the files, separate or from the archive."""
        found = [self.find(file) for file in files]
        if all(path is not None for path in found):
            return [_loose(file, path) for file, path in zip(files, found, strict=True) if path is not None]
        archive = self.archive()
        if archive is None or self.description.archive is None:
            lost = next(file.name for file, path in zip(files, found, strict=True) if path is None)
            raise BadFile(f"{self.description.name}: {lost} is missing.")
        if any(file.sha256 is None for file in files):
            check_md5(archive, self.description.archive.md5)
        members = _members(archive, [file.name for file in files])
        return [_checked(file, Content(members[file.name], archive / file.name)) for file in files]


def _loose(file: File, path: Path) -> Content:
    if file.sha256 is None and path.name == file.name:
        check_md5(path, file.md5)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} cannot be read ({error.strerror}).") from error
    return _checked(file, Content(data, path))


def _checked(file: File, content: Content) -> Content:
    data = content.data
    if content.path.suffix == ".gz":
        data = gunzip(data, content.path)
    if file.sha256 is not None:
        check_digest(hashlib.sha256(data).hexdigest(), file.sha256, content.path)
    return Content(data, content.path)


def gunzip(data: bytes, path: Path) -> bytes:
    """Decompress a gzip file; an error if it is truncated or invalid."""
    try:
        return gzip.decompress(data)
    except BROKEN as error:
        raise BadFile(f"{path} is not a complete gzip file ({first_line(error)}). {AGAIN}") from error


def _members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of the named members of a zip or tar archive, in any of its folders."""
    try:
        found = _from_zip(archive, names) if archive.suffix == ".zip" else _from_tar(archive, names)
    except BROKEN as error:
        raise BadFile(f"{archive} is not a complete archive ({first_line(error)}). {AGAIN}") from error
    lost = [name for name in names if name not in found]
    if lost:
        raise BadFile(f"{archive} has no member {lost[0]}. {AGAIN}")
    return found


def _from_zip(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as file:
        inside = {Path(member).name: member for member in file.namelist()}
        return {name: file.read(inside[name]) for name in names if name in inside}


def _from_tar(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r|gz") as file:
        for member in file:
            name = Path(member.name).name
            stream = file.extractfile(member) if name in names and member.isfile() else None
            if stream is not None:
                found[name] = stream.read()
                if len(found[name]) != member.size:
                    raise EOFError(f"{name} ends early")
            if len(found) == len(set(names)):
                break
    return found


def check_md5(path: Path, expected: str | None, remember: int = REMEMBER_BYTES) -> None:
    """Check a file against its published md5.

    Files of more than ``remember`` bytes are checked once for each path, size and time of change.
    """
    if expected is None:
        return
    state = path.stat()
    key = f"{path.absolute()}\n{state.st_size}\n{state.st_mtime_ns}\n{expected}"
    mark = cache() / "verified" / hashlib.sha256(key.encode()).hexdigest()
    large = state.st_size > remember
    if large and mark.exists():
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    check_digest(found, expected, path, "md5")
    if large:
        with suppress(OSError):  # if the cache cannot be written, it is computed again next time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


# Downloads: complete and checked, or nothing


def obtainable(description: Description) -> bool:
    """Whether a download with a known checksum is offered."""
    files = _wanted(description)
    return bool(files) and all(file.urls and (file.md5 or file.sha256) for file in files)


def _wanted(description: Description) -> tuple[File, ...]:
    return description.files if description.archive is None else (description.archive,)


def obtain(description: Description, root: str | Path | None, download: bool, progress: bool) -> Store:
    """The files of a set, if it has any; missing ones are downloaded into the cache if allowed."""
    store = Store.of(description, root)
    if not description.files or store.where() is not None:
        return store
    if not download or not obtainable(description):
        raise BadFile(missing(description, store))
    folder = cache() / "data" / description.folders[0]
    for file in _wanted(description):
        if store.find(file) is None:
            fetch(file, folder / file.name, progress)
    return store


def missing(description: Description, store: Store) -> str:
    """A message that says where a set was searched, and how to get it."""
    places = ", ".join(str(root) for root in store.roots)
    unset = "" if os.environ.get("WHENCE_DATA") else " ($WHENCE_DATA is not set)"
    folder = store.roots[-1] if description.also else store.roots[-1] / description.folders[0]
    load = "; or load it with download=True" if obtainable(description) else ""
    return f"{description.name} was not found in {places}{unset}: get {description.get}, into {folder}{load}."


def fetch(file: File, target: Path, progress: bool = True) -> None:
    """Download a file from the first mirror that has it complete; otherwise leave nothing behind."""
    reasons = []
    for url in file.urls:
        try:
            _from(url, file, target, progress)
            return
        except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {_why(error)}")
    why = "; ".join(reasons)
    raise BadFile(f"{file.name} could not be downloaded ({why}). Put it into {target.parent} manually and load again.")


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return first_line(error)


def _from(url: str, file: File, target: Path, progress: bool) -> None:
    """Download from one mirror, through a temporary file next to the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        with temporary.open("wb") as out:
            md5 = _copy(url, out, progress)
        _check(file, temporary, md5)


def _copy(url: str, out: BinaryIO, progress: bool) -> str:
    """Write the whole response, and return its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    request = urllib.request.Request(url, headers={"User-Agent": f"whence/{__version__}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        done = 0
        with progress_bar(
            total=total, unit="B", unit_scale=True, label=url.rsplit("/", 1)[-1], shown=progress, delay=0
        ) as bar:
            while piece := answer.read(PIECE):
                out.write(piece)
                digest.update(piece)
                done += len(piece)
                bar.update(len(piece))
    if total is not None and done != total:
        raise EOFError(f"interrupted after {done:,} of {total:,} bytes")
    return digest.hexdigest()


def _check(file: File, path: Path, md5: str) -> None:
    if file.md5 is not None:
        if md5 != file.md5:
            raise ValueError(f"its md5 is {md5}, not {file.md5}")
        return
    data = path.read_bytes()
    sha256 = hashlib.sha256(gunzip(data, path) if file.name.endswith(".gz") else data).hexdigest()
    if sha256 != file.sha256:
        raise ValueError(f"its sha256 is {sha256}, not {file.sha256}")
