"""Small modules of which random networks are made."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Sum(nn.Module):
    """What comes in, plus what a branch makes of it."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, inputs: Tensor) -> Tensor:
        """Add."""
        result: Tensor = inputs + self.branch(inputs)
        return result


class Join(nn.Module):
    """What several branches make of the same, their channels side by side."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """Concatenate."""
        return torch.cat([branch(inputs) for branch in self.branches], dim=1)


class Tokens(nn.Module):
    """Tokens and their places to vectors."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up and add."""
        vectors: Tensor = self.tokens(tokens) + self.places[: tokens.shape[1]]
        return vectors


class Tagger(nn.Module):
    """Tokens through recurrent layers to scores, of each token or of the last one."""

    def __init__(self, tokens: nn.Embedding, inner: nn.RNNBase, classes: int, whole: bool) -> None:
        super().__init__()
        self.tokens, self.inner, self.whole = tokens, inner, whole
        self.head = nn.Linear(inner.hidden_size * (2 if inner.bidirectional else 1), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up, go through, score."""
        vectors = self.tokens(tokens)
        states = (
            self.inner(vectors)[0]
            if self.inner.batch_first
            else self.inner(vectors.transpose(0, 1))[0].transpose(0, 1)
        )
        scores: Tensor = self.head(states if self.whole else states[:, -1])
        return scores


class Inverted(nn.Module):
    """A wide convolution of each channel alone, then linear layers over the channels of each place."""

    def __init__(self, channels: int, kernel: int, wider: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.inner = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, wider * channels),
            nn.GELU(),
            nn.Linear(wider * channels, channels),
        )
        self.first = wider != 2

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum lies in memory as its first part does."""
        branch: Tensor = self.inner(self.spatial(inputs).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return branch + inputs if self.first else inputs + branch


class SelfAttention(nn.Module):
    """Every place looks at the others, or at those before it."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """One round of attention."""
        samples, length, width = vectors.shape
        parts = self.inward(vectors).chunk(3, dim=-1)
        query, key, value = (
            part.view(samples, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout, is_causal=self.causal
        )
        result: Tensor = self.outward(mixed.transpose(1, 2).reshape(samples, length, width))
        return result


def transformer_block(width: int, heads: int, causal: bool, wider: int, dropout: float) -> nn.Module:
    """Attention and two linear layers, each behind a norm and beside a shortcut, with or without dropout."""
    drop = (nn.Dropout(dropout),) if dropout else ()
    attention = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads, causal, dropout), *drop)
    into, out = nn.Linear(width, wider * width), nn.Linear(wider * width, width)
    linear = nn.Sequential(nn.LayerNorm(width), into, nn.GELU(), *drop, out, *drop)
    return nn.Sequential(Sum(attention), Sum(linear))
