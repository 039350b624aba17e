"""Residual networks (He et al., 2016) with the stem for small images."""

from dataclasses import dataclass

from torch import Tensor, nn

from paceline.jobs.data.images import Shape


@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """ResNet-18 for small images: a 3x3 stem without pooling, 11.17 M parameters on 10 classes."""

    zero_gamma: bool = False
    """Gamma 0 in each block's last batch norm, so that it starts as the identity; helps large batches."""

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """The stem, four pairs of blocks, the mean of each channel, a linear layer.

        A stage halves the image only while two pixels a side are left, so that batch norm has something to
        average even on a batch of one tiny image.
        """
        channels, *sides = shape
        layers: list[nn.Module] = [_convolution(channels, 64), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        ins, side = 64, min(sides)
        for outs in (64, 128, 256, 512):
            stride = 2 if outs > 64 and side >= 4 else 1
            side = -(-side // stride)
            layers += [Block(ins, outs, stride), Block(outs, outs)]
            ins = outs
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
        self._start(model)
        return model

    def _start(self, model: nn.Module) -> None:
        for module in model.modules():
            # Drawing without memory gives nothing, and torch imports its compiler for it, which takes seconds.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block) and self.zero_gamma:
                nn.init.zeros_(module.last_norm.weight)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, ins: int, outs: int, stride: int = 1) -> None:
        super().__init__()
        self.last_norm = nn.BatchNorm2d(outs)
        self.residual = nn.Sequential(
            _convolution(ins, outs, stride=stride),
            nn.BatchNorm2d(outs),
            nn.ReLU(inplace=True),
            _convolution(outs, outs),
            self.last_norm,
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or ins != outs:
            self.shortcut = nn.Sequential(
                _convolution(ins, outs, kernel=1, stride=stride), nn.BatchNorm2d(outs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """The residual on top of the shortcut."""
        result: Tensor = self.activation(self.residual(images) + self.shortcut(images))
        return result


def _convolution(ins: int, outs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2, bias=False)
