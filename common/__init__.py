"""What every step shares: one data set, one model, one way to measure, and tools to read what was measured.

Importing it sets how OpenMP's threads wait for work, which torch reads when it is imported: they spin for some
microseconds, then sleep, where the user did not choose. By default they spin for milliseconds, and beside any other
busy process (a loader's worker, say) that takes the cores from those that have work; threads that sleep at once have
to be woken for every operator, which on an idle machine takes longer than many operators do.
"""

import os

# OpenMP's own name, and GNU OpenMP's: rounds of a loop before a thread sleeps. `benchmarks/openmp_waiting.py` compares.
SHORT_SPIN = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

if not SHORT_SPIN.keys() & os.environ.keys():
    os.environ.update(SHORT_SPIN)
