"""Short cuts give what the long way gives: autocorrelation for patches, Λ itself for columns, gathered checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence import checks
from whence.checks import Watch, check_finite
from whence.curvature import affine, capture, rules
from whence.curvature.affine import Affine, gram_of_positions
from whence.curvature.autocorrelation import Windows
from whence.curvature.jacobian import Recording
from whence.curvature.patches import conv_patches
from whence.errors import BadData
from whence.linalg.dense import add_upper_gram, gram, mirrored

T = TypeVar("T")
SHAPES = [(3, 8, 5, 7), (2, 9, 3, 3), (2, 4, 2, 2), (1, 5, 1, 4), (3, 2, 2, 9), (2, 3, 1, 1)]


def summed(pieces: list[Windows]) -> Tensor:
    """Σ a aᵀ over pieces."""
    size = 9 * pieces[0].x.shape[1] + pieces[0].bias
    total = pieces[0].x.new_zeros(1, size, size)
    for piece in pieces:
        piece.add_gram(total)
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_autocorrelation_is_the_gram_matrix_of_patches(shape: tuple[int, ...], bias: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    patches = Affine(conv_patches(x, (3, 3), 1, 1, 1, 1), True, bias)
    windows = Windows(x, bias)
    assert_close(summed([windows]), mirrored(patches.gram()), 1e-12)
    assert windows.rows == patches.rows


def test_pieces_of_windows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.curvature import autocorrelation

    monkeypatch.setattr(autocorrelation, "ROWS", 100)
    windows = Windows(torch.randn(7, 3, 5, 5, dtype=torch.float64), True)
    pieces = list(windows.pieces())
    assert len(pieces) == 4
    assert_close(summed(pieces), summed([windows]), 1e-12)
    assert sum(p.rows for p in pieces) == windows.rows


@pytest.mark.parametrize(("rows", "width"), [(5, 400), (70, 801), (40, 20), (9, 385)])
def test_gram_matrices_by_their_upper_triangles(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.linalg import dense

    monkeypatch.setattr(dense, "LONG", 32)
    x = torch.randn(rows, width, dtype=torch.float64)
    assert_close(gram(x), x.mT @ x, 1e-12)
    frame = torch.full((width + 3, width + 3), 7.0, dtype=torch.float64)
    add_upper_gram(x, frame[1:-2, 1:-2])
    assert_close(mirrored(frame[1:-2, 1:-2]), x.mT @ x + 7, 1e-12)
    assert bool((frame[0] == 7).all())
    assert bool((frame[:, -1] == 7).all())


def conv_net(padding: int | str = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=padding, stride=stride, groups=groups)
    return nn.Sequential(conv, nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize("options", [{}, {"padding": "same"}, {"padding": 0}, {"stride": 2}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_fits_with_and_without_it_agree(options: dict, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(6, 8, 9, 9, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    model = conv_net(**options).double()
    model(x)
    used = 0

    def count(self: Windows, out: Tensor, plain=Windows.add_gram) -> None:
        nonlocal used
        used += 1
        plain(self, out)

    monkeypatch.setattr(Windows, "add_gram", count)
    fast = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    assert used == (2 if options in ({}, {"padding": "same"}) else 1)
    monkeypatch.setattr(rules, "pays", lambda *_: False)
    slow = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    for ours, theirs in zip(fast.curvature.structures, slow.curvature.structures, strict=True):
        if structure == "kron":
            assert_close(ours.inputs, theirs.inputs, 1e-12)
    assert_close(fast.predict(x).logit_cov, slow.predict(x).logit_cov, 1e-10)


LIKELIHOODS = {
    "classification": (whence.Categorical(), torch.tensor([0, 3, 1, -100, 2, 4])),
    "binary": (whence.Bernoulli(), torch.rand(6, 5, dtype=torch.float64).round()),
    "regression": (whence.Gaussian(0.3), torch.randn(6, 5, dtype=torch.float64)),
    "poisson": (whence.Poisson(), torch.arange(30, dtype=torch.float64).reshape(6, 5)),
    "custom": (whence.Custom(lambda f, y: (f - y).cosh().log().sum(-1)), torch.randn(6, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("kind", sorted(LIKELIHOODS))
@pytest.mark.parametrize("structure", ["kron", "diag", "block"])
@pytest.mark.parametrize("layers", ["last", ["2.weight"], ["2.bias"]], ids=str)
def test_the_last_layer_needs_no_columns(kind: str, structure: str, layers, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, y = LIKELIHOODS[kind]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    x = torch.randn(6, 4, dtype=torch.float64)

    def fit() -> Tensor:
        options = {"likelihood": likelihood, "structure": structure, "layers": layers, "curvature": "ggn"}
        return whence.laplace(model, (x, y), **options).covariance()

    fast = fit()
    assert direct_is_used(model, x, layers)
    monkeypatch.setattr(Recording, "direct", property(lambda _: False))
    assert_close(fast, fit(), 1e-10)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("prior", [2.0, whence.Prior(weight=3.0, bias=0.5)], ids=["one", "two"])
def test_the_last_layer_is_predicted_without_columns(structure: str, prior, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.predictive import dispatch, linearised

    if structure == "ekfac" and not isinstance(prior, float):
        return
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2, 4])
    options = {"likelihood": "classification", "structure": structure, "layers": "last", "prior_precision": prior}
    posterior = whence.laplace(model, (x, y), **options)
    fast = posterior.predict(x).logit_cov
    monkeypatch.setattr(dispatch, "KEEP_COVARIANCE", 0)
    lean = posterior.predict(x, link="probit")
    monkeypatch.setattr(linearised, "direct", lambda *_: None)
    lean_too = posterior.predict(x, link="probit")
    monkeypatch.setattr(dispatch, "KEEP_COVARIANCE", 2**30)
    slow = posterior.predict(x, link="probit")
    assert_close(fast, slow.logit_cov, 1e-12)
    for other in (lean, lean_too):
        assert_close(other.probs, slow.probs, 1e-12)
        assert_close(other.logit_cov, slow.logit_cov, 1e-12)


def direct_is_used(model: nn.Module, x: Tensor, layers) -> bool:
    posterior = whence.laplace(model, (x, torch.zeros(6, dtype=torch.long)), likelihood="classification", layers=layers)
    return posterior.plan.record(x, len(x)).direct


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.Linear(2, 1), nn.Flatten()),
    ],
)
def test_other_outputs_are_not_taken_for_the_last_layer(model: nn.Module) -> None:
    assert not direct_is_used(model, torch.randn(6, 4), None)


def gathered(watch: Watch, check: Callable[..., T], *args: object) -> T:
    """Run a check while the watch is open, and leave what it saw unsettled."""
    token = checks._open.set(watch)
    try:
        return check(*args)
    finally:
        checks._open.reset(token)


class TestWatch:
    """Gathered checks say what immediate ones say, and name the batch."""

    def test_the_first_failure_is_named(self) -> None:
        good, bad = torch.zeros(3), torch.tensor([1.0, torch.nan, torch.inf])
        watch = Watch(gather_on_cpu=True)
        for index in range(8):
            gathered(watch, check_finite, bad if index in (4, 6) else good, "the inputs", index)
        assert len(watch.seen) == 8
        with pytest.raises(BadData, match="the inputs of batch 4 hold 2 values"):
            watch.settle()

    @pytest.mark.parametrize("shape", [(5, 3), (7,), (2, 1, 9), (1, 11)], ids=str)
    def test_many_values_are_looked_at_in_parts(self, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "TOGETHER", 4)
        values = torch.zeros(shape)
        check_finite(values, "the inputs", 0)
        values.view(-1)[[0, 5]] = torch.tensor([torch.nan, -torch.inf])
        with pytest.raises(BadData, match=f"hold 2 values that are NaN or infinite .of {values.numel()}"):
            check_finite(values, "the inputs", 0)
        with pytest.raises(BadData, match="hold 2 values"), Watch(gather_on_cpu=True):
            check_finite(values, "the inputs", 0)

    def test_a_single_number_is_looked_at(self) -> None:
        with pytest.raises(BadData, match="hold 1 values"):
            check_finite(torch.tensor(torch.inf), "the inputs", 0)

    def test_it_looks_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "EVERY", 3)
        with Watch(gather_on_cpu=True):
            check_finite(torch.tensor([torch.nan]), "the inputs", 0)
            check_finite(torch.zeros(1), "the inputs", 1)
            with pytest.raises(BadData, match="batch 0"):
                check_finite(torch.zeros(1), "the inputs", 2)

    def test_it_comes_before_what_it_led_to(self) -> None:
        with pytest.raises(BadData, match="batch 0"):
            self.fail_after(RuntimeError("a consequence"))

    def test_an_interruption_is_left_alone(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.fail_after(KeyboardInterrupt())

    def fail_after(self, error: BaseException) -> None:
        with Watch(gather_on_cpu=True):
            check_finite(torch.tensor([torch.nan]), "the inputs", 0)
            raise error

    @pytest.mark.parametrize(
        ("likelihood", "bad", "message"),
        [
            (whence.Categorical(), torch.tensor([0, 1, 7]), "batch 2: class label 7 is out of range"),
            (whence.Categorical(), torch.tensor([0, -1, 1]), "batch 2: class label -1 is out of range"),
            (whence.Bernoulli(), torch.tensor([[0.0, 1], [1, 2], [0, 0]]), "batch 2: binary targets .* but 2 was met"),
            (whence.Poisson(), torch.tensor([[0.0, 1], [1, 0.5], [0, 0]]), "batch 2: Poisson targets .* but 0.5 was"),
        ],
    )
    def test_labels(self, likelihood: whence.Likelihood, bad: Tensor, message: str) -> None:
        outputs = torch.randn(3, 2)
        with pytest.raises(BadData, match=message):
            likelihood.check(outputs, bad, 2)
        watch = Watch(gather_on_cpu=True)
        checked = gathered(watch, likelihood.check, outputs, bad, 2)
        likelihood.nll(outputs, checked)  # bears wrong labels until the watch settles
        with pytest.raises(BadData, match=message):
            watch.settle()

    def test_a_fit_that_gathers_names_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from whence.curvature import sweep

        monkeypatch.setattr(sweep, "Watch", lambda: Watch(gather_on_cpu=True))
        model = nn.Linear(2, 3)
        batches = [(torch.randn(4, 2), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
        whole = whence.laplace(model, batches, likelihood="classification")
        monkeypatch.undo()
        assert torch.equal(whole.covariance(), whence.laplace(model, batches, likelihood="classification").covariance())
        monkeypatch.setattr(sweep, "Watch", lambda: Watch(gather_on_cpu=True))
        batches[3] = (batches[3][0], torch.tensor([0, 1, 3, 0]))
        with pytest.raises(BadData, match="batch 3: class label 3 is out of range"):
            whence.laplace(model, batches, likelihood="classification")


@pytest.mark.parametrize("structure", ["diag", "ekfac"])
@pytest.mark.parametrize("groups", [1, 2])
def test_squares_of_shared_weights_by_every_way(structure: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.curvature import squares

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=groups), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(36, 3)
    ).double()
    x, y = torch.randn(5, 4, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1])
    used = []
    for name in ("_by_pairs", "_one_by_one", "summed_rows"):
        plain = getattr(squares, name)
        monkeypatch.setattr(squares, name, lambda *a, n=name, f=plain: (used.append(n), f(*a))[1])

    def fit() -> list[Tensor]:
        posterior = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
        return [s.values for s in posterior.curvature.structures]

    found = {}
    for way, pay, large in (("_by_pairs", 1e9, 2**40), ("_one_by_one", 0, 0), ("summed_rows", 0, 2**40)):
        used.clear()
        monkeypatch.setattr(squares, "PAIRS_PAY", pay)
        monkeypatch.setattr(squares, "LARGE", large)
        found[way] = fit()
        assert set(used) == {way}
    for way in ("_by_pairs", "_one_by_one"):
        for ours, wanted in zip(found[way], found["summed_rows"], strict=True):
            assert_close(ours, wanted, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gram_matrices_of_half_precision_are_summed_in_single(dtype: torch.dtype) -> None:
    g = (30 * torch.randn(2, 1, 16, 8, 256, generator=torch.Generator().manual_seed(0))).to(dtype).mT
    assert g.stride(-1) != 1
    found, wanted = gram_of_positions(g), gram_of_positions(g.double())
    assert found.dtype == torch.float32
    assert_close(found.double(), wanted, 1e-5)


def test_a_backward_pass_that_vmap_refuses_is_batched_in_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("vmap: no batching rule")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    plain = whence.laplace(model, (x, y), likelihood="classification")
    monkeypatch.setattr(capture, "_vmapped", refuse)
    found = whence.laplace(model, (x, y), likelihood="classification")
    assert (found.network.vmapped_backward, found.network.batched_backward) == (False, True)
    assert_close(found.covariance(), plain.covariance(), 1e-12)


@pytest.mark.parametrize("how", ["every other", "repeated", "transposed", "plain"])
def test_what_products_would_copy_is_copied_before_anything_is_added(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(30, 1000, dtype=torch.float64)
    flat = {
        "every other": whole[:, ::2],
        "repeated": whole[:1, :500].expand(30, 500),
        "transposed": whole.mT.contiguous().mT,
        "plain": whole,
    }[how]
    given: list[bool] = []

    def seen(x: Tensor, out: Tensor) -> None:
        given.append(x.is_contiguous() or x.mT.is_contiguous())
        add_upper_gram(x, out)

    monkeypatch.setattr(affine, "add_upper_gram", seen)
    size = flat.shape[1] + 1
    out = flat.new_zeros(1, size, size)
    Affine(flat[None, :, None], True, True).add_gram(out)
    wide = torch.cat([flat, torch.ones(30, 1, dtype=torch.float64)], 1)
    assert_close(mirrored(out)[0], wide.mT @ wide, 1e-12)
    assert given == [True]
