"""The text of `explain` on what `walkthrough trace` wrote beside the events."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from walkthrough.advice import wording
from walkthrough.advice.summary import Summary


def print_recording(summary: Summary, to: Console) -> None:
    """What the program itself knew when it was traced, in at most three lines; nothing for traces from elsewhere."""
    for line in wording.recorded(summary):
        to.print(Padding(Text(line, "dim"), (0, 0, 0, 2), expand=False))
