"""What a process, here or on another machine, does of preprocessing: it makes one shard, whole or not at all.

Imports nothing but the standard library and `labs.scale.decoding`, so that Spark can send both to its workers.
"""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

from labs.scale.decoding import QUALITY, UNREADABLE, small_jpeg


def packed_shard(job: str) -> str:
    """Make one shard; returns what the index says of it, as JSON: name, samples, bytes, sha256, job (hashed).

    job: JSON of {"out": the folder, "name": the shard's file, "size": px, "of": the images' digest, "samples": [[key,
    label, path of the JPEG]]}. A shard that is there, whole and of the same job is not made again. {"failed": why}
    where a JPEG cannot be read or the shard not be written.
    """
    settings = json.loads(job)
    path = Path(settings.pop("out")) / settings["name"]
    entry_path = path.with_suffix(".json")
    of = hashlib.sha256(json.dumps([settings, QUALITY]).encode()).hexdigest()
    if (entry := _entry(entry_path)) and entry["job"] == of and is_whole(path, entry):
        return json.dumps(entry)
    try:
        content = _tar(settings["samples"], settings["size"])
        entry = {"name": path.name, "samples": len(settings["samples"]), **_sums(content), "job": of}
        _write(path, content)
        _write(entry_path, json.dumps(entry).encode())
    except UNREADABLE as error:
        return json.dumps({"failed": f"{path.name}: {error}"})
    return json.dumps(entry)


def is_whole(path: Path, entry: dict) -> bool:
    """Whether a shard's file is what its entry says: as long, and with the same SHA-256."""
    try:
        if path.stat().st_size != entry["bytes"]:
            return False
        return _sums(path.read_bytes()) == {"bytes": entry["bytes"], "sha256": entry["sha256"]}
    except OSError:
        return False


def _sums(content: bytes) -> dict[str, int | str]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _entry(path: Path) -> dict | None:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _tar(samples: list[tuple[str, int, str]], size: int) -> bytes:
    """A tar file as WebDataset reads it: KEY.jpg and KEY.cls for each sample; the same bytes whoever makes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, label, path in samples:
            for ending, content in (("jpg", small_jpeg(path, size)), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
