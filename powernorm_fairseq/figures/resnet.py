"""ResNet-20 for small images (`He et al., 2016 <https://arxiv.org/abs/1512.03385>`_, section 4.2), with torch's BN."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)
BLOCKS = 3  # in each stage: 6 * 3 + 2 layers


class Block(nn.Module):
    """Two 3 x 3 convolutions, each with BN, and a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is N x C x H x W."""
        y = F.relu(self.bn1(self.conv1(x)))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))  # zeros as features
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet20(nn.Module):
    """Classifies colour images.

    Args:
        classes: number of classes. Default: 10
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        blocks, inputs = [], WIDTHS[0]
        for stage, outputs in enumerate(WIDTHS):
            for number in range(BLOCKS):
                blocks.append(Block(inputs, outputs, stride=2 if stage and not number else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes, N x 10, for images of N x 3 x H x W."""
        hidden = self.blocks(F.relu(self.bn(self.conv(images))))
        return self.classify(hidden.mean((2, 3)))


def shifted_and_mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """The usual augmentation: each image moved by up to 4 pixels, and half of them mirrored."""
    count, _, height, width = images.shape
    padded = F.pad(images, (4, 4, 4, 4))
    rows, columns = (torch.randint(0, 9, (count,), generator=generator) for _ in range(2))
    mirrored = torch.rand(count, generator=generator) < 0.5
    moved = [_cut(padded[i], int(rows[i]), int(columns[i]), (height, width)) for i in range(count)]
    return torch.stack([image.flip(2) if mirror else image for image, mirror in zip(moved, mirrored)])


def _cut(image: Tensor, row: int, column: int, size: Tuple[int, int]) -> Tensor:
    return image[:, row : row + size[0], column : column + size[1]]
