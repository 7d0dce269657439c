"""Downloads: whole and checked, or nothing at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from whence._version import __version__
from whence.engine.files import replacing
from whence.errors import BadFile
from whence.zoo.data.description import Description, File
from whence.zoo.data.files import Store, cache, gunzip
from whence.zoo.data.readers import first_line

TIMEOUT = 30.0  # seconds without an answer
_PIECE = 1 << 20


def obtainable(description: Description) -> bool:
    """Whether a download with a known checksum is offered."""
    files = _wanted(description)
    return bool(files) and all(file.urls and (file.md5 or file.sha256) for file in files)


def _wanted(description: Description) -> tuple[File, ...]:
    return description.files if description.archive is None else (description.archive,)


def obtain(description: Description, root: str | Path | None, download: bool, progress: bool) -> Store:
    """The files of a set, downloaded into the cache where they are missing and may be."""
    store = Store.of(description, root)
    if store.where() is not None:
        return store
    if not download or not obtainable(description):
        raise BadFile(missing(description, store))
    folder = cache() / "data" / description.folders[0]
    for file in _wanted(description):
        if store.find(file) is None:
            fetch(file, folder / file.name, progress)
    return store


def missing(description: Description, store: Store) -> str:
    """One line: where a set was looked for, and how to get it."""
    places = ", ".join(str(root) for root in store.roots)
    unset = "" if os.environ.get("WHENCE_DATA") else " ($WHENCE_DATA is not set)"
    folder = store.roots[-1] if description.also else store.roots[-1] / description.folders[0]
    load = "; or load it with download=True" if obtainable(description) else ""
    return f"{description.name} was not found in {places}{unset}: get {description.get}, into {folder}{load}."


def fetch(file: File, target: Path, progress: bool = True) -> None:
    """Download a file from the first mirror that gives it whole; otherwise leave nothing behind."""
    reasons = []
    for url in file.urls:
        try:
            _from(url, file, target, progress)
            return
        except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {_why(error)}")
    why = "; ".join(reasons)
    raise BadFile(f"{file.name} could not be downloaded ({why}). Put it into {target.parent} by hand and load again.")


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return first_line(error)


def _from(url: str, file: File, target: Path, progress: bool) -> None:
    """From one mirror, through a temporary file of its own beside the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        with temporary.open("wb") as out:
            md5 = _copy(url, out, progress)
        _check(file, temporary, md5)


def _copy(url: str, out: BinaryIO, progress: bool) -> str:
    """Write what the address gives, all of it, and return its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    request = urllib.request.Request(url, headers={"User-Agent": f"whence/{__version__}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        done = 0
        with tqdm(total=total, unit="B", unit_scale=True, desc=url.rsplit("/", 1)[-1], disable=not progress) as bar:
            while piece := answer.read(_PIECE):
                out.write(piece)
                digest.update(piece)
                done += len(piece)
                bar.update(len(piece))
    if total is not None and done != total:
        raise EOFError(f"broken off after {done:,} of {total:,} bytes")
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
