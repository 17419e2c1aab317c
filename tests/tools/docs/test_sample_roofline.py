"""The roofline of a sample: its operators by kind, what they compute and move at least, and the table of both."""

import pytest

from tools.docs import others, sample_roofline
from tools.docs.sample_roofline import REST


def test_what_is_recorded_is_what_todays_torch_counts_of_the_model():
    recorded = others.read_samples().roofline
    assert {kind: tuple(counts) for kind, (_, *counts) in recorded.items()} == sample_roofline.counted()
    flops = sum(flops for _, flops, _ in recorded.values())
    multiply_adds = 4.089e9 * 32  # of ResNet-50's forward pass, as torchvision states it; no gradient of the images
    assert flops == pytest.approx(2 * (3 * multiply_adds - 118e6 * 32), rel=1e-3)


def test_each_kind_stands_beside_the_limit_that_takes_longer_and_the_rest_without_one():
    kinds: sample_roofline.Work = {
        "convolutions, matrix products": (20e3, 157_000_000_000, 900_000_000),  # 10 ms of arithmetic, 1 ms of memory
        "ReLU": (4e3, 0, 1_800_000_000),  # 2 ms of memory
        REST: (6e3, 0, 900_000_000),
    }
    text = sample_roofline.table(kinds)
    assert "| convolutions, matrix products | 20.0 | 157 | 0.9 | arithmetic | 10.0 | 50% |" in text
    assert "| ReLU | 4.0 | - | 1.8 | memory | 2.0 | 50% |" in text
    assert f"| {REST} | 6.0 |  |  |  |  |  |\n| all | 30.0 |  |  |  | 12.0 | 40% |" in text
    assert "157 GFLOP and 4 GB, 44 FLOPs per byte; the GPU's limits meet at 17, with Tensor Cores at 139." in text
