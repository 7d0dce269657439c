"""Dropout masks as draws: closed forms, masks that belong to draws, every kind of site, nothing changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import BadData, BadOption, NotDefined, UnsupportedLayer
from whence.io import load
from whence.likelihoods import Categorical, Gaussian
from whence.posteriors.dropout.masking import SATURATION
from whence.posteriors.dropout.posterior import dropout

NOISE = Gaussian(noise=0.5)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Functional(nn.Module):
    """Dropout in the forward pass, once as it should be and once always on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.25, training=self.training)
        return self.second(F.dropout(torch.tanh(self.first(x))))


class Batched(nn.Module):
    """Convolution, batch normalisation and dropout of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Dropout2d(0.3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool = True, both: bool = False) -> None:
        super().__init__()
        self.rnn = kind(3, 5, 3, dropout=0.4, batch_first=batch_first, bidirectional=both)
        self.head, self.batch_first = nn.Linear(10 if both else 5, 2), batch_first

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x if self.batch_first else x.transpose(0, 1))
        return self.head(out[:, -1] if self.batch_first else out[-1])


class Encoder(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=batch_first)
        self.encoder, self.batch_first = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), batch_first
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(out.mean(1 if self.batch_first else 0))


class Fused(nn.Module):
    """The fused attention function, with dropout of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
        return self.head(out.transpose(1, 2).flatten(2).mean(1))


