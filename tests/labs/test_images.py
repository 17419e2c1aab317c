"""labs/shared/images.py: data sets as tensors, by known answers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from labs.shared import images
from walkthrough.results.errors import InputError


def read(name, root, size=16, **changes):
    return images.image_data(name, root, size, "speedrun", **changes)


def contents(*parts):
    return sorted(image.numpy().tobytes() for part in parts for image in part.images)


def test_digits_are_split_once_by_class_each_time_the_same_and_folds_part_the_training_images(few_digits, tmp_path):
    whole, again = read("digits", tmp_path), read("digits", tmp_path)
    assert (len(whole.train), whole.mirrors) == (40, False)
    assert torch.equal(whole.test.images, again.test.images)
    assert whole.test.labels.bincount().tolist() == [2] * 10
    assert not {*contents(whole.train)} & {*contents(whole.test)}
    folds = [read("digits", tmp_path, fold=fold) for fold in range(images.FOLDS)]
    assert contents(*[fold.test for fold in folds]) == contents(whole.train)
    assert all(contents(fold.train, fold.test) == contents(whole.train) for fold in folds)


def test_what_is_prepared_has_mean_0_and_variance_1(few_digits, tmp_path):
    whole = read("digits", tmp_path, 8)  # as stored: nothing is interpolated
    prepared, _ = whole.prepared(whole.train, torch.device("cpu"))
    assert (prepared.mean().item(), prepared.std().item()) == pytest.approx((0, 1), abs=1e-3)


def test_a_folder_of_photographs_is_read_as_squares_with_the_classes_of_train(tmp_path):
    for name in ("train/ash", "train/birch", "train/cedar", "val/birch", "val/cedar"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(np.full((40, 90, 3), 15, np.uint8)).save(tmp_path / name / "0.png")
    whole = read("imagenette", tmp_path, 32)
    assert whole.train.images.shape == (3, 3, images.FOLDER_SIZE, images.FOLDER_SIZE)
    assert (whole.train.labels.tolist(), whole.test.labels.tolist()) == ([0, 1, 2], [1, 2])


def test_cifar_is_read_channels_first_and_one_that_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no CIFAR-10 in .*--download"):
        read("cifar10", tmp_path)
    arrays = np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3)
    monkeypatch.setattr(images, "holds_cifar10", lambda root: True)
    monkeypatch.setattr(images, "cifar10", lambda root, train=True: SimpleNamespace(data=arrays, targets=[3, 9]))
    whole = read("cifar10", tmp_path, 32)
    assert whole.train.images[1, 2, 5, 7] == arrays[1, 5, 7, 2] and whole.train.labels.tolist() == [3, 9]
