"""Options of a small --quick run on a CPU. Starts without torch."""

from pathlib import Path
from typing import Any

from common.options import StepOptions
from walkthrough.results.environment import ROOT


def small_options(logdir: Path = Path("/nowhere"), **changes: Any) -> StepOptions:
    """Without loader workers and, unless `changes` say otherwise, without CIFAR-10."""
    values = {
        "logdir": logdir, "device": "cpu", "data": ROOT / "data", "download": False, "model": "tiny_convmixer",
        "image_size": 32, "batch_size": 4, "workers": 0, "precision": "auto", "seed": 0, "quick": True, "stacks": False,
    }  # fmt: skip
    return StepOptions(**{**values, **changes})
