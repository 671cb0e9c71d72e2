"""The HTTP server: OpenAI's endpoints over one AsyncLLM, and those of plugins."""

from __future__ import annotations

from inferno.errors import AddressError
from inferno.server.app import create_app
from inferno.server.options import ServerOptions
from inferno.server.serve import run_server

__all__ = ["AddressError", "ServerOptions", "create_app", "run_server"]
