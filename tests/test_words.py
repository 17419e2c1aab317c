"""Words of our own that a reader would have to decode stay out of code and pages; see CONTRIBUTING, "Words"."""

import re
import subprocess

from support import ROOT

# Each with what is written instead; in two parts, so that this file does not hold them itself.
REPLACED = {
    r"\bm" r"end(?:ed|s|ing)?\b": "fix, patch",
    r"\bcannot " r"act\b": "has no effect on this device",
    r"\bof the " r"floor\b": "% of limit",
    r"\bno " r"difference\b": "~ and the interval",
    r"\btold " r"apart\b": "resolved",
    r"\btaken " r"in\b": "imported",
    r"\bturned " r"over\b": "converted (a layout)",
    r"\bhanded " r"(?:on|out)\b": "passed, yielded, allocated",
    r"\bms an " r"image\b": "ms per image",
    r"\bimages a " r"second\b": "images/s",
    r"\bpromis" r"(?:ed|es)\b": "predicted (upper bound)",
    r"\bsal" r"vage": "recovery",
    r"\blev" r"ers\b": "bottlenecks",
}


def test_code_and_pages_are_in_plain_technical_english():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    found = []
    for name in names:
        path = ROOT / name
        if name.startswith(("tests/data/", "CHANGELOG", "logs/")) or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern, instead in REPLACED.items():
            found += [f"{name}: {match[0]} -> {instead}" for match in re.finditer(pattern, text, re.IGNORECASE)]
    assert found == []
