"""Where data files are looked for, and their content, checked."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whence.errors import BadFile
from whence.zoo.data.description import Description, File
from whence.zoo.data.readers import AGAIN, BROKEN, check_digest, first_line

REMEMBER_BYTES = 256 * 2**20  # checksums of larger files are taken once, not at every load


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
    """What a file held, uncompressed."""

    data: bytes
    path: Path


@dataclass(frozen=True)
class Store:
    """The files of one set, wherever in the data folders they lie."""

    description: Description
    roots: tuple[Path, ...]

    @classmethod
    def of(cls, description: Description, root: str | Path | None = None) -> Store:
        return cls(description, tuple(roots(root)))

    def find(self, file: File) -> Path | None:
        """The first place where a file lies, compressed or not."""
        names = [file.name] + ([file.name.removesuffix(".gz")] if file.name.endswith(".gz") else [])
        for root in self.roots:
            for folder in self.description.folders:
                for name in names:
                    if (path := root / folder / name).is_file():
                        return path
        return None

    def archive(self) -> Path | None:
        """Where the archive of the set lies."""
        return None if self.description.archive is None else self.find(self.description.archive)

    def has(self, files: Sequence[File]) -> bool:
        """Whether all of the files are there, loose or in the archive."""
        return self.archive() is not None or all(self.find(file) is not None for file in files)

    def alternative(self) -> Path | None:
        """A folder that holds the set in another layout."""
        places = (root / folder for root in self.roots for folder in self.description.also)
        return next((place for place in places if place.is_dir()), None)

    def where(self) -> Path | None:
        """Where the set, or as much of it as will do, was found; None if it was not."""
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
        """Checked contents of the files, loose or from the archive."""
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
    """Uncompressed; refuses what is no whole gzip file."""
    try:
        return gzip.decompress(data)
    except BROKEN as error:
        raise BadFile(f"{path} is not a whole gzip file ({first_line(error)}). {AGAIN}") from error


def _members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of the named members of a zip or tar archive, whatever folder of it they are in."""
    try:
        found = _from_zip(archive, names) if archive.suffix == ".zip" else _from_tar(archive, names)
    except BROKEN as error:
        raise BadFile(f"{archive} is not a whole archive ({first_line(error)}). {AGAIN}") from error
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


def check_md5(path: Path, expected: str | None) -> None:
    """Check a file against its published md5; large files once for each path, size and time of change."""
    if expected is None:
        return
    state = path.stat()
    key = f"{path.absolute()}\n{state.st_size}\n{state.st_mtime_ns}\n{expected}"
    mark = cache() / "verified" / hashlib.sha256(key.encode()).hexdigest()
    large = state.st_size > REMEMBER_BYTES
    if large and mark.exists():
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    check_digest(found, expected, path, "md5")
    if large:
        with suppress(OSError):  # a cache that cannot be written to: it is taken again next time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
