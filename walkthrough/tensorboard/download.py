"""A trace file as a download, as it lies there."""

import os
import stat
from pathlib import Path
from urllib.parse import quote

from werkzeug import wrappers
from werkzeug.wsgi import wrap_file

from walkthrough.results.errors import InputError


def download(request: wrappers.Request, path: Path) -> wrappers.Response:
    """The file, chunk by chunk. Raises InputError where it cannot be read, or is a link by now."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(path, flags), "rb")  # the server closes it
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror}") from error
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise InputError(f"cannot read {path.name}: no plain file")
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return wrappers.Response(
        wrap_file(request.environ, file),
        content_type="application/gzip" if gzipped else "application/json",
        headers={
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.name, errors='replace')}",
            "Content-Length": str(status.st_size),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache, must-revalidate",
        },
        direct_passthrough=True,
    )
