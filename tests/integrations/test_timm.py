"""timm: its networks and loaders as they are. Left out where timm, or its torchvision, cannot be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.integrations.pages import run_page

try:
    import timm
except Exception as error:  # a torchvision that was built for another torch raises RuntimeError
    pytest.skip(f"timm cannot be imported: {type(error).__name__}: {error}", allow_module_level=True)

SMALL: dict[str, dict[str, Any]] = {
    "resnet10t": {"channels": (4, 8, 8, 16), "stem_width": 8},
    "convnext_atto": {"dims": (8, 16, 16, 16), "depths": (1, 1, 1, 1)},
    "densenet121": {"growth_rate": 4, "block_config": (2, 2)},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2},
    "deit3_small_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32, "window_size": 4, "patch_size": 2, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2),
    },
    "xcit_nano_12_p16_224": {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_networks(name: str) -> None:
    """The whole posterior: fitted, with shares that add up."""
    x, y = torch.randn(24, 3, 32, 32), torch.arange(24) % 4
    network = timm.create_model(name, num_classes=4, **SMALL[name]).eval()
    posterior = whence.laplace(network, (x, y), likelihood="classification", progress=False)
    assert posterior.parameters == sum(p.numel() for p in network.parameters())
    assert sum(row.variance_share for row in posterior.where(x[:3]).layers) == pytest.approx(1, abs=1e-4)
    assert {"Linear", "Conv2d"} & {s.kind for s in posterior.structures.values() if str(s.structure) == "kron"}


def test_page(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("sklearn")
    found = run_page("timm", tmp_path, monkeypatch)
    assert found["posterior"].record.accuracy > 0.9
