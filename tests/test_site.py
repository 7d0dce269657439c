"""The documentation as a site: complete, without broken links, and without anything that is loaded from elsewhere."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import types
from pathlib import Path
from typing import Any

import pytest

import whence

pytest.importorskip("mkdocs")
os.environ["NO_MKDOCS_2_WARNING"] = "1"

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tools.docstring_roles import Roles
from tools.site_pages import FENCE, expanded, outside, relinked, source_of, with_signatures

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", *(path for _, path in sorted(outside().items()))]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def entries(nav: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            found += entries(value) if isinstance(value, list) else [value]
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        build(load_config(config_file="mkdocs.yml", site_dir=str(folder)))
    finally:
        os.chdir(before)
    return folder


def test_the_site_is_built_without_a_warning(built: Path) -> None:
    """Strict: links, anchors, references of docstrings and the navigation are checked."""
    assert (built / "index.html").exists()
    assert "class Laplace" not in (built / "reference" / "fit.html").read_text()
    assert "log_evidence" in (built / "reference" / "fit.html").read_text()


@pytest.mark.parametrize("link", ["missing.md", "#no-such-heading", "index.md#no-such-heading", "/index.md"])
def test_a_broken_link_is_an_error(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n[somewhere]({link})\n")
    validation = re.search(r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert validation
    settings = "site_name: a\nstrict: true\nuse_directory_urls: false\nplugins: []\ntheme: {name: mkdocs}\n"
    (tmp_path / "mkdocs.yml").write_text(settings + validation[0])
    with pytest.raises(Abort, match="1 warnings"):
        build(load_config(str(tmp_path / "mkdocs.yml")))


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//|<link[^>]+rel=\"stylesheet\"[^>]+\"https?://"
    )
    pages = list(built.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if loads.search(page.read_text())] == []
    assert "@import url(http" not in "".join(style.read_text() for style in built.rglob("*.css"))


def test_the_navigation_lists_every_page(built: Path) -> None:
    listed = entries(load_config(config_file=str(ROOT / "mkdocs.yml")).nav)
    everything = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    everything |= {f"tutorials/{path.stem}.md" for path in (ROOT / "docs" / "tutorials").glob("*.ipynb")}
    everything |= set(outside())
    shown = entries(expanded(listed))
    assert sorted(shown) == sorted(everything)
    html = [re.sub(r"README\.md$", "index.md", uri).removesuffix("md") + "html" for uri in shown]
    assert [page for page in html if not (built / page).exists()] == []


# Links as a forge follows them


def text(path: Path) -> str:
    return "".join(FENCE.split(path.read_text())[::2])


@functools.cache
def anchors(path: Path) -> set[str]:
    """What a forge makes of headings, in GitHub's way."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", text(path), flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve_on_a_forge(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text(page)))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}: {sorted(anchors(target))}"


@pytest.mark.parametrize(
    ("link", "source", "expected"),
    [
        ("[a](../reproductions/own/README.md#x)", "docs/priors.md", "[a](reproductions/own/README.md#x)"),
        ("![a](../reproductions/own/priors/nll.png)", "docs/priors.md", "![a](reproductions/own/priors/nll.png)"),
        ("[a](../README.md)", "docs/priors.md", "[a](index.md)"),
        ("[a](numbers.md)", "docs/priors.md", "[a](numbers.md)"),
        ("[a](tutorials/image_classifier.ipynb)", "docs/start.md", "[a](tutorials/image_classifier.md)"),
        ("[a](../../docs/priors.md)", "reproductions/own/README.md", "[a](../../priors.md)"),
        ("[a](docs/priors.md)", "CHANGELOG.md", "[a](priors.md)"),
        ("[a](https://example.org/x)", "docs/priors.md", "[a](https://example.org/x)"),
        ("```\n[a](../README.md)\n```", "docs/priors.md", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(link: str, source: str, expected: str) -> None:
    uri = source.removeprefix("docs/")
    assert relinked(link, source, uri)[0] == expected
    assert source_of(uri) == source


# The reference


def public() -> set[str]:
    """``whence.__all__`` and the public names of the public modules, and the classes that verbs return."""
    names = {f"whence.{name}" for name in whence.__all__}
    for module in ("metrics", "robustness", "zoo", "report", "auditing"):
        names |= {f"whence.{module}.{name}" for name in importlib.import_module(f"whence.{module}").__all__}
    errors = [(name, value) for name, value in vars(whence.errors).items() if inspect.isclass(value)]
    names |= {f"whence.errors.{name}" for name, value in errors if value.__module__ == "whence.errors"}
    predictions = importlib.import_module("whence.predictive.predictions")
    names |= {
        f"whence.predictive.predictions.{name}" for name in vars(predictions) if re.search(r"\wPrediction$", name)
    }
    names |= {"whence.where.where.Where", "whence.compat.laplace_torch.Laplace"}
    names -= {f"whence.{name}" for name in ("robustness", "zoo")}  # modules whose names are listed one by one
    same = {f"whence.auditing.{name}" for name in whence.__all__}  # shown as whence.audit and so on
    return names - same


def sections() -> dict[str, str]:
    """The text below each heading of a name."""
    found: dict[str, str] = {}
    for page in REFERENCE:
        parts = re.split(r"^##+ `(whence[\w.]*)`$", page.read_text(), flags=re.M)[1:]
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"{name} has two headings"
            found[name] = body
    return found


def test_every_public_name_is_in_the_reference() -> None:
    assert public() - set(sections()) == set()
    assert len(public()) > 150


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_name_of_the_reference_has_an_example(name: str) -> None:
    """tests/test_examples.py runs the examples."""
    module, _, last = name.rpartition(".")
    owner: Any = importlib.import_module(module)
    assert hasattr(owner, last)
    code = "\n".join(re.findall(r"```python\n(.*?)```", sections()[name], flags=re.S))
    assert re.search(rf"\b{re.escape(last)}\b", code), "its example does not use it"
    value = getattr(owner, last)
    if isinstance(value, (type, types.FunctionType)):
        assert value.__doc__, "nothing would be said about it"


def test_headings_become_signatures() -> None:
    page = "# Page\n\n## `whence.metrics`\n\nText\n\n### `whence.metrics.ece`\n"
    shown = with_signatures(page)
    assert '::: whence.metrics\n    options: {"heading_level": 2, "members": false}' in shown
    assert '::: whence.metrics.ece\n    options: {"heading_level": 3}' in shown


def test_roles_of_docstrings_become_links() -> None:
    class Docstring:
        value = (
            "See :func:`whence.audit` and :meth:`of`.\n\nArgs:\n"
            "    a, b: as in\n        :class:`whence.zoo.Settings`.\n    c: x"
        )

    class Documented:
        docstring = Docstring()

    Roles().on_instance(obj=Documented())  # type: ignore[arg-type]
    assert Docstring.value != Documented.docstring.value
    assert Documented.docstring.value == (
        "See [`whence.audit`][whence.audit] and `of`.\n\nArgs:\n"
        "    a: as in\n        [`whence.zoo.Settings`][whence.zoo.Settings].\n"
        "    b: as in\n        [`whence.zoo.Settings`][whence.zoo.Settings].\n    c: x"
    )
