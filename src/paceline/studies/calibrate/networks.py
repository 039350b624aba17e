"""Random networks by which a device is measured: many shapes, none of them a model that ships."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Adam, AdamW, Sgd
from paceline.studies.calibrate.images import MOST_ELEMENTS, Shortcut, draw_images, log_uniform, nice

LEAST_WORK, MOST_WORK = 1e6, 4e9
"""Floating-point operations of a layer's forward: from next to nothing to about 50 ms of a core."""

Drawn = tuple[int, Callable[[], nn.Module], Callable[[int], Batch]]


def draw_network(seed: int, work: float = MOST_WORK) -> tuple[Traceable, int]:
    """The network of a seed, and samples; no layer's forward takes more than about ``work`` operations."""
    random = Random(seed)  # noqa: S311
    samples = log_uniform(random, 2, 128) if random.random() < 0.95 else 1
    least = LEAST_WORK if random.random() < 0.4 else work / 16
    work = log_uniform(random, least, work)
    draw = random.choice((*(_images,) * 8, _dense, _tokens, _tokens, *(_recurrent,) * 2))
    samples, model, batch = draw(random, samples, work)
    optimizer: Sgd | Adam | AdamW = random.choice((Sgd(), Sgd(), Sgd(momentum=0.0), Adam(), AdamW()))
    subject = Traceable(
        name=f"network-{seed}", model=model, loss=_cross_entropy, batch=batch, optimizer=optimizer
    )
    return subject, samples


def _images(random: Random, samples: int, work: float) -> Drawn:
    classes = log_uniform(random, 2, 1000)
    model, shape = draw_images(random, samples, work, classes)
    return samples, model, partial(_image_batch, shape, classes)


def _dense(random: Random, samples: int, work: float) -> Drawn:
    most = (work / 2 / samples) ** 0.5
    sizes = [
        nice(random, 8, max(16, min(8192, most * random.choice((1, 1, 4)))))
        for _ in range(random.randint(2, 5))
    ]
    norm = random.choice((None, None, nn.LayerNorm, nn.BatchNorm1d if samples > 1 else nn.LayerNorm))
    activation = random.choice((nn.ReLU, nn.ReLU, nn.Tanh, nn.GELU))

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for ins, outs in pairwise(sizes):
            layers += [nn.Linear(ins, outs), *([norm(outs)] if norm else ()), activation()]
        return nn.Sequential(*layers[:-1])

    return samples, model, partial(_image_batch, (sizes[0],), sizes[-1])


def _tokens(random: Random, samples: int, work: float) -> Drawn:
    heads, length = random.choice((1, 2, 4, 6, 8)), log_uniform(random, 8, 512)
    width = heads * max(8, round(log_uniform(random, 32, 768) / heads / 8) * 8)
    blocks, causal, wider = random.randint(1, 3), random.random() < 0.7, random.choice((2, 4, 4))
    samples = max(1, min(samples, int(work / (8 * width * (width + length) * length))))
    room = min(work / (2 * samples * length * width), MOST_ELEMENTS / (samples * length), 32_000)
    vocabulary, bias = log_uniform(random, 32, max(64, room)), random.random() < 0.5
    dropout = random.choice((0.0, 0.1))

    def model() -> nn.Module:
        inner = (transformer_block(width, heads, causal, wider, dropout) for _ in range(blocks))
        head = nn.Linear(width, vocabulary, bias=bias)
        return nn.Sequential(TokenEmbedding(vocabulary, length, width), *inner, nn.LayerNorm(width), head)

    return samples, model, partial(_token_batch, length, vocabulary)


def _recurrent(random: Random, samples: int, work: float) -> Drawn:
    kind = random.choice((nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
    length, hidden = log_uniform(random, 6, 128), 8 * log_uniform(random, 2, 64)
    width = 8 * log_uniform(random, 1, 64)
    layers, both_ways = random.choice((1, 1, 2, 3)), random.random() < 0.2
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    samples = max(1, min(samples, int(work / (2 * gates * length * hidden * (hidden + width)))))
    vocabulary = log_uniform(random, 32, 1000)
    first, whole = random.random() < 0.7, random.random() < 0.3

    def model() -> nn.Module:
        inner = kind(width, hidden, layers, bidirectional=both_ways, batch_first=first)
        return Tagger(nn.Embedding(vocabulary, width), inner, vocabulary, whole)

    return samples, model, partial(_token_batch, length, vocabulary, last=not whole)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _image_batch(shape: tuple[int, ...], classes: int, samples: int) -> Batch:
    return torch.randn(samples, *shape), torch.randint(classes, (samples,))


def _token_batch(length: int, vocabulary: int, samples: int, last: bool = False) -> Batch:
    tokens = torch.randint(vocabulary, (samples, length))
    return tokens, torch.randint(vocabulary, (samples,) if last else (samples, length))


class TokenEmbedding(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return vectors


class Tagger(nn.Module):
    """Tokens through recurrent layers to scores, of each token or of the last one."""

    def __init__(self, tokens: nn.Embedding, inner: nn.RNNBase, classes: int, whole: bool) -> None:
        super().__init__()
        self.tokens, self.inner, self.whole = tokens, inner, whole
        self.head = nn.Linear(inner.hidden_size * (2 if inner.bidirectional else 1), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.tokens(tokens)
        if self.inner.batch_first:
            states = self.inner(vectors)[0]
        else:
            states = self.inner(vectors.transpose(0, 1))[0].transpose(0, 1)
        scores: Tensor = self.head(states if self.whole else states[:, -1])
        return scores


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, vectors: Tensor) -> Tensor:
        parts = self.inward(vectors).chunk(3, dim=-1)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout, is_causal=self.causal
        )
        result: Tensor = self.outward(mixed.transpose(1, 2).flatten(2))
        return result


def transformer_block(width: int, heads: int, causal: bool, wider: int, dropout: float) -> nn.Module:
    drop = (nn.Dropout(dropout),) if dropout else ()
    attention = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads, causal, dropout), *drop)
    into, out = nn.Linear(width, wider * width), nn.Linear(wider * width, width)
    linear = nn.Sequential(nn.LayerNorm(width), into, nn.GELU(), *drop, out, *drop)
    return nn.Sequential(Shortcut(attention), Shortcut(linear))
