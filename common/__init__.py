"""What every step shares: one data set, one model, one way to measure.

Importing it sets how OpenMP's threads wait for work, which torch reads when it is imported: they spin for some
microseconds, then sleep, where the user did not choose. By default they spin for milliseconds, and alongside any other
busy process (a loader's worker, say) that takes the cores from those that have work; threads that sleep at once have
to be woken for every operator, which on an idle machine takes longer than many operators do.
"""

import os

from common.machine import SHORT_SPIN
from walkthrough.results.errors import one_line_errors as one_line_errors  # for programs

if not SHORT_SPIN.keys() & os.environ.keys():
    os.environ.update(SHORT_SPIN)
