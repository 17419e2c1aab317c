"""Fixtures of the labs' tests."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def few_digits(monkeypatch):
    """In place of scikit-learn: 60 made-up greys of 8x8, a bright column for each label."""
    labels = np.arange(60) % 10
    images = np.random.default_rng(0).integers(0, 4, (60, 8, 8)).astype(float)
    images[np.arange(60), :, labels % 8] = 16
    module, package = ModuleType("sklearn.datasets"), ModuleType("sklearn")
    package.__spec__ = ModuleSpec("sklearn", None)
    module.load_digits = lambda return_X_y: (images.reshape(60, 64), labels)
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
