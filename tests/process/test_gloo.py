"""Ranks that exchange tensors through gloo, which always works."""

from __future__ import annotations

from inferno.testing.communicators import CommunicatorTests


class TestGloo(CommunicatorTests):
    communicator = "inferno.process.ranks.exchange:Gloo"
