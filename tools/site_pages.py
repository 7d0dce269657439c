"""Hooks of mkdocs: what is a page of the site, and where its links lead.

Pages are written for a forge: they link to ``../reproductions/…/README.md`` and to notebooks. Here these become pages
of the site, and links are rewritten. In the reference, each heading such as ``## `whence.laplace``` gets the signature
and the docstring below it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.notebooks import as_markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r'(?P<before>\]\(|(?:src|href)=")(?P<path>[^)\s"#:]+)(?P<anchor>#[^)\s"]*)?(?=[)"])')
FENCE = re.compile(r"(^ *```.*?^ *```[^\S\n]*$)", flags=re.M | re.S)
NAMED = re.compile(r"^(##+) `(whence[\w.]*)`.*$", flags=re.M)


def in_site(path: str) -> str:
    """Where a file of the repository is in the site: ``docs/a.md`` is ``a.md``, the README is the front page."""
    if path == "README.md":
        return "index.md"
    return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))


def outside() -> dict[str, Path]:
    """Pages that are not in docs/, by their path in the site."""
    patterns = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "reproductions/**/README.md", "benchmarks/**/*.md")
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    return {path.relative_to(ROOT).as_posix(): path for path in found}


def notebooks() -> dict[str, Path]:
    """Pages that are notebooks, by their path in the site."""
    return {in_site(path.relative_to(ROOT).as_posix()): path for path in sorted((DOCS / "tutorials").glob("*.ipynb"))}


def expanded(nav: list[Any], listed: set[str] | None = None) -> list[Any]:
    """The navigation with paths of the site; a pattern stands for the files that it matches and nothing else lists."""
    listed = set() if listed is None else listed
    done: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, value),) = entry.items()
            inside = expanded(value if isinstance(value, list) else [value], listed)
            if inside:
                done.append({title: inside if isinstance(value, list) else inside[0]})
            continue
        paths = sorted(DOCS.glob(entry)) if "*" in entry else [DOCS / entry]
        uris = [in_site(path.resolve().relative_to(ROOT.resolve()).as_posix()) for path in paths]
        new = [uri for uri in uris if uri not in listed]
        listed.update(new)
        done.extend(new)
    return done


def relinked(markdown: str, source: str, uri: str) -> tuple[str, set[str]]:
    """A page with links that hold in the site, and the files outside docs/ that it needs."""
    needed: set[str] = set()

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        if not (ROOT / target).exists():
            return match[0]
        if not target.startswith("docs/"):
            needed.add(target)
        here = posixpath.relpath(in_site(target), posixpath.dirname(uri) or ".")
        return f"{match['before']}{here}{match['anchor'] or ''}"

    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts)), needed


def source_of(uri: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if uri in notebooks():
        return notebooks()[uri].relative_to(ROOT).as_posix()
    return uri if uri in outside() else f"docs/{uri}"


def with_signatures(markdown: str) -> str:
    """A page of the reference whose headings of names are the signatures and docstrings; modules without members."""
    names = {name for _, name in NAMED.findall(markdown)}

    def documented(match: re.Match[str]) -> str:
        name, level = match[2], len(match[1])
        options = {"heading_level": level}
        if any(other.startswith(f"{name}.") for other in names):
            options["members"] = False
        return f"::: {name}\n    options: {json.dumps(options)}\n"

    return NAMED.sub(documented, markdown)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = expanded(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add notebooks, pages outside docs/, and the figures and files that these link to."""
    for path in list(files.src_uris):
        if path.endswith(".ipynb"):
            files.remove(files.src_uris[path])
    pages = {uri: path.read_text() for uri, path in outside().items()}
    for uri, path in notebooks().items():
        pages[uri], images = as_markdown(path)
        for name, content in images.items():
            files.append(File.generated(config, posixpath.join(posixpath.dirname(uri), name), content=content))
    for uri, markdown in pages.items():
        files.append(File.generated(config, uri, content=markdown))
    written = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
    for uri, markdown in (pages | written).items():
        for target in relinked(markdown, source_of(uri), uri)[1]:
            if in_site(target) not in files.src_uris:
                files.append(File.generated(config, in_site(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        markdown = with_signatures(markdown)
    return relinked(markdown, source_of(uri), uri)[0]
