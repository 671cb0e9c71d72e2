"""The engine in a separate process: client, worker, and their protocol.

Importing the client loads no torch.
"""

from __future__ import annotations

from inferno.process.client import EngineClient, TokenStream
from inferno.process.heartbeat import ENGINE_TIMEOUT

__all__ = ["ENGINE_TIMEOUT", "EngineClient", "TokenStream"]
