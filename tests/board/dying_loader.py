"""A loader whose children die without an answer, as under an out-of-memory killer.

Its children import this module by name, so it imports no more than they need.
"""

import os

from common.board.loader import RunLoader


class DyingLoader(RunLoader):
    """The child of worker "dies" exits at once, that of worker "breaks" in the middle of its answer."""

    def _process_data(self, worker, span, path):
        if worker == "dies":
            os._exit(9)
        if worker == "breaks":
            os.write(self.queue.put.__self__.fileno(), b"\0\1\0\0" + b"x" * 1000)
            os._exit(9)
        super()._process_data(worker, span, path)
