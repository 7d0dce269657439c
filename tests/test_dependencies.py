"""The page on dependencies lists what pyproject.toml asks for."""

from __future__ import annotations

from importlib import metadata

from tools.dependencies import BEGIN, END, PAGE, licence, megabytes, name_of, required


def test_the_page_lists_every_dependency_and_nothing_else() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")][2:]
    wanted: dict[str, set[str]] = {}
    for extra, names in required().items():
        for name in names:
            wanted.setdefault(name, set()).add(f"`[{extra}]`" if extra else "whence itself")
    assert {row[1].strip(): set(row[2].strip().split(", ")) for row in rows} == wanted
    assert all(row[5].strip() not in ("", "not stated") for row in rows if "not installed" not in row[3])


def test_licences_and_sizes_are_those_that_packages_declare() -> None:
    assert name_of("torch>=2.6") == "torch" and name_of("whence[report]") == "whence"
    assert licence(metadata.distribution("numpy")).startswith("BSD")
    assert 10 < megabytes(metadata.distribution("numpy")) < 500
