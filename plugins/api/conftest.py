"""The fixtures of the server's tests: an API is tested over the same fake model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.server.conftest import client, handlers_are_read_once, live

__all__ = ["client", "distributions", "handlers_are_read_once", "live"]


@pytest.fixture
def distributions() -> Sequence[str]:
    """All: what is sent to one API may be asked for by another."""
    return ()
