"""What each program reaches, written into its head from a study: `python labs/speedrun/heads.py [STUDY.JSON]`.

Without a name, from the recorded study; a test holds that the heads are those of that. `--check` only compares.
"""

import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from labs.shared.study import FILE
from walkthrough.compare.study import Study, read
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, exit_in_one_line

HERE = Path(__file__).parent
RECORDED = ROOT / "logs" / "reference" / "labs" / "speedrun" / FILE
UNKNOWN = "not recorded yet: `python labs/speedrun/study.py`"
LABEL, WIDTH = "Reaches    ", 120
_REACHES = re.compile(r"^Reaches .*?(?=^Idea )", re.MULTILINE | re.DOTALL)


def programs() -> list[Path]:
    """The numbered programs of this lab, in order."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def claim(program: str, study: Study | None) -> str:
    """What a program reaches, in words: accuracy, time, in how many races, on what."""
    row = next((row for row in study.tables["ladder"] if row["program"] == program), None) if study else None
    if study is None or row is None:
        return UNKNOWN
    setting = study.tables["setting"][0]
    target, seconds = f"{setting['target %']:g} % of {setting['data']}", row["s to target"]
    end = row["accuracy at the end %"]["mean"]
    when = f"in {seconds:.3g} s" if seconds is not None else "not in half of its races"
    on_cpu = study.device == study.environment.cpu
    cores = f", {study.environment.cores} CPU cores" if on_cpu else ""
    return (
        f"{target} {when} (median of {row['races']} races, {row['reached it']} reached it), {end:.1f} % at the end, on "
        f"{study.device}{cores}{' (smoke run)' if study.quick else ''}"
    )


def with_head(text: str, reaches: str) -> str:
    """A program's text that claims what it reaches. Raises InputError where it has no place for that."""
    words = textwrap.fill(
        reaches, WIDTH, initial_indent=LABEL, subsequent_indent=" " * len(LABEL), break_on_hyphens=False
    )
    new, count = _REACHES.subn(lambda _: f"{words}\n", text, count=1)
    if not count:
        raise InputError("a program's docstring has no `Reaches` before `Idea`")
    return new


def recorded(path: Path = RECORDED) -> Study | None:
    """The recorded study; None where there is none."""
    return read(path) if path.exists() else None


def main(words: Sequence[str]) -> None:
    """Exit code 2 with one line where `--check` finds heads out of date."""
    exit_in_one_line()
    names = [word for word in words if word != "--check"]
    if len(names) > 1 or any(name.startswith("-") for name in names):
        raise InputError("give one study.json at most, and --check")
    study = read(names[0]) if names else recorded()
    changed = {}
    for path in programs():
        old = path.read_text(encoding="utf-8")
        new = with_head(old, claim(path.stem, study))
        if new != old:
            changed[path] = new
    listed = ", ".join(path.stem for path in changed)
    if changed and "--check" in words:
        raise InputError(f"out of date: {listed}; run `python labs/speedrun/heads.py`")
    for path, text in changed.items():
        result.write_whole(path, text)
    print(f"written: {listed}" if changed else "all heads are up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
