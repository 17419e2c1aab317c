"""The README.md of a recorded ladder, made from the files next to it and nothing else."""

from pathlib import Path

from walkthrough.compare import rounds
from walkthrough.compare.ladder import intervals, notes_of, page_table, summary
from walkthrough.compare.table import code, escaped
from walkthrough.records import header
from walkthrough.results import result
from walkthrough.results.errors import printable

FILE = "README.md"


def write_page(folder: str | Path) -> None:
    """Write the page into a record's folder, once there is a result in it."""
    if text := page(folder):
        result.write_whole(Path(folder) / FILE, text)


def page(folder: str | Path) -> str:
    """The page's text; "" for a folder without results. Raises InputError for a broken `record.json`."""
    folder = Path(folder)
    results, _ = result.read_results(folder)
    if not results:
        return ""
    ladder = rounds.ladders(results, rounds.recorded_rounds(folder, results))[0]
    settings = header.read_header(folder / header.FILE).settings
    base, environment = ladder.baseline, ladder.baseline.environment
    windows = len(base.samples_per_second.windows)
    precision = "" if settings.precision in (None, "auto") else f", --precision {settings.precision}"
    notes = notes_of(ladder)
    missing = result.steps_not_run(folder)
    lines = [
        f"# {escaped(base.model)}, {base.image_size} px, on {escaped(base.device)}",
        "",
        f"Trained on {base.data_label}, {settings.workers} workers from step 04 on, seed {settings.seed}{precision}. "
        f"{environment.cores} CPU cores ({escaped(environment.cpu)}), "
        f"torch {environment.torch}, Python {environment.python}"
        + (f", driver {environment.driver}" if environment.driver else "")
        + f". Started {base.started[:10]}, code at {environment.git or 'no known commit'}.",
        "",
        page_table(ladder),
        "",
        f"**{escaped(summary(ladder))}**",
        "",
        intervals(ladder),
        "",
        f"images/s: the median of all {windows} timed windows of a step, no profiler running; windows: their range,",
        "without a tenth of them at either end; rounds: runs of the step, interleaved with the other steps'. Trace,",
        "events: round 1.",
        *(["", *(f"- {escaped(note)}." for note in notes)] if notes else []),
        *([""] if missing else []),
        *(f"- {code(step.step)} was not run: {escaped(step.reason)}." for step in missing),
        "",
        "Written by `walkthrough record`; `walkthrough compare` prints it, `walkthrough record --check` verifies it.",
    ]
    return "\n".join(line if line.startswith("|") or "\n" in line else printable(line) for line in lines) + "\n"
