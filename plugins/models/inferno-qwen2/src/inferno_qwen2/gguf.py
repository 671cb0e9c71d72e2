"""The GGUF dialect of Qwen2: the defaults. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

QWEN2 = Dialect(architecture="qwen2", constants={"model_type": "qwen2"})
