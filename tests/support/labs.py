"""What tests of several labs share."""

from pathlib import Path
from typing import Any

from common.options import StepOptions


def lab_options(folder: Path, **changes: Any) -> StepOptions:
    """Options of a small --quick run on a CPU, without loader workers; its logs and data are in one folder."""
    values = {
        "logdir": folder, "device": "cpu", "data": folder, "download": False, "model": "w8", "image_size": 16,
        "batch_size": 8, "workers": 0, "precision": "fp32", "seed": 0, "quick": True, "stacks": False,
    }  # fmt: skip
    return StepOptions(**{**values, **changes})
