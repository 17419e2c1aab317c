"""What TensorBoard loads from this project, through the entry point group `tensorboard_plugins`.

TensorBoard imports this module when it starts, and exits if that fails. So every failure here becomes one warning.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorboard.plugins.base_plugin import TBContext, TBLoader

    from walkthrough.tensorboard.plugin import WalkthroughPlugin

log = logging.getLogger("walkthrough")
PROFILER_VERSION = "0.4.3"  # the last release of torch-tb-profiler, and the only one that is patched


class NotPatched(Exception):
    """Why torch-tb-profiler is left unpatched."""


def patch_profiler() -> None:
    """Patch torch-tb-profiler. Raises NotPatched where it is not installed, or another version is."""
    from importlib import metadata  # slow, and the children do without it

    try:
        installed = metadata.version("torch-tb-profiler")
    except metadata.PackageNotFoundError as error:
        raise NotPatched("it is not installed: no profiler tab") from error
    if installed != PROFILER_VERSION:
        raise NotPatched(f"version {installed} is installed, only {PROFILER_VERSION} can be patched")
    from walkthrough.tensorboard import profiler_plugin

    profiler_plugin.patch()


@cache
def _loader() -> type[TBLoader]:
    from tensorboard.plugins.base_plugin import TBLoader

    class Loader(TBLoader):
        """Adds the Walkthrough tab to TensorBoard."""

        def load(self, context: TBContext) -> WalkthroughPlugin | None:
            """The plugin; None, with a warning in the log, where it cannot be created."""
            try:
                from walkthrough.tensorboard.plugin import WalkthroughPlugin

                return WalkthroughPlugin(context)
            except Exception as error:
                log.warning("no Walkthrough tab: %s: %s", type(error).__name__, error)
                return None

    try:
        patch_profiler()
    except Exception as error:  # whatever it is, TensorBoard must start
        log.warning("torch-tb-profiler is not patched: %s: %s", type(error).__name__, error)
    return Loader


def __getattr__(name: str) -> type[TBLoader]:
    """`Loader`, the entry point: TensorBoard looks it up before it creates any plugin, so that is when to patch.

    The children, which import modules of this package too, do not ask for it and stay small.
    """
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _loader()
