"""Test networks with embeddings, attention and recurrence.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import torch
from torch import Tensor, nn

from .cases import Call, Case, classify, normal, register

N = 4


@register("embedding")
def embedding() -> Case:
    """Embedding and a mean over tokens; some tokens repeat inside an example."""
    model = nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), Call(lambda h: h.mean(dim=1)), nn.Linear(4, 3))
    return classify(model, torch.randint(6, (N, 5)), N)


@register("embedding_padding")
def embedding_padding() -> Case:
    """padding_idx: a row that is read (and not zero) but whose gradient is zero."""
    model = nn.Sequential(
        nn.Embedding(6, 4, padding_idx=0),
        nn.Linear(4, 4),
        nn.Tanh(),
        Call(lambda h: h.mean(dim=1)),
        nn.Linear(4, 3),
    )
    tokens = torch.randint(6, (N, 4))
    tokens[:, -1] = 0
    return classify(model, tokens, N)


class TiedTokens(nn.Module):
    """An embedding whose weight is also the head's."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """head(mean over tokens of tanh(inner(embedding)))."""
        return self.head(torch.tanh(self.inner(self.embedding(tokens))).mean(dim=1))


@register("tied_embedding")
def tied_embedding() -> Case:
    """Embedding and head share one parameter."""
    return classify(TiedTokens(5, 3), torch.randint(5, (N, 4)), N, 5)


class SelfAttention(nn.Module):
    """Self-attention with a residual, a mean over tokens, and a head; inputs are [N, T, D] either way."""

    def __init__(self, batch_first: bool, need_weights: bool) -> None:
        super().__init__()
        self.batch_first, self.need_weights = batch_first, need_weights
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(mean_t (x + attention(x, x, x)))."""
        h = x if self.batch_first else x.transpose(0, 1)
        h = h + self.attention(h, h, h, need_weights=self.need_weights)[0]
        return self.head(torch.tanh(h).mean(dim=1 if self.batch_first else 0))


@register("self_attention")
def self_attention() -> Case:
    """Example dimension first, attention weights asked for."""
    return classify(SelfAttention(batch_first=True, need_weights=True), normal(N, 3, 4), N)


@register("self_attention_sequence_first")
def self_attention_sequence_first() -> Case:
    """Example dimension second inside, fused attention."""
    return classify(SelfAttention(batch_first=False, need_weights=False), normal(N, 3, 4), N)


class CrossAttention(nn.Module):
    """Attention with different widths of queries, keys and values: separate projection weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """head(mean_t attention(query, key, value))."""
        return self.head(torch.tanh(self.attention(query, key, value)[0]).mean(dim=1))


@register("cross_attention")
def cross_attention() -> Case:
    """kdim and vdim differ from the embedding width."""
    return classify(CrossAttention(), (normal(N, 2, 4), normal(N, 3, 3), normal(N, 3, 5)), N)


def encoder(norm_first: bool) -> Case:
    """One encoder layer, a mean over tokens, and a head."""
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=5, dropout=0.1, batch_first=True, norm_first=norm_first)
    return classify(nn.Sequential(layer, Call(lambda h: h.mean(dim=1)), nn.Linear(4, 3)), normal(N, 3, 4), N)


@register("encoder_layer")
def encoder_layer() -> Case:
    """Normalisation after each sublayer."""
    return encoder(norm_first=False)


@register("encoder_layer_norm_first")
def encoder_layer_norm_first() -> Case:
    """Normalisation before each sublayer."""
    return encoder(norm_first=True)


class PaddedEncoder(nn.Module):
    """An encoder stack with a padding mask of its own for each example."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=3, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """The head of the mean over tokens that are not padding."""
        h = self.layers(x, src_key_padding_mask=padding)
        kept = (~padding).to(x.dtype).unsqueeze(-1)
        return self.head((h * kept).sum(1) / kept.sum(1))


@register("encoder_padding")
def encoder_padding() -> Case:
    """Two encoder layers, the second with fewer tokens to look at in some examples."""
    padding = torch.zeros(N, 3, dtype=torch.bool)
    padding[0, 2] = padding[2, 1:] = True
    return classify(PaddedEncoder(), (normal(N, 3, 4), padding), N)


class Decoder(nn.Module):
    """One decoder layer with a causal mask; the last token is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, dim_feedforward=5, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        """head(layer(target, memory)[last])."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device, target.dtype)
        return self.head(self.layer(target, memory, tgt_mask=mask)[:, -1])


@register("decoder_layer")
def decoder_layer() -> Case:
    """Self-attention, cross-attention and a feedforward block."""
    return classify(Decoder(), (normal(N, 2, 4), normal(N, 3, 4)), N)


class Recurrent(nn.Module):
    """A recurrent layer and a head on the last time step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(layer(x)[last])."""
        return self.head(self.layer(x)[0][:, -1])


@register("lstm")
def lstm() -> Case:
    """LSTM."""
    return classify(Recurrent(nn.LSTM(3, 3, batch_first=True), 3), normal(N, 4, 3), N)


@register("gru")
def gru() -> Case:
    """Bidirectional GRU."""
    return classify(Recurrent(nn.GRU(3, 3, batch_first=True, bidirectional=True), 6), normal(N, 4, 3), N)


class Patches(nn.Module):
    """A very small vision transformer: patch convolution, class token, positions, one block, temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
        self.position = nn.Parameter(torch.randn(1, 5, 4))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.patch = nn.Conv2d(1, 4, 2, stride=2)
        self.block = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1, activation="gelu", batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, image: Tensor) -> Tensor:
        """head(norm(block(class token and patches + positions))[class token]) / temperature."""
        tokens = self.patch(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        h = self.block(tokens + self.position)
        return self.head(self.norm(h[:, 0])) / self.temperature


@register("vit")
def vit() -> Case:
    """Bare parameters added to every example."""
    return classify(Patches(), normal(N, 1, 4, 4), N)
