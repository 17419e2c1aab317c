"""Words of our own that a reader would have to decode stay out of code and pages; see CONTRIBUTING, "Words"."""

import re
import subprocess

from support import ROOT

# Each with what is written instead; in two parts, so that this file does not hold them itself.
REPLACED = {
    r"\bm" r"end(?:ed|s|ing)?\b": "fix, patch",
    r"\bcannot " r"act\b": "has no effect on this device",
    r"\bof the " r"floor\b": "% of limit",
    r"\bno " r"difference\b": "no measurable difference",
    r"\b(?:cannot be )?told " r"apart\b": "no measurable difference",
    r"\bnot " r"resolved\b": "no measurable difference; of a claim: inconclusive",
    r"\b(?:interval|it|that|should|which) hold" r"s? 1\b": "the interval includes 1",
    r"\btaken " r"in\b": "imported",
    r"\bturned " r"over\b": "converted (a layout)",
    r"\bhanded " r"(?:on|out)\b": "passed, yielded, allocated",
    r"\bms an " r"image\b": "ms per image",
    r"\bimages a " r"second\b": "images/s",
    r"\bpromis" r"(?:ed|es)\b": "predicted (upper bound)",
    r"\bsal" r"vage": "recovery",
    r"\blev" r"ers\b": "bottlenecks",
    r"\bload(?:s|ing)? in " r"(?:more )?processes\b": "use DataLoader workers",
    r"\bfind the " r"Python\b": "reduce Python overhead",
    r"\bgive each " r"launch\b": "use a bigger batch",
    r"\bdo not " r"synchroni[sz]e\b": "remove synchronisations",
    r"\bcopy the next " r"batch early\b": "prefetch on a side stream",
    r"\bgain " r"unknown\b": "the gain cannot be estimated here; measure it",
    r"\bmost " r"to gain\b": "biggest possible gain",
    r"\bto try " r"first\b": "try first",
    r"\bGPU that " r"waits for itself\b": "GPU stalls between launched kernels",
    r"\bsuch an? " r"one\b|\bsays " r"whose\b|\bbegins? " r"so\b": "subject, verb, object",
    r"\b\d+ (?:us|µs|ms|s) an? (?:image|" r"launch|step)\b": "per image, per launch",
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
