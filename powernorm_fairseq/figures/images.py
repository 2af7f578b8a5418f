"""Images to train on: CIFAR-10 where the user has it, else a small set made here."""

import io
from pathlib import Path
from typing import Any, List, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from powernorm_fairseq.console import UserError
from powernorm_fairseq.safe_load import restricted_unpickler

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
FOLDER = "cifar-10-batches-py"
CLASSES = 10
SIZE = 32


class Images(NamedTuple):
    """A set of images: N x 3 x H x W, about zero mean and unit spread, and their classes; for training and test."""

    name: str
    train: Tensor
    train_classes: Tensor
    test: Tensor
    test_classes: Tensor


# What arrays of bytes are pickled with; the first in numpy before 2.0.
_ARRAYS = {
    "numpy.core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],
    "numpy._core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
}


def read_cifar10(folder: Path, limit: Optional[int] = None) -> Images:
    """CIFAR-10 from the published archive's Python batches.

    Args:
        folder: ``cifar-10-batches-py``, or the folder that holds it.
        limit: take this many images for training and as many for test.
    """
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    parts = []
    for files in (TRAIN, TEST):
        batches = [_read_batch(folder / file) for file in files]
        images = np.concatenate([batch[0] for batch in batches])[:limit]
        classes = np.concatenate([batch[1] for batch in batches])[:limit]
        parts += [torch.from_numpy(images).view(-1, 3, SIZE, SIZE).float() / 255, torch.from_numpy(classes)]
    mean, std = parts[0].mean((0, 2, 3), keepdim=True), parts[0].std((0, 2, 3), keepdim=True)
    return Images("CIFAR-10", (parts[0] - mean) / std, parts[1], (parts[2] - mean) / std, parts[3])


def _read_batch(file: Path) -> List[Any]:
    """Pixels (N x 3072, bytes) and classes."""
    if not file.exists():
        raise UserError(f"--data: {file} is missing; give the folder {FOLDER} of CIFAR-10 for Python")
    try:
        read = restricted_unpickler(_ARRAYS, "batch of images")
        content = read(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        images, classes = np.asarray(content[b"data"]), np.asarray(content[b"labels"], dtype=np.int64)
        if images.dtype != np.uint8 or images.shape != (len(classes), 3 * SIZE * SIZE):
            raise ValueError("its images are not 3 x 32 x 32 bytes")
    except Exception as error:  # what a damaged pickle makes of the reader cannot be foreseen
        raise UserError(f"{file} is no batch of CIFAR-10: {error}") from None
    return [images, classes]


def generate(count: int, size: int = 16, seed: int = 1) -> Images:
    """A small set of coloured stripes: a class is a direction and a colour, an image has its own phase and noise."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.randn(CLASSES, 3, generator=generator)
    parts = []
    for _ in range(2):
        classes = torch.randint(0, CLASSES, (count,), generator=generator)
        angles = classes * (np.pi / CLASSES) + 0.1 * torch.randn(count, generator=generator)
        phases = 2 * np.pi * torch.rand(count, generator=generator)
        rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        along = rows * torch.cos(angles).view(-1, 1, 1) + columns * torch.sin(angles).view(-1, 1, 1)
        stripes = torch.sin(2 * np.pi * 3 * along / size + phases.view(-1, 1, 1))  # N x H x W
        noise = torch.randn(count, 3, size, size, generator=generator)
        parts += [stripes.unsqueeze(1) * colours[classes].view(-1, 3, 1, 1) + noise, classes]
    return Images("generated images", *parts)
