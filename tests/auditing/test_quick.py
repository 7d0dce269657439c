"""Quick audits, and estimates of how long an audit takes."""

from __future__ import annotations

import pytest
import torch

import whence
from tests.auditing.cases import classification
from whence.auditing.estimate import AuditSize, Pace, expected_seconds, forward_seconds
from whence.functional import Network
from whence.report.formatting import rough_duration


def test_a_quick_audit_says_so_and_asks_less() -> None:
    given = classification()
    held = given.data()
    more = {k: (held[k][0].repeat(9, 1), held[k][1].repeat(9)) for k in ("test", "validation")}
    audit = whence.audit(given.model, given.train, **{**held, **more}, quick=True, progress=False)
    found = audit.results
    assert found.title.endswith("(quick)") and "sampled curvature" in found.run.not_covered[0]
    assert audit.posterior.curvature.options.curvature.value == "mc"
    assert found.data.test is not None and found.data.test.inputs == 300 and found.data.test.cut
    assert found.pruning is None and found.profile is not None and found.novelty is not None
    assert len(found.inputs or ()) <= 9
    assert audit.posterior.tuning is not None and audit.posterior.reference.size == 250
    assert "quick audit" in whence.Audit.read(audit.json("audit.json")).results.run.not_covered[0]


def test_what_is_asked_for_stays_in_a_quick_audit() -> None:
    given = classification()
    audit = whence.audit(
        given.model, given.train, **given.data(), quick=True, curvature="ggn", sections=["pruning"], progress=False
    )
    assert audit.results.pruning is not None
    assert audit.posterior.curvature.options.curvature.value == "ggn"
    assert "sampled" not in audit.results.run.not_covered[0]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))


def test_the_time_left_is_told_before_each_long_step() -> None:
    given = classification()
    steps: list[str] = []
    left: list[tuple[str, float]] = []
    whence.audit(
        given.model,
        given.train,
        **given.data(),
        on_step=lambda name, *_: steps.append(name),
        on_left=lambda seconds: left.append((steps[-1], seconds)),
    )
    assert [name for name, _ in left] == steps[1:], "after the data are read"
    assert all(seconds >= 0 for _, seconds in left) and left[0][1] > left[-1][1]


def test_work_grows_with_what_is_asked() -> None:
    small = AuditSize(10, 8_000, {"test": 1_000, "validation": 1_000, "ood": 500}, 1_000, 1_000, False)
    more = AuditSize(10, 8_000, {"test": 10_000, "validation": 1_000, "ood": 500}, 1_000, 1_000, False)
    sampled = AuditSize(10, 8_000, {"test": 1_000}, 1_000, 0, True)
    one, other, quick = (size.forward_passes() for size in (small, more, sampled))
    assert one["profile"] == other["profile"] and one["quality"] < other["quality"]
    assert quick["fit"] < one["fit"] / 3 and quick["tune"] == 0
    many = AuditSize(1_000, 8_000, {"test": 1_000}, 1_000, 0, False).forward_passes()
    assert many["fit"] == quick["fit"], "curvature of many outputs is sampled"


def test_expected_seconds_follow_the_forward_pass() -> None:
    network = Network.snapshot(classification().model)
    inputs = classification().train[0]
    each = forward_seconds(network, inputs)
    size = AuditSize(3, 100, {"test": 100}, 100, 0, False)
    found = expected_seconds(network, inputs, size)
    assert each > 0 and set(found) == set(size.forward_passes())
    assert found["profile"] / found["examine"] == pytest.approx(2 / 1.5)


def test_the_pace_of_finished_steps_replaces_the_expectation() -> None:
    pace = Pace({"fit": 10.0, "tune": 10.0, "profile": 20.0})
    assert pace.left(["fit", "tune", "profile"]) == pytest.approx(40.0)
    pace.finished("fit", 30.0)  # three times slower
    assert 60 < pace.left(["tune", "profile"]) < 90
    pace.finished("other", 99.0)
    assert pace.left([]) == 0
    assert Pace({}).left(["fit"]) == 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (7.4, "7 s"), (43.0, "45 s"), (130.0, "2 min"), (7200.0, "2.0 h")]
)
def test_durations_are_round(seconds: float, words: str) -> None:
    assert rough_duration(seconds) == words


def test_a_dense_network_is_estimated_too() -> None:
    torch.manual_seed(0)
    model = torch.nn.Conv2d(1, 3, 3, padding=1)
    data = torch.randn(12, 1, 5, 5), torch.randint(3, (12, 5, 5))
    told: list[float] = []
    whence.audit(
        model, data, likelihood="classification", test=data, sections=["quality"], progress=False, on_left=told.append
    )
    assert told
