"""The script of the examples that recomputes verdicts, beside the verdicts of audits and of simulated records."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from benchmarks.verdicts import SIMULATED, Scenario
from tests.auditing.cases import binary, classification, regression
from whence.auditing.verdict import judged
from whence.report.record.convert import tidied, to_json
from whence.report.record.verdict import JUDGED, VerdictRules

SCRIPT = Path(__file__).parents[2] / "examples" / "recompute_verdict.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize(
    "rules", [VerdictRules(), VerdictRules(ece=0.01, errors_good=0.99, novelty_good=0.99, beaten=0)]
)
@pytest.mark.parametrize("scenario", SIMULATED, ids=lambda one: f"{one.point}: {one.what}")
def test_simulated_records(scenario: Scenario, rules: VerdictRules, script: dict[str, Any]) -> None:
    for n in (25, 300):  # few inputs, too
        record = to_json(judged(tidied(scenario.make(n, 7)), rules))
        tones, overall = script["recomputed"](record)
        assert tones == {p["key"]: p["tone"] for p in record["verdict"]["points"] if p["key"] in JUDGED}
        others = {p["key"]: p["tone"] for p in record["verdict"]["points"] if p["key"] in script["BESIDE"]}
        assert script["beside"](record) == others
        assert overall == record["verdict"]["tone"]


@pytest.mark.parametrize("make", [classification, binary, regression])
def test_audits(make: Any, tmp_path: Path) -> None:
    given = make()
    sections = ["quality", "deferral", "novelty", "groups"]
    groups = {"half": torch.arange(len(given.test[0])) % 2, "side": given.test[0].flatten(1)[:, 0] > 0}
    audit = whence.audit(given.model, given.train, **given.data(), groups=groups, sections=sections, progress=False)
    path = audit.json(tmp_path / "audit.json")
    done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "overall" in done.stdout and "groups" in done.stdout, done.stdout + done.stderr
    other = replace(audit.results.verdict, tone="good" if audit.results.verdict.tone != "good" else "poor")
    changed = to_json(replace(audit.results, verdict=other))
    path.write_text(json.dumps(changed))
    done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
