"""Made-up docstrings, and folders of packages that hold them."""

import random
from pathlib import Path

from labs.shared.docstrings import Docstring

NOUNS = (
    "array tensor graph file socket parser index buffer matrix stream schema cursor window kernel token record".split()
)
VERBS = "reads writes checks copies sorts merges splits closes opens counts drops keeps".split()


def made_up(package: str, number: int) -> Docstring:
    """A docstring's document: what is true of real ones, that a sentence of it resembles the summary, holds for it."""
    draw = random.Random(f"{package} {number}")

    def sentence(words: int) -> str:
        return " ".join(draw.choice(NOUNS if place % 2 else VERBS) for place in range(words)).capitalize() + "."

    sentences = tuple(sentence(draw.randint(9, 24)) for _ in range(4))
    summary = " ".join(draw.choice(sentences).rstrip(".").split()[:8]).capitalize() + "."
    return Docstring(package, summary, sentences)


def write_module(path: Path, text: Docstring) -> None:
    """Write a source file, and the folders above it, whose module has that docstring."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'"""{text.summary}\n\n{" ".join(text.sentences)}\n"""')
