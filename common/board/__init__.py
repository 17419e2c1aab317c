"""What TensorBoard loads from this project, through the entry point group `tensorboard_plugins`.

`tensorboard` imports this module at its start and ends if that fails: so everything here is guarded, and what goes
wrong becomes one warning. Importing it also mends torch-tb-profiler (`profiler`), whichever of the two is loaded first.
"""

import logging

from tensorboard.plugins import base_plugin

log = logging.getLogger("walkthrough")

try:
    from common.board import profiler

    profiler.mend()
except Exception as error:  # whatever it is, TensorBoard must start
    log.warning("torch-tb-profiler is left as it is: %s: %s", type(error).__name__, error)


class Loader(base_plugin.TBLoader):
    """Gives TensorBoard the Walkthrough tab."""

    def load(self, context):
        try:
            from common.board.plugin import WalkthroughPlugin

            return WalkthroughPlugin(context)
        except Exception as error:
            log.warning("no Walkthrough tab: %s: %s", type(error).__name__, error)
            return None
