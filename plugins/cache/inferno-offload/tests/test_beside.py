"""Folders of other processes."""

from __future__ import annotations

from inferno.testing import StoreBesideTests


class TestBeside(StoreBesideTests):
    store = "offload"
