"""The model card: front matter that Hugging Face reads, results with intervals, fields for the user."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report import sample_record
from tests.report.typed import audit
from whence.auditing import Audit
from whence.report.card import FILL, card, pipeline_tag


def read_yaml(text: str) -> Any:
    """The part of YAML that the card uses: nested mappings and lists by indentation, quoted or plain scalars."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    lines = [(depth, re.sub(r"\s+# .*$", "", words)) for depth, words in lines if not words.startswith("#")]

    def scalar(words: str) -> Any:
        try:
            return json.loads(words)
        except ValueError:
            return words

    def block(depth: int) -> Any:
        found: Any = [] if lines[0][1].startswith("- ") else {}
        while lines and lines[0][0] == depth and lines[0][1].startswith("- ") == isinstance(found, list):
            _, words = lines.pop(0)
            if isinstance(found, list):
                if re.match(r"- [\w-]+:", words):
                    lines.insert(0, (depth + 2, words[2:]))
                    found.append(block(depth + 2))
                else:
                    found.append(scalar(words[2:]))
                continue
            key, _, value = words.partition(":")
            deeper = lines and (lines[0][0] > depth or (lines[0][0] == depth and lines[0][1].startswith("- ")))
            found[key] = scalar(value.strip()) if value.strip() or not deeper else block(lines[0][0])
        return found

    made = block(0)
    assert not lines, lines
    return made


@pytest.mark.parametrize("kind", ["images", "tabular", "bare", "hostile"])
def test_the_front_matter_has_the_form_that_hugging_face_reads(kind: str) -> None:
    record = audit(getattr(sample_record, kind)())
    text = card(record)
    _, front, body = text.split("---\n", 2)
    data = read_yaml(front)
    assert data["library_name"] == "pytorch" and "whence" in data["tags"]
    assert data.get("pipeline_tag") == pipeline_tag(record)
    assert body.lstrip().startswith("# ")
    if record.quality is None:
        assert "model-index" not in data
        return
    (model,) = data["model-index"]
    assert model["name"] == record.title
    for result in model["results"]:
        assert set(result) == {"task", "dataset", "metrics"}
        assert result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]
    values = [one["value"] for one in model["results"][0]["metrics"]]
    assert values == [row.plain.value for row in record.quality.metrics if row.plain and row.plain.value is not None]


def test_the_text_has_results_limitations_and_marked_fields(tmp_path: Path) -> None:
    record = audit(sample_record.images())
    text = Audit(record).card(tmp_path / "card.md").read_text()
    assert text.count(FILL) >= 6
    for title in ("Intended use", "Results", "When to hand over to a person", "Limitations", "Data"):
        assert f"## {title}\n" in text
    assert record.verdict.words in text
    for line in record.run.not_covered:
        assert f"- {line}" in text
    assert record.quality is not None
    table = [line for line in text.splitlines() if line.startswith("| ") and record.quality.metrics[0].label in line]
    assert table and re.search(r"\d+\.\d+ \[\d\.\d+, \d\.\d+\]", table[0])
    for line in text.splitlines():
        if line.startswith("|"):  # a bar in a name would add a column
            assert line.endswith("|")


def test_a_card_without_results_says_so() -> None:
    text = card(audit(sample_record.bare()))
    assert "Nothing was measured" in text and "interrupted during" in text
