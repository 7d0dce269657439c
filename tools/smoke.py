"""Five minutes' worth of whence in a bare environment: ``python tools/smoke.py`` after installing the package alone.

Uses the core only (torch, numpy, safetensors, tqdm), checks each answer, and prints what the installation weighs.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import whence


def data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0.5).long()


def trained() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3))
    whence.zoo.train(model, data(600, 1), epochs=8, batch_size=50, optimiser="adam", lr=1e-2, progress=False)
    return model


def check() -> None:
    model, (x, y) = trained(), data(200, 3)
    before = [p.clone() for p in model.parameters()]
    posterior = whence.laplace(model, data(600, 1), likelihood="classification", progress=False)
    posterior = posterior.tune(data(200, 2), progress=False)
    prediction = posterior.predict(x)
    assert float((prediction.labels == y).double().mean()) > 0.7
    assert torch.allclose(prediction.entropy, prediction.aleatoric + prediction.epistemic, atol=1e-5)
    where = posterior.where(x)
    assert abs(sum(row.variance_share or 0.0 for row in where.layers) - 1) < 1e-5
    novel = whence.novelty(posterior, 4 * torch.rand(50, 1, 6, 6))
    assert float((novel.p_value < 0.05).double().mean()) > 0.5
    found = whence.metrics.evaluate(prediction, y)
    print(where, found, sep="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.safetensors"
        posterior.save(path)
        assert torch.allclose(whence.load(path, model).predict(x).probs, prediction.probs)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    served = posterior.as_module()
    assert served(x[:5]).mean.shape == (5, 3)
    try:
        whence.audit(posterior, test=(x, y), progress=False).html("nowhere.html")
    except whence.errors.MissingExtra as error:
        print(f"without the extra: {error}")


def weight() -> None:
    """Packages, megabytes beside torch, seconds to import."""
    names = sorted(d.metadata["Name"] for d in importlib.metadata.distributions())
    files = importlib.metadata.files("whence") or []
    size = sum(Path(str(f.locate())).stat().st_size for f in files if Path(str(f.locate())).is_file())
    seconds = []
    for statement in ("import torch", "import torch, whence"):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        seconds.append(time.perf_counter() - start)
    print(f"{len(names)} packages: {', '.join(names)}")
    print(f"whence: {size / 1e6:.1f} MB; import {seconds[1]:.2f} s, of which torch {seconds[0]:.2f} s")


if __name__ == "__main__":
    check()
    weight()
    print(f"whence {whence.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}: works")
