"""Which files a record holds: their names, their largest sizes, and what must be there."""

import re
from collections.abc import Iterable
from pathlib import Path

from walkthrough.records import header, page
from walkthrough.records.written import LIMIT
from walkthrough.results import result

STEP = "[0-9]{2}_[a-z0-9_]{1,60}"
FOLDER = re.compile(rf"{STEP}(/runs)?")
NO_PAGE = f"{page.FILE} is missing"
# Left by `record` and by studies: locks, times, what was not whole when a call was killed.
LEFT = re.compile(r"\.[a-z_]+\.(lock|json)|\.running(/.*)?|(.*/)?\.[^/]+\.[0-9]+\.partial")
LIMITS = {  # file name: bytes at most; the step's name is part of the names of its trace and events
    re.escape(header.FILE): 1_000_000,
    re.escape(page.FILE): 200_000,
    rf"{STEP}/{re.escape(result.FILE)}": 1_000_000,
    rf"{STEP}/{re.escape(result.NOT_RUN_FILE)}": 10_000,
    rf"{STEP}/runs/([1-9][0-9]?|100)\.json": 1_000_000,
    rf"({STEP})/\1\.[0-9]{{1,20}}\.pt\.trace\.json\.gz": LIMIT,
    rf"({STEP})/events\.out\.tfevents\.[0-9]{{1,20}}\.\1\.[0-9]{{1,20}}": 1_000_000,
}
STUDY_LIMIT = 1_000_000


def record_files(folder: Path) -> tuple[list[str], list[str]]:
    """(the names of a record's files, relative to `folder` and sorted; what else is there or missing, a text each)."""
    from studies import study

    names, problems, limits = [], [], LIMITS | dict.fromkeys(map(re.escape, study.files()), STUDY_LIMIT)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        limit = next((limit for pattern, limit in limits.items() if re.fullmatch(pattern, name)), None)
        if LEFT.fullmatch(name):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problems.append(f"{name} is a link or no regular file")
        elif path.is_dir():
            problems += [] if FOLDER.fullmatch(name) else [f"{name} is a folder that no record has"]
        elif limit is None:
            problems.append(f"{name} is no file of a record")
        elif path.stat().st_size > limit:
            problems.append(f"{name} is larger than {limit / 1e6} MB")
        else:
            names.append(name)
    return names, problems or [*missing(names), *(f"{step} holds no file" for step in empty_steps(folder, names))]


def empty_steps(folder: Path, names: Iterable[str]) -> list[str]:
    """The steps whose folders hold none of a record's files: a call was stopped before the first was whole."""
    folders = {path.name for path in folder.iterdir() if path.is_dir() and re.fullmatch(STEP, path.name)}
    return sorted(folders - {name.split("/")[0] for name in names})


def missing(names: Iterable[str]) -> list[str]:
    """What a whole record would hold besides these files, and what of them it holds once only; a text each."""
    names = sorted(names)
    steps = sorted({name.split("/")[0] for name in names if "/" in name})
    without = [step for step in steps if f"{step}/{result.NOT_RUN_FILE}" in names]
    problems = [] if header.FILE in names else [f"{header.FILE} is missing"]
    problems += [] if page.FILE in names else [NO_PAGE]
    if steps == without:
        problems.append("none of its steps was run" if steps else "it holds no step")
    for step in steps:
        own = [name.removeprefix(f"{step}/") for name in names if name.startswith(f"{step}/")]
        if step in without:
            problems += [
                f"{step}/{name} is there although {step} was not run" for name in own if name != result.NOT_RUN_FILE
            ]
        else:
            problems += _missing_of_step(step, own)
    return problems


def _missing_of_step(step: str, names: list[str]) -> list[str]:
    problems = []
    for kind, pattern in (
        (result.FILE, re.escape(result.FILE)),
        ("trace", r".*\.pt\.trace\.json\.gz"),
        ("TensorBoard event file", r"events\..*"),
    ):
        count = sum(re.fullmatch(pattern, name) is not None for name in names)
        if count != 1:
            problems.append(f"{step} has {count or 'no'} {kind}{'s, not one' if count else ''}")
    runs = {int(Path(name).stem) for name in names if name.startswith("runs/")}
    absent = sorted(set(range(1, max(runs, default=1) + 1)) - runs)
    return problems + [f"{step}/runs/{number}.json is missing" for number in absent]
