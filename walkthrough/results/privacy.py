"""What a text reveals of the machine, the user and the folders that it was made on: nothing to publish.

Texts for people in what is published hold the words of this project's own code, numbers and operators, nothing else:
a list of what is private is never complete. Traces for people's own use have paths and addresses taken out.
"""

import errno
import getpass
import json
import os
import platform
import re
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from walkthrough.results.environment import ROOT
from walkthrough.results.errors import printable

# Where a path may begin: not behind a letter ("images/s"), nor behind a slash ("https://pytorch.org/docs").
_BEGIN = r"(?:^|(?<=[\s\"'`=:,;|<>()\[\]{}])|(?<![\w.])\.{1,2})"
_TOP = "home|Users|root|tmp|mnt|media|var|etc|usr|opt|srv|run|proc|dev|data|work|workspace|scratch|Volumes|private"
_VARIABLE = r"(?:HOME|USER|USERNAME|LOGNAME|HOSTNAME|PWD|OLDPWD|PATH|SHELL|MAIL|(?:SSH|AWS|CONDA|SLURM|XDG)_\w+"
_VARIABLE += r"|VIRTUAL_ENV|LD_LIBRARY_PATH|PYTHONPATH|\w*(?:TOKEN|SECRET|PASSWORD|API_KEY))"

_PRIVATE = (
    rf"{_BEGIN}/(?:[\w.+~@-]+/[\w.+~@-]|(?:{_TOP})(?![\w-]))"  # /word/word, or a folder that every system has
    r"|file:/|(?<![A-Za-z0-9])[A-Za-z]:[\\/]+[\w.~$-]"  # C:\Users
    r"|\\\\[\w.?-]+\\[\w$.-]"  # \\server\share
    rf"|{_BEGIN}~[\w.-]*[/\\]\w",
    r"[\w.+-]{1,64}@[A-Za-z][\w.-]*",  # an address; a bound, else a long text takes for ever
    rf"(?<![\w.]){_VARIABLE}=\S",
)

REASON_LENGTH = 250  # characters of a reason, at most; no text of a record is longer than 300
_MARKS = str.maketrans("<>[]`|\\", "()()'//")

_CODE = ("walkthrough", "common", "steps", "labs", "studies")  # folders whose words may be in what is published
_WORD = re.compile(r"[^\s\"'`()\[\]{}<>=,;…|]+")
_UNIT = r"(?:[x%]|[kMGT]i?B|[mµn]?s|px|W|MHz)?"
_NUMBER = re.compile(
    rf"[~±-]?\d{{1,9}}(?:[.,]\d{{1,6}})?(?:e-?\d{{1,3}})?{_UNIT}(?:[-/x]\d{{1,9}}(?:\.\d{{1,6}})?{_UNIT})?"
    r"|\d{1,4}\.\d{1,4}\.\d{1,4}|20\d\d-\d\d-\d\d|[-+/*×·~±≤≥<>|&–—]"
    r"|(?:aten|prims|torchvision)::[a-z_][a-z0-9_]{0,60}"
    r"|SIG[A-Z]{2,6}|(?:CUDA|CUPTI|CUDNN|CUBLAS|NCCL|HIP|MIOPEN)_[A-Z_]{1,60}|[A-Z][A-Za-z]{2,30}(?:Error|Exception)"
)
_MANY_NUMBERS = re.compile(r"\d{3,}(?:[ -]\d{3,}){2,}")  # of a telephone or a card

# Names that say nothing of whose machine it is, and that traces use for things of their own.
_ANYBODY = {"localhost", "root", "user", "python", "cpu", "gpu", "cuda", "linux"}


def foreign_words(text: str) -> list[str]:
    """The words of a text that are neither in this project's code nor numbers or operators: names, paths, keys."""
    return [*_MANY_NUMBERS.findall(text), *(word for word in _WORD.findall(text) if not _is_own(word))]


@lru_cache(20_000)
def _is_own(word: str) -> bool:
    bare = word.strip(".:!?")
    return not bare or bare.lower() in _own_words() or _NUMBER.fullmatch(bare) is not None


@cache
def _own_words() -> frozenset[str]:
    """The words of this project's code, and of the system's own errors, in lower case."""
    words = {word.lower() for number in errno.errorcode for word in _WORD.findall(os.strerror(number))}
    for path in (path for folder in _CODE for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8").replace("\\", " ")
        words.update(word.strip(".:!?").lower() for word in [path.stem, *_WORD.findall(text)])
    return frozenset(words)


def reason(text: str, width: int = REASON_LENGTH) -> str:
    """Why something failed, for a file of a record, on one line of at most `width` characters.

    With "…" in the place of `foreign_words`, without a full stop at its end, and without marks of HTML and Markdown,
    which no text of a record may hold: errors of compilers and of CUDA name types in <>, shapes in [] and programs in
    ``.
    """
    text = _MANY_NUMBERS.sub("…", str(text).translate(_MARKS))
    text = _WORD.sub(lambda word: word[0] if _is_own(word[0]) else "…", text)
    return printable(text, width).rstrip(". ")


def scrubbed(value: Any) -> Any:
    """JSON whose texts are `redacted`: in traces, files of compiled kernels, which lie in a user's folder."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, list) else value


@lru_cache(100_000)
def redacted(text: str) -> str:
    """`text` with "…" for every word, up to a space or a quote, with a path, an address or a variable's value in it."""
    for pattern in _PRIVATE:
        text = re.sub(rf"(?:{pattern})[^\s'\"]*", "…", text)
    return text


def own_names() -> list[str]:
    """This machine's host name, the user's login and home folder, as far as they distinguish it from others."""
    names = {platform.node(), platform.node().split(".")[0]}
    with suppress(OSError, KeyError, ImportError, RuntimeError):  # a user without an entry, as in some containers
        names |= {getpass.getuser(), str(Path.home())}
    return sorted(name for name in names if len(name) > 1 and name.lower() not in _ANYBODY and not name.isdecimal())


def holds_name(content: bytes, name: str) -> bool:
    """Whether bytes hold a name as a word of its own, in capitals or not, as it is or as JSON writes it."""
    written = {name.encode(errors="replace"), json.dumps(name)[1:-1].encode()}
    pattern = b"|".join(map(re.escape, sorted(written)))
    return re.search(rb"(?<![\w-])(?:" + pattern + rb")(?![\w-])", content, re.IGNORECASE) is not None
