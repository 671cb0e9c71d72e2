"""Numpy computes the interpreter's small matrix products fastest in one thread. It reads the
variable when it is imported, so this has no effect beside other tests."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
