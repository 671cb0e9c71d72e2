"""The fixtures of the server's tests: an API is tested over the same fake model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import client, client_of, handlers_are_read_once, live

__all__ = ["client", "distributions", "handlers_are_read_once", "live", "refusing"]


@pytest.fixture
def distributions() -> Sequence[str]:
    """All: what is sent to one API may be asked for by another."""
    return ()


@pytest.fixture(scope="module")
def refusing() -> Iterator[TestClient[Any]]:
    """One for many requests that change nothing, as they are refused."""
    with client_of() as client:
        yield client
