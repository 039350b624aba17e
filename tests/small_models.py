"""Small models to trace."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import AdamW, Sgd


class Block(nn.Module):
    """Attention and two layers, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        parts = self.qkv(self.norm(tokens)).split(width, 2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return tokens + self.feed(tokens)


class Transformer(nn.Module):
    """A small GPT whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        scores: Tensor = self.head(self.blocks(self.words(tokens) + self.places(places)))
        return scores


class Branches(nn.Sequential):
    """Side by side, their channels joined; their gradients are parts of one tensor."""

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.cat([branch(pictures) for branch in self], 1)


def cnn() -> nn.Module:
    """A bit of everything: strided, dilated and transposed convolutions, pools, norms, a linear end."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2, bias=False),
        nn.ConvTranspose2d(8, 6, 2, stride=2),
        nn.LocalResponseNorm(3),
        Branches(
            nn.Sequential(nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            nn.MaxPool2d(3, stride=1, padding=1),
            nn.AvgPool2d(3, stride=1, padding=1),
            nn.Conv2d(6, 2, 1),
        ),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(162, 10),
    )


def images(model: Callable[[], nn.Module], *, side: int = 12, optimizer: Sgd | None = None) -> Traceable:
    """A model on small images in ten classes."""

    def batch(samples: int) -> Batch:
        return torch.rand(samples, 3, side, side), torch.zeros(samples, dtype=torch.int64)

    return Traceable(
        name="small", model=model, loss=functional.cross_entropy, batch=batch, optimizer=optimizer or Sgd()
    )


def words() -> Traceable:
    """The transformer on sequences of 8 words."""

    def batch(samples: int) -> Batch:
        return torch.zeros(samples, 8, dtype=torch.int64), torch.zeros(samples, 8, dtype=torch.int64)

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Traceable(name="words", model=Transformer, loss=loss, batch=batch, optimizer=AdamW())
