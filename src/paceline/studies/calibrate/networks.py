"""Random networks by which a device is measured: many shapes, none of them a model that ships."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import exp, log, log2, prod
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.models.layers import Branches, output_sides
from paceline.jobs.optimizers import Adam, AdamW, Sgd

LEAST_WORK, MOST_WORK = 1e6, 4e9
"""Floating-point operations of a layer's forward: from next to nothing to about 50 ms of a core."""
SIDES = (4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 160, 224)
KERNELS = (
    *((1, 1),) * 10,
    *((3, 3),) * 20,
    *((5, 5),) * 5,
    *((7, 7), (7, 7), (11, 11)),
    *((1, 7), (7, 1), (1, 3), (3, 1)),
)
DEPTHWISE_KERNELS = ((3, 3), (3, 3), (3, 3), (5, 5), (5, 5), (7, 7), (7, 7), (9, 9))
MOST_ELEMENTS = 12_000_000
"""Of one tensor: 48 MB, above what an allocator keeps for reuse."""

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
    channels = random.choice((1, 3, 0, 0, 0, 0))
    fitting = [side for side in SIDES if samples * (channels or 64) * side * side <= MOST_ELEMENTS / 2]
    side = random.choice(fitting or SIDES[:1])
    channels = channels or usual_channels(random, max(8, 256 / side), max(16, min(1024, 8192 // side)))
    width = side if random.random() < 0.85 else max(4, side - random.randrange(4))
    drawing = ImageNetwork(random, samples, work, channels, [side, width])
    for _ in range(random.randint(2, 8)):
        drawing.convolve()
        if random.random() < 0.2:
            drawing.pool()
    drawing.finish(classes)
    return samples, drawing.model, partial(_image_batch, (channels, side, width), classes)


def _dense(random: Random, samples: int, work: float) -> Drawn:
    most = (work / 2 / samples) ** 0.5
    sizes = [
        usual_channels(random, 8, max(16, min(8192, most * random.choice((1, 1, 4)))))
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


@dataclass
class ImageNetwork:
    """A network while it is drawn: what makes its layers, and the shape of the images behind the last one."""

    random: Random
    samples: int
    work: float
    """Floating-point operations that one layer's forward may take."""
    channels: int
    sides: list[int]
    layers: list[Callable[[], nn.Module]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._padded = self._chance(0.8)

    @property
    def elements(self) -> int:
        return self.samples * self.channels * prod(self.sides)

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def convolve(self) -> None:
        chance = self.random.random()
        if not (chance < 0.08 and self._upsample()) and not (chance > 0.94 and self._invert()):
            self._draw_convolution()

    def pool(self) -> None:
        if min(self.sides) < 5:
            return
        kind = self.random.choice((nn.MaxPool2d, nn.MaxPool2d, nn.AvgPool2d))
        kernel, stride = self.random.choice(((2, 2), (3, 2), (3, 1), (3, 2), (2, 2), (5, 3)))
        padding = 1 if kernel == 3 and self._chance(0.5) else 0
        self.layers.append(partial(kind, kernel, stride=stride, padding=padding))
        self.sides = output_sides(self.sides, kernel, stride, padding)

    def finish(self, classes: int) -> None:
        features = self.channels * prod(self.sides)
        if self._chance(0.6) or 2.0 * self.samples * features * classes > self.work:
            self.layers.append(partial(nn.AdaptiveAvgPool2d, 1))
            features = self.channels
        self.layers.append(nn.Flatten)
        hidden = log_uniform(self.random, 16, 1024)
        if self._chance(0.4) and 2.0 * self.samples * features * hidden < self.work:
            self.layers += [partial(nn.Linear, features, hidden), partial(nn.ReLU, self._chance(0.5))]
            features = hidden
        self.layers.append(partial(nn.Linear, features, classes))

    def model(self) -> nn.Module:
        return nn.Sequential(*(make() for make in self.layers))

    def _upsample(self) -> bool:
        outputs = max(4, round(self.channels * self.random.choice((0.25, 0.5, 0.5, 1))))
        kernel, padding = self.random.choice(((2, 0), (2, 0), (4, 1), (3, 1)))
        stride = self.random.choice((1, 2)) if kernel == 3 else 2
        sides = [(side - 1) * stride - 2 * padding + kernel for side in self.sides]
        flops = 2.0 * self.elements * outputs * kernel**2
        fits = flops <= self.work and self.samples * outputs * prod(sides) <= MOST_ELEMENTS / 2
        if fits:
            settings = (self.channels, outputs, kernel, stride, padding)
            self._add(partial(nn.ConvTranspose2d, *settings, bias=self._chance(0.5)), outputs, sides)
        return fits

    def _invert(self) -> bool:
        kernel, wider = self.random.choice((3, 5, 7, 7)), self.random.choice((2, 4))
        fits = min(self.sides) >= 2 and self.channels >= 8 and wider * self.elements <= MOST_ELEMENTS / 2
        fits = fits and 2.0 * self.elements * self.channels * wider <= self.work
        if fits:
            blocks = self.random.randint(1, 3)
            self.layers += [partial(InvertedBlock, self.channels, kernel, wider)] * blocks
        return fits

    def _draw_convolution(self) -> None:
        """One that the images and the limit allow: the first of 30 that fits."""
        for _ in range(30):
            outputs, groups = self._draw_channels()
            kernel = self.random.choice(DEPTHWISE_KERNELS if groups == self.channels > 1 else KERNELS)
            stride = 4 if max(kernel) >= 7 and self._chance(0.2) else 2 if self._chance(0.22) else 1
            tall, broad = (k // 2 if self._padded or k > min(self.sides) else 0 for k in kernel)
            height = output_sides(self.sides, kernel[0], stride, tall)[0]
            width = output_sides(self.sides, kernel[1], stride, broad)[1]
            size = self.samples * outputs * height * width
            flops = 2.0 * size * self.channels // groups * prod(kernel)
            fits = max(kernel) <= 2 * min(self.sides) and min(height, width) >= 1
            if fits and flops <= self.work and size <= MOST_ELEMENTS:
                settings = (self.channels, outputs, kernel, stride, (tall, broad))
                layer = partial(nn.Conv2d, *settings, groups=groups, bias=self._chance(0.5))
                if self._chance(0.15) and stride == 1 and [height, width] == self.sides:
                    self._branch(layer, outputs)
                else:
                    self._add(layer, outputs, [height, width])
                return

    def _draw_channels(self) -> tuple[int, int]:
        """Channels out, mostly about as many as come in and more where images are smaller; and groups."""
        chance = self.random.random()
        if chance < 0.12 and self.channels >= 16:
            return self.channels, self.channels
        if self.channels > 3 and self._chance(0.6):
            outputs = max(4, round(self.channels * self.random.choice((0.25, 0.5, 1, 1, 1, 2, 2, 4))))
        else:
            most = max(16, min(2048, 16384 // min(self.sides)))
            outputs = usual_channels(self.random, max(4, most / 64), most)
        groups = self.random.choice((2, 4, 8))
        if chance < 0.16 and self.channels % groups == 0 and min(self.channels, outputs) >= 8 * groups:
            return outputs // groups * groups, groups
        return outputs, 1

    def _add(self, layer: Callable[[], nn.Module], channels: int, sides: list[int]) -> None:
        self.layers.append(layer)
        self.channels, self.sides = channels, sides
        chance = self.random.random()
        if chance < 0.42 and self.elements > channels:
            self.layers.append(partial(nn.BatchNorm2d, channels))
        elif chance < 0.57:
            groups = [many for many in (1, 2, 4, 8, 16, 32) if channels % many == 0]
            self.layers.append(partial(nn.GroupNorm, self.random.choice(groups), channels))
        elif chance < 0.6 and min(sides) > 1:
            self.layers.append(partial(nn.InstanceNorm2d, channels, affine=self._chance(0.5)))
        chance = self.random.random()
        if chance < 0.8:
            self.layers.append(partial(nn.ReLU, self._chance(0.5)))
        elif chance < 0.95:
            self.layers.append(self.random.choice((nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh)))
        elif chance < 0.98:
            self.layers.append(partial(nn.Dropout, 0.1))

    def _branch(self, layer: Callable[[], nn.Module], channels: int) -> None:
        if channels == self.channels and self._chance(0.5):
            self.layers.append(lambda: Shortcut(layer()))
        else:
            pool = partial(nn.MaxPool2d, 3, stride=1, padding=1)
            self.layers.append(lambda: Branches({"convolution": layer(), "pool": pool()}))
            self.channels += channels


def usual_channels(random: Random, low: float, high: float) -> int:
    """A usual number of channels: a power of two, or a multiple of 8 or more."""
    number, chance = log_uniform(random, low, high), random.random()
    if chance < 0.1:
        return number
    if chance < 0.5:
        return 1 << max(0, round(log2(number)))
    step = random.choice((8, 16, 32, 64)) if number >= 48 else random.choice((2, 4, 8, 16))
    return max(step, round(number / step) * step)


def log_uniform(random: Random, low: float, high: float) -> int:
    """A whole number, as likely between 1 and 10 as between 10 and 100."""
    return round(exp(random.uniform(log(low), log(high))))


class Shortcut(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = inputs + self.branch(inputs)
        return result


class InvertedBlock(nn.Module):
    """A wide depthwise convolution, then linear layers over the channels of each pixel."""

    def __init__(self, channels: int, kernel: int, wider: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        inner, outer = nn.Linear(channels, wider * channels), nn.Linear(wider * channels, channels)
        self.inner = nn.Sequential(nn.LayerNorm(channels), inner, nn.GELU(), outer)
        self.first = wider != 2

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum lies in memory as its first part does."""
        branch: Tensor = self.inner(self.spatial(inputs).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return branch + inputs if self.first else inputs + branch


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
