"""Lightning: a data module as data of every verb, and a callback that tracks, fits and audits, on real trainings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import whence
from tests.comparison import assert_close
from tests.integrations.pages import run_page
from whence.errors import BadData, BadOption

L = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
QUICK: dict[str, Any] = {"quick": True, "inputs": 2}


class Quadrants(L.LightningDataModule):
    """Two classes by the sign of a product. Its split is drawn anew by every ``setup``."""

    def __init__(self) -> None:
        super().__init__()
        self.setups: list[str] = []

    def setup(self, stage: str) -> None:
        self.setups.append(stage)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(300, 2, generator=generator)
        self.parts = random_split(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long()), [200, 60, 40])

    def train_dataloader(self) -> Any:
        return DataLoader(self.parts[0], 20, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.parts[1], 20)

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[2], 20)


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)


class Headless(Classifier):
    """The steps call a part of it; it has no forward of its own."""

    forward = L.LightningModule.forward

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


def trained(
    module: Any, data: Any, callback: Any = None, logger: Any = False, epochs: int = 20, fit: Any = None, **options: Any
) -> Any:
    torch.manual_seed(0)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[callback] if callback else [], logger=logger,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, **(fit or {"datamodule": data}))
    return trainer


def test_a_data_module_is_data_of_every_verb() -> None:
    data, module = Quadrants(), Classifier()
    posterior = whence.laplace(module, data, likelihood="classification", validation=data, progress=False)
    assert data.setups == ["fit"]  # again would mix training and validation data
    parts = [tuple(map(torch.stack, zip(*part, strict=True))) for part in data.parts]
    same = whence.laplace(module, parts[0], likelihood="classification", validation=parts[1], progress=False)
    for name, value in same.variance().items():
        assert_close(posterior.variance()[name], value, 1e-5)
    audit = whence.audit(posterior, data, validation=data, test=data, ood=data, progress=False, **QUICK)
    sizes = audit.results.data
    assert (sizes.train.inputs, sizes.validation.inputs, sizes.test.inputs) == (200, 60, 40)
    assert whence.track(module, data, likelihood="classification").subset[1].shape == (200,)
    assert data.setups == ["fit"]
    with pytest.raises(BadData, match="Quadrants defines no predict_dataloader"):
        posterior.predict(data)


def test_a_data_module_that_fails_or_has_several_loaders() -> None:
    class Several(Quadrants):
        def train_dataloader(self) -> Any:
            return [Quadrants.train_dataloader(self)] * 2

        def val_dataloader(self) -> Any:
            raise OSError("no such file")

    data = Several()
    with pytest.raises(BadData, match="gives 2 loaders"):
        whence.laplace(Classifier(), data, likelihood="classification", progress=False)
    with pytest.raises(BadData, match=r"val_dataloader\(\) of Several failed after .*no such file"):
        whence.laplace(Classifier(), data.parts[0], likelihood="classification", validation=data, progress=False)


def test_the_callback_tracks_fits_and_audits(tmp_path: Path) -> None:
    for package in ("tensorboard", "mlflow", "sqlalchemy"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from whence.integrations.lightning import WhenceCallback

    data, module = Quadrants(), Classifier()
    callback = WhenceCallback(likelihood="classification", folder=tmp_path / "whence", audit=QUICK, track={"every": 50})
    loggers = [
        L.loggers.TensorBoardLogger(tmp_path, name="", version="run"),
        L.loggers.CSVLogger(tmp_path, name="", version="rows"),
        L.loggers.MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/runs.db", artifact_location=tmp_path.as_uri()),
    ]
    trained(module, data, callback, loggers)
    assert [r.step for r in callback.track.records] == [50, 100, 150, 200]
    assert callback.track.records[-1].loss < callback.track.records[0].loss
    assert callback.posterior.tuning is not None and callback.posterior.record.data_size == 200
    assert callback.audit.results.data.test.inputs == 40 and callback.audit.results.quality is not None
    assert sorted(p.name for p in (tmp_path / "whence").iterdir()) == [
        "audit.html", "audit.json", "posterior.safetensors", "track.jsonl",
    ]  # fmt: skip
    again = whence.load(tmp_path / "whence" / "posterior.safetensors", module)
    x = torch.randn(5, 2)
    assert_close(again.predict(x).probs, callback.posterior.predict(x).probs, 1e-6)
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    found = events.Scalars("whence/identified/net.0")
    assert [e.step for e in found] == [50, 100, 150, 200]
    assert found[-1].value == pytest.approx(callback.track.records[-1].layers[0].identified, rel=1e-6)
    assert "whence/audit/nll/bayesian" in events.Tags()["scalars"]
    assert "whence/audit/nll/bayesian" in (tmp_path / "rows" / "metrics.csv").read_text().splitlines()[0]
    client, run = loggers[2].experiment, loggers[2].run_id
    assert [m.step for m in client.get_metric_history(run, "whence/identified/net.0")] == [50, 100, 150, 200]
    assert client.get_run(run).data.tags["whence.verdict"] == callback.audit.results.verdict.tone


def test_the_training_is_the_same_with_and_without_the_callback() -> None:
    from whence.integrations.lightning import WhenceCallback

    states = []
    for callback in (None, WhenceCallback(likelihood="classification", audit=False, track={"every": 3})):
        torch.manual_seed(0)
        module = Classifier()
        trained(module, Quadrants(), callback, epochs=3)
        states.append(module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_module_without_forward_names_the_part() -> None:
    from whence.integrations.lightning import WhenceCallback

    with pytest.raises(BadOption, match="Headless has no forward"):
        trained(Headless(), Quadrants(), WhenceCallback(likelihood="classification"), epochs=1)
    data = Quadrants()
    data.setup("fit")
    callback = WhenceCallback(likelihood="classification", network="net", audit=QUICK, track=False)
    loaders = {"train_dataloaders": data.train_dataloader(), "val_dataloaders": data.val_dataloader()}
    trained(Headless(), None, callback, epochs=2, accumulate_grad_batches=2, fit=loaders)
    assert callback.track is None and callback.audit.results.data.test is None
    assert callback.audit.results.data.validation.inputs == 60
    assert callback.posterior.names() == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(BadOption, match="audit= needs the posterior"):
        WhenceCallback(likelihood="classification", fit=False)


def test_page(tmp_path: Path, monkeypatch: Any) -> None:
    found = run_page("lightning", tmp_path, monkeypatch)
    assert found["callback"].audit.results.data.test.inputs == found["audit"].results.data.test.inputs


OTHER = """
import sys, torch, pytorch_lightning as L
from torch import nn
from whence.integrations.lightning import WhenceCallback
assert isinstance(WhenceCallback(likelihood="regression"), L.Callback) and "lightning.pytorch" not in sys.modules
class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
    def forward(self, x): return self.net(x)
    def training_step(self, batch, index): return (self(batch[0]) - batch[1]).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.05)
x = torch.randn(64, 3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + 0.1), 16)
callback = WhenceCallback(likelihood="regression", audit=False)
quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
L.Trainer(max_epochs=2, accelerator="cpu", callbacks=callback, **quiet).fit(Line(), loader)
assert callback.track.records[-1].step == 8 and callback.posterior.record.data_size == 64
"""


@pytest.mark.slow  # the import alone takes several seconds
def test_the_older_package() -> None:
    """In a process of its own: one of the two packages is enough."""
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", OTHER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
