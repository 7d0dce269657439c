"""The profile: shares add up at every level, and each view is what where says of its inputs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.auditing.cases import Given, classification
from whence.auditing import SECTIONS
from whence.auditing import profile as room
from whence.errors import BadOption

Made = tuple[Given, whence.Audit]


def views(audit: whence.Audit) -> dict[str, dict[str, Any]]:
    return {view["key"]: view for view in audit.record["profile"]["views"]}


def by_id(audit: whence.Audit, view: dict[str, Any], what: str = "share") -> dict[str, float]:
    return dict(zip((n["id"] for n in audit.record["profile"]["nodes"]), view[what], strict=True))


def test_children_add_up_to_their_parent_in_every_view(every: Made) -> None:
    _, audit = every
    if audit.record["profile"] is None:
        return
    nodes = audit.record["profile"]["nodes"]
    seen: set[str | None] = {None}
    for node in nodes:
        assert node["parent"] in seen
        seen.add(node["id"])
    for view in audit.record["profile"]["views"]:
        share = by_id(audit, view)
        assert share["n"] == pytest.approx(0 if view["kind"] == "difference" else 1, abs=1e-6)
        for parent in nodes:
            children = [share[n["id"]] for n in nodes if n["parent"] == parent["id"]]
            if children:
                assert sum(children) == pytest.approx(share[parent["id"]], abs=2e-5), (view["key"], parent)
    for parent in nodes:
        sizes = [n["weights"] for n in nodes if n["parent"] == parent["id"]]
        assert not sizes or sum(sizes) == parent["weights"]


def test_layers_units_and_groups_are_those_of_where(untuned: Made) -> None:
    given, audit = untuned
    for key, x in (("test", given.test[0]), ("ood", given.ood)):
        where = audit.posterior.where(x)
        share, explained = (by_id(audit, views(audit)[key], what) for what in ("share", "explained"))
        layers = {row.name: row for row in where.layers}
        for node in audit.record["profile"]["nodes"]:
            found = share[node["id"]]
            if node["level"] == "layer":
                assert found == pytest.approx(layers[node["layer"]].variance_share, rel=1e-4)
                assert explained[node["id"]] == pytest.approx(layers[node["layer"]].explained, rel=1e-4)
            elif node["level"] == "unit" and node["unit"] is not None:
                table = where.units(node["layer"])
                assert found == pytest.approx(float(table["variance_share"][node["unit"]]), rel=1e-4, abs=1e-9)
        for layer in ("0", "6"):
            table = where.connections(layer)
            direct = {
                (int(u), c): float(v)
                for u, c, v in zip(table["unit"], table["connection"], table["variance_share"], strict=True)
            }
            for node in audit.record["profile"]["nodes"]:
                if node["level"] == "group" and node["layer"] == layer and "others" not in node["label"]:
                    wanted = direct[node["unit"], node["label"].removeprefix("from ")]
                    assert share[node["id"]] == pytest.approx(wanted, rel=1e-4, abs=1e-9)


def test_the_view_of_a_class_and_of_an_input_are_of_those_inputs(plain: Made) -> None:
    given, audit = plain
    x, y = given.test
    index = next(e["index"] for e in audit.record["inputs"] if e["set"] == "test")
    for key, some in (("class:1", x[y == 1]), (f"input:test:{index}", x[index : index + 1])):
        view = views(audit)[key]
        assert view["inputs"] == len(some)
        where = audit.posterior.where(some)
        share = by_id(audit, view)
        for place, row in enumerate(where.layers):
            assert share[f"n{place}"] == pytest.approx(row.variance_share, rel=1e-3)
        assert view["variance"] == pytest.approx(float(where.shares.total.mean()), rel=1e-4)
    assert all(e["view"] in views(audit) for e in audit.record["inputs"])


def test_difference_and_prior_are_derived_from_the_sets(plain: Made) -> None:
    _, audit = plain
    test, ood, apart, prior = (views(audit)[k] for k in ("test", "ood", "difference", "prior"))
    for key in ("share", "explained"):
        for a, b, d in zip(test[key], ood[key], apart[key], strict=True):
            if d is not None:
                assert d == pytest.approx(b - a, abs=1e-5)
    assert prior["share"] == test["prior_share"]
    assert set(prior["explained"]) == {0.0}


def test_many_units_are_merged_and_few_are_not(plain: Made) -> None:
    _, audit = plain
    nodes = audit.record["profile"]["nodes"]
    merged = [n for n in nodes if n["id"] == "n0uo"]
    assert [n["label"] for n in merged] == ["6 other rows"]
    assert not [n for n in nodes if n["id"] == "n1uo"]
    kept = [n["unit"] for n in nodes if n["layer"] == "0" and n["level"] == "unit" and n["unit"] is not None]
    assert len(kept) == room.UNITS


def test_negative_units_are_listed(every: Made) -> None:
    _, audit = every
    profile = audit.record["profile"]
    if profile is None:
        return
    for key in ("test", "ood"):
        if key not in views(audit):
            continue
        share = by_id(audit, views(audit)[key])
        below = {n["id"] for n in profile["nodes"] if n["level"] == "unit" and share[n["id"]] < -1e-6}
        listed = {entry["id"] for entry in profile["negative"] if entry["view"] == key}
        assert listed == below if len(below) <= room.NEGATIVE else listed <= below


def test_too_much_work_takes_fewer_inputs_and_still_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    exact = whence.audit(posterior, test=given.test[0], sections=["profile"], progress=False, inputs=0)
    monkeypatch.setitem(SECTIONS, "profile", functools.partial(room.profile, work=1e6))
    rough = whence.audit(posterior, test=given.test[0], sections=["profile"], progress=False, inputs=0)
    one, two = (views(a)["test"] for a in (exact, rough))
    by_level = {n["id"]: n["level"] for n in exact.record["profile"]["nodes"]}
    first, second = by_id(exact, one), by_id(rough, two)
    shared = [i for i in first if i in second]
    assert all(first[i] == pytest.approx(second[i], rel=1e-5, abs=1e-9) for i in shared if by_level[i] != "group")
    groups = [i for i in shared if by_level[i] == "group" and not i.endswith("go")]
    a, b = (torch.tensor([v[i] for i in groups]) for v in (first, second))
    assert not torch.allclose(a, b, rtol=1e-4)
    assert float(torch.corrcoef(torch.stack([a, b]))[0, 1]) > 0.8


def test_where_writes_a_page_of_its_own(tmp_path: Path) -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    path = posterior.where(given.test[0]).report(tmp_path / "report.html")
    page = path.read_text()
    assert "Where the uncertainty comes from" in page and "test data have no targets" not in page
    with pytest.raises(BadOption, match=r"where\(x\)"):
        posterior.where().report(path)
