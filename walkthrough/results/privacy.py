"""What a file reveals of the machine, the user and the folders that it was made on: nothing to publish.

Names of kernels, operators and platforms ("Linux-6.18.44-x86_64-with-glibc2.36", "images/s", "CPU @ 1.90GHz",
"https://pytorch.org/docs") are no such thing.
"""

import getpass
import json
import platform
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from walkthrough.results.errors import printable

# Where a path may begin: not behind a letter ("images/s"), nor behind a slash ("https://pytorch.org/docs").
_BEGIN = r"(?:^|(?<=[\s\"'`=:,;|<>()\[\]{}])|(?<![\w.])\.{1,2})"
_TOP = "home|Users|root|tmp|mnt|media|var|etc|usr|opt|srv|run|proc|dev|data|work|workspace|scratch|Volumes|private"
_VARIABLE = r"(?:HOME|USER|USERNAME|LOGNAME|HOSTNAME|PWD|OLDPWD|PATH|SHELL|MAIL|(?:SSH|AWS|CONDA|SLURM|XDG)_\w+"
_VARIABLE += r"|VIRTUAL_ENV|LD_LIBRARY_PATH|PYTHONPATH|\w*(?:TOKEN|SECRET|PASSWORD|API_KEY))"

_HOME = r"~[\w.-]*[/\\]\w"

_PATTERNS = {
    "an absolute path": re.compile(
        rf"{_BEGIN}/(?:[\w.+~@-]+/[\w.+~@-]|(?:{_TOP})(?![\w-]))"  # /word/word, or a folder that every system has
        r"|file:/|(?<![A-Za-z0-9])[A-Za-z]:[\\/]+[\w.~$-]"  # C:\Users
        r"|\\\\[\w.?-]+\\[\w$.-]"  # \\server\share
        rf"|{_BEGIN}{_HOME}"
    ),
    "an address": re.compile(r"[\w.+-]{1,64}@[A-Za-z][\w.-]*"),  # a bound, else a long text takes for ever
    "an environment variable": re.compile(rf"(?<![\w.]){_VARIABLE}=\S"),
}
_IN_BYTES = _PATTERNS | {  # eight bytes of a number look like a@b, or like ~c-d\\5
    "an absolute path": re.compile(_PATTERNS["an absolute path"].pattern.replace(_HOME, rf"{_HOME}\w\w")),
    "an address": re.compile(r"[\w.+-]{1,64}@[A-Za-z][\w-]{0,63}\.[A-Za-z]{2}"),
}
_KEYS = re.compile(rf"(?i:host_?name|user_?name)|{_VARIABLE}")
_TEXT_IN_BYTES = re.compile(rb"[\x20-\x7e]{6,}")

REASON_LENGTH = 250  # characters of a reason, at most; no text of a record is longer than 300
_MARKS = str.maketrans("<>[]`|\\", "()()'//")

# Names that say nothing of whose machine it is, and that traces use for things of their own.
_ANYBODY = {"localhost", "root", "user", "python", "cpu", "gpu", "cuda", "linux"}


def private_texts(value: Any) -> list[str]:
    """What in `value` looks private, a line each: paths, addresses, environment variables, a key that names the host.

    value: JSON (all keys and values in it are looked at), a text, or bytes (the printable texts in them).
    """
    if isinstance(value, bytes):
        searched, patterns = {text.decode("ascii") for text in texts_in(value)}, _IN_BYTES
        keys = set()
    else:
        (searched, keys), patterns = texts(value), _PATTERNS
    lines = {f"the key {key!r}" for key in keys if _KEYS.fullmatch(key)}
    for text in searched | keys:
        for kind, pattern in patterns.items():
            if match := pattern.search(text):
                lines.add(f"{kind}: {text[match.start() : match.start() + 60]!r}")
    return sorted(lines)


def scrubbed(value: Any) -> Any:
    """JSON whose texts are `redacted`: in traces, files of compiled kernels, which lie in a user's folder."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, list) else value


@lru_cache(100_000)
def redacted(text: str) -> str:
    """`text` with "…" in place of every word, up to a space or a quote, in which something looks private."""
    for pattern in _PATTERNS.values():
        text = re.sub(rf"(?:{pattern.pattern})[^\s'\"]*", "…", text)
    return text


def reason(text: str, width: int = REASON_LENGTH) -> str:
    """Why something failed, for a file of a record: `redacted`, on one line of at most `width` characters.

    Without a full stop at its end, and without marks of HTML and Markdown, which no text of a record may hold: errors
    of compilers and of CUDA name types in <>, shapes in [] and programs in ``.
    """
    return printable(redacted(redacted(text).translate(_MARKS)), width).rstrip(". ")


def texts_in(content: bytes) -> list[bytes]:
    """The printable texts in bytes that are something else, each as bytes."""
    return _TEXT_IN_BYTES.findall(content)


def texts(value: Any) -> tuple[set[str], set[str]]:
    """The different texts in a JSON value, and the keys of its objects: two sets."""
    strings: set[str] = set()
    keys: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            strings.add(item)
        elif isinstance(item, dict):
            keys.update(item)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return strings, keys


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
