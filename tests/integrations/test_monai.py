"""MONAI: a 3-D segmentation of made-up volumes, from dictionaries to windows of a large volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whence
from tests.comparison import assert_close
from tests.integrations.pages import run_page
from whence.errors import BadData, BadOption, NotDefined
from whence.integrations.monai import Batches, window_predictor

monai = pytest.importorskip("monai", reason="monai is not installed")

SIDE = 12


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any]:
    """A trained U-Net, and the loader of dictionaries that it was trained on."""
    from monai.data import CacheDataset, DataLoader
    from monai.data.synthetic import create_test_image_3d
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet
    from monai.transforms import Compose, EnsureChannelFirstd, EnsureTyped, ScaleIntensityd

    torch.manual_seed(0)
    volumes = []
    for i in range(8):
        image, label = create_test_image_3d(
            SIDE, SIDE, SIDE, num_objs=2, rad_max=4, rad_min=2, num_seg_classes=2, noise_max=0.3,
            random_state=np.random.RandomState(i),
        )  # fmt: skip
        volumes.append({"image": image.astype("float32"), "label": label.astype("float32"), "id": f"volume {i}"})
    keys = ["image", "label"]
    steps = [EnsureChannelFirstd(keys, channel_dim="no_channel"), ScaleIntensityd("image"), EnsureTyped(keys)]
    loader = DataLoader(CacheDataset(volumes, Compose(steps), progress=False), batch_size=4)
    network = UNet(3, 1, 3, (4, 8), (2,), num_res_units=1, act="relu", norm="batch")
    optimiser, loss = torch.optim.Adam(network.parameters(), 2e-2), DiceCELoss(to_onehot_y=True, softmax=True)
    for _ in range(20):
        for batch in loader:
            optimiser.zero_grad()
            loss(network(batch["image"]), batch["label"]).backward()
            optimiser.step()
    return network.eval(), loader


@pytest.fixture(scope="module")
def posterior(made: Any) -> whence.Laplace:
    network, loader = made
    return whence.laplace(network, Batches(loader), likelihood="classification", progress=False)


def test_a_posterior_from_dictionaries(made: Any, posterior: whence.Laplace) -> None:
    network, loader = made
    batches = list(loader)
    assert type(batches[0]["image"]) is not Tensor  # with metadata
    x = torch.cat([batch["image"].as_tensor() for batch in batches])
    y = torch.cat([batch["label"].as_tensor() for batch in batches])[:, 0].long()
    plain = whence.laplace(network, (x, y), likelihood="classification", progress=False)
    assert posterior.record.loss == pytest.approx(plain.record.loss, rel=1e-5)
    loss = torch.nn.functional.cross_entropy(network(x), y, reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss), rel=1e-4)
    assert posterior.record.data_size == 8 and posterior.record.accuracy > 0.9
    inputs, targets = next(iter(Batches(loader)))
    assert type(inputs) is Tensor and type(targets) is Tensor and targets.shape == (4, SIDE, SIDE, SIDE)


def test_an_audit(made: Any, posterior: whence.Laplace, tmp_path: Path) -> None:
    _, loader = made
    audit = whence.audit(
        posterior, Batches(loader), test=Batches(loader), ood=Batches(loader, label=None), classes=["none", "a", "b"],
        quick=True, progress=False, sections=["quality", "layers", "deferral"],
    )  # fmt: skip
    results = audit.results
    assert results.data.test.inputs == 8 and results.quality.metrics[0].bayesian is not None
    assert {row.kind for row in results.layers} >= {"Conv3d", "ConvTranspose3d", "BatchNorm3d"}
    audit.html(tmp_path / "audit.html")


def test_windows_of_a_large_volume(posterior: whence.Laplace) -> None:
    from monai.inferers import sliding_window_inference

    torch.manual_seed(0)
    volume = torch.rand(1, 1, SIDE, SIDE, 2 * SIDE)
    predict = window_predictor(posterior, ["probs", "entropy", "epistemic"])
    found = sliding_window_inference(volume, (SIDE,) * 3, 1, predict, overlap=0.0)
    assert found["probs"].shape == (1, 3, SIDE, SIDE, 2 * SIDE)
    assert found["entropy"].shape == found["epistemic"].shape == (1, 1, SIDE, SIDE, 2 * SIDE)
    second = posterior.predict(volume[..., SIDE:])
    assert_close(found["entropy"][..., SIDE:], second.entropy[:, None], 1e-5)
    assert_close(found["probs"][..., SIDE:], second.probs, 1e-5)
    with pytest.raises(NotDefined, match="no part 'variance'"):
        window_predictor(posterior, ["variance"])(volume[..., :SIDE])
    with pytest.raises(BadOption, match="is one name"):
        window_predictor(posterior, "probs")


def test_labels_and_keys() -> None:
    one_hot = torch.nn.functional.one_hot(torch.arange(27).reshape(1, 3, 3, 3) % 3, 3).movedim(-1, 1)
    image = torch.rand(1, 1, 3, 3, 3)
    (pair,) = Batches([{"t1": image, "t2": image, "seg": one_hot}], ["t1", "t2"], "seg")
    assert len(pair[0]) == 2 and torch.equal(pair[1], torch.arange(27).reshape(1, 3, 3, 3) % 3)
    regions = {"image": image, "label": torch.ones(1, 2, 3, 3, 3)}
    (pair,) = Batches([regions], classes=False)
    assert torch.equal(pair[1], regions["label"])
    with pytest.raises(BadData, match="neither one channel of classes nor one-hot"):
        list(Batches([regions]))
    with pytest.raises(BadData, match="'image' is missing; the keys are 't1', 'seg'"):
        list(Batches([{"t1": image, "seg": one_hot}]))
    with pytest.raises(BadData, match="batch 0 is a list"):
        list(Batches([[image, image]]))
    with pytest.raises(BadData, match="one-shot"):
        Batches(iter([regions]))


def test_page(tmp_path: Path, monkeypatch: Any) -> None:
    found = run_page("monai", tmp_path, monkeypatch)
    assert found["maps"]["epistemic"].shape == (1, 1, 16, 16, 32)
