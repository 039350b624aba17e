"""Decoder-only transformers in the shape of GPT-2 (Radford et al., 2019)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from paceline.jobs.inputs import TokenInput
from paceline.specs.ranges import RangeChecked, from_1_to

Layers = Annotated[int, from_1_to(1000)]
Width = Annotated[int, from_1_to(2**17)]


@dataclass(frozen=True, kw_only=True)
class Gpt(RangeChecked):
    """A GPT of any size, tied embeddings, no dropout; as it stands the small GPT-2."""

    layers: Layers = 12
    """Blocks of attention and perceptron."""
    heads: Width = 12
    """Heads of each attention; they share the width, so more are narrower."""
    width: Width = 768
    """Numbers a token; parameters grow with its square."""
    context: Annotated[int, from_1_to(2**22)] = 1024
    """The longest sequence, in tokens; attention grows with its square."""
    vocabulary: Annotated[int, from_1_to(2**24)] = 50257
    """How many tokens there are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(
                f"width={self.width} is not a multiple of heads={self.heads}; each head takes an equal part of it"
            )

    @property
    def default_input(self) -> TokenInput:
        return TokenInput(shape=(self.context,), classes=self.vocabulary)

    def __call__(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        assert shape[0] <= self.context and classes == self.vocabulary, "the input was checked"  # noqa: PT018
        return Decoder(self)


@dataclass(frozen=True, kw_only=True)
class Gpt2Small(Gpt):
    """The small GPT-2 (Radford et al., 2019)."""


@dataclass(frozen=True, kw_only=True)
class Gpt2Medium(Gpt):
    """The medium GPT-2."""

    layers: Layers = 24
    heads: Width = 16
    width: Width = 1024


@dataclass(frozen=True, kw_only=True)
class Gpt2Large(Gpt):
    """The large GPT-2."""

    layers: Layers = 36
    heads: Width = 20
    width: Width = 1280


@dataclass(frozen=True, kw_only=True)
class Gpt2Xl(Gpt):
    """The largest GPT-2, XL."""

    layers: Layers = 48
    heads: Width = 25
    width: Width = 1600


class Decoder(nn.Module):
    """Embeddings, blocks, a norm; the scores are products with the same embeddings."""

    def __init__(self, size: Gpt) -> None:
        super().__init__()
        weight = torch.empty(size.vocabulary, size.width)
        self.tokens = nn.Embedding(size.vocabulary, size.width, _weight=weight)
        self.positions = nn.Parameter(torch.empty(size.context, size.width))
        self.blocks = nn.Sequential(*(DecoderBlock(size.width, size.heads) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
        if not weight.is_meta:
            self._start(size.layers)

    def _start(self, layers: int) -> None:
        """Small weights, and smaller ones where the blocks add to the sum that goes through all of them."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02 / (2 * layers if "out" in name else 1) ** 0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        hidden = self.norm(self.blocks(hidden))
        return linear(hidden, self.tokens.weight)


class DecoderBlock(nn.Module):
    """Attention to the tokens before, then a perceptron, each on top of what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron_in = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.perceptron_out = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention_out(self._attend(self.attention_in(self.attention_norm(hidden))))
        grown = self.activation(self.perceptron_in(self.perceptron_norm(hidden)))
        result: Tensor = hidden + self.perceptron_out(grown)
        return result

    def _attend(self, asked: Tensor) -> Tensor:
        split = (*asked.shape[:2], self.heads, -1)
        query, key, value = (part.view(split).transpose(1, 2) for part in asked.chunk(3, dim=2))
        heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        return heads.transpose(1, 2).flatten(2)
