"""A browser on this machine that prints pages and draws charts: Chromium, Chrome or Edge, without a window."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from whence.errors import BadFile, BadOption, MissingExtra

NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
PLACES = (  # where they are if not on the PATH
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)
SETTINGS = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
    "--virtual-time-budget=60000", "--window-size=1200,1600",
)  # fmt: skip
SECONDS = 240  # longest time of one run
ANSWER = re.compile(r'<pre id="answer"[^>]*>(.*?)</pre>', re.DOTALL)


def find_browser() -> str:
    """The command of a browser; MissingExtra with what to install if there is none."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    for place in PLACES:
        if Path(place).is_file():
            return place
    raise MissingExtra(
        "this needs Chromium, Google Chrome or Microsoft Edge, and none was found on the PATH. Install one (Debian and "
        "Ubuntu: apt-get install chromium; macOS: brew install --cask google-chrome), or open the page and print it."
    )


def print_page(page: str, path: Path) -> Path:
    """Print a page to a PDF file."""
    if path.is_dir():
        raise BadOption(f"{path} is a folder; pass the name of a file in it.")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        said = _run(folder, "--no-pdf-header-footer", f"--print-to-pdf={made}", source.as_uri())
        if not made.is_file() or not made.read_bytes().startswith(b"%PDF"):
            raise BadFile(f"cannot write {path}: the browser printed nothing ({_last(said.stderr)}).")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made, path)
        except OSError as error:
            raise BadFile(f"cannot write {path}: {error.strerror or error}.") from error
    return path


def answer_of(page: str) -> Any:
    """Run a page whose script leaves JSON in an element ``<pre id="answer">``, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page, encoding="utf-8")
        said = _run(folder, "--dump-dom", source.as_uri())
    found = ANSWER.search(said.stdout)
    if found is None or not found[1]:
        raise BadFile(f"the browser did not draw the charts ({_last(said.stderr)}).")
    return json.loads(html.unescape(found[1]))


def _run(folder: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the browser with a profile of its own, which is removed afterwards."""
    root = sys.platform == "linux" and os.geteuid() == 0  # its sandbox does not run as root
    command = [find_browser(), *SETTINGS, *(["--no-sandbox"] if root else []), f"--user-data-dir={folder}/profile"]
    try:
        return subprocess.run(
            [*command, *options], capture_output=True, text=True, encoding="utf-8", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadFile(f"the browser {command[0]} did not finish within {SECONDS} s.") from error


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]
