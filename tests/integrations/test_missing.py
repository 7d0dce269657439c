"""A package that is not installed is named with its extra, when the integration is imported."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from whence.errors import MissingExtra

MODULES = {
    "huggingface": ["transformers"],
    "lightning": ["lightning", "lightning.pytorch", "pytorch_lightning"],
    "peft": ["peft"],
    "sklearn": ["sklearn"],
}


@pytest.mark.parametrize("name", MODULES)
def test_the_extra_is_named(name: str, monkeypatch: Any) -> None:
    for module in MODULES[name]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"whence.integrations.{name}", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'whence\[{name}\]'"):
        importlib.import_module(f"whence.integrations.{name}")
