"""The fixtures of the server's tests: an API is tested over the same fake model."""

from __future__ import annotations

from tests.server.conftest import client, handlers_are_read_once, live

__all__ = ["client", "handlers_are_read_once", "live"]
