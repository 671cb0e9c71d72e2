"""The engine in a process of its own: client, worker, and what they send each other.

Importing the client loads no torch.
"""

from __future__ import annotations

from inferno.process.client import EngineClient, TokenStream

__all__ = ["EngineClient", "TokenStream"]
