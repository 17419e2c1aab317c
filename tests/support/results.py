"""Hand-made results. Starts without torch."""

from pathlib import Path

from common import record


def make_result(step="00_baseline", windows=(100.0, 101.0, 102.0, 103.0, 104.0), **changes):
    """A `Result` made by hand."""
    values = dict(
        schema=2,
        step=step,
        device="Test GPU",
        device_type="cuda",
        model="mobilenet_v2",
        data="cifar10",
        image_size=224,
        batch_size=32,
        precision="float32",
        workers=0,
        pin_memory=False,
        world_size=1,
        first_step_seconds=1.5,
        samples_per_second=record.Throughput(sorted(windows)[len(windows) // 2], list(windows)),
        step_ms=record.StepTime(320.0, 310.0, 330.0),
        peak_memory_bytes=record.PeakMemory(2_510_000_000, 3_000_000_000),
        batch_bytes=19_267_840,
        trace="host.1.pt.trace.json.gz",
        notes=[],
        environment=record.Environment("2.11.0", "13.0", "580.1", "3.12.3", "Linux", "CPU", 16, "0123456789ab"),
        started="2026-01-01T00:00:00+00:00",
    )
    return record.Result(**(values | changes))


def write_run(logdir, result):
    """Put a hand-made result where a run would have."""
    folder = Path(logdir) / result.step
    folder.mkdir(parents=True, exist_ok=True)
    record.write_result(folder / record.FILE, result)
    return folder
