"""Tests run many small steps side by side: a second thread per step only waits for a core."""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported, here and in every process a test starts
