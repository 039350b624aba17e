import gzip
import sys
from pathlib import Path

import pytest
import torch
from scipy.io import savemat

from paceline.errors import UsageError
from paceline.jobs.datasets import Cifar10, FashionMnist, Mnist, Svhn


def idx(values: torch.Tensor) -> bytes:
    head = bytes((0, 0, 8, values.dim())) + b"".join(side.to_bytes(4, "big") for side in values.shape)
    return head + values.numpy().tobytes()


def write_mnist(folder: Path, end: str = "") -> None:
    pack = gzip.compress if end == ".gz" else bytes
    for part, samples in (("train", 5), ("t10k", 3)):
        pixels = torch.full((samples, 28, 28), 255, dtype=torch.uint8)
        pixels[:, 0, 1] = 0
        labels = torch.arange(samples, dtype=torch.uint8)
        (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(pixels)))
        (folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))


def write_cifar(folder: Path) -> None:
    for number, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        sample = bytes([number]) + b"\xff" * 1024 + b"\x00" * 1024 + b"\x80" * 1024
        (folder / name).write_bytes(sample * 2)


def write_svhn(folder: Path) -> None:
    for part in ("train", "test"):
        pixels = torch.zeros(32, 32, 3, 2, dtype=torch.uint8)
        pixels[4, 7, 1, 0] = 255
        savemat(folder / f"{part}_32x32.mat", {"X": pixels.numpy(), "y": torch.tensor([[10], [3]]).numpy()})


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_plain_and_packed(tmp_path: Path, end: str) -> None:
    write_mnist(tmp_path, end)
    images = Mnist().load(str(tmp_path))
    assert images.train.inputs.shape == (5, 1, 28, 28)
    assert images.test.targets.tolist() == [0, 1, 2]
    assert images.train.inputs[0, 0, 0, 1].item() == pytest.approx(-0.1307 / 0.3081)
    assert images.train.inputs[0, 0, 1, 0].item() == pytest.approx((1 - 0.1307) / 0.3081)


def test_idx_files_are_found_where_torchvision_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    write_mnist(folder)
    monkeypatch.chdir(tmp_path)
    assert len(Mnist().load(None).train) == 5


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_truncated_idx_file_is_named(tmp_path: Path, end: str) -> None:
    write_mnist(tmp_path, end)
    victim = tmp_path / f"train-images-idx3-ubyte{end}"
    victim.write_bytes(victim.read_bytes()[:-10])
    with pytest.raises(UsageError, match=f"{victim} is damaged"):
        Mnist().load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-labels-idx1-ubyte", b"<html>not found</html>"),
        ("train-labels-idx1-ubyte", b""),
        ("train-labels-idx1-ubyte", idx(torch.full((5,), 77, dtype=torch.uint8))),
        ("train-labels-idx1-ubyte", idx(torch.zeros(4, dtype=torch.uint8))),
        ("train-images-idx3-ubyte", bytes((0, 0, 8, 3)) + b"\xff" * 12),
        ("train-images-idx3-ubyte", idx(torch.zeros(5, 8, 8, dtype=torch.uint8))),
        ("train-images-idx3-ubyte", bytes((0, 0, 8, 3)) + bytes(12)),
    ],
    ids=["html", "empty", "label 77", "too few", "absurd size", "8x8", "no images"],
)
def test_a_wrong_idx_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"{name} is damaged"):
        Mnist().load(str(tmp_path))


def test_garbage_that_calls_itself_gzip_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"garbage")
    with pytest.raises(UsageError, match=r"t10k-labels-idx1-ubyte\.gz is damaged.*does not unpack"):
        Mnist().load(str(tmp_path))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(UsageError, match="has no t10k-images-idx3-ubyte"):
        Mnist().load(str(tmp_path))


def test_a_missing_folder_says_where_it_looked_and_how_to_get_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"data/mnist, .*/usr/share/datasets/mnist.*download.*name its data folder"
    ):
        Mnist().load(None)
    with pytest.raises(UsageError, match=r"no folder /nowhere; .*apt-get install dataset-fashion-mnist"):
        FashionMnist().load("/nowhere")
    with pytest.raises(
        UsageError, match=r"data/cifar10/cifar-10-batches-bin.*binary version, not the Python one"
    ):
        Cifar10().load(None)
    with pytest.raises(UsageError, match=r"data/svhn.*housenumbers"):
        Svhn().load(None)


def test_cifar10_is_read_in_channel_planes_from_a_folder_or_the_one_inside_it(tmp_path: Path) -> None:
    inside = tmp_path / "cifar-10-batches-bin"
    inside.mkdir()
    write_cifar(inside)
    images = Cifar10().load(str(tmp_path))
    assert images.train.targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert images.test.targets.tolist() == [5, 5]
    assert images.train.inputs.shape == (10, 3, 32, 32)
    expected = [(1 - 0.4914) / 0.2470, -0.4822 / 0.2435, (128 / 255 - 0.4465) / 0.2616]
    assert images.train.inputs[0].mean(dim=(1, 2)).tolist() == pytest.approx(expected, abs=1e-4)
    assert images.train.inputs.is_contiguous()


@pytest.mark.parametrize(
    "content", [b"\x00" * 3072, b"", b"\x0a" + b"\x00" * 3072], ids=["short", "empty", "label 10"]
)
def test_a_damaged_cifar_file_is_named(tmp_path: Path, content: bytes) -> None:
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(UsageError, match=r"data_batch_3\.bin is damaged"):
        Cifar10().load(str(tmp_path))


def test_svhn_calls_its_tens_zero_and_keeps_rows_and_columns(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    images = Svhn().load(str(tmp_path))
    assert images.train.targets.tolist() == [0, 3]
    bright = (images.train.inputs > 0).nonzero().tolist()
    assert bright == [[0, 1, 4, 7]], "channels, rows or columns are mixed up"


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, None], ids=["empty", "garbage", "truncated"])
def test_a_damaged_svhn_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    write_svhn(tmp_path)
    victim = tmp_path / "test_32x32.mat"
    victim.write_bytes(victim.read_bytes()[:3000] if content is None else content)
    with pytest.raises(UsageError, match=r"test_32x32\.mat is damaged"):
        Svhn().load(str(tmp_path))


def test_svhn_without_scipy_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(UsageError, match=r"pip install 'paceline\[svhn\]'"):
        Svhn().load(str(tmp_path))


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="the Debian package is not installed"
)
def test_the_debian_package_of_fashion_mnist_is_found_by_default() -> None:
    images = FashionMnist().load(None)
    assert (len(images.train), len(images.test)) == (60_000, 10_000)
    assert images.train.targets.bincount().tolist() == [6000] * 10
    assert abs(images.train.inputs.mean()) < 0.01
    assert abs(images.train.inputs.std() - 1) < 0.01
