"""CIFAR-10 in its real format, and the stand-in that replaces it."""

import hashlib
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import SmallNet
from torchvision.datasets import CIFAR10

from common.data import StandIn, check_cifar10, cifar10, resized_float, resized_uint8
from walkthrough.results.errors import InputError


@pytest.fixture
def real_format(tmp_path, monkeypatch):
    """A folder with a small CIFAR-10 in the real pickle format, whose check sums torchvision is told to expect."""
    generator = np.random.default_rng(0)
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()

    def write(name, content):
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return hashlib.md5(raw).hexdigest()

    def batch(name):
        data = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        return write(name, {"batch_label": name, "data": data, "labels": list(range(10)) * 2, "filenames": ["x"] * 20})

    train = [[f"data_batch_{n}", batch(f"data_batch_{n}")] for n in range(1, 6)]
    test = [["test_batch", batch("test_batch")]]
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    meta = write("batches.meta", {"label_names": names})
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": meta})
    return tmp_path


def test_reads_cifar10_in_the_real_format(real_format):
    train = cifar10(real_format, transform=resized_uint8(32))
    assert train.source == "cifar10"
    assert len(train) == 100
    assert len(cifar10(real_format, train=False)) == 20
    images, label = train[3]
    raw = pickle.loads((real_format / CIFAR10.base_folder / "data_batch_1").read_bytes())
    assert label == raw["labels"][3]
    assert torch.equal(images, torch.from_numpy(raw["data"][3].reshape(3, 32, 32)))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("data_batch_3", Path.unlink, r"partial \(data_batch_3 missing\)"),
        ("data_batch_2", lambda path: path.write_bytes(b"not what it was"), "corrupt"),
        ("data_batch_2", lambda path: (path.unlink(), path.mkdir()), "CIFAR-10 in "),  # as root every file can be read
    ],
)
def test_cifar10_that_is_not_whole_is_refused_and_says_what_is_wrong(real_format, file, damage, message):
    damage(real_format / CIFAR10.base_folder / file)
    for check in (cifar10, check_cifar10):
        with pytest.raises(InputError, match=message):
            check(real_format)


def test_download_without_network_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:0/cifar-10-python.tar.gz")  # nobody listens there
    with pytest.raises(InputError, match="could not be downloaded"):
        cifar10(tmp_path / "data", download=True)
    assert list((tmp_path / "data").iterdir()) == []


def test_download_unpacks_an_archive_brought_by_hand_and_replaces_a_broken_copy(real_format, tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:0/cifar-10-python.tar.gz")
    archive = real_format / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(real_format / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    (real_format / CIFAR10.base_folder / "data_batch_2").write_bytes(b"broken")
    assert cifar10(real_format, download=True).source == "cifar10"
    assert sorted(path.name for path in real_format.iterdir()) == sorted([CIFAR10.filename, CIFAR10.base_folder])


@pytest.fixture(scope="module")
def stand_in():
    """The stand-ins for training and held out, as floats."""
    return StandIn(resized_float(32)), StandIn(resized_float(32), train=False)


def test_stand_in_has_the_shape_type_and_number_of_cifar10_and_says_so(tmp_path, capsys, stand_in):
    train, held_out = stand_in
    assert cifar10(tmp_path).source == train.source == "stand-in"
    printed = capsys.readouterr().out
    assert "STAND-IN" in printed
    assert "--download" in printed
    assert (train.data.shape, train.data.dtype) == ((50_000, 32, 32, 3), np.uint8)
    assert not train.data.flags.c_contiguous  # laid out as CIFAR-10's own, so that an item costs the same
    assert np.array_equal(train.data, cifar10(tmp_path).data)
    assert np.bincount(train.targets).tolist() == [5_000] * 10
    assert len(held_out) == 10_000
    assert not np.array_equal(train.data[:10_000], held_out.data)


def test_a_model_learns_the_stand_in_and_keeps_it_on_held_out_images(stand_in):
    torch.manual_seed(0)
    train, held_out = stand_in
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for images, labels in torch.utils.data.DataLoader(torch.utils.data.Subset(train, range(4_800)), batch_size=64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    images, labels = next(iter(torch.utils.data.DataLoader(held_out, batch_size=1_000)))
    with torch.no_grad():
        accuracy = (model.eval()(images).argmax(1) == labels).float().mean().item()
    assert accuracy > 0.5  # chance is 0.1


def test_transforms_agree_on_the_pixels(stand_in):
    image = Image.fromarray(stand_in[1].data[5])
    plain, normalised = resized_uint8(64)(image), resized_float(64)(image)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    assert plain.dtype == torch.uint8
    by_hand = (plain.float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(normalised, by_hand, rtol=1e-6, atol=1e-6)
