"""The bones of a reproduction: results that survive, verdicts from numbers, pages from results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from reproductions import readme
from reproductions.claims import Interval, above, below, difference, every, interval, within
from reproductions.ritter2018 import COLLECTION
from reproductions.ritter2018.__main__ import main
from reproductions.store import OtherConfig, OutOfTime, Results, read, rounded, values


def made(path: Path, config: dict[str, int] | None = None, **more: float) -> Results:
    return Results(path / "results.json", "toy", config or {"seeds": 2}, "cpu", **more)  # type: ignore[arg-type]


# Results


def test_a_unit_is_computed_once_and_read_afterwards(tmp_path: Path) -> None:
    calls = []

    def work() -> dict[str, float]:
        calls.append(1)
        return {"x": 0.5}

    assert made(tmp_path).unit("a", work) == {"x": 0.5}
    again = made(tmp_path)
    assert again.unit("a", work) == {"x": 0.5} and calls == [1]
    unit = read(tmp_path / "results.json")["units"]["a"]
    assert unit["seconds"] >= 0 and {"whence", "torch", "python"} == set(unit["versions"])


def test_what_was_done_before_a_failure_is_kept(tmp_path: Path) -> None:
    results = made(tmp_path)
    results.unit("a", lambda: {"x": 1})
    with pytest.raises(ZeroDivisionError):
        results.unit("b", lambda: {"x": 1 / 0})
    assert values(read(tmp_path / "results.json")) == {"a": {"x": 1}}


def test_results_of_another_configuration_are_refused(tmp_path: Path) -> None:
    made(tmp_path).unit("a", dict)
    with pytest.raises(OtherConfig, match="seeds: 2 there, 3 here"):
        made(tmp_path, {"seeds": 3})


def test_nothing_is_started_after_the_time(tmp_path: Path) -> None:
    made(tmp_path).unit("a", lambda: {"x": 1})
    late = made(tmp_path, limit=-1.0)
    assert late.unit("a", dict) == {"x": 1}
    with pytest.raises(OutOfTime, match="b"):
        late.unit("b", dict)


def test_work_is_shared_by_name_and_put_together(tmp_path: Path) -> None:
    order = [f"{kind}/{seed}" for kind in ("train", "measure") for seed in (0, 1)]
    for seed in (0, 1):
        mine = made(tmp_path / str(seed), only=f"*/{seed}")  # type: ignore[arg-type]
        for name in order:
            mine.unit(name, lambda seed=seed: {"by": seed})  # type: ignore[misc]
        assert list(mine.content["units"]) == [f"train/{seed}", f"measure/{seed}"]
    several = made(tmp_path / "several", only=("train/*", "*/1"))  # type: ignore[arg-type]
    for name in order:
        several.unit(name, dict)
    assert list(several.content["units"]) == ["train/0", "train/1", "measure/1"]
    whole = made(tmp_path)
    assert [whole.merge(tmp_path / str(seed) / "results.json", order) for seed in (1, 0, 0)] == [2, 2, 0]
    found = values(read(tmp_path / "results.json"))
    assert list(found) == order and [v["by"] for v in found.values()] == [0, 1, 0, 1]
    made(tmp_path / "other", {"seeds": 3}).unit("train/2", lambda: {"by": 2})
    with pytest.raises(OtherConfig, match="another config"):
        whole.merge(tmp_path / "other" / "results.json", order)


def test_the_command_shares_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = ["ood", "--quick", "--device", "cpu", "--no-progress"]
    count = len(COLLECTION.experiment("ood").units(COLLECTION.experiment("ood").config(True)))
    assert main([*some, "--units", "reading/*", "--out", str(tmp_path / "a")]) == 0
    (tmp_path / "a" / "table.csv").write_text("x\n")
    assert main([*some, "--merge", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert said.count(f"3 of {count} units are in") == 2 and "3 units from" in said
    assert all(name.startswith("reading/") for name in values(read(tmp_path / "b" / "results.json")))
    assert (tmp_path / "b" / "table.csv").exists()


def test_results_are_finite_and_short() -> None:
    assert rounded({"a": [1 / 3, 2]}) == {"a": [0.333333, 2]}
    with pytest.raises(ValueError, match="not finite"):
        rounded([float("nan")])


# Verdicts


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.high - 2 == pytest.approx(4.303 / 3**0.5, rel=1e-4)
    with pytest.raises(ValueError, match="two"):
        interval([1.0])


@pytest.mark.parametrize(
    ("low", "high", "verdicts"),
    [
        (0.1, 0.3, ("holds", "does not hold", "holds")),
        (-0.3, -0.1, ("does not hold", "holds", "holds")),
        (-0.1, 0.3, ("cannot be told", "cannot be told", "holds")),
        (0.6, 0.9, ("holds", "does not hold", "does not hold")),
        (0.3, 0.9, ("holds", "does not hold", "cannot be told")),
    ],
)
def test_verdicts_follow_from_the_interval(low: float, high: float, verdicts: tuple[str, str, str]) -> None:
    found = Interval((low + high) / 2, low, high)
    assert (above(found), below(found), within(found, 0.5)) == verdicts


def test_differences_are_paired_and_all_must_hold() -> None:
    assert difference([1.0, 11.0], [0.5, 10.5]) == Interval(0.5, 0.5, 0.5)
    assert every("holds", "holds") == "holds"
    assert every("holds", "cannot be told") == "cannot be told"
    assert every("cannot be told", "does not hold") == "does not hold"


# Pages


def test_only_what_lies_between_the_marks_is_written() -> None:
    text = f"above\n{readme.BEGIN}\nold\n{readme.END}\nbelow\n"
    assert readme.filled(text, "new") == f"above\n{readme.BEGIN}\nnew\n{readme.END}\nbelow\n"
    with pytest.raises(ValueError, match="lacks"):
        readme.filled("no marks", "new")
    named = f"<!-- results begin: a -->\nx\n{readme.END} and <!-- results begin: b -->\ny\n{readme.END}"
    assert readme.filled(named, "new", "b") == named.replace("y", "new")
    with pytest.raises(ValueError, match="begin: c"):
        readme.filled(named, "new", "c")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    found = COLLECTION.experiment("adversarial")
    units = found.units(found.config(True))
    done = {"quick": True, "units": dict.fromkeys(units)}
    assert readme.unfinished(found, done) == ""
    done["units"].popitem()
    assert f"1 of {len(units)} units are missing ({units[-1]}" in readme.unfinished(found, done)


@pytest.mark.parametrize(
    "name", [name for name in COLLECTION.names if (COLLECTION.home / name / "results.json").exists()]
)
def test_pages_say_what_the_results_say(name: str) -> None:
    content = read(COLLECTION.home / name / "results.json")
    assert not content["quick"]
    found = COLLECTION.experiment(name)
    folder = COLLECTION.home / name
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(found, content))
    assert content["config"] == json.loads(json.dumps(asdict(found.config(False)))), "the results are of another time"
    assert content["units"] and set(content["units"]) <= set(found.units(found.config(False)))


def test_the_page_over_all_lists_every_claim() -> None:
    assert (COLLECTION.home / "README.md").read_text() == readme.expected(COLLECTION.home, readme.summary(COLLECTION))


# The command


def test_the_command_stops_in_time_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "--quick", "--out", str(tmp_path), "--limit-seconds", "-1", "--no-progress"]) == 3
    assert "run it again" in capsys.readouterr().err


def test_the_command_refuses_results_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"experiment": "toy", "quick": False, "config": {}, "units": {}}))
    assert main(["toy", "--quick", "--out", str(tmp_path), "--no-progress"]) == 2
    assert "another quick" in capsys.readouterr().err
