"""Every layer of ``torch.nn`` on its own, so that each operator that one consists of is measured.

Random networks are made of common layers in many shapes; these are the others, in a few shapes each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from paceline.jobs.batches import Batch
from paceline.jobs.job import Traceable
from paceline.jobs.optimizers import Sgd
from paceline.studies.calibrate.images import log_uniform

FEWEST, MOST = 2**9, 2**20
"""Elements of a layer's input."""

Call = Callable[[Any, Tensor], Any]


@dataclass(frozen=True)
class LayerCase:
    """A layer for inputs of some channels, and how it is called on them."""

    make: Callable[[int], nn.Module]
    sides: int = 2
    """Dimensions of an input behind samples and channels: 2 is an image, 0 a vector; -1 a sequence, channels last."""
    call: Call = lambda layer, inputs: layer(inputs)
    most: int = MOST
    """Elements of an input at most: fewer where a layer does much with each."""

    def shape(self, random: Random) -> tuple[int, ...]:
        """A random shape of inputs; channels are a multiple of 8."""
        elements = log_uniform(random, FEWEST, self.most)
        channels = 8 * log_uniform(random, 1, 16)
        if self.sides < 1:
            length = (log_uniform(random, 4, 64),) if self.sides else ()
            return max(2, elements // channels // prod(length)), *length, channels
        side = 2 * max(4, min(round((elements / channels / 2) ** (1 / self.sides) / 2), 64))
        return max(1, elements // channels // side**self.sides), channels, *[side] * self.sides


class SingleLayer(nn.Module):
    """A layer whose input needs a gradient, as inside a network."""

    def __init__(self, layer: nn.Module, call: Call) -> None:
        super().__init__()
        self.layer, self.call = layer, call
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Any:
        return self.call(self.layer, inputs * self.scale)


def draw_layer(seed: int, number: int) -> tuple[Traceable, int]:
    """The layers of the table one after the other, at sizes of the seed."""
    return layer_subject(list(LAYERS)[number % len(LAYERS)], Random(seed))  # noqa: S311


def layer_subject(name: str, random: Random) -> tuple[Traceable, int]:
    """A row of the table at random sizes, and how many samples it is given."""
    row = LAYERS[name]
    samples, *shape = row.shape(random)
    channels = shape[-1] if row.sides == -1 else shape[0]

    def batch(samples: int) -> Batch:
        return torch.rand(samples, *shape), torch.zeros(samples)

    def model() -> nn.Module:
        return SingleLayer(row.make(channels), row.call)

    return Traceable(name=name, model=model, loss=_mean, batch=batch, optimizer=Sgd()), samples


def _mean(outputs: Any, _: Tensor) -> Tensor:
    found: Tensor = outputs[0] if isinstance(outputs, tuple | list) else outputs
    return found if found.dim() == 0 else found.mean()


def _rows(
    names: str, make: Callable[[Any, int], nn.Module] = lambda kind, _: kind(), *how: Any, **more: Any
) -> dict[str, LayerCase]:
    """A row for each class; ``make`` gets the class and the channels, ``LayerCase`` the rest."""
    return {name: LayerCase(partial(make, getattr(nn, name)), *how, **more) for name in names.split()}


def _sided(names: str, make: Callable[[Any, int], nn.Module], **more: Any) -> dict[str, LayerCase]:
    """The same layers for lines, images and volumes."""
    return {
        sided: case
        for name in names.split()
        for sides in (1, 2, 3)
        for sided, case in _rows(f"{name}{sides}d", make, sides, **more).items()
    }


def _unpooling(sides: int) -> LayerCase:
    """A layer that needs the indices of another."""
    pool, unpool = (getattr(nn, f"Max{name}{sides}d") for name in ("Pool", "Unpool"))
    both = nn.ModuleList([pool(2, return_indices=True), unpool(2)])
    return LayerCase(lambda _: both, sides, lambda both, x: both[1](*both[0](x)))


def _on(*arguments: Callable[[Tensor], Tensor]) -> Call:
    """Call a layer on what these make of the input."""
    return lambda layer, x: layer(*(argument(x) for argument in arguments))


def _losses(names: str, *arguments: Callable[[Tensor], Tensor]) -> dict[str, LayerCase]:
    return _rows(names, lambda kind, _: kind(), 0, _on(*arguments))


def _same(x: Tensor) -> Tensor:
    return x


def _classes(x: Tensor) -> Tensor:
    """A class for each sample, or for each pixel of an image."""
    return torch.zeros_like(x[:, 0], dtype=torch.long)


def _words(layer: Any, x: Tensor) -> Any:
    return layer(torch.zeros(x.shape[:2], dtype=torch.long)) + x.mean()


_TWICE, _THRICE = _on(_same, _same), _on(_same, _same, _same)
_WORDS = 512

LAYERS: Mapping[str, LayerCase] = {
    "Linear": LayerCase(lambda c: nn.Linear(c, 64), 0),
    "Linear sequence": LayerCase(lambda c: nn.Linear(c, 64), -1),
    "Bilinear": LayerCase(lambda c: nn.Bilinear(c, c, 8), 0, _TWICE, 2**14),
    **_rows("Identity Flatten"),
    "Unflatten": LayerCase(lambda c: nn.Unflatten(1, (2, c // 2))),
    **_sided("Conv", lambda kind, c: kind(c, 16, 3, padding=1), most=2**17),
    **_sided("ConvTranspose", lambda kind, c: kind(c, 16, 2, stride=2), most=2**16),
    **_sided("MaxPool AvgPool", lambda kind, _: kind(2)),
    **_sided("AdaptiveAvgPool AdaptiveMaxPool", lambda kind, _: kind(4)),
    **_sided("LPPool", lambda kind, _: kind(2, 2)),
    "FractionalMaxPool2d": LayerCase(lambda _: nn.FractionalMaxPool2d(2, output_ratio=0.5)),
    "FractionalMaxPool3d": LayerCase(lambda _: nn.FractionalMaxPool3d(2, output_ratio=0.5), 3),
    **{f"MaxUnpool{sides}d": _unpooling(sides) for sides in (1, 2, 3)},
    **_sided("ConstantPad", lambda kind, _: kind(1, 0.5)),
    **_sided("ZeroPad ReflectionPad ReplicationPad CircularPad", lambda kind, _: kind(1)),
    **_rows(
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish RReLU ReLU ReLU6 SELU "
        "SiLU Sigmoid Softmax2d Softplus Softshrink Softsign Tanh Tanhshrink Dropout Dropout2d AlphaDropout "
        "FeatureAlphaDropout"
    ),
    **{
        f"{name} in place": case
        for name, case in _rows(
            "CELU ELU Hardsigmoid Hardswish Hardtanh LeakyReLU ReLU ReLU6 SELU SiLU Dropout",
            lambda kind, _: kind(inplace=True),
        ).items()
    },
    **_rows("LogSoftmax Softmax Softmin", lambda kind, _: kind(dim=1)),
    "PReLU": LayerCase(nn.PReLU),
    "Threshold": LayerCase(lambda _: nn.Threshold(0.5, 0.1)),
    "Dropout1d": LayerCase(lambda _: nn.Dropout1d(), 1),
    "Dropout3d": LayerCase(lambda _: nn.Dropout3d(), 3),
    **_sided("BatchNorm", lambda kind, c: kind(c)),
    **_sided("InstanceNorm", lambda kind, c: kind(c, affine=True)),
    "GroupNorm": LayerCase(lambda c: nn.GroupNorm(4, c)),
    **_rows("LayerNorm RMSNorm", lambda kind, c: kind(c), -1),
    "CrossMapLRN2d": LayerCase(lambda _: nn.CrossMapLRN2d(3), most=2**17),
    "LocalResponseNorm": LayerCase(lambda _: nn.LocalResponseNorm(3)),
    "RNN": LayerCase(lambda c: nn.RNN(c, 32, batch_first=True), -1, most=2**15),
    "RNN relu": LayerCase(lambda c: nn.RNN(c, 32, nonlinearity="relu"), -1, most=2**15),
    "GRU": LayerCase(lambda c: nn.GRU(c, 32, bidirectional=True), -1, most=2**15),
    "LSTM": LayerCase(lambda c: nn.LSTM(c, 32, 2, dropout=0.1, batch_first=True), -1, most=2**15),
    **_rows("RNNCell GRUCell LSTMCell", lambda kind, c: kind(c, 64), 0, most=2**16),
    "MultiheadAttention": LayerCase(lambda c: nn.MultiheadAttention(c, 4), -1, _THRICE, 2**15),
    "MultiheadAttention alone": LayerCase(
        lambda c: nn.MultiheadAttention(c, 4, batch_first=True),
        -1,
        lambda one, x: one(x, x, x, need_weights=False),
        2**15,
    ),
    "Transformer": LayerCase(
        lambda c: nn.Transformer(c, 4, 1, 1, 2 * c, batch_first=True), -1, _TWICE, 2**13
    ),
    "TransformerEncoderLayer": LayerCase(
        lambda c: nn.TransformerEncoderLayer(c, 4, 2 * c, batch_first=True), -1, most=2**14
    ),
    "TransformerDecoderLayer": LayerCase(
        lambda c: nn.TransformerDecoderLayer(c, 4, 2 * c), -1, _TWICE, 2**14
    ),
    "TransformerEncoder": LayerCase(
        lambda c: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(c, 4, c, activation="gelu"), 2, enable_nested_tensor=False
        ),
        -1,
        most=2**13,
    ),
    "TransformerDecoder": LayerCase(
        lambda c: nn.TransformerDecoder(nn.TransformerDecoderLayer(c, 4, c), 2), -1, _TWICE, 2**13
    ),
    **_rows("Embedding EmbeddingBag", lambda kind, c: kind(_WORDS, c), -1, _words),
    "EmbeddingBag max": LayerCase(lambda c: nn.EmbeddingBag(_WORDS, c, mode="max"), -1, _words),
    "ChannelShuffle": LayerCase(lambda _: nn.ChannelShuffle(4)),
    "PixelShuffle": LayerCase(lambda _: nn.PixelShuffle(2)),
    "PixelUnshuffle": LayerCase(lambda _: nn.PixelUnshuffle(2), 2, _on(lambda x: x[..., :8, :8])),
    **{
        f"Upsample {mode}": LayerCase(
            lambda _, mode=mode: nn.Upsample(scale_factor=2, mode=mode),  # type: ignore[misc]
            sides,
            most=2**18,
        )
        for mode, sides in (("nearest", 1), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
    },
    "Upsample volumes": LayerCase(lambda _: nn.Upsample(scale_factor=2), 3, most=2**17),
    **_rows("UpsamplingNearest2d UpsamplingBilinear2d", lambda kind, _: kind(scale_factor=2), most=2**18),
    "Unfold": LayerCase(lambda _: nn.Unfold(3, padding=1), most=2**17),
    "Fold": LayerCase(lambda _: nn.Fold(4, 2, stride=2), 1, _on(lambda x: x[..., :4]), 2**17),
    **_rows("CosineSimilarity PairwiseDistance", lambda kind, _: kind(), 0, _TWICE),
    **_losses(
        "BCELoss BCEWithLogitsLoss HuberLoss MSELoss PoissonNLLLoss SmoothL1Loss", _same, Tensor.detach
    ),
    **_losses("CrossEntropyLoss MultiMarginLoss NLLLoss", _same, _classes),
    **_losses("HingeEmbeddingLoss MultiLabelSoftMarginLoss SoftMarginLoss", _same, torch.ones_like),
    **_losses("L1Loss", _same, torch.zeros_like),
    **_losses("CosineEmbeddingLoss", _same, _same, lambda x: torch.ones_like(x[:, 0])),
    **_losses("MarginRankingLoss", _same, _same, torch.ones_like),
    **_losses("MultiLabelMarginLoss", _same, lambda x: torch.zeros_like(x, dtype=torch.long)),
    **_losses("TripletMarginLoss TripletMarginWithDistanceLoss", _same, _same, _same),
    "CrossEntropyLoss probabilities": LayerCase(
        lambda _: nn.CrossEntropyLoss(), 0, _on(_same, Tensor.detach)
    ),
    "CrossEntropyLoss smooth": LayerCase(
        lambda _: nn.CrossEntropyLoss(label_smoothing=0.1), 0, _on(_same, _classes)
    ),
    "KLDivLoss": LayerCase(lambda _: nn.KLDivLoss(reduction="batchmean"), 0, _on(_same, Tensor.detach)),
    "LinearCrossEntropyLoss": LayerCase(
        lambda c: nn.LinearCrossEntropyLoss(c, 32), 0, _on(_same, _classes), 2**17
    ),
    "NLLLoss2d": LayerCase(lambda _: nn.NLLLoss(), 2, _on(_same, _classes)),
}
"""By its class in ``torch.nn``, with a word more where a class has several rows."""
