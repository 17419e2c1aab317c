"""A record's files, read only where they are byte for byte as `record` writes them, and hold nothing but its texts."""

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from walkthrough.records import allowed
from walkthrough.results.errors import InputError, printable
from walkthrough.results.files import open_plain

LIMIT = 1_500_000  # bytes of a file: a record is committed, and a repository should stay quick to clone
UNPACKED_LIMIT = 40_000_000  # bytes of a trace's JSON: several times what a trace of `LIMIT` unpacks to
MARKUP = re.compile(r"[<>\[\]`|\\]")  # would be more than text on the pages that show the record


def read(path: Path) -> bytes:
    """A file's bytes. Raises InputError where there are more than `LIMIT`, OSError for a link or a pipe, say."""
    with open_plain(path) as file:
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise InputError(f"{path} is larger than {LIMIT / 1e6} MB")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that is written as `record` does, so that no key is there twice. Raises InputError."""
    value = parsed(path, read(path), indented)
    for text in allowed.texts(value):
        if printable(text, 300) != text or MARKUP.search(text):  # does more than be read, in a terminal or on a page
            raise InputError(f"{path} holds an odd text ({printable(text, 40)})")
    if wrong := next(allowed.wrong_texts(value), None):
        raise InputError(f"{path} holds {wrong}")
    return value


def indented(value: Any) -> str:
    """JSON's text as `record` writes results."""
    return json.dumps(value, indent=2) + "\n"


def compact(value: Any) -> str:
    """JSON's text as `record` writes traces."""
    return json.dumps(value, separators=(",", ":"))


def parsed(path: Path, text: bytes, written: Callable[[Any], str]) -> dict[str, Any]:
    """The object that JSON text holds; InputError unless `written(object)` is that very text."""

    def not_finite(literal: str) -> None:
        raise ValueError(f"{literal} is not a finite number")

    try:
        value = json.loads(text.decode(), parse_constant=not_finite)
        same = written(value).encode() == text
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else printable(error, 80)
        raise InputError(f"{path} is broken: not JSON ({why})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is broken: not an object")
    if not same:
        raise InputError(f"{path} is not as `record` writes it")
    return value


def unpacked(packed: bytes) -> bytes:
    """The bytes in one gzip member, at most `UNPACKED_LIMIT`, packed without a name or date. Raises InputError."""
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(packed, UNPACKED_LIMIT)
    except zlib.error as error:
        raise InputError(f"it is no gzip file, or damaged ({error})") from error
    if inflate.unconsumed_tail:
        raise InputError(f"it unpacks to more than {UNPACKED_LIMIT / 1e6:.0f} MB")
    if not inflate.eof or inflate.unused_data or packed[3:8] != bytes(5):
        raise InputError("it is cut off, or packed otherwise than `record` does")
    return text
