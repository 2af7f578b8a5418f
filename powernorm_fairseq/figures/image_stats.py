"""Trains ResNet-20 on images and records its BatchNorm2d layers: the image side of the paper's Figures 2 and 3.

The file it writes is that of --norm-stats, so that plot.py draws both:

    scripts/image_stats.py --data cifar-10-batches-py --out runs/resnet20
    scripts/plot.py forward-stats --runs runs/resnet20 runs/multi30k_bn --out forward

Gradients are in units of the loss summed over the images of a batch, as a translation's are over its tokens.
"""

import argparse
import sys
from pathlib import Path
from typing import Sequence

import torch
import torch.nn.functional as F

from powernorm_fairseq.console import UserError, program
from powernorm_fairseq.diagnostics import Probes
from powernorm_fairseq.diagnostics.storage import FILE, Layer, Writer
from powernorm_fairseq.figures.images import Images, generate, read_cifar10
from powernorm_fairseq.figures.resnet import ResNet20, shifted_and_mirrored
from powernorm_fairseq.norms import training_step


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train ResNet-20 with BatchNorm2d and record what its norms do.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="CIFAR-10 for Python; without it images are generated")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the records")
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="passes over the images")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images in a batch, as in the paper")
    parser.add_argument("--images", type=int, metavar="N", help="take N images (all of CIFAR-10, else 2048)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate; a tenth after half and three quarters")
    parser.add_argument("--interval", type=int, default=5, metavar="N", help="updates between two records")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of weights, order and augmentation")
    parser.add_argument("--overwrite", action="store_true", help="replace the records of another run")
    return parser


def check(args: argparse.Namespace) -> None:
    """Refuses settings that cannot work."""
    for name in ("epochs", "batch_size", "interval", "images"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError("--{} {} is too small; give at least 1".format(name.replace("_", "-"), value))
    file = args.out / FILE
    if file.exists():
        if not args.overwrite:
            raise UserError(f"{file} exists; --overwrite replaces it")
        file.unlink()


def train(args: argparse.Namespace, images: Images) -> None:
    """Trains and records; says on stderr how far it is."""
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    model = ResNet20()
    probes = Probes(model)
    layers = [Layer(name, type(p.norm).__name__, p.norm.num_features) for name, p in probes.probes.items()]
    label = f"ResNet20 BN, {images.name}"
    note = "" if args.data else "ResNet20: on a small generated image set, not CIFAR-10"
    writer = Writer(args.out / FILE, layers, interval=args.interval, label=label, note=note, loss="sum over images")
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    in_epoch = (len(images.train) + args.batch_size - 1) // args.batch_size
    half, three_quarters = in_epoch * args.epochs // 2, in_epoch * args.epochs * 3 // 4
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, sorted({max(half, 1), max(three_quarters, 1)}))
    update = 0
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(len(images.train), generator=generator)
        for chosen in order.split(args.batch_size):
            update += 1
            recorded = update % args.interval == 0
            probes.attach(measuring=recorded)
            batch = images.train[chosen]
            if args.data:  # generated images have a direction, which mirroring would change
                batch = shifted_and_mirrored(batch, generator)
            optimizer.zero_grad()
            with training_step(loss_scale=1 / len(chosen)):  # the mean is the sum, so scaled
                loss = F.cross_entropy(model(batch), images.train_classes[chosen])
                loss.backward()
            optimizer.step()
            schedule.step()
            if recorded:
                extra = {"loss": loss.item(), "sample_size": len(chosen), "epoch": update / in_epoch}
                writer.write(update, "train", probes.read(), **extra)
        accuracy = evaluate(model, probes, images, args.batch_size)
        writer.write(update, "valid", probes.read_evaluation(), accuracy=accuracy)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.3f}", file=sys.stderr)


@torch.no_grad()
def evaluate(model: ResNet20, probes: Probes, images: Images, batch_size: int) -> float:
    """Share of test images whose class is found."""
    model.eval()
    with probes.evaluating():
        right = sum(
            int((model(batch).argmax(1) == classes).sum())
            for batch, classes in zip(images.test.split(batch_size), images.test_classes.split(batch_size))
        )
    return right / len(images.test)


@program("image_stats")
def main(argv: Sequence[str]) -> int:
    """Trains as the command line says; returns the exit status."""
    args = build_parser().parse_args(argv)
    check(args)
    train(args, read_cifar10(args.data, args.images) if args.data else generate(args.images or 2048))
    print(args.out / FILE)
    return 0
