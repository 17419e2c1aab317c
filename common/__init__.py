"""What every step shares: one data set, one model, one way to measure, and tools to read what was measured.

Importing it sets how OpenMP's threads wait for work, which torch reads when it is imported: asleep, where the user did
not choose. By default they spin, and beside any other busy process (a loader's worker, say) that takes the cores from
those that have work.
"""

import os

PASSIVE_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # OpenMP's own name, and GNU OpenMP's

if not PASSIVE_WAITING.keys() & os.environ.keys():
    os.environ.update(PASSIVE_WAITING)
