"""Networks of kinds that do not ship, none of which a calibration has seen: what they are made of is what is tried."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import AdamW, Sgd

CLASSES = 10


class HeldOut(NamedTuple):
    """A subject at some batches."""

    subject: Traceable
    batches: tuple[int, ...]


class Residual(nn.Module):
    """A branch beside a shortcut, which is projected where the branch changes the shape."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.branch(inputs) + self.shortcut(inputs)
        return result


class Last(nn.Module):
    """The output of a recurrent layer for the last token."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, vectors: Tensor) -> Tensor:
        result: Tensor = self.inner(vectors)[0][:, -1]
        return result


class Mean(nn.Module):
    """Over places, with the channels first or last."""

    def __init__(self, *places: int) -> None:
        super().__init__()
        self.places = places

    def forward(self, values: Tensor) -> Tensor:
        return values.mean(self.places)


def gru() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(2000, 96), Last(nn.GRU(96, 160, 2, batch_first=True)), nn.Linear(160, CLASSES)
    )


def lstm() -> nn.Module:
    inner = nn.LSTM(120, 200, 2, batch_first=True, dropout=0.2, bidirectional=True)
    return nn.Sequential(nn.Embedding(5000, 120), Last(inner), nn.Linear(400, CLASSES))


def group_norm_resnet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 3, padding=1, bias=False)]
    channels = 48
    for wide, stride in ((48, 1), (96, 2), (192, 2)):
        branch = nn.Sequential(
            nn.GroupNorm(8, channels),
            nn.ReLU(),
            nn.Conv2d(channels, wide, 3, stride, 1, bias=False),
            nn.GroupNorm(8, wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False),
        )
        plain = stride == 1 and wide == channels
        layers.append(Residual(branch, None if plain else nn.Conv2d(channels, wide, 1, stride, bias=False)))
        channels = wide
    return nn.Sequential(
        *layers, nn.GroupNorm(8, channels), nn.ReLU(), Mean(2, 3), nn.Linear(channels, CLASSES)
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, with shortcuts across."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _twice(before, after)
            for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * after, after, 2, stride=2) for after in (2 * width, width)
        )
        self.join = nn.ModuleList(_twice(2 * after, after) for after in (2 * width, width))
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        kept = []
        for place, block in enumerate(self.down):
            images = block(images if not place else functional.max_pool2d(images, 2))
            kept.append(images)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            images = join(torch.cat([up(images), beside], 1))
        result: Tensor = self.head(images).permute(0, 2, 3, 1)
        return result


def _twice(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class Permute(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, values: Tensor) -> Tensor:
        return values.permute(self.order)


def convnext() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 4)]
    for channels, wide in ((64, 128), (128, 256)):
        layers += [_convnext_block(channels), _convnext_block(channels), _channel_norm(channels)]
        layers.append(nn.Conv2d(channels, wide, 2, 2))
    return nn.Sequential(
        *layers, _convnext_block(256), Mean(2, 3), nn.LayerNorm(256), nn.Linear(256, CLASSES)
    )


def _convnext_block(channels: int) -> nn.Module:
    return Residual(
        nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
    )


def _channel_norm(channels: int) -> nn.Module:
    return nn.Sequential(Permute(0, 2, 3, 1), nn.LayerNorm(channels), Permute(0, 3, 1, 2))


def depthwise() -> nn.Module:
    """Depthwise separable convolutions of 5x5 and 7x7, with batch norms."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Hardswish()]
    for before, after, kernel, stride in (
        (32, 64, 5, 1),
        (64, 128, 5, 2),
        (128, 128, 7, 1),
        (128, 256, 7, 2),
    ):
        layers += [
            nn.Conv2d(before, before, kernel, stride, kernel // 2, groups=before, bias=False),
            nn.BatchNorm2d(before),
            nn.Hardswish(),
            nn.Conv2d(before, after, 1, bias=False),
            nn.BatchNorm2d(after),
        ]
    return nn.Sequential(*layers, Mean(2, 3), nn.Linear(256, CLASSES))


def generator() -> nn.Module:
    """Transposed convolutions of 4x4 from a vector to an image, and scores of its places."""
    layers: list[nn.Module] = [nn.Linear(64, 256 * 16), nn.Unflatten(1, (256, 4, 4))]
    for before, after in ((256, 128), (128, 64), (64, 32)):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, CLASSES, 3, padding=1), Permute(0, 2, 3, 1))


def encoder() -> nn.Module:
    """A vision transformer of torch's own layers, with dropout."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Conv2d(3, 128, 8, 8),
        nn.Flatten(2),
        Permute(0, 2, 1),
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        Mean(1),
        nn.Linear(128, CLASSES),
    )


def _tokens(length: int, words: int, samples: int) -> Batch:
    return torch.randint(words, (samples, length)), torch.randint(CLASSES, (samples,))


def _images(side: int, samples: int, places: bool = False) -> Batch:
    targets = (samples, side, side) if places else (samples,)
    return torch.randn(samples, 3, side, side), torch.randint(CLASSES, targets)


def _vectors(samples: int) -> Batch:
    return torch.randn(samples, 64), torch.randint(CLASSES, (samples, 32, 32))


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _subject(
    name: str, model: Callable[[], nn.Module], batch: Callable[[int], Batch], adam: bool = False
) -> Traceable:
    return Traceable(name=name, model=model, loss=_loss, batch=batch, optimizer=AdamW() if adam else Sgd())


HELD_OUT: Mapping[str, HeldOut] = {
    "GRU": HeldOut(_subject("GRU", gru, partial(_tokens, 50, 2000), adam=True), (4, 16, 64)),
    "LSTM": HeldOut(_subject("LSTM", lstm, partial(_tokens, 60, 5000), adam=True), (4, 16, 64)),
    "GroupNorm resnet": HeldOut(
        _subject("GroupNorm resnet", group_norm_resnet, partial(_images, 32)), (4, 16, 32)
    ),
    "U-Net": HeldOut(_subject("U-Net", UNet, partial(_images, 64, places=True)), (1, 4, 8)),
    "generator": HeldOut(_subject("generator", generator, _vectors), (4, 16, 32)),
    "ConvNeXt": HeldOut(_subject("ConvNeXt", convnext, partial(_images, 96), adam=True), (2, 8, 16)),
    "depthwise 5x5, 7x7": HeldOut(_subject("depthwise", depthwise, partial(_images, 64)), (4, 16, 32)),
    "transformer layers": HeldOut(_subject("encoder", encoder, partial(_images, 64), adam=True), (4, 16, 32)),
}
