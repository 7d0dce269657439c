"""Fully connected test networks, normalisation layers, and heads for every likelihood.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import torch
from torch import Tensor, nn

from .cases import Call, Case, classify, normal, register

N = 5


@register("mlp")
def mlp() -> Case:
    """Two hidden tanh layers."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return classify(model, normal(N, 4), N)


@register("mlp_relu")
def mlp_relu() -> Case:
    """Two hidden ReLU layers."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return classify(model, normal(N, 4), N)


@register("linear")
def linear() -> Case:
    """A single Linear."""
    return classify(nn.Sequential(nn.Linear(4, 3)), normal(N, 4), N)


@register("mlp_deep_linear")
def mlp_deep_linear() -> Case:
    """Linear layers only, squared loss: every Kronecker block is exact."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    return Case(model, normal(N, 4), normal(N, 2), "regression")


@register("mlp_no_bias")
def mlp_no_bias() -> Case:
    """No biases."""
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    return classify(model, normal(N, 4), N)


@register("mlp_inplace_relu")
def mlp_inplace_relu() -> Case:
    """The activation overwrites its input."""
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)
    )
    return classify(model, normal(N, 4), N)


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """x + body(x)."""
        return x + self.body(x)


@register("mlp_residual")
def mlp_residual() -> Case:
    """Two residual blocks."""
    blocks = [Residual(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))) for _ in range(2)]
    return classify(nn.Sequential(*blocks, nn.Linear(4, 3)), normal(N, 4), N)


@register("batchnorm1d")
def batchnorm1d() -> Case:
    """BatchNorm1d with running statistics."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    return classify(model, normal(N, 4), N)


@register("batchnorm2d")
def batchnorm2d() -> Case:
    """BatchNorm2d between convolutions."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3),
        nn.Tanh(), nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip
    return classify(model, normal(N, 2, 4, 4), N)


@register("layernorm")
def layernorm() -> Case:
    """LayerNorm on vectors."""
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))
    return classify(model, normal(N, 4), N)


@register("layernorm_sequence")
def layernorm_sequence() -> Case:
    """LayerNorm on [N, T, D] with a two-dimensional normalised shape, then one without bias."""
    model = nn.Sequential(nn.LayerNorm((3, 4)), nn.Linear(4, 4), nn.LayerNorm(4, bias=False), nn.Flatten(),
                          nn.Linear(12, 3))  # fmt: skip
    return classify(model, normal(N, 3, 4), N)


@register("groupnorm")
def groupnorm() -> Case:
    """GroupNorm after a convolution."""
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    return classify(model, normal(N, 2, 3, 3), N)


@register("instancenorm")
def instancenorm() -> Case:
    """InstanceNorm1d and InstanceNorm2d with affine parameters."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.Tanh(), nn.Flatten(2),
        nn.InstanceNorm1d(3, affine=True), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip
    return classify(model, normal(N, 2, 3, 3), N)


@register("rmsnorm")
def rmsnorm() -> Case:
    """RMSNorm on [N, T, D]."""
    model = nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
    return classify(model, normal(N, 2, 4), N)


@register("prelu")
def prelu() -> Case:
    """One shared slope, then one slope per channel."""
    model = nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 3))
    return classify(model, normal(N, 4), N)


def small_head(n_outputs: int) -> nn.Module:
    """A tanh network on four inputs."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, n_outputs))


@register("binary_head")
def binary_head() -> Case:
    """One logit."""
    return Case(small_head(1), normal(N, 4), torch.randint(2, (N, 1)).double(), "binary")


@register("multilabel_head")
def multilabel_head() -> Case:
    """Three logits."""
    return Case(small_head(3), normal(N, 4), torch.randint(2, (N, 3)).double(), "binary")


@register("regression_1")
def regression_1() -> Case:
    """One output."""
    return Case(small_head(1), normal(N, 4), normal(N, 1), "regression")


@register("regression_2")
def regression_2() -> Case:
    """Two outputs."""
    return Case(small_head(2), normal(N, 4), normal(N, 2), "regression")


@register("heteroscedastic")
def heteroscedastic() -> Case:
    """Two means and two log variances."""
    return Case(small_head(4), normal(N, 4), normal(N, 2), "heteroscedastic")


@register("poisson")
def poisson() -> Case:
    """Two log rates."""
    return Case(small_head(2), normal(N, 4), torch.randint(5, (N, 2)).double(), "poisson")


@register("sequence_linear")
def sequence_linear() -> Case:
    """Linear on [N, T, D], then a mean over positions."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), Call(lambda h: h.mean(dim=1)))
    return classify(model, normal(N, 4, 3), N)


@register("sequence_linear_grid")
def sequence_linear_grid() -> Case:
    """Linear on [N, T, T', D] with squared loss and nothing but linear maps: reduce is exact."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), Call(lambda h: h.mean(dim=(1, 2))))
    return Case(model, normal(N, 2, 3, 3), normal(N, 2), "regression")
