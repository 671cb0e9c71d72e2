"""The catalog in which declarations are tested."""

from __future__ import annotations

import pytest

from inferno.catalog import Catalog
from inferno.testing.tiny import installed


class Installed:
    """Tests that use the catalog of all installed plugins."""

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return installed()
