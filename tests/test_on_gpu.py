"""What only a GPU shows: real graphs beside the plain way, and both beside the CPU. Skipped where there is none."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from tests.curvature.test_graphs import OPTIONS, batches, network
from whence import zoo
from whence.curvature.conv_gram import Autocorrelation
from whence.curvature.kfac import input_gram
from whence.engine.graphs import CapturePolicy
from whence.linalg import dense, gram_kernel, kernels, split
from whence.predictive import linearised
from whence.recording.layer_input import LayerInput
from whence.recording.patches import conv_patches
from whence.training.step import WARM_UP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
COUNT = 30  # batches; enough for a capture to pay


class Replays:
    """How many graphs were launched."""

    def __init__(self) -> None:
        self.count = 0
        self.graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replays]:
    found, plain = Replays(), torch.cuda.CUDAGraph.replay

    def counted(self: torch.cuda.CUDAGraph) -> None:
        found.count += 1
        found.graphs.add(self)
        plain(self)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    # These networks are small, but nothing is left to the clock.
    monkeypatch.setattr(CapturePolicy, "timed", lambda self, function, device: function())
    return found


def fit(device: str, **options: Any) -> whence.Laplace:
    data = [(x.to(device), y.to(device)) for x, y in batches(COUNT)]
    given = {"likelihood": "classification", "progress": False, "generator": torch.Generator().manual_seed(3)}
    return whence.laplace(network().to(device), data, **{**given, **options})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fits_by_graphs_are_those_of_the_plain_way_and_of_the_cpu(options: dict[str, Any], replays: Replays) -> None:
    ours = fit("cuda", **options)
    assert replays.count >= COUNT // 2
    launched = replays.count
    plain = fit("cuda", execution=whence.Execution(cuda_graphs=False), **options)
    assert replays.count == launched
    for a, b in zip(ours.curvature.structures, plain.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            assert_close(value, b.tensors()[key], 1e-10)
    assert ours.record.loss == pytest.approx(plain.record.loss, rel=1e-10)
    if options.get("curvature") != "mc":  # devices draw other labels
        assert_close(ours.covariance().cpu(), fit("cpu", **options).covariance(), 1e-8)


@pytest.mark.parametrize("width", [32, 64])  # of narrow ones a second pass looks for positions that count
def test_sequences_are_replayed_too(width: int, replays: Replays) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, width), torch.nn.TransformerEncoderLayer(width, 4, width, 0.0, batch_first=True),
        torch.nn.LayerNorm(width), torch.nn.Flatten(), torch.nn.Linear(6 * width, 3),
    ).double().cuda()  # fmt: skip
    data = [(torch.randint(7, (4, 6)).cuda(), torch.randint(3, (4,)).cuda()) for _ in range(COUNT)]
    ours = whence.laplace(model, data, likelihood="classification", progress=False)
    assert replays.count >= COUNT // 2
    plain = whence.laplace(
        model, data, likelihood="classification", progress=False, execution=whence.Execution(cuda_graphs=False)
    )
    x = data[0][0]
    assert_close(ours.predict(x).logit_cov, plain.predict(x).logit_cov, 1e-8)


def test_graphs_go_with_the_fit(replays: Replays) -> None:
    gc.collect()
    gc.disable()  # nothing is left to be found by chance
    try:
        posterior = fit("cuda")
        assert replays.count
        assert not replays.graphs
        posterior.predict(batches(1)[0][0].cuda())
    finally:
        gc.enable()


@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac", "full"])
def test_predictions_by_graphs(structure: str, replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x = fit("cuda", structure=structure), torch.cat([x for x, _ in batches(COUNT)]).cuda()
    monkeypatch.setattr(linearised, "piece_size", lambda *_: 4)
    launched = replays.count
    ours = posterior.predict(x, link="probit")
    assert replays.count > launched
    cpu = fit("cpu", structure=structure).predict(x.cpu(), link="probit")
    assert_close(ours.logit_cov.cpu(), cpu.logit_cov, 1e-8)
    assert_close(ours.probs.cpu(), cpu.probs, 1e-8)


def test_a_bad_batch_of_a_replayed_fit_is_named(replays: Replays) -> None:
    data = [(x.cuda(), y.cuda()) for x, y in batches(COUNT)]
    data[20][1][0] = 7
    with pytest.raises(whence.errors.WhenceError, match="batch 20"):
        whence.laplace(network().cuda(), data, likelihood="classification", progress=False)
    assert replays.count


@pytest.mark.parametrize("amp", [False, True])
def test_captured_training_is_training(amp: bool, replays: Replays) -> None:
    x, y = torch.cat([x for x, _ in batches(64)]).float(), torch.cat([y for _, y in batches(64)])
    found = {}
    for capture in (False, True):
        settings = zoo.Settings(epochs=3, batch_size=16, lr=0.05, capture=capture, amp=amp)
        found[capture] = zoo.train(network().float(), (x, y), settings, device="cuda", progress=False)
        assert bool(replays.count) == capture
    assert replays.count >= 3 * (len(y) // 16) - WARM_UP
    for one, other in zip(found[True].network.parameters(), found[False].network.parameters(), strict=True):
        assert_close(one, other, 1e-2 if amp else 1e-3)  # convolutions are in TF32
    assert found[True].history[-1].loss == pytest.approx(found[False].history[-1].loss, rel=1e-2 if amp else 1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"estimator": "flipout"}, {"kl_schedule": 2.0, "l1": 1e-4}, {"family": "matrix_normal"}], ids=str
)
def test_captured_variational_training_is_training(options: dict[str, Any], replays: Replays) -> None:
    """The same random numbers, so the same draws: the runs differ by rounding alone."""
    x, y = torch.cat([x for x, _ in batches(64)]).float(), torch.cat([y for _, y in batches(64)])
    found = {}
    for capture in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("error", whence.errors.Notice)
            found[capture] = whence.variational(
                network().float(), (x, y), likelihood="classification", epochs=3, batch_size=16, lr=0.01, seed=0,
                device="cuda", capture=capture, progress=False, **options,
            )  # fmt: skip
        assert bool(replays.count) == capture
    assert replays.count >= 3 * (len(y) // 16) - WARM_UP
    for name, mean in found[True].mean().items():
        assert_close(mean, found[False].mean()[name], 1e-2)
        assert_close(found[True].variance()[name], found[False].variance()[name], 1e-2)
    mine, its = found[True].history[-1], found[False].history[-1]
    assert (mine.nll, mine.kl) == (pytest.approx(its.nll, rel=1e-2), pytest.approx(its.kl, rel=1e-2))


def test_a_variational_step_that_waits_for_the_device_runs_eagerly(replays: Replays) -> None:
    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network().float()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * (2.0 if float(x.sum()) > 1e9 else 1.0)

    x, y = torch.cat([x for x, _ in batches(64)]).float(), torch.cat([y for _, y in batches(64)])
    options: dict[str, Any] = {
        "likelihood": "classification", "epochs": 2, "batch_size": 16, "seed": 0, "device": "cuda", "progress": False,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Waiting()
    with pytest.warns(whence.errors.Notice, match="runs eagerly"):
        tried = whence.variational(model, (x, y), **options)
    assert not replays.count
    plain = whence.variational(model, (x, y), capture=False, **options)
    for name, mean in tried.mean().items():
        assert_close(mean, plain.mean()[name], 1e-2)


@pytest.mark.parametrize(("rows", "width"), [(5120, 1024), (70_000, 512), (3000, 2304), (40_000, 2304)])
def test_wide_sums_by_tensor_cores(rows: int, width: int) -> None:
    x = torch.randn(rows, width, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).relu()
    assert split.gram_pays(x, rows, width)
    wanted = x.double().mT @ x.double()
    assert_close(dense.gram(x, coarse=True).double(), wanted, 2e-6)
    assert_close(dense.gram(x).double(), wanted, 1e-6)
    found = input_gram(LayerInput(x[None, :, None], True, True), coarse=True)[0]
    assert_close(found[:-1, :-1].double(), wanted, 2e-6)
    assert_close(found[:-1, -1].double(), x.double().sum(0), 2e-6)
    assert float(found[-1, -1]) == rows


@pytest.mark.parametrize("shape", [(64, 256, 14, 14), (40, 128, 9, 20)], ids=str)
def test_autocorrelations_by_tensor_cores(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).relu()
    size = 9 * shape[1] + 1
    wanted = input_gram(LayerInput(conv_patches(x.double(), (3, 3), 1, 1, 1, 1), True, True))
    for way in (True, False):
        assert split.shifted_pays(x, shape[1]) is way
        found = x.new_zeros(1, size, size)
        Autocorrelation(x, True).add_gram(found)
        assert_close(found.double(), wanted, 2e-6 if way else 1e-6)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions in full single precision


@pytest.mark.parametrize("shape", [(1, 5000, 385), (7, 197, 384), (7, 384, 197), (3, 64, 77)], ids=str)
@pytest.mark.parametrize("dim", [1, 2])
def test_numbers_are_split_by_the_kernel_as_by_torch(
    shape: tuple[int, ...], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    for some in (x, x[:, ::2], x.mT.contiguous().mT):
        with monkeypatch.context() as patch:
            assert split._by_kernel(some)
            found = split._along(some, dim, "hmh"), split._halves(some[0], 5200)
            patch.setattr(split, "_by_kernel", lambda _: False)
            wanted = split._along(some, dim, "hmh"), split._halves(some[0], 5200)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("width", [64, 769, 1024])
def test_half_precision_is_summed_in_single(width: int) -> None:
    x = torch.randn(1, 4096, 1, width, device="cuda").bfloat16()
    found = input_gram(LayerInput(x, True, True))[0]
    assert found.dtype == torch.float32
    wide = torch.cat([x.double().squeeze(), torch.ones(4096, 1, device="cuda", dtype=torch.float64)], 1)
    assert_close(found.double(), wide.mT @ wide, 1e-4)


@pytest.mark.parametrize("count", [3, 10, 16, 20, 32])
def test_gram_matrices_of_long_rows_by_the_kernel(count: int) -> None:
    gen = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(3, count, 100_003, device="cuda", generator=gen)
    weights = torch.rand(100_003, device="cuda", generator=gen)
    assert gram_kernel.applies(rows)
    wide = rows.double()
    assert_close(gram_kernel.weighted_gram(rows, weights).double(), (wide * weights) @ wide.mT, 1e-6)
    others = torch.rand(100_003, device="cuda", generator=gen)
    for centred, v in itertools.product((False, True), (None, others)):
        squares = (wide - wide.mean(1, keepdim=True) if centred else wide).square()
        own, alone = gram_kernel.two_diagonals(rows, weights, v, centred)
        assert_close(own.double(), squares @ weights.double(), 1e-6)
        assert_close(alone.double(), squares.sum(-1) if v is None else squares @ v.double(), 1e-6)
    index = torch.randperm(100_003, device="cuda", generator=gen)[:96_000].int().reshape(-1, 64)
    index[7, 5:] = -1
    chunks = gram_kernel.Chunks(index, torch.rand(index.shape, device="cuda", generator=gen))
    taken = (wide[..., index.clamp(min=0).long()] * (index >= 0)).transpose(1, 2)
    found = gram_kernel.chunk_grams(rows, chunks)
    assert_close(found[0].double(), (taken * chunks.weights.unsqueeze(1)) @ taken.mT, 1e-6)
    assert_close(found[1].double(), taken @ taken.mT, 1e-6)


def test_answers_of_a_convolutional_network_are_those_of_the_cpu() -> None:
    """Kernel, chunks of eigenvalues and centred outputs together: predictions, shares, units and tuning."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(192, 10),
    )  # fmt: skip
    x, y = torch.randn(64, 3, 10, 10), torch.randint(10, (64,))
    precise = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        found = {}
        for device in ("cpu", "cuda"):
            data = x.to(device), y.to(device)
            posterior = whence.laplace(
                copy.deepcopy(model).to(device), data, likelihood="classification", curvature="ggn", progress=False
            )
            where = posterior.where(data[0][:20])
            units = where.units("2")
            found[device] = [
                posterior.predict(data[0][:20]).logit_cov.cpu(),
                torch.tensor([[row.variance_share, row.prior_share, row.explained] for row in where.layers]),
                torch.stack([torch.as_tensor(units[c]).cpu().float() for c in ("variance_share", "explained")]),
            ]
            assert device == "cpu" or any(kernels._trusted.values())
            tuned = posterior.tune(data, progress=False)
            assert tuned.tuning is not None
            found[device].append(torch.tensor([tuned.tuning.score]))
    finally:
        torch.backends.cudnn.allow_tf32 = precise
    for ours, wanted in zip(found["cuda"], found["cpu"], strict=True):
        assert_close(ours, wanted, 2e-3)
