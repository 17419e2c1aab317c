"""The small network that is the default on a CPU."""

import pytest
import torch

from common.model import TINY, TinyConvMixer, classifier
from walkthrough.results.errors import InputError


@pytest.mark.parametrize("size", [12, 65])
def test_it_gives_a_number_per_image_and_class_at_any_size_from_one_patch_on(size):
    model = classifier(TINY, size)
    assert isinstance(model, TinyConvMixer)
    assert model.training
    assert model(torch.randn(2, 3, size, size)).shape == (2, 10)


def test_its_parameters_are_those_of_its_layers():
    width, patch, depth, classes = 16, 12, 2, 10
    norm = 2 * width
    block = (9 * width + norm) + (width * width + norm)  # depthwise 3 x 3, pointwise
    by_hand = (3 * patch * patch * width + norm) + depth * block + (width * classes + classes)
    assert sum(parameter.numel() for parameter in TinyConvMixer().parameters()) == by_hand
    assert by_hand < 10_000
    wider = TinyConvMixer(classes=3, width=4, patch=16, depth=1)
    assert wider(torch.randn(2, 3, 32, 32)).shape == (2, 3)


def test_an_image_smaller_than_a_patch_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"^tiny_convmixer cannot take 7 px images .*: try --image-size 224$"):
        classifier(TINY, 7)


@pytest.mark.parametrize("name", ["googlenet", "vit_b_32"])
def test_any_torchvision_classifier_trains_on_ten_classes(name):
    model = classifier(name, image_size=64)
    output = model(torch.randn(2, 3, 64, 64))
    assert output.shape == (2, 10)
    assert model.training
    output.sum().backward()
