"""What TensorBoard loads from this project, through the entry point group `tensorboard_plugins`.

TensorBoard imports this module when it starts, and exits if the import fails. So every failure here becomes one
warning. The import also patches torch-tb-profiler (see `profiler`), whichever of the two plugins is loaded first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:  # the plugin is imported in `load`, where its failure is caught
    from walkthrough.tensorboard.plugin import WalkthroughPlugin

log = logging.getLogger("walkthrough")

try:
    from walkthrough.tensorboard import profiler

    profiler.patch()
except Exception as error:  # whatever it is, TensorBoard must start
    log.warning("torch-tb-profiler is not patched: %s: %s", type(error).__name__, error)


class Loader(base_plugin.TBLoader):
    """Adds the Walkthrough tab to TensorBoard."""

    def load(self, context: base_plugin.TBContext) -> WalkthroughPlugin | None:
        """The plugin; None, with a warning in the log, where it cannot be created."""
        try:
            from walkthrough.tensorboard.plugin import WalkthroughPlugin

            return WalkthroughPlugin(context)
        except Exception as error:
            log.warning("no Walkthrough tab: %s: %s", type(error).__name__, error)
            return None
