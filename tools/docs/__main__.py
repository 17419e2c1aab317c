"""`python -m tools.docs`: write the docs' tables and figures; with `--check`, only list those out of date."""

import sys
from collections.abc import Sequence

from tools.docs import pages
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, one_line_errors


@one_line_errors()
def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where `--check` finds files out of date, or where a page or a record is broken."""
    if words not in ([], ["--check"]):
        raise InputError(f"{' '.join(words)}: the only option is --check")
    changed = (pages.stale if words else pages.write)(pages.contents())
    names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
    if words and changed:
        raise InputError(f"out of date: {names}; run `make docs-figures`")
    print(f"written: {names}" if changed else "all tables and figures are up to date")


if __name__ == "__main__":
    main(sys.argv[1:])
