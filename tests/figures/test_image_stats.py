"""image_stats.py: ResNet-20 with torch's BatchNorm2d under the probes, on CIFAR-10's files and on generated images."""

import os
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")

from powernorm_fairseq.console import UserError
from powernorm_fairseq.diagnostics import storage
from powernorm_fairseq.figures import image_stats, images
from powernorm_fairseq.figures.resnet import ResNet20, shifted_and_mirrored


def write_cifar(folder, count=4):
    """Files of the published form: bytes as keys, and numpy's old place for arrays."""
    generator = np.random.RandomState(0)
    for name in (*images.TRAIN, *images.TEST):
        pixels = generator.randint(0, 256, (count, 3072)).astype(np.uint8)
        content = {b"batch_label": b"some", b"labels": [i % 10 for i in range(count)], b"data": pixels}
        text = pickle.dumps(content, protocol=3).replace(b"numpy._core", b"numpy.core")
        (folder / name).write_bytes(text)


def test_resnet20_is_the_one_of_the_paper():
    model = ResNet20()
    assert sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()) == 19
    assert model.bn.num_features == 16  # the paper's d of the first BN
    assert sum(parameter.numel() for parameter in model.parameters()) == 269722  # He et al.: 0.27 million
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_records_of_generated_images_say_what_they_are(tmp_path, capsys):
    flags = ["--images", "24", "--batch-size", "8", "--epochs", "2", "--interval", "2"]
    assert image_stats.main(["--out", str(tmp_path), *flags]) == 0
    run = storage.read(tmp_path)
    assert len(run.layers) == 19 and run.layers[0] == storage.Layer("bn", "BatchNorm2d", 16)
    assert [(record.update, record.kind) for record in run.records] == [
        (2, "train"),
        (3, "valid"),
        (4, "train"),
        (6, "train"),
        (6, "valid"),
    ]
    first = run.records[0]
    assert first.columns["tokens"][0] == 8 * 16 * 16 and first.extra["epoch"] == pytest.approx(2 / 3, abs=1e-4)
    assert all(value > 0 for name in ("dist_mu", "dist_var", "g_mu", "g_var") for value in first.columns[name])
    assert "generated" in run.header["note"] and "generated" in run.header["label"]
    assert image_stats.main(["--out", str(tmp_path), *flags]) == 1
    assert "exists; --overwrite replaces it" in capsys.readouterr().err


def test_gradients_are_those_of_the_summed_loss(tmp_path):
    """One update on one batch, once more by hand: the first BN's term through the mean, by autograd."""
    flags = ["--images", "8", "--batch-size", "8", "--epochs", "1", "--interval", "1"]
    assert image_stats.main(["--out", str(tmp_path), *flags]) == 0
    recorded = storage.read(tmp_path).records[0]
    torch.manual_seed(1)
    model, data, kept = ResNet20(), images.generate(8), {}
    model.bn.register_forward_hook(lambda module, args, output: kept.update(x=args[0], y=output))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    scores = model(data.train[order])
    loss = torch.nn.functional.cross_entropy(scores, data.train_classes[order], reduction="sum")
    (grad,) = torch.autograd.grad(loss, kept["y"])
    sigma = torch.sqrt(kept["x"].var((0, 2, 3), unbiased=False) + 1e-5)
    term = (grad.mean((0, 2, 3)) / sigma).detach()
    assert recorded.columns["g_mu"][0] == pytest.approx(float(term.norm()) / 16, rel=1e-3)
    assert recorded.extra["loss"] == pytest.approx(loss.item() / 8, rel=1e-4)


def test_cifar10_is_read_as_published(tmp_path):
    folder = tmp_path / images.FOLDER
    folder.mkdir()
    write_cifar(folder)
    read = images.read_cifar10(tmp_path)
    assert read.train.shape == (20, 3, 32, 32) and read.test.shape == (4, 3, 32, 32)
    assert read.train_classes.tolist() == [0, 1, 2, 3] * 5
    torch.testing.assert_close(read.train.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    raw = pickle.loads((folder / "data_batch_2").read_bytes(), encoding="bytes")[b"data"][1].reshape(3, 32, 32)
    ours = read.train[5]
    assert np.corrcoef(ours.flatten(1)[2].numpy(), raw[2].ravel())[0, 1] > 0.99999
    flags = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--images", "6", "--batch-size", "6"]
    assert image_stats.main([*flags, "--epochs", "1", "--interval", "1"]) == 0
    run = storage.read(tmp_path / "out")
    assert not run.header["note"] and run.header["label"] == "ResNet20 BN, CIFAR-10"
    assert run.records[0].columns["tokens"][0] == 6 * 32 * 32


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_file_that_would_run_code_is_refused(tmp_path, capsys):
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": Bomb(str(tmp_path / "boom")), b"labels": []}))
    assert image_stats.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "data_batch_3 is no batch of CIFAR-10: posix.mkdir is not allowed in a batch of images" in said
    assert not (tmp_path / "boom").exists()


def test_damaged_and_missing_files(tmp_path, capsys):
    write_cifar(tmp_path)
    (tmp_path / "test_batch").write_bytes((tmp_path / "test_batch").read_bytes()[:-500])
    with pytest.raises(UserError, match="test_batch is no batch of CIFAR-10"):
        images.read_cifar10(tmp_path)
    (tmp_path / "data_batch_5").unlink()
    with pytest.raises(UserError, match="data_batch_5 is missing; give the folder cifar-10-batches-py"):
        images.read_cifar10(tmp_path)
    assert image_stats.main(["--out", str(tmp_path / "out"), "--epochs", "0"]) == 1
    assert "--epochs 0 is too small; give at least 1" in capsys.readouterr().err


def test_augmentation_moves_and_mirrors():
    generator = torch.Generator().manual_seed(0)
    image = torch.arange(3 * 8 * 8, dtype=torch.float32).view(1, 3, 8, 8) + 1
    seen = shifted_and_mirrored(image.expand(200, -1, -1, -1), generator)
    assert seen.shape == (200, 3, 8, 8)
    assert len({tuple(one.flatten().tolist()) for one in seen}) > 80  # of 2 x 81
    increasing = [(one[0, 4][one[0, 4] > 0].diff() > 0).all().item() for one in seen]
    assert 60 < sum(increasing) < 140  # the others are mirrored
