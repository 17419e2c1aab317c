"""What several tests share: programs that are run, small models, hand-made results."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from torch import nn

from common import record
from support.results import make_result, write_run  # noqa: F401  # for tests to import from here

ROOT = Path(__file__).resolve().parents[2]
STEPS = sorted((ROOT / "steps").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in STEPS]


def run_program(*command, cwd=None, **environment):
    """Run a program with this Python; returns the finished process, output as text."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        timeout=1200,
        check=False,
    )


def listen_to_ctrl_c():
    """For `preexec_fn`: a program started by one that ignores SIGINT, as shells start background jobs, would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def assert_refused(finished, *words):
    """Exit code 2, one line on stderr that holds `words`, no traceback."""
    assert finished.returncode == 2, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("[W")]  # torch's own C++ warnings
    assert len(lines) == 1, finished.stderr
    for word in words:
        assert word in lines[0]


class SmallNet(nn.Module):
    """A classifier small enough to train in a test; `seen` keeps the last images it was given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        self.seen = None

    def forward(self, images):
        self.seen = images.detach().clone()
        return self.layers(images)


def make_limit(**changes):
    """A `Limit` made by hand, of the device that `make_result` names."""
    from common.studies.limit.record import Floor, Group, Limit, Peak, Uncounted, WithoutFormula

    values = dict(
        schema=1, device="Test GPU", device_type="cuda", model="mobilenet_v2", image_size=224, batch_size=4,
        precision="bfloat16", seed=0, forward_flops_per_image=10**6, flops_per_step=12 * 10**6, bytes_per_step=10**6,
        peak_flops=[Peak("8 x 8", 1e9, [1e9])], peak_bytes=[Peak("1 MiB copied", 1e8, [1e8])],
        floors=[
            Floor("uncompiled", record.Throughput(200.0, [190.0, 200.0, 210.0]), record.StepTime(20.0, 19.0, 21.0),
                  6e8, 0.6, 5e7),
            Floor("compiled", record.Throughput(400.0, [400.0]), record.StepTime(10.0, 9.0, 11.0), 1.2e9, 1.2, None),
        ],
        not_compiled=None,
        groups=[Group("convolution", 3, 10**7, 10**6, 0, 15.0), Group("elementwise", 5, None, 10**5, 10**4, 5.0)],
        outside_ms=1.0, without_formula=WithoutFormula([Uncounted("aten::add_", 5)], 0.6, 0.25), notes=[],
        environment=make_result().environment, started="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return Limit(**(values | changes))