class Connect(nn.Module):
    """Weights are dropped: no dimension counts examples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.weight, 0.5, self.training))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 3)
    )


CASES = {
    "mlp": (mlp, (4,)),
    "functional": (Functional, (4,)),
    "channels": (Batched, (1, 8, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), (6, 3)),
    "gru": (lambda: Recurrent(nn.GRU, batch_first=False), (6, 3)),
    "rnn": (lambda: Recurrent(nn.RNN, both=True), (6, 3)),
    "encoder": (Encoder, (5, 8)),
    "encoder, sequence first": (lambda: Encoder(batch_first=False), (5, 8)),
    "fused attention": (Fused, (5, 6)),
    "connect": (Connect, (4,)),
}


def case(name: str, size: int = 7) -> tuple[nn.Module, Tensor]:
    make, shape = CASES[name]
    return make().double(), torch.randn(size, *shape, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("per_input", [False, True])
def test_a_draw_is_a_function(name: str, per_input: bool) -> None:
    """The same for every call, in pieces, in any order, and beside other draws or alone."""
    model, x = case(name)
    draws = dropout(model, likelihood=NOISE, per_input=per_input).draw(4, generator())
    whole = draws.outputs(x)
    assert whole.shape[:2] == (4, len(x))
    assert len({tuple(o.flatten().tolist()) for o in whole}) == 4
    order = torch.randperm(len(x))
    torch.testing.assert_close(draws.outputs(x), whole)
    torch.testing.assert_close(torch.cat([draws.outputs(x[:3]), draws.outputs(x[3:])], 1), whole)
    torch.testing.assert_close(draws.outputs(x[order]), whole[:, order])
    torch.testing.assert_close(torch.stack([f(x) for f in draws]), whole)
    torch.testing.assert_close(draws[1:3].outputs(x), whole[1:3])


@pytest.mark.parametrize("name", CASES)
def test_masks_are_shared_or_not(name: str) -> None:
    """Equal inputs with a small difference elsewhere tell the masks apart."""
    model, x = case(name, 1)
    same = x.repeat(6, *[1] * (x.dim() - 1))
    near = same + 1e-9 * torch.randn_like(same)
    shared = dropout(model, likelihood=NOISE).draw(5, generator()).outputs(near)
    torch.testing.assert_close(shared, shared[:, :1].expand_as(shared), atol=1e-6, rtol=1e-6)
    if name != "connect":
        own = dropout(model, likelihood=NOISE, per_input=True).draw(5, generator()).outputs(near)
        assert float(own.detach().var(1).mean()) > 1e-8  # against 1e-18 of the inputs


def test_closed_form_of_a_linear_network() -> None:
    """y = w · (x ∘ m) / (1 − p) + b: mean w · x + b, variance p / (1 − p) Σ (w x)²."""
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 2)).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    for per_input in (False, True):
        posterior = dropout(model, likelihood=NOISE, per_input=per_input)
        prediction = posterior.predict(x, num_samples=10_000, generator=generator())
        weight = model[1].weight.detach()
        variance = 0.3 / 0.7 * torch.einsum("ni,ki->nk", x.square(), weight.square())
        centre = model[1](x).detach()
        assert float(((prediction.mean - centre) / (variance / 10_000).sqrt()).abs().max()) < 4.5
        torch.testing.assert_close(prediction.epistemic, variance, rtol=0.09, atol=0)
        torch.testing.assert_close(prediction.variance, prediction.epistemic + 0.25)
    samples = dropout(model, likelihood=NOISE).draw(10_000, generator()).outputs(x)[..., 0]
    weighted = x * model[1].weight.detach()[0]
    expected = 0.3 / 0.7 * weighted @ weighted.T  # the masks are shared, so inputs are correlated
    torch.testing.assert_close(torch.cov(samples.T), expected, rtol=0.1, atol=0.02)
    own = dropout(model, likelihood=NOISE, per_input=True).draw(10_000, generator()).outputs(x)[..., 0]
    off = torch.cov(own.T) - torch.diag(torch.cov(own.T).diagonal())
    assert float(off.abs().max()) < 0.03 * float(expected.diagonal().max())


def test_rate_given_stands_for_all() -> None:
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 1)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    prediction = dropout(model, likelihood=NOISE, p=0.5).predict(x, num_samples=20_000, generator=generator())
    torch.testing.assert_close(
        prediction.epistemic, (x * model[1].weight.detach()).square().sum(1, True), rtol=0.06, atol=0
    )


def test_alpha_dropout_is_torchs() -> None:
    """Dropped units get the saturation value, and mean and variance of standard normal inputs are kept."""
    model = nn.Sequential(nn.AlphaDropout(0.4), nn.Linear(50, 50, bias=False)).double()
    nn.init.eye_(model[1].weight)
    x = torch.randn(400, 50, dtype=torch.float64)
    out = dropout(model, likelihood=NOISE, per_input=True).draw(1, generator())[0](x)
    a = 1 / ((SATURATION**2 * 0.4 + 1) * 0.6) ** 0.5
    lost = torch.isclose(out, torch.full_like(out, -SATURATION * a * 0.6))
    torch.testing.assert_close(out[~lost], (a * x + SATURATION * a * 0.4)[~lost])
    assert float(lost.double().mean()) == pytest.approx(0.4, abs=0.02)
    assert float(out.mean()) == pytest.approx(0, abs=0.05) and float(out.var()) == pytest.approx(1, abs=0.05)
    theirs = F.alpha_dropout(x, 0.4, training=True)
    torch.testing.assert_close(theirs.unique().min(), out.unique().min(), atol=2.0, rtol=0)


def test_whole_channels_are_dropped() -> None:
    model = nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(4 * 9, 4 * 9, bias=False)).double()
    nn.init.eye_(model[2].weight)
    out = dropout(model, likelihood=NOISE).draw(50, generator()).outputs(torch.ones(3, 4, 3, 3, dtype=torch.float64))
    channels = out.unflatten(-1, (4, 9))
    torch.testing.assert_close(channels, channels[..., :1].expand_as(channels))
    assert set(channels.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(out, out[:, :1].expand_as(out))
    assert float((channels > 0).double().mean()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", CASES)
def test_no_site_is_the_network_in_evaluation_mode(name: str) -> None:
    """Which also says that attention and recurrent layers written out compute what torch computes."""
    model, x = case(name)
    if name in ("functional", "fused attention"):
        return
    posterior = dropout(model, likelihood=NOISE)
    out = posterior.draw_sites(2, set(), generator()).outputs(x)
    torch.testing.assert_close(out, model.eval()(x).detach().expand_as(out))


def test_sites_are_named_and_can_be_drawn_alone() -> None:
    model, x = case("mlp")
    posterior = dropout(model, likelihood=NOISE, probe=x)
    assert posterior.sites() == ["2", "4"] and posterior.output_shape == (3,)
    assert posterior.rates() == {"2": 0.5, "4": 0.2}
    assert dropout(Functional(), likelihood=NOISE).sites(torch.randn(2, 4)) == ["F.dropout", "F.dropout#2"]
    encoder = dropout(Encoder(), likelihood=NOISE).sites(torch.randn(2, 5, 8))
    assert encoder[:4] == [f"encoder.layers.0.{n}" for n in ("self_attn", "dropout1", "dropout", "dropout2")]
    assert dropout(Recurrent(nn.LSTM), likelihood=NOISE).sites(torch.randn(2, 6, 3)) == ["rnn", "rnn#2"]
    last = posterior.draw_sites(6, {"4"}, generator()).outputs(x)
    assert not torch.allclose(last[0], model.eval()(x).detach())
    both = posterior.draw_sites(6, {"2", "4"}, generator()).outputs(x)
    torch.testing.assert_close(both, posterior.draw(6, generator()).outputs(x))
    # with the first site closed the output is linear in the second hidden layer, with the same map for all inputs
    wide = torch.randn(60, 4, dtype=torch.float64)
    hidden = model[:4].eval()(wide).detach()
    masked = posterior.draw_sites(6, {"4"}, generator()).outputs(wide) - model[5].bias.detach()
    maps = torch.linalg.lstsq(hidden.expand(6, -1, -1), masked).solution  # [S, 16, 3]
    kept = maps / model[5].weight.detach().T
    torch.testing.assert_close(kept, kept[..., :1].expand_as(kept), atol=1e-6, rtol=1e-6)
    assert set(kept[..., 0].flatten().mul(0.8).round(decimals=4).abs().tolist()) == {0.0, 1.0}
    with pytest.raises(BadOption, match="unknown dropout site"):
        posterior.draw_sites(2, {"3"})


def test_classification_splits_entropy() -> None:
    x = torch.randn(6, 4)
    draws = dropout(mlp(), likelihood="classification").draw(30, generator())
    prediction, samples = draws.predict(x), draws.outputs(x).softmax(-1)
    torch.testing.assert_close(prediction.probs, samples.mean(0))
    torch.testing.assert_close(prediction.aleatoric, -(samples * samples.log()).sum(-1).mean(0))
    assert bool((prediction.epistemic > 0).all())


def test_batch_normalisation_stays_in_evaluation_mode_and_nothing_changes() -> None:
    model, x = case("channels")
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    posterior = dropout(model, likelihood=NOISE)
    snapshot = copy.deepcopy(posterior.network.module.state_dict())
    posterior.predict(x, num_samples=5, generator=generator())
    posterior.as_module(2, generator())(x)
    assert model.training and all(m.training for m in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in posterior.network.module.modules())
    for now, then in ((model.state_dict(), before), (posterior.network.module.state_dict(), snapshot)):
        assert all(torch.equal(now[k], then[k]) for k in then)


def test_same_generator_same_bits_and_gradients_in_x() -> None:
    model, x = case("functional")
    posterior = dropout(model, likelihood=NOISE)
    one, two = (posterior.predict(x, num_samples=9, generator=generator(3)) for _ in range(2))
    assert torch.equal(one.mean, two.mean)
    x.requires_grad_()
    posterior.predict(x, num_samples=9, generator=generator(3)).epistemic.sum().backward()
    assert x.grad is not None and float(x.grad.abs().sum()) > 0


def test_served_and_saved(tmp_path) -> None:
    x = torch.randn(5, 4)
    for model in (mlp(), Functional()):
        posterior = dropout(model, likelihood=Categorical(), p=0.4)
        served = posterior.as_module(8, generator(1))(x)
        torch.testing.assert_close(served.mean, posterior.predict(x, num_samples=8, generator=generator(1)).probs)
        posterior.save(tmp_path / "d.safetensors")
        again = load(tmp_path / "d.safetensors", model)
        assert again.p == 0.4
        torch.testing.assert_close(again.draw(3, generator()).outputs(x), posterior.draw(3, generator()).outputs(x))
        moved = posterior.to(torch.float64).draw(3, generator()).outputs(x)
        torch.testing.assert_close(moved.float(), posterior.draw(3, generator()).outputs(x))


def test_served_modules_can_be_scripted_and_exported() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    model = nn.Sequential(body, nn.AlphaDropout(0.2), nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    x = torch.randn(4, 1, 8, 8)
    posterior = dropout(model, likelihood="classification", probe=x)
    served = posterior.as_module(6, generator())
    expected = posterior.predict(x, num_samples=6, generator=generator())
    torch.testing.assert_close(served(x).mean, expected.probs)
    torch.testing.assert_close(served(x).epistemic, expected.epistemic)
    torch.testing.assert_close(torch.jit.script(served)(x).mean, expected.probs)
    torch.testing.assert_close(torch.export.export(served, (x,)).module()(x).mean, expected.probs)
    torch.testing.assert_close(served(x[:1]).mean, expected.probs[:1])


def test_in_place_and_reused_modules() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.5, inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.layer(self.drop(self.layer(x))))

    x = torch.randn(3, 4)
    posterior = dropout(Reused(), likelihood=NOISE)
    assert posterior.sites(x) == ["drop", "drop#2"]
    out = posterior.draw(200, generator()).outputs(x)
    assert float((out == 0).double().mean()) == pytest.approx(0.5, abs=0.06)


def test_refusals() -> None:
    with pytest.raises(BadData, match=r"has no dropout.*Supported: nn.Dropout"):
        dropout(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), likelihood="classification")

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    with pytest.raises(BadData, match="has no dropout"):
        dropout(Plain(), likelihood="classification", probe=torch.randn(2, 4))
    with pytest.raises(BadData, match="has no dropout"):
        dropout(Plain(), likelihood="classification").predict(torch.randn(2, 4))
    with pytest.raises(BadOption, match=r"Gaussian\(noise"):
        dropout(mlp(), likelihood="regression")  # type: ignore[arg-type]
    for p in (0.0, 1.0, -1):
        with pytest.raises(BadOption, match="not a dropout rate"):
            dropout(mlp(), likelihood="classification", p=p)
    with pytest.raises(NotDefined, match="sites"):
        dropout(mlp(), likelihood="classification").sites()

    class Packed(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 6), batch_first=True)
            return self.head(self.rnn(packed)[1][0][-1])

    with pytest.raises(UnsupportedLayer, match="packed"):
        dropout(Packed(nn.LSTM), likelihood=NOISE).predict(torch.randn(2, 6, 3))
