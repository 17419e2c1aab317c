"""labs/shared/images.py: data sets as tensors, by known answers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from labs.shared import images
from walkthrough.results.errors import InputError


def digits(root, **changes):
    return images.image_data("digits", root, 16, "speedrun", **changes)


def test_digits_are_split_once_by_class_each_time_the_same(few_digits, tmp_path):
    one, other = digits(tmp_path), digits(tmp_path)
    assert (len(one.train), len(one.test)) == (40, 20)
    assert torch.equal(one.test.images, other.test.images)
    assert one.test.labels.bincount().tolist() == [2] * 10
    own = {image.numpy().tobytes() for image in one.train.images}
    assert not own & {image.numpy().tobytes() for image in one.test.images}
    assert not one.mirrors


def test_folds_part_the_training_images_and_no_test_image_is_in_them(few_digits, tmp_path):
    whole = digits(tmp_path)
    held_out = [digits(tmp_path, fold=fold) for fold in range(images.FOLDS)]
    assert sum(len(fold.test) for fold in held_out) == len(whole.train)
    everything = torch.cat([fold.test.images for fold in held_out])
    assert {image.numpy().tobytes() for image in everything} == {
        image.numpy().tobytes() for image in whole.train.images
    }
    assert all(len(fold.train) + len(fold.test) == len(whole.train) for fold in held_out)


def test_what_is_prepared_has_mean_0_and_variance_1_and_its_size(few_digits, tmp_path):
    whole = digits(tmp_path)
    prepared, labels = whole.prepared(whole.train, torch.device("cpu"))
    assert prepared.shape == (40, 1, 16, 16)
    assert labels.dtype == torch.long
    stored = (whole.train.images.float() / 255 - whole.mean) / whole.std
    assert abs(stored.mean().item()) < 1e-5
    assert stored.std().item() == pytest.approx(1, abs=1e-3)


def test_a_folder_of_photographs_is_read_as_squares(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for name in ("church", "golf"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(np.full((40, 90, 3), 10 * number + 5, np.uint8)).save(folder / f"{number}.png")
    whole = images.image_data("imagenette", tmp_path, 32, "speedrun")
    assert whole.train.images.shape == (6, 3, images.FOLDER_SIZE, images.FOLDER_SIZE)
    assert whole.test.labels.tolist() == [0, 0, 1, 1]
    assert (whole.classes, whole.mirrors) == (2, True)
    (tmp_path / "val" / "golf" / "0.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"cannot read images from .*val"):
        images.image_data("imagenette", tmp_path, 32, "speedrun")


def test_labels_of_val_are_the_classes_of_train_and_others_are_refused(tmp_path):
    for name in ("train/ash", "train/birch", "train/cedar", "val/birch", "val/cedar"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    whole = images.image_data("imagenette", tmp_path, 8, "speedrun")
    assert (whole.train.labels.tolist(), whole.test.labels.tolist(), whole.classes) == ([0, 1, 2], [1, 2], 3)
    for name in ("birch", "cedar"):
        (tmp_path / "val" / name / "0.png").unlink()
    with pytest.raises(InputError, match=r"cannot read images from .*val.*no images"):
        images.image_data("imagenette", tmp_path, 8, "speedrun")
    (tmp_path / "val" / "elm").mkdir()
    with pytest.raises(InputError, match=r"val has a class elm, which .*train lacks"):
        images.image_data("imagenette", tmp_path, 8, "speedrun")


def test_cifar_is_read_channels_first(tmp_path, monkeypatch):
    arrays = np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3)
    monkeypatch.setattr(images, "holds_cifar10", lambda root: True)
    monkeypatch.setattr(images, "cifar10", lambda root, train=True: SimpleNamespace(data=arrays, targets=[3, 9]))
    whole = images.image_data("cifar10", tmp_path, 32, "speedrun")
    assert whole.train.images[1, 2, 5, 7] == arrays[1, 5, 7, 2]
    assert (whole.channels, whole.classes, whole.train.labels.tolist()) == (3, 10, [3, 9])


def test_a_folder_without_cifar10_says_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match=r"no CIFAR-10 in .*--download fetches it"):
        images.image_data("cifar10", tmp_path, 32, "speedrun")
    assert images.source_in(tmp_path, None, download=False) == "digits"
    assert images.source_in(tmp_path, None, download=True) == "cifar10"
