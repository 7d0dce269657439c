"""Test networks with unusual wiring: shared, frozen, reparametrised and bare parameters, several inputs.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from .cases import Case, classify, normal, register

N = 5


class CalledTwice(nn.Module):
    """The same Linear twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(tanh(shared(tanh(shared(x)))))."""
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


@register("called_twice")
def called_twice() -> Case:
    """A module called twice."""
    return classify(CalledTwice(), normal(N, 4), N)


@register("tied_layers")
def tied_layers() -> Case:
    """Two Linear modules that hold the same weight and different biases."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return classify(model, normal(N, 4), N)


class Scaled(nn.Module):
    """A network with a bare scale per hidden unit and a bare temperature (a parameter without dimensions)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.first = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(scale tanh(first(x))) / temperature."""
        return self.head(self.scale * torch.tanh(self.first(x))) / self.temperature


@register("bare_parameters")
def bare_parameters() -> Case:
    """Bare nn.Parameter objects beside modules."""
    return classify(Scaled(), normal(N, 4), N)


@register("frozen")
def frozen() -> Case:
    """The first layer and one bias do not require gradients."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    for p in (model[0].weight, model[0].bias, model[2].bias):
        p.requires_grad_(False)
    return classify(model, normal(N, 4), N)


class LowRank(nn.Module):
    """A frozen Linear plus a low-rank update B A."""

    def __init__(self, n_in: int, n_out: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(n_in, n_out).requires_grad_(False)
        self.lora_a = nn.Linear(n_in, rank, bias=False)
        self.lora_b = nn.Linear(rank, n_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """base(x) + 2 B A x."""
        return self.base(x) + 2.0 * self.lora_b(self.lora_a(x))


@register("lora")
def lora() -> Case:
    """Low-rank adapters on frozen layers; nothing else is trained."""
    model = nn.Sequential(LowRank(4, 5, 2), nn.Tanh(), LowRank(5, 3, 2))
    return classify(model, normal(N, 4), N)


@register("weight_norm")
def weight_norm_mlp() -> Case:
    """A Linear whose weight is computed from a direction and a length per row.

    No Hessian: torch's second derivative of weight_norm with dim=0 is wrong.
    """
    model = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
    return classify(model, normal(N, 4), N)


@register("weight_norm_whole")
def weight_norm_whole() -> Case:
    """One length for the whole weight; this path can be differentiated twice."""
    model = nn.Sequential(weight_norm(nn.Linear(4, 5), dim=None), nn.Tanh(), nn.Linear(5, 3))
    return classify(model, normal(N, 4), N)


class Functional(nn.Module):
    """F.linear on bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))
        self.w2 = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        """w2 tanh(w1 x + b1)."""
        return functional.linear(torch.tanh(functional.linear(x, self.w1, self.b1)), self.w2)


@register("functional_weights")
def functional_weights() -> Case:
    """Weights without modules."""
    return classify(Functional(), normal(N, 4), N)


class Transposed(nn.Module):
    """F.linear with a transposed parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(tanh(w^T x))."""
        return self.head(torch.tanh(functional.linear(x, self.w.t())))


@register("functional_transposed")
def functional_transposed() -> Case:
    """A weight used through its transpose."""
    return classify(Transposed(), normal(N, 4), N)


class Addmm(nn.Module):
    """torch.addmm on tokens with the batch folded in and weights stored as [D, O], as GPT-2's layers do it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(mean_t tanh(x_t W + b))."""
        h = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return self.head(torch.tanh(h).reshape(*x.shape[:-1], -1).mean(dim=1))


@register("addmm")
def addmm() -> Case:
    """Weights that multiply from the right."""
    return classify(Addmm(), normal(N, 3, 4), N)


class AutoEncoder(nn.Module):
    """A Linear's weight used by its module and again, transposed, by F.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 3)
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """W^T tanh(W x + b) + c."""
        return functional.linear(torch.tanh(self.encode(x)), self.encode.weight.t(), self.bias)


@register("tied_autoencoder")
def tied_autoencoder() -> Case:
    """Encoder and decoder share a weight."""
    return Case(AutoEncoder(), normal(N, 4), normal(N, 4), "regression")


class FlattenedBatch(nn.Module):
    """Positions folded into the batch dimension around a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, D] -> [N T, D] -> Linear -> [N, T, O] -> mean over T -> head."""
        n, t, d = x.shape
        h = torch.tanh(self.inner(x.reshape(n * t, d))).reshape(n, t, -1)
        return self.head(h.mean(dim=1))


@register("flattened_batch")
def flattened_batch() -> Case:
    """The module sees N * T rows."""
    return classify(FlattenedBatch(), normal(N, 3, 3), N)


class TwoInputs(nn.Module):
    """Two encoders and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.left_encoder, self.right_encoder = nn.Linear(4, 5), nn.Linear(3, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """head(tanh(left) * tanh(right))."""
        return self.head(torch.tanh(self.left_encoder(left)) * torch.tanh(self.right_encoder(right)))


@register("multi_input")
def multi_input() -> Case:
    """Inputs are a tuple."""
    return classify(TwoInputs(), (normal(N, 4), normal(N, 3)), N)


@register("mapping_input")
def mapping_input() -> Case:
    """Inputs are a mapping."""
    return classify(TwoInputs(), {"right": normal(N, 3), "left": normal(N, 4)}, N)


class UnusedParameter(nn.Module):
    """A network with a layer that its forward pass never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.head = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(tanh(first(x)))."""
        return self.head(torch.tanh(self.first(x)))


@register("unused_parameter")
def unused_parameter() -> Case:
    """Some Jacobian columns are zero."""
    return classify(UnusedParameter(), normal(N, 4), N)


class Spectral(nn.Module):
    """Frequencies of a sequence, each scaled by a real weight and mixed by a complex one (two real numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3) + 0.5)
        self.mix = nn.Parameter(torch.randn(2, 3, 3, 2))  # channels in, channels out, frequencies, real and imaginary
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(tanh(inverse transform of mix · (scale · transform of x)))."""
        frequencies = torch.fft.rfft(x) * self.scale  # [N, channels, frequencies]
        mixed = torch.einsum("nif,iof->nof", frequencies, torch.view_as_complex(self.mix))
        return self.head(torch.tanh(torch.fft.irfft(mixed, n=4)).flatten(1))


@register("spectral")
def spectral() -> Case:
    """A Fourier layer: real parameters with complex results."""
    return classify(Spectral(), normal(N, 2, 4), N)


class Mixture(nn.Module):
    """Experts that are called with the examples sent to them; the last one with none."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(tanh(expert(x)))."""
        hidden, sent = torch.zeros_like(x), (x[:, 0] > 0).long()
        for number, expert in enumerate(self.experts):
            hidden[sent == number] = expert(x[sent == number])
        return self.head(torch.tanh(hidden))


@register("mixture")
def mixture() -> Case:
    """Calls with some of the examples, and with none."""
    return classify(Mixture(), normal(N, 4), N)
