"""``python -m benchmarks.serving [--device cuda]``: latency of a served module beside the plain network.

An MLP (784-256-256-10), LeNet-5 and a small residual network (16 channels, three blocks, 32 × 32 images) with random
weights, a Kronecker posterior of a few examples, served linearised (64 draws: 32 directions) and by 20 weight draws,
eagerly and after torch.export, at batch sizes 1 and 64. Ratios to the plain network in the same process, of the
fastest calls.
``--tiny`` is a quick look; ``--out FILE`` writes the results as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.machine import Others, describe
from benchmarks.networks import lenet

WARM, SECONDS, MOST = 3, 1.0, 200  # calls before measuring; seconds and calls of one measurement


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def resnet() -> nn.Module:
    blocks = [Block(16) for _ in range(3)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (784,)),
    "LeNet-5": (lenet, (1, 28, 28)),
    "ResNet": (resnet, (3, 32, 32)),
}


def seconds(run: Callable[[], Any], device: str, most: int) -> float:
    """The fastest of several calls: other programs only make them slower."""
    found: list[float] = []
    start = time.perf_counter()
    for call in range(WARM + most):
        before = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        if call >= WARM:
            found.append(time.perf_counter() - before)
        if found and time.perf_counter() - start > SECONDS:
            break
    return min(found)


@torch.no_grad()
def rows(name: str, device: str, batches: list[int], most: int) -> list[dict[str, Any]]:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = build().to(device).eval()
    x, y = torch.randn(64, *shape, device=device), torch.randint(10, (64,), device=device)
    with torch.enable_grad():
        posterior = whence.laplace(net, (x, y), likelihood="classification", progress=False)
    modules = {method: posterior.as_module(method=method, check=x[:8]) for method in ("linearised", "sampled")}  # type: ignore[arg-type]
    sizes = ({0: torch.export.Dim("batch")},)
    exported = {
        m: torch.export.export(module, (x[:3],), dynamic_shapes=sizes).module() for m, module in modules.items()
    }
    found = []
    for batch in batches:
        inputs = torch.randn(batch, *shape, device=device)
        plain = seconds(lambda: net(inputs), device, most)  # noqa: B023
        row: dict[str, Any] = {"network": name, "batch": batch, "plain ms": plain * 1e3}
        for method in modules:
            for how, module in (("eager", modules[method]), ("exported", exported[method])):
                row[f"{method}, {how}"] = seconds(lambda: module(inputs), device, most) / plain  # noqa: B023
        found.append(row)
    return found


def table(results: list[dict[str, Any]]) -> str:
    names = list(results[0])
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in results:
        lines.append("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    chosen = options()
    others = Others()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            row
            for name in chosen.networks
            for row in rows(name, chosen.device, [1, 64] if not chosen.tiny else [2], 3 if chosen.tiny else MOST)
        ]
    results = {
        "machine": describe() | ({"gpu": torch.cuda.get_device_name()} if chosen.device.startswith("cuda") else {}),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rows": found,
        "share of the machine that others took": round(others.share(), 2),
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(found))
    print(f"others took {results['share of the machine that others took']:.0%} of the machine")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
