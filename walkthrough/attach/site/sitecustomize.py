"""Python imports this at its start below `walkthrough trace` and `time`, which put its folder on PYTHONPATH.

Standard library only: it runs in whatever Python the command runs, which need not be that of this project.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one():
    """Run the sitecustomize that would have been imported, had this one not come first."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "WALKTHROUGH_HOOK" in os.environ:
    try:
        importlib.import_module("walkthrough_hook").install()
    except Exception as error:  # the program must run whatever happens here
        print(f"walkthrough: cannot attach to this process: {error!r}", file=sys.stderr)
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
_run_the_hidden_one()
