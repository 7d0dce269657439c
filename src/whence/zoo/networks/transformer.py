"""A small transformer encoder for images (cut into patches) or for sequences of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whence.errors import BadData, BadOption
from whence.zoo.networks.sequential import Shape, as_tuple, check_dropout, image_shape, scaled


class Transformer(nn.Module):
    """Embedding plus learned positions, pre-norm encoder layers, mean over positions, a linear head.

    Tokens: ``padding`` is the index of the padding token, which is masked in attention and in the mean.
    """

    def __init__(self, embed: nn.Module, positions: int, units: int, heads: int, depth: int, dropout: float,
                 outputs: int, padding: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self.embed, self.padding = embed, padding
        self.positions = nn.Parameter(0.02 * torch.randn(positions, units))
        layer = nn.TransformerEncoderLayer(
            units, heads, 4 * units, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(units), enable_nested_tensor=False)
        for module in self.encoder.modules():  # the layers are copies: give each its own start
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            elif isinstance(module, nn.MultiheadAttention):
                nn.init.xavier_uniform_(module.in_proj_weight)
        self.head = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        empty = None if self.padding is None else x == self.padding  # [N, T]
        tokens = self.embed(x)
        if tokens.dim() == 4:  # a convolution over patches
            tokens = tokens.flatten(2).mT
        if tokens.shape[1] > len(self.positions):
            raise BadData(f"a sequence of {tokens.shape[1]} is longer than the {len(self.positions)} positions.")
        encoded = self.encoder(tokens + self.positions[: tokens.shape[1]], src_key_padding_mask=empty)
        if empty is None:
            return self.head(encoded.mean(1))
        counts = (~empty).unsqueeze(-1).to(encoded.dtype)
        return self.head((encoded * counts).sum(1) / counts.sum(1).clamp(min=1))


def transformer(
    shape: Shape = (1, 28, 28),
    outputs: int = 10,
    *,
    patch: int = 4,
    units: int = 64,
    heads: int = 4,
    depth: int = 2,
    dropout: float = 0.0,
    width: float = 1.0,
    vocabulary: int | None = None,
    padding: int | None = None,
) -> Transformer:
    """A transformer for images split into ``patch`` × ``patch`` patches; with ``vocabulary``, for ``shape`` tokens."""
    units = scaled(units, width)
    if heads < 1 or depth < 1:
        raise BadOption(f"heads={heads} and depth={depth}: both must be 1 or more.")
    if units % heads:
        raise BadOption(f"{units} units cannot be divided between {heads} heads; use a multiple of {heads}.")
    check_dropout(dropout)
    if vocabulary is not None:
        length = as_tuple(shape)[0]
        embed: nn.Module = nn.Embedding(vocabulary, units)
        return Transformer(embed, length, units, heads, depth, dropout, outputs, padding)
    if padding is not None:
        raise BadOption("padding applies only to tokens; pass vocabulary= too.")
    channels, height, breadth = image_shape(shape, "transformer", patch)
    if height % patch or breadth % patch:
        raise BadOption(f"patches of {patch} × {patch} do not tile images of {height} × {breadth}.")
    embed = nn.Conv2d(channels, units, patch, stride=patch)
    return Transformer(embed, (height // patch) * (breadth // patch), units, heads, depth, dropout, outputs)
