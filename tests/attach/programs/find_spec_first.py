"""Asks whether torch is there before it imports it, as transformers does; then changes its folder."""

import importlib.util
import os
import tempfile

assert importlib.util.find_spec("torch") is not None
os.chdir(tempfile.gettempdir())

import trainings  # noqa: E402

trainings.Training()(10)
