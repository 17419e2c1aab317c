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
