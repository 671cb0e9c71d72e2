"""The HTTP server: OpenAI's endpoints over one AsyncLLM."""

from __future__ import annotations

from inferno.errors import AddressError
from inferno.server.app import create_app
from inferno.server.endpoints import FIELDS
from inferno.server.fields.support import Field
from inferno.server.serve import run_server

__all__ = ["FIELDS", "AddressError", "Field", "create_app", "run_server"]
