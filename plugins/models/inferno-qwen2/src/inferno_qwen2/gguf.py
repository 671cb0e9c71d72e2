"""How GGUF files of Qwen2 are named: as most. Imports no torch."""

from __future__ import annotations

from inferno.contracts import Dialect

QWEN2 = Dialect(architecture="qwen2")
