"""Which Host headers are answered: those of this machine, while TensorBoard serves this machine alone.

A website that a user visits can let its own name point to 127.0.0.1 ("DNS rebinding"): without this check its scripts
could read traces through the user's browser.
"""

import ipaddress
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

VARIABLE = "WALKTHROUGH_HOSTS"  # names that are answered besides, with commas; "*": every name


def host_of(header: str) -> str:
    """The host in a Host header, without port and brackets, in lower case."""
    header = header.strip().lower()
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return host.removesuffix(".")


def is_local(host: str) -> bool:
    """True for "localhost", 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_allowed(header: str, served: str | None, bind_all: bool, allowed: Iterable[str] = ()) -> bool:
    """True where a request with this Host header is answered.

    served: the value of --host, None without it. bind_all: whether --bind_all was given. allowed: names besides.
    Whoever has TensorBoard serve other machines has opened it deliberately: then every name is answered.
    """
    serves_others = bind_all or (bool(served) and not is_local(host_of(str(served))) and served != "::1")
    host, names = host_of(header), {name.strip().lower() for name in allowed}
    return serves_others or not host or is_local(host) or host in names or "*" in names


def guarded(app: "WSGIApplication", flags: Any) -> "WSGIApplication":
    """The same WSGI app; 403 and one line for other Host headers than `is_allowed`. flags: TensorBoard's, or None."""
    served, bind_all = getattr(flags, "host", None), bool(getattr(flags, "bind_all", False))

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Any:
        header = environ.get("HTTP_HOST", "")
        if is_allowed(header, served, bind_all, os.environ.get(VARIABLE, "").split(",")):
            return app(environ, start_response)
        return _refused(host_of(header), start_response)

    return answer


def _refused(host: str, start_response: Callable[..., Any]) -> list[bytes]:
    name = "".join(letter for letter in host if letter.isascii() and (letter.isalnum() or letter in ".-_"))[:100]
    text = (
        f"TensorBoard serves this machine alone and was asked as {name!r}: open it as localhost, or, where that name "
        f"is yours (a proxy of Jupyter or Colab), set {VARIABLE}={name} before you start TensorBoard.\n"
    ).encode()
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    start_response("403 Forbidden", [*headers, ("X-Content-Type-Options", "nosniff")])
    return [text]
