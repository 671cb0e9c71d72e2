"""The contract of keepers of sessions."""

from __future__ import annotations

from inferno.testing import SessionKeeperTests


class TestSession(SessionKeeperTests):
    keeper = "session"
    max_examples = 100
